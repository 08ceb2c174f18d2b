"""A real HTTP server on loopback that plays a platform: it keeps what it is sent and answers from a script."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from hermes_worker.channels.exchange import Exchange, Outcome, perform
from hermes_worker.net.http import HttpRequest, HttpResponse, NoAnswer


@dataclass
class Received:
    """A request as it arrived."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def form(self) -> dict[str, Message]:
        """The parts of a multipart body by their names."""
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        parts = message_from_bytes(head + self.body).get_payload()
        return {part.get_param("name", header="content-disposition"): part for part in parts}


@dataclass
class Scripted:
    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    hangs_up: bool = False


class Platform:
    """Use ``answer`` before sending, ``received`` afterwards."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._script: deque[Scripted] = deque()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def answer(self, status: int = 200, body: object = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        self._script.append(
            Scripted(status, content, {name.replace("_", "-"): value for name, value in headers.items()})
        )

    def hang_up(self) -> None:
        self._script.append(Scripted(hangs_up=True))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        platform = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                platform.received.append(Received(self.command, self.path, self.headers, body))
                scripted = platform._script.popleft()
                if scripted.hangs_up:
                    self.connection.close()
                    return
                self.send_response(scripted.status)
                for name, value in scripted.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(scripted.body)))
                self.end_headers()
                self.wfile.write(scripted.body)

            do_GET = do_PUT = do_PATCH = do_DELETE = do_POST

            def log_message(self, format: str, *arguments: object) -> None:
                """Quiet."""

        return Handler


def http_send(request: HttpRequest) -> HttpResponse:
    """One request over the wire. The product's own client adds address checks; the bytes are the same."""
    parts = urlsplit(request.url)
    connection = HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    try:
        connection.connect()
    except OSError as error:
        raise NoAnswer(f"no connection to {parts.hostname}: {error}", was_sent=False) from None
    try:
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        connection.request(request.method, path or "/", body=request.body, headers=dict(request.headers))
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return HttpResponse(status=response.status, headers=headers, body=response.read())
    except (OSError, HTTPException) as error:
        raise NoAnswer(f"{parts.hostname} did not answer: {type(error).__name__}", was_sent=True) from None
    finally:
        connection.close()


@pytest.fixture
def platform() -> Iterator[Platform]:
    server = Platform()
    yield server
    server.close()


@pytest.fixture
def deliver() -> Callable[[Exchange], Outcome]:
    """Drives an exchange over real connections."""
    return lambda exchange: perform(exchange, http_send)
