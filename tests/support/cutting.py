"""A proxy that cuts connections where a test says, in front of a real server."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable


class CuttingProxy:
    """Passes bytes on, over loopback. ``bytes_of(n)`` says how many bytes of answers the ``n``-th connection brings
    before it is reset; ``None`` for all of them."""

    def __init__(self, port: int, bytes_of: Callable[[int], int | None]) -> None:
        self._port = port
        self._bytes_of = bytes_of
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._lock = threading.Lock()
        self.connections = 0
        self.cuts = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> CuttingProxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                limit = self._bytes_of(self.connections)
                self.connections += 1
            server = socket.create_connection(("127.0.0.1", self._port))
            threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
            threading.Thread(target=self._answer, args=(server, client, limit), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _answer(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        left = limit
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if left is not None and len(data) >= left:
                    sink.sendall(data[:left])
                    self.cuts += 1
                    sink.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                sink.sendall(data)
                left = None if left is None else left - len(data)
        # Both ways of both: the thread that forwards would keep them open.
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RD)
            each.close()
