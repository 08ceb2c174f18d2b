"""Whether a database stays as large as what it keeps: steps without end, with pruning on.

``python -m benchmarks.steady 100000`` plays so many steps (model calls and tool calls) with the statements of the store
on a PostgreSQL of its own, with autovacuum, while sweeps count what has ended and a pruner deletes what is older than
20 s: so much is an hour here. After every tenth it says how large tables and indexes are, and at the end how many of
the updates of each table were HOT. ``--check`` fails when the second half grew by more than a tenth. docs/retention.md
has the figures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate, RunTool, SendDelivery
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule
from hermes_worker.core.run import CallStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.calls import Settlement, ToolCalls
from hermes_worker.store.runs.runs import IterationClaim, NewRun, Runs
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.store.workers import Workers

_KEPT_S = 20.0
_AT_WORK = 40
"""Runs at a time, for each of the workers."""
_WORKERS = 2
_BATCHES = (1, 3, 1, 2)
"""Tool calls of a run's replies, before the answer."""
_GROWTH_MAX = 1.1
_OPTIONS = {
    # A minute between two looks of autovacuum is a third of a second where an hour is 20 s; this is as near as it gets.
    "autovacuum_naptime": "1s",
    "synchronous_commit": "off",
    "fsync": "off",
}
_TABLES = ("runs", "tool_calls", "sessions", "messages", "events", "deliveries")
_SIZES = """
select relname, pg_table_size(oid), pg_indexes_size(oid) from pg_class where relname in ({names}) order by relname
"""
_HOT = """
select relname, n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where n_tup_upd > 1000 order by n_tup_upd desc
"""
_RESULT = "x" * 500


@dataclass
class _Load:
    """Simulated workers: every claim, reply and result is written as a worker writes it."""

    database: Database
    steps_max: int
    steps: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)
    failure: BaseException | None = None

    def work(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.failure = error
            self.steps = self.steps_max

    def _work(self) -> None:
        runs, calls, outbox = Runs(self.database), ToolCalls(self.database), Deliveries(self.database)
        owner = Workers(self.database).register(name="w", queues="model,tools", ttl_s=1e9).pk
        due: deque[object] = deque()
        open_runs = 0
        while self.steps < self.steps_max or due:
            while open_runs < _AT_WORK and self.steps < self.steps_max:
                new = NewRun(
                    spec=RunSpec(input="x" * 200, model="m"),
                    system_prompt="You are a test.",
                    tools="[]",
                    workspace="{}",
                    deliver=["local"],
                )
                due.extend(_effects(runs.create(new).hints))
                open_runs += 1
            match due.popleft():
                case Iterate() as effect:
                    claim = runs.claim_iteration(effect, owner)
                    assert claim is not None
                    due.extend(_effects(_reply(runs, claim, effect.iteration)))
                    open_runs -= effect.iteration > len(_BATCHES)
                case RunTool() as effect:
                    call = calls.claim(effect, owner)
                    assert call is not None
                    settled = Settlement(status=CallStatus.SUCCEEDED, text=_RESULT, duration_s=0.01, session_updates={})
                    due.extend(_effects(calls.settle(call, settled)))
                case SendDelivery() as effect:
                    delivery = outbox.claim(effect, owner)
                    assert delivery is not None
                    outbox.settle_delivered(delivery, None)
                    continue
                case other:
                    raise AssertionError(f"nobody does {other!r} here")
            with self.lock:
                self.steps += 1


def _effects(hints: Sequence[Hint]) -> Iterator[object]:
    return (hint.effect for hint in hints)


def _reply(runs: Runs, claim: IterationClaim, iteration: int) -> list[Hint]:
    usage = Usage(input=100, output=10)
    if iteration > len(_BATCHES):
        return runs.commit_reply(claim, ModelReply(text="done", usage=usage), ())
    names = [f"tool{number}" for number in range(_BATCHES[iteration - 1])]
    requests = tuple(ToolRequest(id=f"call_{iteration}_{name}", name=name, arguments="{}") for name in names)
    reply = ModelReply(text="", tool_requests=requests, finish_reason="tool_calls", usage=usage)
    planned = tuple(ev.PlannedCall(name=name, replay=Replay.PURE, segment=0) for name in names)
    return runs.commit_reply(claim, reply, planned)


@contextmanager
def _upkeep(database: Database, kept_s: float) -> Iterator[dict[str, int]]:
    """Sweeps and pruning beside the block; what was deleted."""
    rule = RetentionRule(age_s=kept_s)
    rules = {**DEFAULT_RULES, RetentionKind.RUNS: rule, RetentionKind.TRANSCRIPTS: rule}
    rules[RetentionKind.TOMBSTONES] = rule
    pruner, deleted = Pruner(database, rules), {"runs": 0}
    sweeper = Sweeper(database, SweepPolicy(interval_s=0.0, ttl_s=15.0, resend_grace_s=60.0))
    over = threading.Event()

    def prune() -> None:
        while not over.wait(1.0):
            for batch in pruner.prune_stepwise():
                if batch.what == "runs":
                    deleted["runs"] += batch.count
                if over.is_set():
                    return

    def sweep() -> None:
        while not over.wait(1.0):
            sweeper.sweep(None)

    threads = [threading.Thread(target=each) for each in (prune, sweep)]
    for thread in threads:
        thread.start()
    try:
        yield deleted
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _sizes(database: Database) -> dict[str, tuple[int, int]]:
    with database.read() as connection:
        names = ", ".join(f"'{name}'" for name in _TABLES)
        rows = connection.exec_driver_sql(_SIZES.format(names=names))
        return {str(name): (int(table), int(indexes)) for name, table, indexes in rows}


def _tell(steps: int, sizes: dict[str, tuple[int, int]], deleted: int, seconds: float) -> int:
    total = sum(map(sum, sizes.values()))
    parts = ", ".join(f"{name} {table / 1e6:.1f}+{indexes / 1e6:.1f}" for name, (table, indexes) in sizes.items())
    print(
        f"{steps:>8,} steps, {seconds:4.0f} s, {deleted:>6,} runs deleted: {total / 1e6:6.1f} MB ({parts})", flush=True
    )
    return total


def _play(database: Database, steps: int, kept_s: float) -> list[int]:
    """The sizes after every tenth of the steps."""
    load, totals, began = _Load(database, steps), [], time.monotonic()
    with _upkeep(database, kept_s) as deleted:
        threads = [threading.Thread(target=load.work) for _ in range(_WORKERS)]
        for thread in threads:
            thread.start()
        for tenth in range(1, 11):
            while load.steps < steps * tenth // 10:
                time.sleep(0.05)
            totals.append(_tell(load.steps, _sizes(database), deleted["runs"], time.monotonic() - began))
        for thread in threads:
            thread.join()
    print(f"{deleted['runs']:,} runs were deleted in all")
    if load.failure is not None:
        raise load.failure
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("steps", type=int)
    parser.add_argument("--kept-s", type=float, default=_KEPT_S, help="What is older is deleted.")
    parser.add_argument("--check", action="store_true", help="Fail when the second half grew by more than a tenth.")
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as place,
        EmbeddedPostgres(Path(place), options=_OPTIONS) as server,
        patch("hermes_worker.features.retention.rules.FLOOR_S", arguments.kept_s),
    ):
        database = Database(server.create_database("steady"))
        migrate(database)
        totals = _play(database, arguments.steps, arguments.kept_s)
        with database.engine.connect() as connection:
            connection.exec_driver_sql("select pg_stat_force_next_flush()")
            for name, updates, hot in connection.exec_driver_sql(_HOT):
                print(f"{name}: {updates:,} updates, {hot / updates:.0%} of them HOT")
        database.close()
    growth = max(totals[5:]) / max(totals[2:5])
    print(f"largest in the second half: {growth:.2f} times the largest of the third to fifth tenth")
    if arguments.check and growth > _GROWTH_MAX:
        sys.exit(1)


if __name__ == "__main__":
    main()
