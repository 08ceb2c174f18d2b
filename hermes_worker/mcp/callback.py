"""The page to which a person is sent back after a sign-in: one page on this machine, until the answer came."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Final

from hermes_worker.mcp.protocol import McpError

_PATH: Final = "/callback"
_READ_S: Final = 5.0
_PAGE: Final = b"You may close this page and go back to the terminal.\n"


class SignInCallback:
    """Listens on the loopback interface only (RFC 8252 §7.3)."""

    def __init__(self, server: _CallbackServer) -> None:
        self._server = server
        self.url = f"http://127.0.0.1:{server.server_port}{_PATH}"

    def wait(self, is_answer: Callable[[str], bool], *, patience_s: float) -> str:
        """Wait for the answer and return the address that was opened. Answers to another sign-in, and other requests,
        are ignored. Raises ``McpError``.
        """
        give_up_at = time.monotonic() + patience_s
        while (left_s := give_up_at - time.monotonic()) > 0:
            self._server.timeout = left_s
            self._server.handle_request()
            for opened in self._server.opened:
                if opened.startswith(f"{_PATH}?") and is_answer(opened):
                    return opened
            self._server.opened.clear()
        raise McpError(f"nobody approved the sign-in within {patience_s:.0f} seconds")


@contextmanager
def listen_for_callback(port: int) -> Iterator[SignInCallback]:
    """Listen on ``port``; 0 stands for any. Raises ``McpError``."""
    try:
        server = _CallbackServer(("127.0.0.1", port), _CallbackPage)
    except OSError as error:
        raise McpError(f"port {port} of this machine cannot be used: {error.strerror}") from None
    with server:
        yield SignInCallback(server)


class _CallbackServer(HTTPServer):
    opened: list[str]

    def server_activate(self) -> None:
        self.opened = []
        super().server_activate()


class _CallbackPage(BaseHTTPRequestHandler):
    timeout = _READ_S
    """Seconds after which a silent connection is closed, so that it holds up no other."""
    server: _CallbackServer

    def do_GET(self) -> None:
        self.server.opened.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, *_: object) -> None:
        """Log nothing: the address holds a code."""
