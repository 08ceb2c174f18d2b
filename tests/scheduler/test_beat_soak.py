"""Three beats that are killed, jump in time and lose their database, over the nights when clocks change.

Every slot ends in one row, and every run belongs to one slot. The small version is for every day; the big one
(``pytest -m slow``) settles more than 10,000 slots.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import sqlalchemy as sa
from support import beat_replica
from support.migrated import bring_up

from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.postgres import EmbeddedPostgres
from hermes_worker.store.engine.database import Database
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import Jobs
from scheduler import jobs as work
from scheduler.definition import JobSpec
from scheduler.schedule import list_slots_between

ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe")


@dataclass(frozen=True, kw_only=True)
class Season:
    """A stretch of simulated time."""

    start: datetime
    days: float
    schedules: Sequence[str]
    steps_s: Sequence[int]
    """How far the clock may move at once."""
    kills: float
    """How likely one replica is killed at a step."""
    restarts: int
    """Of the database."""


class World:
    """The database, its simulated clock, and three replicas."""

    def __init__(self, server: EmbeddedPostgres, broker_url: str, home: Path) -> None:
        self.server = server
        self.environ = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "HERMES_DATABASE_URL": server.build_url(),
            "HERMES_BROKER_URL": broker_url,
            "HERMES_PROVIDER": "scripted",
            "HERMES_LOG_LEVEL": "ERROR",
        }
        bring_up(server.build_url())
        self.database = Database(server.build_url())
        with self.database.write() as connection:
            connection.execute(sa.text("create table simulated_clock (t double precision)"))
            connection.execute(sa.text("insert into simulated_clock values (0)"))
            connection.execute(sa.text("create table clock_jumps (name text primary key, jump double precision)"))
        clock = sa.literal_column("(select t from simulated_clock)", sa.Double())
        self.jobs = Jobs(self.database, clock=clock)
        self.replicas: dict[str, BaseProcess] = {}
        self.happened: Counter[str] = Counter()

    def write(self, statement: str, **values: object) -> None:
        """Again and again, while the database is away."""
        for _ in range(600):
            try:
                with self.database.write() as connection:
                    connection.execute(sa.text(statement), values)
                return
            except UnavailableError:
                time.sleep(0.05)
        raise AssertionError("the database did not come back")

    def ensure_replicas(self) -> None:
        for name in ("steady", "mortal", "jumpy"):
            replica = self.replicas.get(name)
            if replica is None or not replica.is_alive():
                self.replicas[name] = beat_replica.start(name, self.environ)
                self.happened["started"] += 1

    def kill(self, name: str) -> None:
        self.replicas[name].kill()
        self.replicas[name].join()
        self.happened["killed"] += 1

    def restart_database(self) -> None:
        self.server.stop()
        self.server.start()
        self.happened["database restarts"] += 1

    def is_done(self, now: float) -> bool:
        try:
            with self.database.read() as connection:
                due = sa.text("select count(*) from jobs where next_fire_at <= :now")
                return connection.execute(due, {"now": now}).scalar_one() == 0
        except UnavailableError:
            return False

    def end_runs(self) -> None:
        """What workers would do."""
        ended = "status = 'cancelled', exit_reason = 'interrupted_by_user', hinted_at = null"
        self.write(f"update runs set {ended} where exit_reason is null")
        self.write("update sessions set active_run_pk = null where active_run_pk is not null")

    def close(self) -> None:
        for replica in self.replicas.values():
            replica.kill()
            replica.join()
        self.database.close()


@contextmanager
def world(server: EmbeddedPostgres, broker_url: str, home: Path) -> Iterator[World]:
    made = World(server, broker_url, home)
    try:
        yield made
    finally:
        made.close()


def live_through(here: World, season: Season, chance: random.Random) -> list[JobRow]:
    """Let a season pass; returns its jobs."""
    start = season.start.timestamp()
    end = start + season.days * 86_400
    here.write("update simulated_clock set t = :t", t=start)
    made = [
        work.create(
            here.jobs,
            work.JobRequest(
                prompt="x", schedule=text, timezone=zone, more={"overlap": chance.choice(("skip", "allow"))}
            ),
        )
        for zone in ZONES
        for text in season.schedules
    ]
    restarts = sorted(chance.uniform(start, end) for _ in range(season.restarts))
    now = start
    while now < end:
        now = min(end, now + chance.choice(season.steps_s))
        here.ensure_replicas()
        here.write("update simulated_clock set t = :t", t=now)
        if chance.random() < 0.3:
            jump = chance.choice((-90, 0, 90))
            here.write(
                "insert into clock_jumps values ('jumpy', :jump) on conflict (name) do update set jump = :jump",
                jump=jump,
            )
            here.happened["jumps"] += jump != 0
        if chance.random() < season.kills:
            time.sleep(chance.random() * 0.05)  # in the middle of something
            here.kill(chance.choice(sorted(here.replicas)))
        if restarts and now >= restarts[0]:
            restarts.pop(0)
            here.restart_database()
        deadline = time.monotonic() + 120
        while not here.is_done(now):
            assert time.monotonic() < deadline, "a due slot is left alone"
            here.ensure_replicas()
            time.sleep(0.01)
        if chance.random() < 0.5:
            here.end_runs()
    for row in made:
        work.pause(here.jobs, row.job_id)
    audit(here, made, start, end)
    return made


def audit(here: World, made: Sequence[JobRow], start: float, end: float) -> None:
    """Every slot there was has exactly one row; a replica that is 90 s ahead may have settled the next ones too."""
    for row in made:
        schedule = JobSpec.from_json(row.definition).parse_schedule_at(start)
        since, until = (datetime.fromtimestamp(at, UTC) for at in (start, end))
        wanted = [slot.timestamp() for slot in list_slots_between(schedule, since, until, 100_000)]
        with here.database.read() as connection:
            found = sa.text("select slot, reason from firings where job_pk = :pk and slot <= :end order by slot")
            rows = connection.execute(found, {"pk": row.pk, "end": end}).all()
        assert [at for at, _ in rows] == wanted, f"{schedule.display} in {schedule.timezone}"
        assert all(reason for _, reason in rows)
        here.happened["slots"] += len(rows)
    with here.database.read() as connection:
        count = "select count(*) from runs", "select count(distinct run_pk) from firings where run_pk is not null"
        runs, owned = (connection.execute(sa.text(statement)).scalar_one() for statement in count)
        outcomes = connection.execute(sa.text("select outcome, count(*) from firings group by outcome")).all()
    assert runs == owned, "a run without a slot"
    here.happened["runs"] = runs
    here.happened.update({f"outcome {outcome}": n - here.happened[f"outcome {outcome}"] for outcome, n in outcomes})


def test_three_beats_settle_every_slot_once_whatever_happens_to_them(
    own_postgres: EmbeddedPostgres, broker_url: str, tmp_path: Path
) -> None:
    season = Season(
        start=datetime(2027, 3, 27, tzinfo=UTC),
        days=1.1,
        schedules=("30 2 * * *", "0 * * * *"),
        steps_s=(3_600, 7_200),
        kills=0.12,
        restarts=1,
    )
    with world(own_postgres, broker_url, tmp_path) as here:
        live_through(here, season, random.Random(6))
        assert here.happened["slots"] > 75


CHANGES = (
    datetime(2027, 3, 13, 18, tzinfo=UTC),
    datetime(2027, 3, 27, 12, tzinfo=UTC),
    datetime(2027, 4, 3, 0, tzinfo=UTC),
    datetime(2027, 10, 2, 0, tzinfo=UTC),
    datetime(2027, 10, 30, 12, tzinfo=UTC),
    datetime(2027, 11, 6, 18, tzinfo=UTC),
)
"""Shortly before the clocks of New York, Berlin and Lord Howe Island (by half an hour) change, there and back."""


@pytest.mark.slow
@pytest.mark.timeout(3_600)
def test_ten_thousand_slots_with_kills_jumps_and_restarts(
    own_postgres: EmbeddedPostgres, broker_url: str, tmp_path: Path
) -> None:
    schedules = ("30 2 * * *", "0 * * * *", "*/15 * * * *", "every 20m", "*/5 * * * *", "7,37 * * * *")
    with world(own_postgres, broker_url, tmp_path) as here:
        for number, start in enumerate(CHANGES):
            season = Season(
                start=start, days=1.15, schedules=schedules, steps_s=(300, 600, 900, 1_800), kills=0.06, restarts=1
            )
            live_through(here, season, random.Random(number))
        print(dict(here.happened))
        assert here.happened["slots"] > 10_000
