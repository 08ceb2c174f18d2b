"""Making the requests of an exchange: one at a time, to the addresses that were judged, within a time.

Redirects are not followed: each would be a new decision about a new address, and a delivery has no business moving.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer
from hermes_worker.net.urls import HttpUrl, SafeUrl, UrlPolicy, check_addresses, parse_http_url

CONNECT_S = 10.0
TOTAL_S = 60.0
"""Longest time of one request, in seconds. A server that sends a byte a second does not hold a worker longer than this.
"""
BODY_BYTES_MAX = 4_000_000
_PIECE_BYTES = 65_536


def make_sender(policy: UrlPolicy, *, total_s: float = TOTAL_S) -> Callable[[HttpRequest], HttpResponse]:
    """Build a function that makes one request under ``policy``. It raises ``NoAnswer`` and ``UnsafeUrl``."""
    return lambda request: send(request, policy, total_s=total_s)


def send(
    request: HttpRequest, policy: UrlPolicy, *, total_s: float = TOTAL_S, body_bytes_max: int = BODY_BYTES_MAX
) -> HttpResponse:
    """Make one request; what goes beyond ``body_bytes_max`` is not read. Raises ``NoAnswer`` when there is no response,
    ``UnsafeUrl`` when it must not be made."""
    with open_response(request, policy, total_s=total_s) as response:
        return HttpResponse(status=response.status, headers=response.headers, body=response.read(body_bytes_max))


@contextmanager
def open_response(request: HttpRequest, policy: UrlPolicy, *, total_s: float = TOTAL_S) -> Iterator[OpenResponse]:
    """Make one request, and read a part of its body within the block and within ``total_s``. The connection ends with
    the block. Raises ``NoAnswer`` when there is no response, ``UnsafeUrl`` when the request must not be made."""
    target = parse_http_url(request.url)
    judged = SafeUrl(target=target, addresses=check_addresses(target, _resolve(target), policy))
    connection = _PinnedConnection(judged)
    cut = threading.Timer(total_s, connection.cut)
    cut.daemon = True
    try:
        try:
            connection.connect()
        except OSError as error:
            reason = f"no connection to {target.host}: {type(error).__name__}"
            raise NoAnswer(reason, was_sent=False) from None
        cut.start()
        yield _send_request(connection, request)
    finally:
        cut.cancel()
        connection.close()


class OpenResponse:
    """An answer so far: the status, the headers in lower case, and a body that may not have ended."""

    def __init__(self, connection: _PinnedConnection, response: http.client.HTTPResponse) -> None:
        self._connection = connection
        self._response = response
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    def iterate_body(self) -> Iterator[bytes]:
        """The body as it comes, to its end. Raises ``NoAnswer``."""
        while piece := self._read_piece(_PIECE_BYTES):
            yield piece

    def read(self, bytes_max: int) -> bytes:
        """The body, or its beginning. Raises ``NoAnswer``."""
        body = bytearray()
        while len(body) < bytes_max and (piece := self._read_piece(min(_PIECE_BYTES, bytes_max - len(body)))):
            body += piece
        return bytes(body)

    def _read_piece(self, most: int) -> bytes:
        with _translate_errors(self._connection):
            return self._response.read1(most)


def open_connection(target: HttpUrl, policy: UrlPolicy, *, is_tls: bool | None = None) -> socket.socket:
    """A socket to one of the judged addresses of ``target``; with TLS where its scheme says so, unless ``is_tls`` is
    false. Raises ``NoAnswer``, ``UnsafeUrl``."""
    judged = SafeUrl(target=target, addresses=check_addresses(target, _resolve(target), policy))
    try:
        return _connect_any(judged, is_tls=target.scheme == "https" if is_tls is None else is_tls)
    except OSError as error:
        raise NoAnswer(f"no connection to {target.host}: {type(error).__name__}", was_sent=False) from None


def _connect_any(judged: SafeUrl, *, is_tls: bool) -> socket.socket:
    """Connect to the first address that answers. Raises ``OSError``."""
    last: OSError = OSError("no address")
    for address in judged.addresses:
        try:
            plain = socket.create_connection((address, judged.target.port), timeout=CONNECT_S)
            plain.settimeout(TOTAL_S)
            return _wrap_tls(plain, judged.target.host) if is_tls else plain
        except OSError as error:
            last = error
    raise last


def _wrap_tls(plain: socket.socket, host: str) -> socket.socket:
    try:
        return ssl.create_default_context().wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def _send_request(connection: _PinnedConnection, request: HttpRequest) -> OpenResponse:
    parts = urlsplit(request.url)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    with _translate_errors(connection):
        connection.request(request.method, path, body=request.body or None, headers=dict(request.headers))
        return OpenResponse(connection, connection.getresponse())


@contextmanager
def _translate_errors(connection: _PinnedConnection) -> Iterator[None]:
    """Turn errors of the block into ``NoAnswer``."""
    try:
        yield
        if connection.was_cut:
            # The library takes the end of a connection for the end of the headers, and of a body without a length.
            raise TimeoutError
    except (OSError, http.client.HTTPException, ValueError) as error:
        # The library's error about a connection that we cut does not say that the time was up.
        what = TimeoutError.__name__ if connection.was_cut else type(error).__name__
        raise NoAnswer(f"{connection.host} did not answer: {what}", was_sent=True) from None


def _resolve(target: HttpUrl) -> list[str]:
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise NoAnswer(f"the host {target.host} does not resolve", was_sent=False) from None
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class _PinnedConnection(http.client.HTTPConnection):
    """Connects to the judged addresses and to no other; the name is used for TLS and the Host header."""

    def __init__(self, judged: SafeUrl) -> None:
        super().__init__(judged.target.host, judged.target.port, timeout=CONNECT_S)
        self._judged = judged
        self._opened: socket.socket | None = None
        self.was_cut = False
        self.default_port = 443 if judged.target.scheme == "https" else 80

    def connect(self) -> None:
        self.sock = self._opened = _connect_any(self._judged, is_tls=self._judged.target.scheme == "https")

    def cut(self) -> None:
        """End every wait for the server. ``self.sock`` is gone by then if the answer ends with the connection."""
        if self._opened is None:
            return
        self.was_cut = True
        try:
            self._opened.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it ended by itself
