"""What years of data cost: the buffers of the statements that every step needs, with more and more runs behind them.

``python -m benchmarks.years 10000 100000 1000000`` fills a PostgreSQL of its own with so many runs that have ended, one
number after the other, and says after each what one submission, claim, sweep and list read, and whether PostgreSQL
finds their rows as it did before. ``--plans FILE`` keeps the plans, ``--check`` fails where that is not so, or where
an act reads more than 1.2 times as much. docs/retention.md has the figures.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from benchmarks.plans import Explained, explaining
from hermes_worker.core.effects import Iterate
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule
from hermes_worker.core.spec import RunSpec
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.store.workers import Workers

_TIMES = 40
_WHOLE = frozenset(f"all of {name}" for name in ("runs", "sessions", "messages", "events", "run_inputs"))
_GROWTH_MAX = 1.2
_FEW = 16
"""So many buffers more are a matter of chance: where the rows of an act happen to stand."""
_HOT = ("ix_runs_due", "ix_runs_claimed", "ix_runs_open", "ix_tool_calls_due", "ix_deliveries_due", "ix_runs_uncounted")
_AT_WORK = frozenset(
    {
        *_HOT,
        *("ix_runs_deadline", "ix_runs_halting", "ix_runs_idle_limit", "ix_runs_resume", "ix_runs_suspect"),
        *("ix_tool_calls_claimed", "ix_deliveries_claimed", "ix_deliveries_later", "ix_deliveries_uncounted"),
    }
)
_PAST = """
with new_sessions as (
    insert into sessions (session_id, tenant, message_seq, system_prompt, tools_hash, workspace, created_at)
    select 'old' || n, 'default', 2, 'You are a test.', '{tools}', '{{}}', {at} from generate_series({first}, {last}) n
    returning pk, session_id
), new_runs as (
    insert into runs (run_id, session_pk, tenant, model, status, state_version, iteration, iterations_max, attempts_max,
        message_seq, event_seq, output_seq, created_at, started_at, updated_at, finished_at, exit_reason, is_counted)
    select session_id, pk, 'default', 'm', 'completed', 1, 1, 90, 3, 2, 3, 2, {at}, {at}, {at}, {at}, 'text_response', 1
    from new_sessions
    returning pk, session_pk
), new_messages as (
    insert into messages (session_pk, seq, run_pk, role, body, created_at)
    select session_pk, seq, pk, 'user', '{{"role":"user","content":"hello"}}', {at}
    from new_runs, generate_series(1, 2) seq
), new_inputs as (
    insert into run_inputs (run_pk, spec) select pk, '{{}}' from new_runs
)
insert into events (run_pk, seq, at, event, data)
select pk, seq, {at}, case when seq = 3 then 'run.completed' else 'message.completed' end, '{{}}'
from new_runs, generate_series(1, 3) seq
"""


class _Years:
    """The parts of the store over one database, and what they read."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = Runs(database)
        self._listing = Listing(database)
        self._sweeper = Sweeper(database, SweepPolicy(interval_s=0.0, ttl_s=1e6, resend_grace_s=2.0))
        self._owner = Workers(database).register(name="w", queues="model", ttl_s=1e9).pk
        self._accepted: list[str] = []

    def fill(self, first: int, last: int) -> None:
        """Runs that ended 100 days ago."""
        with self._database.write() as connection:
            tools = connection.execute(sa.text("select tools_hash from sessions limit 1")).scalar_one()
            now = "extract(epoch from now()) - 100 * 86400"
            connection.exec_driver_sql(_PAST.format(tools=tools, at=now, first=first, last=last))
        with self._database.statement() as connection:
            connection.exec_driver_sql("vacuum analyze")

    def submit(self) -> None:
        new = NewRun(spec=RunSpec(input="x", model="m"), system_prompt="You are a test.", tools="[]", workspace="{}")
        self._accepted.append(self._runs.create(new).run_id)

    def step(self) -> None:
        """Claim the oldest run that is due, and end it."""
        effect = Iterate(run_id=self._accepted.pop(0), iteration=1, attempt=1)
        claim = self._runs.claim_iteration(effect, self._owner)
        assert claim is not None
        self._runs.commit_reply(claim, ModelReply(text="done", usage=Usage()), ())

    def sweep(self) -> None:
        self._sweeper.sweep(None)

    def list(self) -> None:
        self._listing.list_page(RunFilter(), limit=50)

    def buffers(self, act: Callable[[], None]) -> float:
        """Buffers that one ``act`` touches, of so many."""
        act()
        before = self._touched()
        for _ in range(_TIMES):
            act()
        return (self._touched() - before) / _TIMES

    def plans(self, act: Callable[[], None]) -> dict[str, Explained]:
        """How the statements of one ``act`` are executed, by the statement."""
        with explaining(self._database) as plans:
            act()
        return {explained.statement: explained for explained in plans.found}

    def _touched(self) -> int:
        with self._database.read() as connection:
            connection.exec_driver_sql("select pg_stat_force_next_flush()")
        with self._database.engine.connect() as connection:
            connection.exec_driver_sql("select pg_stat_force_next_flush()")
            connection.commit()
            found = "select coalesce(sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit), 0)"
            return int(connection.exec_driver_sql(f"{found} from pg_statio_user_tables").scalar_one())

    def hot_bytes(self) -> int:
        sizes = " + ".join(f"pg_relation_size('{name}')" for name in _HOT)
        with self._database.read() as connection:
            return int(connection.exec_driver_sql(f"select {sizes}").scalar_one())

    def prune(self) -> int:
        rules = {**DEFAULT_RULES, RetentionKind.RUNS: RetentionRule(age_s=86_400.0)}
        rules[RetentionKind.TRANSCRIPTS] = rules[RetentionKind.RUNS]
        return sum(batch.count for batch in Pruner(self._database, rules).prune_stepwise() if batch.what == "runs")


def _differences(before: dict[str, Explained], now: dict[str, Explained]) -> list[str]:
    """What is found in another way, or by reading a whole table of those that grow."""
    found = []
    for statement, explained in now.items():
        was, is_now = before.get(statement, explained).accesses(_AT_WORK), explained.accesses(_AT_WORK)
        if was != is_now:
            found.append(f"{statement[:300]}\n  found its rows by {was}\n  and does by {is_now}")
        found += [f"{statement[:300]}\n  reads {each}" for each in is_now if each in _WHOLE]
    return found


def _measure(years: _Years, counts: Sequence[int], plans_file: Path | None) -> list[str]:
    """What is wrong."""
    filled, wrong = 0, []
    plans: dict[str, dict[str, dict[str, Explained]]] = {}
    buffers: dict[str, float] = {}
    for count in counts:
        years.fill(filled + 1, count)
        filled = count
        acts = (years.submit, years.step, years.sweep, years.list)
        found = {act.__name__: years.buffers(act) for act in acts}
        told = ", ".join(f"{name} {number:.1f}" for name, number in found.items())
        print(f"{count:>9,} runs: buffers of one {told}; hot indexes {years.hot_bytes():,} bytes", flush=True)
        wrong += [
            f"{name} reads {found[name] / first:.2f} times as much"
            for name, first in buffers.items()
            if found[name] > max(_GROWTH_MAX * first, first + _FEW)
        ]
        buffers = buffers or found
        now = {act.__name__: years.plans(act) for act in acts}
        before = next(iter(plans.values()), now)
        differences = [each for name in now for each in _differences(before[name], now[name])]
        print(
            f"{'':>9}  plans of {sum(map(len, now.values()))} statements: {len(differences)} differ from the first"
            if plans
            else f"{'':>9}  plans noted",
            flush=True,
        )
        wrong += differences
        plans[str(count)] = now
    if plans_file:
        kept = {
            count: {name: {each.statement: each.plan for each in found.values()} for name, found in acts.items()}
            for count, acts in plans.items()
        }
        plans_file.write_text(json.dumps(kept, indent=1), encoding="utf-8")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="+")
    parser.add_argument("--prune", action="store_true", help="Delete everything at the end.")
    parser.add_argument("--plans", type=Path, help="Write the plans into this file, as JSON.")
    parser.add_argument("--check", action="store_true", help="Fail when a plan changes its shape, or reads much more.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, EmbeddedPostgres(Path(place), is_durable=False) as server:
        database = Database(server.create_database("years"))
        migrate(database)
        years = _Years(database)
        years.submit()
        years.step()
        wrong = _measure(years, arguments.runs, arguments.plans)
        print(*wrong, sep="\n")
        if arguments.prune:
            print(f"pruned {years.prune():,} runs", flush=True)
        database.close()
    if arguments.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
