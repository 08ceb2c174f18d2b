"""What a child run costs, when a root has one of them and when it has a thousand.

    python -m benchmarks.fanout              # about three minutes
    python -m benchmarks.fanout --quick      # up to 100 children, on SQLite

A child makes one model call and answers. The cost of a child is the CPU of workers, database and broker for trees of so
many children, less that of as many roots that call a tool instead of delegating, divided by the children. The join
is the part that could grow with their number; it must not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa

from hermes_worker import settings as settings_module
from hermes_worker.agent.tools.catalog import build_default_catalog
from hermes_worker.broker.queue import HintPublisher, build_redis_client
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.spec import RunSpec
from hermes_worker.lab.fleet import LabFleet
from hermes_worker.lab.sink import make_sink_tools
from hermes_worker.lab.stack import LabStack
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.tables import runs
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

FLAT_WITHIN = 1.5
"""What issue 4 asks of the dearest child against the cheapest."""
ROUNDS = 4
WARM_UP = 400
"""Trees that are not counted: until every connection of the workers has the plans of its statements."""
CONCURRENCY = 16
CHILDREN_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Trees:
    """``roots`` trees of ``children`` each, submitted at once; 0 children for roots that call a tool."""

    roots: int
    children: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    trees: Trees
    cpu_s: float
    """Of workers, database and broker."""
    wall_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PerChild:
    children: int
    cpu_ms: float
    wall_ms: float


def per_child(rounds: Sequence[tuple[Measured, Measured]]) -> PerChild:
    """For one child, from trees and as many bare roots of each round."""
    trees = rounds[0][0].trees
    total = len(rounds) * trees.roots * trees.children
    return PerChild(
        children=trees.children,
        cpu_ms=sum(whole.cpu_s - bare.cpu_s for whole, bare in rounds) / total * 1e3,
        wall_ms=sum(whole.wall_s - bare.wall_s for whole, bare in rounds) / total * 1e3,
    )


class Bench:
    """Servers and workers for all rows of the table. Use as a context manager."""

    def __init__(self, directory: Path, *, own_postgres: bool) -> None:
        self._stack = LabStack(directory, database_url=None, own_postgres=own_postgres, ttl_s=15.0)
        self._directory = directory

    def __enter__(self) -> Bench:
        self._stack.__enter__()
        environ = {
            **self._stack.build_environ(settings_module.load_settings().environ),
            "HERMES_MAX_CONCURRENT_CHILDREN": str(CHILDREN_AT_ONCE),
            "HERMES_LOG_LEVEL": "WARNING",
        }
        self._fleet = LabFleet(
            environ=environ, directory=self._directory, workers_per_role=1, concurrency=CONCURRENCY, work_s=0.0
        )
        self._fleet.__enter__()
        self._database = Database(self._stack.database_url)
        self._publisher = HintPublisher(build_redis_client(self._stack.broker_url))
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        self._fleet.__exit__()
        self._stack.__exit__()

    def measure(self, trees: Trees) -> Measured:
        began, cpu = time.monotonic(), self._cpu_s()
        for _ in range(trees.roots):
            self._submit(trees.children)
        while self._open_runs():
            time.sleep(0.05)
        return Measured(trees=trees, cpu_s=self._cpu_s() - cpu, wall_s=time.monotonic() - began)

    def _submit(self, children: int) -> None:
        catalog = build_default_catalog(*make_sink_tools(self._fleet.sink, work_s=0.0))
        tools = f"[{','.join(catalog.render_definitions(['delegate_task', 'sink_pure']))}]"
        workspace = WorkspaceRef(kind=WorkspaceKind.LOCAL, root=str(self._directory / "workspace")).to_json()
        call = _delegation(children) if children else {"name": "sink_pure", "arguments": {"mark": "bare"}}
        spec = RunSpec(
            input=f"scripted: {dump_canonical_json({'steps': [{'calls': [call]}], 'final': 'done'})}",
            model="scripted",
            iterations_max=100_000,
        )
        created = Runs(self._database).create(
            NewRun(spec=spec, system_prompt="You are a benchmark.", tools=tools, workspace=workspace)
        )
        self._publisher.send(created.hints)

    def _open_runs(self) -> int:
        with self._database.read() as connection:
            found = sa.select(sa.func.count()).select_from(runs).where(runs.c.exit_reason.is_(None))
            return int(connection.execute(found).scalar_one())

    def _cpu_s(self) -> float:
        pids = [worker.pid for worker in self._fleet.workers]
        servers = [child for child in psutil.Process().children(recursive=True) if child.pid not in pids]
        total = 0.0
        for process in (*(psutil.Process(pid) for pid in pids), *servers):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue  # a connection's server process that has ended
            total += times.user + times.system + times.children_user + times.children_system
        return total


def _delegation(children: int) -> Mapping[str, Any]:
    child = f"scripted: {dump_canonical_json({'steps': [], 'final': 'done'})}"
    return {"name": "delegate_task", "arguments": {"tasks": [{"goal": child}] * children}}


def table(rows: Sequence[PerChild]) -> str:
    cheapest = min(row.cpu_ms for row in rows)
    lines = ["| children of one root | CPU ms/child | to the cheapest | ms/child |", "|---|---|---|---|"]
    lines += [
        f"| {row.children} | {row.cpu_ms:.1f} | **{row.cpu_ms / cheapest:.2f}** | {row.wall_ms:.1f} |" for row in rows
    ]
    dearest = max(row.cpu_ms for row in rows) / cheapest
    verdict = "flat" if dearest <= FLAT_WITHIN else "NOT flat"
    return "\n".join([*lines, "", f"The dearest child costs {dearest:.2f} times the cheapest: {verdict}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="up to 100 children, on SQLite")
    options = parser.parse_args()
    # As many children at once in each row: what the end of a row costs, when the workers run dry, is shared by as many.
    wanted = [Trees(roots=200, children=1), Trees(roots=20, children=10), Trees(roots=2, children=100)]
    if not options.quick:
        wanted.append(Trees(roots=1, children=1_000))
    measured: dict[Trees, list[tuple[Measured, Measured]]] = {trees: [] for trees in wanted}
    with tempfile.TemporaryDirectory(prefix="hermes-fanout-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        directory.chmod(0o755)
        with Bench(directory, own_postgres=not options.quick) as bench:
            bench.measure(Trees(roots=WARM_UP, children=1))
            # A figure is a difference, and the machine's speed changes: so all rows take turns, each beside its roots.
            for number in range(ROUNDS):
                for trees in wanted:
                    print(f"round {number + 1} of {ROUNDS}: {trees}", file=sys.stderr, flush=True)
                    bare = bench.measure(Trees(roots=trees.roots, children=0))
                    measured[trees].append((bench.measure(trees), bare))
    print(table([per_child(rounds) for rounds in measured.values()]))


if __name__ == "__main__":
    main()
