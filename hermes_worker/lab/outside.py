"""The world outside the fleet: a server that takes deliveries and remembers each request by its idempotency key."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class DeliverySink:
    """A webhook's receiver on this machine. Use as a context manager; ``taken`` may be read afterwards."""

    def __init__(self) -> None:
        self.taken: dict[str, list[str]] = defaultdict(list)
        """The hashes of the bodies that came under each idempotency key."""
        self._lock = threading.Lock()
        sink = self

        class SinkHandler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with sink._lock:
                    sink.taken[self.headers.get("Idempotency-Key", "")].append(hashlib.sha256(body).hexdigest())
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: object) -> None:
                """Say nothing."""

        class SinkServer(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that was killed in the middle of a request is what the lab is about."""

        self._server = SinkServer(("127.0.0.1", 0), SinkHandler)

    def __enter__(self) -> DeliverySink:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def target(self) -> str:
        """The target that deliveries are to name."""
        return f"webhook:http://127.0.0.1:{self._server.server_address[1]}/taken"
