"""What runs that wait for a person take of a stack: ``python -m benchmarks.parked [RUNS]``.

``hermes-worker up`` plays this many runs (12,000) on SQLite with the scripted model. Each is a session of its own and
asks whether a command may run; nobody answers. Prints the memory (PSS) of the stack's processes when the first two
thousand wait and when all wait, in MB, each after twenty idle seconds.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.up import KEY, run_up

FIRST = 2_000
BATCH = 500
IDLE_S = 20.0
_ASKS = {"steps": [{"calls": [{"name": "terminal", "arguments": {"command": "rm -rf ./build"}}]}], "final": "Done."}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 12_000
    with (
        tempfile.TemporaryDirectory(prefix="hermes-parked-") as folder,
        run_up(Path(folder), {"HERMES_APPROVALS_TIMEOUT_S": "86400"}) as (pid, url),
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {KEY}"}, timeout=300) as client,
    ):
        home = Path(folder) / "home"
        _park(client, home, FIRST)
        before = _measure(pid)
        began = time.monotonic()
        _park(client, home, count)
        print(f"{count - FIRST:,} further runs wait after {time.monotonic() - began:.0f} s")
        after = _measure(pid)
    for name in sorted(after, key=lambda each: -after[each]):
        print(f"{before[name]:8.1f} {after[name]:8.1f}  {name}")
    print(f"{before.total():8.1f} {after.total():8.1f}  all: {after.total() - before.total():+.1f} MB")


def _park(client: httpx.Client, home: Path, count: int) -> None:
    """Submit runs until ``count`` are there, and return when all of them wait."""
    while (there := _count_runs(home)) < count:
        body: dict[str, Any] = {"input": f"scripted: {json.dumps(_ASKS)}"}
        runs = [{**body, "idempotency_key": f"run-{number}"} for number in range(there, min(count, there + BATCH))]
        client.post("batch/runs", json={"runs": runs}).raise_for_status()
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
