"""What runs that wait for a person take of a stack: ``python -m benchmarks.parked [RUNS]``.

``hermes-worker up`` plays this many runs (12,000) on SQLite with the scripted model. Each is a session of its own and
asks whether a command may run; nobody answers. Prints the memory (PSS) of the stack's processes when the first two
thousand wait and when all wait, in MB, each after twenty idle seconds.
"""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil

KEY = "a-key-of-the-benchmark"
FIRST = 2_000
BATCH = 500
IDLE_S = 20.0
_ASKS = {"steps": [{"calls": [{"name": "terminal", "arguments": {"command": "rm -rf ./build"}}]}], "final": "Done."}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    with tempfile.TemporaryDirectory(prefix="hermes-parked-") as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
        probe.close()
        home = Path(folder) / "home"
        environ = {
            "HOME": folder,
            "PATH": os.environ["PATH"],
            "HERMES_HOME": str(home),
            "HERMES_SERVER_KEY": KEY,
            "HERMES_APPROVALS_TIMEOUT_S": "86400",
            "HERMES_LOG_LEVEL": "error",
        }
        argv = [sys.executable, "-P", "-m", "hermes_worker", "up", "--port", port]
        with (
            subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process,
            httpx.Client(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {KEY}"}, timeout=300
            ) as client,
        ):
            try:
                _await_health(client)
                _park(client, home, FIRST)
                before = _measure(process.pid)
                began = time.monotonic()
                _park(client, home, count)
                print(f"{count - FIRST:,} further runs wait after {time.monotonic() - began:.0f} s")
                after = _measure(process.pid)
            finally:
                process.terminate()
                process.wait()
    for name in sorted(after, key=lambda each: -after[each]):
        print(f"{before[name]:8.1f} {after[name]:8.1f}  {name}")
    print(f"{before.total():8.1f} {after.total():8.1f}  all: {after.total() - before.total():+.1f} MB")


def _await_health(client: httpx.Client) -> None:
    while True:
        try:
            if client.get("/health").status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            time.sleep(0.1)


def _park(client: httpx.Client, home: Path, count: int) -> None:
    """Submit runs until ``count`` are there, and return when all of them wait."""
    while (there := _count_runs(home)) < count:
        body: dict[str, Any] = {"input": f"scripted: {json.dumps(_ASKS)}"}
        runs = [{**body, "idempotency_key": f"run-{number}"} for number in range(there, min(count, there + BATCH))]
        client.post("/v1/batch/runs", json={"runs": runs}).raise_for_status()
    while _count_runs(home, "waiting_for_approval") < count:
        time.sleep(1)


def _count_runs(home: Path, status: str = "%") -> int:
    with closing(sqlite3.connect(home / "hermes-worker.db", timeout=60)) as connection:
        return int(connection.execute("SELECT count(*) FROM runs WHERE status LIKE ?", (status,)).fetchone()[0])


def _measure(pid: int) -> Counter[str]:
    """Return the PSS of the processes below ``pid``, by their names, in MB."""
    time.sleep(IDLE_S)
    found = Counter[str]()
    parent = psutil.Process(pid)
    for process in (parent, *parent.children(recursive=True)):
        title = " ".join(process.cmdline()[:3])[:60]
        found[title] += process.memory_full_info().pss / 2**20  # type: ignore[assignment]
    return found


if __name__ == "__main__":
    main()
