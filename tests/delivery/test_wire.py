"""The client that makes our requests, against servers that behave badly."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from support.patience import PATIENCE_S

from hermes_worker.net import wire
from hermes_worker.net.http import HttpRequest, NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy

HERE = UrlPolicy(allows_private=True)
Behaviour = Callable[[socket.socket], None]


@contextmanager
def server(behave: Behaviour, context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Answers one connection after the other as ``behave`` does; yields the port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            try:
                with context.wrap_socket(connection, server_side=True) if context else connection as peer:
                    behave(peer)
            except OSError:
                continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        # Closing does not wake a thread that waits in accept.
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(PATIENCE_S)


def post(port: int, *, scheme: str = "http", host: str = "127.0.0.1", total_s: float = 60.0) -> bytes:
    request = HttpRequest(method="POST", url=f"{scheme}://{host}:{port}/hook?secret=1", body=b"{}")
    return wire.send(request, HERE, total_s=total_s).body


def answer(peer: socket.socket) -> None:
    request = b""
    # What is left unread when a socket is closed resets the connection.
    while not request.endswith(b"{}") and (piece := peer.recv(65_536)):
        request += piece
    peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def hang(peer: socket.socket) -> None:
    peer.recv(65_536)
    peer.recv(1)  # nothing more comes, until the client has had enough


def drip(peer: socket.socket) -> None:
    peer.recv(65_536)
    for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: " + b"a" * 10_000:
        peer.sendall(bytes([byte]))
        time.sleep(0.01)


def drip_body(peer: socket.socket) -> None:
    peer.recv(65_536)
    peer.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
    for _ in range(1_000):
        peer.sendall(b"x")
        time.sleep(0.01)


def hang_up(peer: socket.socket) -> None:
    peer.recv(65_536)


def nonsense(peer: socket.socket) -> None:
    peer.recv(65_536)
    peer.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


def endless(peer: socket.socket) -> None:
    peer.recv(65_536)
    peer.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
    while True:
        peer.sendall(b"x" * 65_536)


@pytest.mark.parametrize("behave", [hang, drip, drip_body, hang_up, nonsense])
def test_a_request_that_went_out_may_have_arrived_whatever_came_back(behave: Behaviour) -> None:
    with server(behave) as port, pytest.raises(NoAnswer) as caught:
        post(port, total_s=0.3)
    assert caught.value.was_sent
    assert "secret" not in caught.value.reason


def test_an_answer_without_end_is_cut() -> None:
    with server(endless) as port:
        assert len(post(port)) == wire.BODY_BYTES_MAX


def test_a_closed_port_got_nothing() -> None:
    with server(answer) as port:
        pass
    with pytest.raises(NoAnswer) as caught:
        post(port)
    assert not caught.value.was_sent


def test_a_name_that_does_not_resolve_got_nothing() -> None:
    with pytest.raises(NoAnswer) as caught:
        post(8080, host="no-such-host.invalid")
    assert not caught.value.was_sent


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::1]:{port}/",
        "http://0x7f.1:{port}/",
        "http://127.0.0.1.:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user:password@127.0.0.1:{port}/",
        "gopher://127.0.0.1:{port}/",
    ],
)
def test_nothing_is_sent_to_an_address_of_the_local_network(url: str) -> None:
    seen: list[bytes] = []
    with server(lambda peer: seen.append(peer.recv(10))) as port, pytest.raises(UnsafeUrl) as caught:
        wire.send(HttpRequest(method="POST", url=url.format(port=port)), UrlPolicy())
    assert seen == []
    assert "password" not in str(caught.value).replace("a user name or a password", "")


def test_metadata_is_refused_whatever_the_settings_allow() -> None:
    with pytest.raises(UnsafeUrl):
        wire.send(HttpRequest(method="POST", url="http://169.254.169.254/latest/meta-data/"), HERE)


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def test_a_certificate_is_checked(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    with server(answer, context) as port:
        with pytest.raises(NoAnswer) as caught:
            post(port, scheme="https", host="localhost")
        assert not caught.value.was_sent, "nobody who cannot show a good certificate gets the message"
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert post(port, scheme="https", host="localhost") == b"ok"
        with pytest.raises(NoAnswer):
            post(port, scheme="https", host="127.0.0.1")
