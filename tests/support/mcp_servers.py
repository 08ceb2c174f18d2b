"""MCP servers over HTTP for tests: such as the reference SDK makes, and such as say what a test wants."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import uvicorn
from mcp.server.mcpserver import MCPServer


@contextmanager
def serving_app(app: Any) -> Iterator[str]:
    """The address of an ASGI application."""
    config = uvicorn.Config(app, timeout_graceful_shutdown=1, host="127.0.0.1", port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def sdk_server(made: MCPServer) -> Iterator[str]:
    with serving_app(made.streamable_http_app()) as url:
        yield f"{url}/mcp"


Reply = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def misbehaving(reply: Reply) -> Iterator[tuple[str, list[Mapping[str, str]]]]:
    """A server that answers every request as ``reply`` does, which finds the message in ``said``; and the headers of
    each request."""
    seen: list[Mapping[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        said: Any = None

        def do_POST(self) -> None:
            self.said = json.loads(self.rfile.read(int(self.headers.get("content-length", "0"))) or b"{}")
            seen.append({name.lower(): value for name, value in self.headers.items()})
            try:
                reply(self)
            except OSError:
                pass

        do_GET = do_DELETE = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/mcp", seen
    finally:
        server.shutdown()
        server.server_close()


def saying(status: int, body: bytes, media_type: str = "application/json", **headers: str) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Type", media_type)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(numbered(handler, body))

    return reply


def numbered(handler: Any, body: bytes) -> bytes:
    """An ``answer`` as that to the request that was made."""
    return body.replace(b'"id": 1,', b'"id": %s,' % json.dumps(handler.said.get("id", 1)).encode())


def answer(result: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


def failing(code: bytes) -> bytes:
    return b'{"jsonrpc": "2.0", "id": 1, "error": {"code": ' + code + b"}}"


def endless(handler: BaseHTTPRequestHandler) -> None:
    saying(200, b"", "text/event-stream")(handler)
    while True:
        handler.wfile.write(b": still here\n\n" * 4_000)


def silent(handler: BaseHTTPRequestHandler) -> None:
    saying(200, b"", "text/event-stream")(handler)
    handler.rfile.read(1)


def hung_up(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.close()
