"""A look at the jobs costs what is due, not what there is; many that are due at once are not looked at one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.desk import NOON, Desk
from support.plans import plan_of, statements
from support.store import Store

from hermes_worker.store.jobs.jobs import Jobs
from scheduler import ticking

JOBS = 100_000
PAST = 20_000
"""Of them that have run once."""
BURST = 1_000
LARGE = {"jobs", "firings", "runs"}
IN_FLIGHT = {"ix_firings_open", "ix_firings_notes"}
"""Partial indexes that may be read whole: they hold what is going on now, not what there is."""

_FILL = """
insert into jobs (tenant, job_id, name, definition, state, next_slot, next_fire_at, created_at, updated_at)
select 'default', lpad(to_hex(n), 12, '0'), 'job ' || n,
       case when n <= {burst} + 9 then definition else '{{}}' end, 'scheduled',
       {noon} + case when n <= {burst} then 7200 when n <= {burst} + 9 then 3600 + n - {burst} else 9000 + n end,
       {noon} + case when n <= {burst} then 7200 when n <= {burst} + 9 then 3600 + n - {burst} else 9000 + n end,
       {noon}, {noon}
from jobs, generate_series(1, {count}) n;
insert into sessions (tenant, session_id, system_prompt, tools_hash, workspace, created_at)
values ('default', 's', '', '', '{{}}', {noon});
insert into runs (tenant, run_id, session_pk, model, status, exit_reason, state_version, iterations_max, attempts_max,
                  created_at, updated_at)
select 'default', 'run_' || n, (select pk from sessions), 'm', 'completed', 'text_response', 1, 90, 3, {noon}, {noon}
from generate_series(1, {past}) n;
insert into firings (job_pk, slot, outcome, reason, run_pk, settled_at, ended_at)
select pk, {noon} - 60, 'fired', 'due', pk, {noon}, {noon} from jobs where pk <= {past};
update jobs set next_slot = null, next_fire_at = null, state = 'paused' where pk = 1
"""


@pytest.fixture
def desk(own_postgres_store: Store, tmp_path: Path) -> Desk:
    """A day's jobs: nine in a second each, a thousand in one second, the others later."""
    desk = Desk(own_postgres_store, tmp_path / "home")
    desk.add("every 1d")
    with desk.store.database.write() as connection:
        for statement in _FILL.format(noon=NOON, count=JOBS, burst=BURST, past=PAST).split(";\n"):
            connection.exec_driver_sql(statement)
    with desk.store.database.statement() as connection:
        connection.exec_driver_sql("vacuum analyze jobs, firings, runs, sessions")
    return desk


def tick_s(desk: Desk) -> float:
    began = time.perf_counter()
    desk.tick()
    return time.perf_counter() - began


def require_indexes(desk: Desk, seen: Sequence[tuple[str, Any]]) -> None:
    """None of what was sent reads a large table from end to end."""
    looked_at = 0
    for statement, parameters in seen:
        if not statement.lstrip().lower().startswith(("select", "update")):
            continue
        for node in plan_of(desk.store.database, statement, parameters):
            if node.get("Relation Name") not in LARGE or not node["Node Type"].endswith("Scan"):
                continue
            looked_at += 1
            assert node["Node Type"] != "Seq Scan", f"all of {node['Relation Name']} is read by: {statement}"
            is_searched = "Index Cond" in node or "Recheck Cond" in node
            assert is_searched or node.get("Index Name") in IN_FLIGHT, f"no condition on an index in: {statement}"
    assert looked_at >= 3


def test_a_tick_over_a_hundred_thousand_jobs_costs_what_is_due(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    said = [an_idle_tick_looks_for_what_is_due(desk), one_due_job_is_looked_up(desk), a_thousand_are_started(desk)]
    their_ends_are_counted(desk)
    with capsys.disabled():
        print(f"\n{JOBS:,} jobs: {', '.join(said)}")


def an_idle_tick_looks_for_what_is_due(desk: Desk) -> str:
    simulated, desk.jobs = desk.jobs, Jobs(desk.store.database)  # by the clock of the database, as in production
    with statements(desk.store.database) as seen:
        assert desk.tick() == []
    assert len(seen) == 3
    require_indexes(desk, seen)
    took = min(tick_s(desk) for _ in range(9))
    desk.jobs = simulated
    return f"an idle tick takes {took * 1000:.1f} ms"


def one_due_job_is_looked_up(desk: Desk) -> str:
    took = []
    for second in range(1, 10):
        desk.at(3600 + second)
        with statements(desk.store.database) as seen:
            took.append(tick_s(desk))
    assert len(seen) <= 15  # with the note that a scheduler is at work, every 30 s
    require_indexes(desk, seen)
    return f"one with a due job {min(took) * 1000:.1f} ms"


def a_thousand_are_started(desk: Desk) -> str:
    """Few statements, and nobody waits long for any of the jobs."""
    held: list[float] = []

    def begun(_connection: Any) -> None:
        held.append(-time.perf_counter())

    def committed(_connection: Any) -> None:
        held[-1] += time.perf_counter()

    desk.at(7200)
    engine = desk.store.database.engine
    sa.event.listen(engine, "begin", begun)
    sa.event.listen(engine, "commit", committed)
    began = time.perf_counter()
    with statements(desk.store.database) as seen:
        hints = tick_all(desk)
    took = time.perf_counter() - began
    sa.event.remove(engine, "begin", begun)
    sa.event.remove(engine, "commit", committed)
    assert len({hint.effect.run_id for hint in hints}) == len(hints) == BURST
    assert len(held) == BURST / ticking.AT_ONCE
    assert len(seen) <= 14 * len(held)
    require_indexes(desk, seen[:14])
    fired = "select count(*), count(distinct run_pk) from firings where slot = :at and outcome = 'fired'"
    assert tuple(ask(desk, fired, at=NOON + 7200)) == (BURST, BURST)
    return f"{BURST:,} at once {took:.2f} s in {len(seen)} statements, none held longer than {max(held) * 1000:.0f} ms"


def their_ends_are_counted(desk: Desk) -> None:
    with desk.store.database.write() as connection:
        ended = "status = 'cancelled', exit_reason = 'interrupted_by_user', hinted_at = null"
        connection.exec_driver_sql(f"update runs set {ended} where exit_reason is null")
    with statements(desk.store.database) as seen:
        tick_all(desk)
    assert len(seen) < BURST / 4
    assert ask(desk, "select count(*) from firings where ended_at is null")[0] == 0


def tick_all(desk: Desk) -> list[Any]:
    """Look until nothing is left."""
    hints: list[Any] = []
    has_more = True
    while has_more:
        ticked = desk.tick_all()
        has_more = ticked.has_more
        hints += ticked.settled.hints
    return hints


def ask(desk: Desk, question: str, **values: Any) -> Any:
    with desk.store.database.read() as connection:
        return connection.execute(sa.text(question), values).one()
