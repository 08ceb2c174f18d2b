"""A look at the jobs costs what is due, not what there is: 100,000 jobs on PostgreSQL."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import sqlalchemy as sa
from support.desk import NOON, Desk
from support.store import Store

from hermes_worker.store.jobs import Jobs

JOBS = 100_000
TICK_S_MAX = 0.050


def fill(desk: Desk) -> None:
    """Jobs like one that was made the usual way, due at times spread over the next day; each has run twice."""
    desk.add()
    with desk.store.database.write() as connection:
        connection.execute(
            sa.text(
                "insert into jobs (job_id, name, definition, state, next_slot, next_fire_at, created_at, updated_at)"
                " select lpad(to_hex(n), 12, '0'), 'job ' || n, definition, 'scheduled',"
                " :noon + 3600 + n % 86400, :noon + 3600 + n % 86400, :noon, :noon"
                " from jobs, generate_series(1, :count) n"
            ),
            {"noon": NOON, "count": JOBS},
        )
        connection.execute(
            sa.text(
                "insert into firings (job_pk, slot, outcome, reason, run_pk, settled_at, ended_at)"
                " select pk, :noon - 60 * n, 'fired', 'due', pk * 2 + n, :noon, :noon"
                " from jobs, generate_series(1, 2) n"
            ),
            {"noon": NOON},
        )
    with desk.store.database.statement() as connection:
        connection.execute(sa.text("analyze jobs"))
        connection.execute(sa.text("analyze firings"))


def tick_s(desk: Desk) -> float:
    began = time.perf_counter()
    desk.tick()
    return time.perf_counter() - began


def plan_of(desk: Desk, statement: str) -> str:
    with desk.store.database.read() as connection:
        return "\n".join(connection.execute(sa.text(f"explain analyze {statement}")).scalars())


def test_an_idle_tick_over_a_hundred_thousand_jobs_takes_less_than_50_ms(postgres_store: Store, tmp_path: Path) -> None:
    desk = Desk(postgres_store, tmp_path / "home")
    fill(desk)
    simulated, desk.jobs = desk.jobs, Jobs(postgres_store.database)  # by the clock of the database, as in production
    tick_s(desk)
    idle = median(tick_s(desk) for _ in range(9))
    asked: list[str] = []
    for engine in postgres_store.database.engines:
        sa.event.listen(engine, "before_cursor_execute", lambda *event: asked.append(event[2]))
    desk.tick()
    (due_query,) = [statement for statement in asked if "next_fire_at <=" in statement]
    plan = plan_of(desk, due_query.split("LIMIT")[0] + "limit 100")
    desk.jobs = simulated
    desk.at(3600)  # one job is due in this second
    due = tick_s(desk)
    print(f"idle tick {idle * 1000:.1f} ms, tick with one job due {due * 1000:.1f} ms\n{plan}")

    assert idle < TICK_S_MAX
    assert "ix_jobs_due" in plan and "Seq Scan" not in plan
    for statement in (
        "select pk from firings where ended_at is null and (run_pk is not null or execution is not null) limit 200",
        "select pk from firings where owes_note order by pk limit 200",
        f"select pk from firings where hinted_at < {NOON} limit 200",
        "select pk from firings where lease_owner is not null limit 200",
    ):
        assert "Seq Scan on firings" not in plan_of(desk, statement), statement
