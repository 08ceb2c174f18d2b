"""API servers for tests, and readers of their streams."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
from support.patience import PATIENCE_S

from hermes_worker.api.server import ApiServer, open_sockets
from hermes_worker.settings import Settings
from hermes_worker.settings.server_key import keep_server_key
from hermes_worker.settings.tls import build_server_context
from hermes_worker.stream.followers import Followers, FollowPolicy
from hermes_worker.wiring import Client, open_client

KEY = "test-key-0123456789"
FAST = FollowPolicy(rows_every_s=0.1, rows_every_without_broker_s=0.05, keepalive_s=5.0)


def until(is_so: Callable[[], Any], what: str, *, patience_s: float = PATIENCE_S) -> Any:
    """Wait for a fact; returns it."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if found := is_so():
            return found
        time.sleep(0.01)
    raise AssertionError(f"not within {patience_s:g} s: {what}")


def hints_waiting(client: Client) -> int:
    """Messages in the queues of the broker."""
    return sum((client.publisher.count_waiting() or {}).values())


@dataclass
class Served:
    """A running server."""

    server: ApiServer
    client: Client
    http: httpx.Client
    thread: threading.Thread

    @property
    def url(self) -> str:
        return self.server.url

    @property
    def key(self) -> str:
        return keep_server_key(self.client.settings).reveal()

    @property
    def authorization(self) -> str:
        """The value of the header that lets a request in."""
        return f"Bearer {self.key}"

    @property
    def followers(self) -> Followers:
        return self.server._context.followers

    def submit(self, **body: Any) -> str:
        answer = self.http.post("/v1/runs", json={"input": "hello", **body})
        assert answer.status_code == 202, answer.text
        return str(answer.json()["run_id"])

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(timeout=PATIENCE_S)
        assert not self.thread.is_alive(), "the server did not stop"


@contextmanager
def served(
    settings: Settings, policy: FollowPolicy = FAST, *, tell: Callable[[Exception | None], None] = lambda wrong: None
) -> Iterator[Served]:
    """``tell`` hears of changes of the certificate."""
    client = open_client(settings)
    ready = threading.Event()
    tls = build_server_context(settings.server, tell)
    server = ApiServer(client, open_sockets(settings.server), policy=policy, on_ready=lambda url: ready.set(), tls=tls)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    assert ready.wait(PATIENCE_S), "the server did not start"
    headers = {"Authorization": f"Bearer {keep_server_key(settings).reveal()}"}
    running = Served(
        server=server,
        client=client,
        # Without certificates: nobody needs them here, and to read them takes 60 ms.
        http=httpx.Client(base_url=server.url, headers=headers, timeout=PATIENCE_S, verify=False),
        thread=thread,
    )
    try:
        yield running
    finally:
        running.http.close()
        running.stop()
        client.close()


@dataclass
class Reader:
    """Reads a stream in a thread, and keeps what came."""

    api: Served
    run_id: str
    last_event_id: str | None = None
    after: str | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False
    """The server ended the stream."""

    def __post_init__(self) -> None:
        self._connection = http.client.HTTPConnection(self.api.url.removeprefix("http://"), timeout=PATIENCE_S * 2)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        headers = {"Authorization": self.api.http.headers.get("Authorization", "")}
        if self.last_event_id is not None:
            headers["Last-Event-ID"] = self.last_event_id
        query = f"?{urlencode({'after': self.after})}" if self.after is not None else ""
        try:
            self._connection.request("GET", f"/v1/runs/{self.run_id}/events{query}", headers=headers)
            response = self._connection.getresponse()
            self.headers = dict(response.getheaders())
            while line := response.readline():
                self._take(line.decode().removesuffix("\n"))
            self.is_closed = True
        except (http.client.HTTPException, OSError, ValueError):
            pass  # ``leave`` closed the connection

    def _take(self, line: str) -> None:
        self.lines.append(line)
        if line.startswith("id: "):
            self.ids.append(line[4:])
        elif line.startswith("data: "):
            self.events.append(json.loads(line[6:]))
        elif line.startswith(":"):
            self.comments.append(line)

    @property
    def names(self) -> list[str]:
        return [event["event"] for event in list(self.events)]

    @property
    def text(self) -> str:
        """What a terminal would show: all deltas in a row."""
        return "".join(event["delta"] for event in list(self.events) if event["event"] == "message.delta")

    def wait_for(self, name: str, times: int = 1) -> dict[str, Any]:
        """The event of this name, once it came ``times`` times."""
        until(lambda: self.names.count(name) >= times, f"{times} x {name}; came {self.names}")
        return [event for event in self.events if event["event"] == name][times - 1]

    def wait_for_end(self) -> Reader:
        until(lambda: self.is_closed, f"the end of the stream; came {self.names}")
        return self

    def leave(self) -> None:
        """Close the connection, as a client does that is killed."""
        assert self._connection.sock is not None
        self._connection.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(timeout=PATIENCE_S)
