"""What years of data cost: the buffers of the statements that every step needs, with more and more runs behind them.

``python -m benchmarks.years 10000 100000 1000000`` fills a PostgreSQL of its own with so many runs that have ended, one
number after the other, and says after each what one submission, claim, sweep and list read. docs/retention.md has the
figures.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.core.effects import Iterate
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.retention import DEFAULT_RULES, RetentionKind, RetentionRule
from hermes_worker.core.spec import RunSpec
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate
from hermes_worker.store.retention.pruner import Pruner
from hermes_worker.store.runs.listing import Listing, RunFilter
from hermes_worker.store.runs.runs import NewRun, Runs
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.store.workers import Workers

_TIMES = 40
_HOT = ("ix_runs_due", "ix_runs_claimed", "ix_runs_open", "ix_tool_calls_due", "ix_deliveries_due", "ix_runs_uncounted")
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
        self._sweeper = Sweeper(database, SweepPolicy(interval_s=0.0, ttl_s=15.0, resend_grace_s=2.0))
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
        self._listing.page(RunFilter(), limit=50)

    def buffers(self, act: Callable[[], None]) -> float:
        """Buffers that one ``act`` touches, of so many."""
        act()
        before = self._touched()
        for _ in range(_TIMES):
            act()
        return (self._touched() - before) / _TIMES

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

    def hot_shares(self) -> dict[str, float]:
        """Of the updates of a table, those that touched no index."""
        with self._database.read() as connection:
            rows = connection.exec_driver_sql(
                "select relname, n_tup_hot_upd::float / n_tup_upd from pg_stat_user_tables where n_tup_upd > 50"
            )
            return {str(name): round(float(share), 2) for name, share in rows}

    def prune(self) -> int:
        rules = {**DEFAULT_RULES, RetentionKind.RUNS: RetentionRule(age_s=86_400.0)}
        rules[RetentionKind.TRANSCRIPTS] = rules[RetentionKind.RUNS]
        return sum(batch.count for batch in Pruner(self._database, rules).steps() if batch.what == "runs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=int, nargs="+")
    parser.add_argument("--prune", action="store_true", help="Delete everything at the end.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, EmbeddedPostgres(Path(place), is_durable=False) as server:
        database = Database(server.create_database("years"))
        migrate(database)
        years, filled = _Years(database), 0
        years.submit()
        years.step()
        for count in arguments.runs:
            years.fill(filled + 1, count)
            filled = count
            acts = (years.submit, years.step, years.sweep, years.list)
            told = ", ".join(f"{act.__name__} {years.buffers(act):.1f}" for act in acts)
            print(f"{count:>9,} runs: buffers of one {told}; hot indexes {years.hot_bytes():,} bytes", flush=True)
        print(f"HOT updates: {years.hot_shares()}", flush=True)
        if arguments.prune:
            print(f"pruned {years.prune():,} runs", flush=True)
        database.close()


if __name__ == "__main__":
    main()
