"""A real HTTP server whose every answer, and every failure to answer, a test writes itself.

def handler(request, reply): reply.sse('{"choices": ...}', "[DONE]")
with FaultServer(handler) as server: ...
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Received:
    """One request. ``number`` counts from 0 over the whole server."""

    number: int
    head: str
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed

    def header(self, name: str) -> str | None:
        match = re.search(rf"^{re.escape(name)}:[ \t]*(.*?)\r?$", self.head, re.IGNORECASE | re.MULTILINE)
        return match[1] if match else None


class Reply:
    """Writes to the client of one request."""

    def __init__(self, sock: socket.socket, closing: threading.Event) -> None:
        self.sock = sock
        self.closing = closing
        """Set when the server shuts down: what a handler that blocks waits for."""

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def head(self, status: int = 200, content_type: str = "text/event-stream", *extra: str) -> None:
        lines = (f"HTTP/1.1 {status} X", f"Content-Type: {content_type}", "Transfer-Encoding: chunked", *extra, "", "")
        self.raw("\r\n".join(lines).encode())

    def piece(self, data: bytes) -> None:
        self.raw(b"%x\r\n%s\r\n" % (len(data), data))

    def event(self, data: object) -> None:
        text = data if isinstance(data, str) else json.dumps(data)
        self.piece(f"data: {text}\n\n".encode())

    def end(self) -> None:
        self.raw(b"0\r\n\r\n")

    def sse(self, *events: object) -> None:
        self.head()
        for event in events:
            self.event(event)
        self.end()

    def document(self, status: int, document: object, *extra: str, content_type: str = "application/json") -> None:
        data = document if isinstance(document, bytes) else json.dumps(document).encode()
        lines = (
            f"HTTP/1.1 {status} X",
            f"Content-Type: {content_type}",
            f"Content-Length: {len(data)}",
            *extra,
            "",
            "",
        )
        self.raw("\r\n".join(lines).encode() + data)

    def reset(self) -> None:
        """Close so that the client gets a reset instead of an end."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.sock.detach())  # closing the socket object would wait for the file that reads from it

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()

    def linger(self) -> None:
        """Say nothing but that the stream is still open, until the server shuts down or the client is gone."""
        while not self.closing.wait(0.05):
            self.piece(b": keep-alive\n\n")

    def block(self) -> None:
        """Say nothing more until the server shuts down."""
        self.closing.wait(60)


Handler = Callable[[Received, Reply], None]


class FaultServer:
    """Serves on loopback, one thread per connection, until the block ends."""

    def __init__(self, handler: Handler, *, tls: ssl.SSLContext | None = None) -> None:
        self._handler = handler
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self.requests: list[Received] = []
        self.connections = 0

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> FaultServer:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for sock in self._sockets:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.append(sock)
                self.connections += 1
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError):
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
            source = sock.makefile("rb")
            while True:
                received = self._read_request(source)
                self._handler(received, Reply(sock, self._closing))

    def _read_request(self, source: Any) -> Received:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = source.readline()
            if not line:
                raise EOFError
            head += line
        length = re.search(rb"content-length:\s*(\d+)", head, re.IGNORECASE)
        body = source.read(int(length[1])) if length else b""
        with self._lock:
            received = Received(len(self.requests), head.decode("latin-1"), body)
            self.requests.append(received)
        return received


def text_chunk(text: str, finish_reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


def finish_chunk(reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}


USAGE_CHUNK = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}}


def say_hello(_: Received, reply: Reply) -> None:
    reply.sse(text_chunk("hel"), text_chunk("lo"), finish_chunk(), USAGE_CHUNK, "[DONE]")
