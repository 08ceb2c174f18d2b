"""A stack that ``hermes-worker up`` starts, for benchmarks that ask it over its API."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

KEY = "a-key-of-the-benchmark"
"""The key of its API."""
_PATIENCE_S = 300.0


@contextmanager
def run_up(directory: Path, settings: Mapping[str, str]) -> Iterator[tuple[int, str]]:
    """Start everything on this machine, with ``directory / "home"`` as its home; yield the number of the process that
    started it and the API's URL. Exits when the stack does not become healthy."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        "HOME": str(directory),
        "PATH": os.environ["PATH"],
        "HERMES_HOME": str(directory / "home"),
        "HERMES_SERVER_KEY": KEY,
        "HERMES_LOG_LEVEL": "error",
        **settings,
    }
    argv = [sys.executable, "-P", "-m", "hermes_worker", "up", "--port", str(port)]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _await_health(port)
            yield process.pid, f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            process.wait()


def _await_health(port: int) -> None:
    ends_at = time.monotonic() + _PATIENCE_S
    while time.monotonic() < ends_at:
        try:
            connection = HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the stack did not become healthy")
