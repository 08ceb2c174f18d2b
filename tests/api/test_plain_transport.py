"""The blocking client's own transport: what is kept of a connection, and when a proxy is asked."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator

import pytest

from hermes_worker.client import HermesClient
from hermes_worker.client.plain_transport import needs_proxy
from hermes_worker.core.errors import UnavailableError

_HEALTH = b'{"status": "ok", "platform": "hermes-worker", "version": "1"}'


class _Server(socketserver.ThreadingTCPServer):
    """Answers the first request on each connection with ``answer``."""

    allow_reuse_address = daemon_threads = True
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(_HEALTH), _HEALTH)
    connections = 0
    closes_at = 1
    """The request after which a connection is closed: the first, which was answered, or the second, which was not."""


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, _Server)
        self.server.connections += 1
        for number in range(1, self.server.closes_at + 1):
            while self.rfile.readline().strip():
                pass
            if number == 1:
                self.wfile.write(self.server.answer)


@pytest.fixture
def server() -> Iterator[_Server]:
    with _Server(("127.0.0.1", 0), _Handler) as served:
        thread = threading.Thread(target=served.serve_forever, args=(0.02,))
        thread.start()
        yield served
        served.shutdown()
        thread.join()


def open_client(server: _Server) -> HermesClient:
    return HermesClient(f"http://127.0.0.1:{server.server_address[1]}", api_key="key", patience_s=0)


def test_a_connection_that_the_server_closed_is_not_used_again(server: _Server) -> None:
    with open_client(server) as client:
        assert [client.health().version for _ in range(3)] == ["1"] * 3
    assert server.connections == 3


def test_what_only_reads_is_asked_again_where_a_kept_connection_ends_without_an_answer(server: _Server) -> None:
    server.closes_at = 2
    with open_client(server) as client:
        assert [client.health().version for _ in range(3)] == ["1"] * 3
    assert server.connections == 3


def test_an_answer_that_is_shorter_than_it_says_is_none(server: _Server) -> None:
    server.answer = server.answer.replace(b"Length: ", b"Length: 9")
    with open_client(server) as client, pytest.raises(UnavailableError, match="does not answer"):
        client.health()


def test_a_proxy_of_the_environment_is_asked_for_other_machines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert not needs_proxy("https://hermes.example.org")
    monkeypatch.setenv("https_proxy", "http://proxy.example.org:3128")
    monkeypatch.setenv("no_proxy", "inside.example.org")
    asked = [f"https://{host}/" for host in ("hermes.example.org", "inside.example.org", "127.0.0.1", "localhost")]
    assert [needs_proxy(url) for url in asked] == [True, False, False, False]
    assert not needs_proxy("http://hermes.example.org")
