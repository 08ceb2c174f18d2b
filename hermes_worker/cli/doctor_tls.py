"""What is wrong with a server's certificate: an authority that is not trusted here, an intercepting proxy, a time that
has passed, or a wrong clock. Each is mended elsewhere, so each has a name."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum

PATIENCE_S = 3.0
SKEW_S = 300.0
"""Seconds by which a clock may differ; more means that it is wrong."""
_EXPIRED, _NOT_YET = 10, 9
_UNKNOWN_ISSUER = frozenset({2, 18, 19, 20, 21})
_WRONG_HOST = frozenset({62, 63, 64})
"""Results of X509_verify_cert (openssl/x509_vfy.h)."""


class TlsProblem(StrEnum):
    """The problem that keeps a connection from being trusted."""

    CUSTOM_AUTHORITY = "custom_authority"
    INTERCEPTED = "intercepted"
    EXPIRED = "expired"
    NOT_YET_VALID = "not_yet_valid"
    CLOCK_SKEW = "clock_skew"
    WRONG_HOST = "wrong_host"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFinding:
    """A problem found at an address, and what to change."""

    problem: TlsProblem
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shown:
    """The certificate that a server shows, whether trusted or not, and the server's time."""

    issuer: str
    begins: float
    ends: float
    now: float | None


def find_tls_problem(
    host: str,
    port: int = 443,
    *,
    server_name: str | None = None,
    is_public: bool,
    clocks: Sequence[float] = (),
) -> TlsFinding | None:
    """Find what is wrong with the certificate at ``host``; ``None`` when it is trusted. ``is_public`` for a service
    whose certificate is from a widely trusted authority: another issuer is an intercepting proxy. ``clocks`` are the
    times of other clocks, such as the database's. Takes at most about three times ``PATIENCE_S``. Raises ``OSError``
    where the host does not answer."""
    name = server_name or host
    try:
        _connect(host, port, name, ssl.create_default_context()).close()
    except ssl.SSLCertVerificationError as error:
        return _name_problem(error, name, _read_certificate(host, port, name), is_public=is_public, clocks=clocks)
    except ssl.SSLError as error:
        return TlsFinding(problem=TlsProblem.OTHER, text=f"{name} does not speak TLS as expected ({error.reason})")
    return None


def _name_problem(
    error: ssl.SSLCertVerificationError, name: str, shown: _Shown, *, is_public: bool, clocks: Sequence[float]
) -> TlsFinding:
    code = error.verify_code
    if code in (_EXPIRED, _NOT_YET):
        return _name_time_problem(name, shown, clocks, is_over=code == _EXPIRED)
    if code in _WRONG_HOST:
        text = f"the certificate that {name} shows is for another name; correct the address, or have it issued anew"
        return TlsFinding(problem=TlsProblem.WRONG_HOST, text=text)
    if code in _UNKNOWN_ISSUER and is_public:
        text = (
            f"somebody between here and {name} shows a certificate of their own, issued by {shown.issuer!r}: an "
            "intercepting proxy. If it is your organisation's, name its authority in SSL_CERT_FILE; if not, do not send"
            " a key"
        )
        return TlsFinding(problem=TlsProblem.INTERCEPTED, text=text)
    if code in _UNKNOWN_ISSUER:
        text = (
            f"the certificate of {name} is issued by {shown.issuer!r}, which this machine does not trust: name the "
            "file of that authority in SSL_CERT_FILE"
        )
        return TlsFinding(problem=TlsProblem.CUSTOM_AUTHORITY, text=text)
    return TlsFinding(problem=TlsProblem.OTHER, text=f"{name}: {error.verify_message}")


def _name_time_problem(name: str, shown: _Shown, clocks: Sequence[float], *, is_over: bool) -> TlsFinding:
    """Decide by the clocks of other machines whether the certificate's dates or this machine's clock is wrong."""
    here = time.time()
    told = [clock for clock in (*clocks, shown.now) if clock is not None]
    right = next((clock for clock in told if shown.begins <= clock <= shown.ends and abs(clock - here) > SKEW_S), None)
    if right is not None:
        way = "ahead" if here > right else "behind"
        text = (
            f"the clock of this machine is {abs(here - right) / 3600:.1f} hours {way}: by the clock of others the "
            f"certificate of {name} is valid. Set the clock (NTP)"
        )
        return TlsFinding(problem=TlsProblem.CLOCK_SKEW, text=text)
    if is_over:
        text = f"the certificate of {name} expired on {_format_day(shown.ends)}; have it issued anew"
        return TlsFinding(problem=TlsProblem.EXPIRED, text=text)
    text = (
        f"the certificate of {name} is not valid before {_format_day(shown.begins)}; wait for that "
        "or have it issued anew"
    )
    return TlsFinding(problem=TlsProblem.NOT_YET_VALID, text=text)


def _format_day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _connect(host: str, port: int, name: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    plain = socket.create_connection((host, port), timeout=PATIENCE_S)
    try:
        return context.wrap_socket(plain, server_hostname=name)
    except BaseException:
        plain.close()
        raise


def _read_certificate(host: str, port: int, name: str) -> _Shown:
    """Read the server's certificate without trusting it, and send only ``HEAD /``: no key goes there."""
    from cryptography import x509

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with _connect(host, port, name, context) as connection:
        found = connection.getpeercert(binary_form=True)
        assert found is not None  # the library's type: a server always shows one
        read = x509.load_der_x509_certificate(found)
        now = _read_server_time(connection, name)
    names = read.issuer.rfc4514_string()
    issuer = "".join(character if character.isprintable() else "?" for character in names)[:200]
    return _Shown(
        issuer=issuer, begins=read.not_valid_before_utc.timestamp(), ends=read.not_valid_after_utc.timestamp(), now=now
    )


def _read_server_time(connection: ssl.SSLSocket, name: str) -> float | None:
    """Read the ``Date`` of an answer."""
    with suppress(OSError, ValueError, TypeError):
        connection.sendall(f"HEAD / HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode("ascii"))
        answer = b""
        until = time.monotonic() + PATIENCE_S
        while b"\r\n\r\n" not in answer and len(answer) < 16_384 and time.monotonic() < until:
            if not (more := connection.recv(4_096)):
                break
            answer += more
        for line in answer.decode("latin-1").split("\r\n"):
            if line.lower().startswith("date:"):
                return parsedate_to_datetime(line[5:].strip()).timestamp()
    return None
