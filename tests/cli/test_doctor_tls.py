"""What ``doctor`` says of a certificate: real TLS servers with certificates that a test makes."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme

from hermes_worker.cli.doctor_tls import TlsProblem, find_tls_problem

DAY = timedelta(days=1)


@contextmanager
def served(
    issuer: trustme.CA, *, ends: datetime, begins: datetime, name: str = "localhost", says: float
) -> Iterator[int]:
    """A server whose clock ``says`` that time; gives its port."""
    issued = issuer.issue_cert(name, not_before=begins, not_after=ends)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    issued.configure_cert(context)
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(plain, server_side=True) as connection:
                    connection.recv(4_096)
                    connection.sendall(f"HTTP/1.1 200 OK\r\nDate: {formatdate(says, usegmt=True)}\r\n\r\n".encode())
            except OSError:
                plain.close()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


@pytest.fixture
def issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """An authority that this machine trusts."""
    made = trustme.CA(organization_name="Trusted Here")
    made.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return made


CASES = {
    "in order": (-DAY, DAY, timedelta(), None),
    "expired": (-9 * DAY, -DAY, timedelta(), TlsProblem.EXPIRED),
    "not yet valid": (DAY, 9 * DAY, timedelta(), TlsProblem.NOT_YET_VALID),
    "our clock is ahead": (-9 * DAY, -DAY, -5 * DAY, TlsProblem.CLOCK_SKEW),
    "our clock is behind": (DAY, 9 * DAY, 5 * DAY, TlsProblem.CLOCK_SKEW),
}


@pytest.mark.parametrize("case", CASES)
def test_a_time_that_has_passed_is_told_from_a_wrong_clock(issuer: trustme.CA, case: str) -> None:
    begins, ends, says, problem = CASES[case]
    now = datetime.now(UTC)
    with served(issuer, begins=now + begins, ends=now + ends, says=(now + says).timestamp()) as port:
        found = find_tls_problem("127.0.0.1", port, server_name="localhost", is_public=True)
    assert (found and found.problem) == problem


def test_the_clock_of_the_database_tells_as_well(issuer: trustme.CA) -> None:
    now = datetime.now(UTC)
    there = (now - 5 * DAY).timestamp()
    with served(issuer, begins=now - 9 * DAY, ends=now - DAY, says=time.time()) as port:
        found = find_tls_problem("127.0.0.1", port, server_name="localhost", is_public=False, clocks=[there])
    assert found is not None and found.problem is TlsProblem.CLOCK_SKEW
    assert "120.0 hours ahead" in found.text


@pytest.mark.parametrize(
    ("is_public", "problem"), [(True, TlsProblem.INTERCEPTED), (False, TlsProblem.CUSTOM_AUTHORITY)]
)
def test_somebody_in_between_is_told_from_an_authority_of_ones_own(
    issuer: trustme.CA, is_public: bool, problem: TlsProblem
) -> None:
    other = trustme.CA(organization_name="Corporate Inspection")
    now = datetime.now(UTC)
    with served(other, begins=now - DAY, ends=now + DAY, says=time.time()) as port:
        found = find_tls_problem("127.0.0.1", port, server_name="localhost", is_public=is_public)
    assert found is not None and found.problem is problem
    assert "Corporate Inspection" in found.text and "SSL_CERT_FILE" in found.text


def test_a_certificate_for_another_name_is_named(issuer: trustme.CA) -> None:
    now = datetime.now(UTC)
    with served(issuer, begins=now - DAY, ends=now + DAY, name="other.example", says=time.time()) as port:
        found = find_tls_problem("127.0.0.1", port, server_name="localhost", is_public=True)
    assert found is not None and found.problem is TlsProblem.WRONG_HOST


def test_a_server_without_tls_and_one_that_is_away_are_no_certificates() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def speak() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4_096)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=speak, daemon=True)
        thread.start()
        found = find_tls_problem("127.0.0.1", port, is_public=True)
        assert found is not None and found.problem is TlsProblem.OTHER
    with pytest.raises(OSError):
        find_tls_problem("127.0.0.1", port, is_public=True)
