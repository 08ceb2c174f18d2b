"""The proxy, spoken to through a door of the test's own; its servers are on this machine."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import pytest

from hermes_worker.net.urls import HttpUrl, UrlPolicy, check_addresses
from hermes_worker.observe import copy_counters
from hermes_worker.workspaces.sandbox import proxy as proxy_module
from hermes_worker.workspaces.sandbox.helper.keeper import LISTENS, hand_out
from hermes_worker.workspaces.sandbox.network import EgressRules
from hermes_worker.workspaces.sandbox.proxy import CommandProxySocket, EgressProxy


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = f"{self.command} {self.path} {dict(self.headers)}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served.server_port
        served.shutdown()
        thread.join()


@dataclass
class Names:
    """A resolver that says what the test wants, and remembers what it was asked."""

    addresses: dict[str, Sequence[str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __call__(self, host: str, port: int) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError
        return self.addresses[host]


def as_if_public(target: HttpUrl, addresses: Sequence[str], policy: UrlPolicy) -> tuple[str, ...]:
    """The judge, but for the servers of the test."""
    return tuple(addresses) if target.host.endswith(".test") else check_addresses(target, addresses, policy)


@dataclass
class Way:
    """An open door."""

    door: CommandProxySocket
    address: tuple[str, int]

    def __call__(self, request: bytes, *, ends: bool = False) -> bytes:
        """Everything that is answered."""
        with socket.create_connection(self.address, timeout=20) as client:
            client.sendall(request)
            if ends:
                client.shutdown(socket.SHUT_WR)
            return read_all(client)


def read_all(client: socket.socket) -> bytes:
    found = b""
    while data := client.recv(65536):
        found += data
    return found


@contextmanager
def opened(egress: EgressRules, names: Names, check: Callable[..., tuple[str, ...]] = as_if_public) -> Iterator[Way]:
    door = EgressProxy(resolving=names, check=check).make_socket(egress)
    with door.serve() as number, socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        hand_out(socket.fromfd(number, socket.AF_UNIX, socket.SOCK_STREAM).detach(), LISTENS, listener.dup().detach())
        yield Way(door, listener.getsockname())


def names(**more: Sequence[str]) -> Names:
    return Names({"here.test": ["127.0.0.1"], **{name.replace("_", "."): found for name, found in more.items()}})


def get(url: str, *headers: str) -> bytes:
    return "\r\n".join([f"GET {url} HTTP/1.1", "Host: somewhere.else", *headers, "", ""]).encode()


def test_a_request_arrives_as_its_server_expects_it_and_nothing_meant_for_the_proxy_does(server: int) -> None:
    with opened(EgressRules(ports=frozenset({server})), names()) as way:
        answer = way(
            get(f"http://here.test:{server}/a?b=c", "Proxy-Connection: keep-alive", "X-A: 1", "Connection: X-A")
        )
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"GET /a?b=c" in answer and f"'Host': 'here.test:{server}'".encode() in answer
    assert b"Proxy-Connection" not in answer and b"X-A" not in answer and b"somewhere" not in answer


def test_a_tunnel_carries_bytes_both_ways_to_the_end(server: int) -> None:
    with opened(EgressRules(ports=frozenset({server})), names()) as way:
        body = b"x" * 300_000
        head = f"POST /in HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        # Also when the client does not wait for the tunnel before it uses it.
        answer = way(f"CONNECT here.test:{server} HTTP/1.1\r\nHost: here.test\r\n\r\n".encode() + head + body)
    assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
    assert answer.endswith(body)


def test_bodies_are_framed_anew_and_a_second_request_does_not_ride_along(server: int) -> None:
    with opened(EgressRules(ports=frozenset({server})), names()) as way:
        url = f"http://here.test:{server}/"
        post = f"POST {url} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody".encode()
        answer = way(post + get(f"http://here.test:{server}/second"))
        assert answer.endswith(b"body") and b"second" not in answer
        both = f"POST {url} HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        smuggled = way(both.encode() + b"GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n")
    assert b"smuggled" not in smuggled


REFUSED = {
    "private": "10.1.2.3",
    "loopback": "127.0.0.1",
    "loopback-6": "::1",
    "mapped": "::ffff:127.0.0.1",
    "metadata": "169.254.169.254",
    "metadata-nat64": "64:ff9b::a9fe:a9fe",
    "metadata-6": "fd00:ec2::254",
    "link-local": "fe80::1%eth0",
    "6to4": "2002:7f00:1::",
    "any": "0.0.0.0",
}


@pytest.mark.parametrize("address", REFUSED.values(), ids=REFUSED)
def test_a_name_that_leads_to_such_an_address_is_refused_with_the_sentence_where_programs_show_it(address: str) -> None:
    with opened(EgressRules(), names(evil_com=["93.184.216.34", address])) as way:
        for request in (b"CONNECT evil.com:443 HTTP/1.1\r\nHost: evil.com\r\n\r\n", get("http://evil.com/")):
            answer = way(request).decode()
            assert answer.startswith("HTTP/1.1 403 The host 'evil.com' is refused: ")
            assert answer.endswith(f"{answer.splitlines()[0].removeprefix('HTTP/1.1 403 ')}\n")
    assert [refusal.target for refusal in way.door.refusals] == ["evil.com:443", "http://evil.com/"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::ffff:a9fe:a9fe]",
        "169.254.169.254",
        "0x7f000001",
        "2852039166",
        "169.254.43518",
        "localhost",
    ],
)
def test_addresses_are_refused_by_every_spelling(host: str) -> None:
    with opened(EgressRules(), Names(), check_addresses) as way:
        way.door._proxy.resolving = proxy_module.resolve_host
        for request in (f"CONNECT {host}:443 HTTP/1.1\r\nHost: x\r\n\r\n".encode(), get(f"http://{host}/")):
            assert way(request).startswith(b"HTTP/1.1 403 ")


def test_a_name_is_resolved_once_and_what_was_judged_is_connected_to(server: int) -> None:
    class Rebinding(Names):
        def __call__(self, host: str, port: int) -> Sequence[str]:
            self.asked.append(host)
            return ["127.0.0.1"] if len(self.asked) == 1 else ["10.0.0.1"]

    found = Rebinding()
    with opened(EgressRules(ports=frozenset({server})), found) as way:
        assert b"200 OK" in way(get(f"http://rebinding.test:{server}/"))
    assert found.asked == ["rebinding.test"]


def test_a_host_that_is_not_listed_is_not_even_looked_up() -> None:
    found = names(secret_evil_com=["93.184.216.34"])
    before = copy_counters()["egress.refused"]
    with opened(EgressRules(hosts=("pypi.org",)), found) as way:
        assert b"403 The host 'secret.evil.com' is not among those" in way(get("http://secret.evil.com/"))
        for n in range(20):
            way(get(f"http://{n}.evil.com/"))
    assert found.asked == []
    assert copy_counters()["egress.refused"] - before == 21
    assert len(way.door.refusals) == 5, "what is told is bounded"


def test_what_does_not_resolve_or_answer_is_said_to_be_so() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        with opened(EgressRules(ports=frozenset({80, port})), names()) as way:
            assert way(get("http://gone.test/")).startswith(b"HTTP/1.1 502 The host 'gone.test' does not resolve.")
            assert way(get(f"http://here.test:{port}/")).startswith(b"HTTP/1.1 502 There is no connection")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200 + b"\r\n\r\n",
        b"GET http://here.test/ HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 40_000 + b"\r\n\r\n",
        b"GET http://here.test/\x00 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    ],
    ids=["no-proxy-request", "tls", "long-head", "control", "ssh"],
)
def test_what_is_no_request_to_a_proxy_is_answered_with_400(request_bytes: bytes) -> None:
    with opened(EgressRules(), names()) as way:
        assert way(request_bytes).startswith(b"HTTP/1.1 400 ")


def test_silence_and_slowness_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy_module, "HEAD_S", 0.2)
    monkeypatch.setattr(proxy_module, "IDLE_S", 0.2)
    with opened(EgressRules(), names()) as way:
        assert way(b"") == b"" and way(b"GET http://here.te") == b""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        with opened(EgressRules(ports=frozenset({port})), names()) as way:
            assert way(f"CONNECT here.test:{port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).endswith(b"\r\n\r\n")
            assert way(get(f"http://here.test:{port}/")) == b""


def test_a_command_that_opens_too_many_connections_waits_and_another_one_does_not(
    server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy_module, "CONNECTIONS_MAX", 3)
    egress = EgressRules(ports=frozenset({server}))
    request = get(f"http://here.test:{server}/")
    with opened(egress, names()) as greedy, opened(egress, names()) as modest:
        held = [socket.create_connection(greedy.address, timeout=20) for _ in range(3)]
        for client in held:
            client.sendall(b"GET http")  # taken in, and not finished
        with socket.create_connection(greedy.address, timeout=0.3) as waiting:
            waiting.sendall(request)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            assert b"200 OK" in modest(request)
            held[0].close()
            waiting.settimeout(20)
            assert b"200 OK" in read_all(waiting)
        for client in held[1:]:
            client.close()


def test_a_door_is_closed_with_its_command(server: int) -> None:
    with opened(EgressRules(ports=frozenset({server})), names()) as way:
        tunnel = socket.create_connection(way.address, timeout=20)
        tunnel.sendall(f"CONNECT here.test:{server} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b"established" in tunnel.recv(1000)
    with tunnel, suppress(ConnectionResetError):
        assert tunnel.recv(1) == b""
