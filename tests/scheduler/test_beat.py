"""The beat: maintenance asked for once a minute, sweeping beside it, any number of replicas, no file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa
from celery.beat import Service
from support.migrated import bring_up
from support.patience import PATIENCE_S
from support.store import Store

from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.settings import Settings, load_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.jobs.job_rows import DueJob, JobTick
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.worker.celery import build_celery_app
from scheduler import beat, ticking
from scheduler import jobs as work
from scheduler.beat import Scheduler

SYSTEM, MODEL = "hermes:system", "hermes:model"


@pytest.fixture
def settings(tmp_path: Path, broker_url: str) -> Settings:
    environ = {
        "HOME": str(tmp_path),
        "HERMES_DATABASE_URL": f"sqlite:///{tmp_path / 'beat.db'}",
        "HERMES_BROKER_URL": broker_url,
        "HERMES_SWEEP_INTERVAL_S": "0.05",
        "HERMES_RESEND_GRACE_S": "0.1",
        "HERMES_PROVIDER": "scripted",
    }
    settings = load_settings(environ)
    bring_up(environ["HERMES_DATABASE_URL"])
    return settings


@pytest.fixture
def broker(breaking: redis.Redis) -> redis.Redis:
    return breaking


@contextmanager
def scheduler(settings: Settings, alive_file: Path | None = None) -> Iterator[Scheduler]:
    assert settings.broker.url
    made = Scheduler(app=build_celery_app(settings.broker.url), settings=settings, alive_file=alive_file)
    try:
        yield made
    finally:
        made.close()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_maintenance_is_asked_for_once_a_minute(
    settings: Settings, broker: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(beat.time, "monotonic", lambda: now[0])
    with scheduler(settings) as ours:
        ours.tick()
        assert ours._jobs.has_scheduler()
        assert broker.llen(SYSTEM) == 1
        assert '"hermes.maintain"' in str(broker.lindex(SYSTEM, 0))
        broker.delete(SYSTEM)
        now[0] += beat.MAINTAIN_EVERY_S - 1
        ours.tick()
        assert broker.llen(SYSTEM) == 0
        now[0] += 1
        ours.tick()
        assert broker.llen(SYSTEM) == 1


def test_a_request_that_nobody_takes_is_not_repeated(settings: Settings, broker: redis.Redis) -> None:
    with scheduler(settings) as first, scheduler(settings) as second:
        first.tick()
        second.tick()
    with scheduler(settings) as third:
        third.tick()
    assert broker.llen(SYSTEM) == 1


def test_a_message_that_was_lost_is_sent_again_without_any_worker(settings: Settings, broker: redis.Redis) -> None:
    assert settings.database.url
    store = Store.over(Database(settings.database.url))
    store.submit()  # and nobody sends its message
    with scheduler(settings):
        wait_until(lambda: broker.llen(MODEL))
    store.database.close()


def test_a_broker_that_is_away_is_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with scheduler(settings) as ours:
        monkeypatch.setattr(ours._client.publisher, "count_waiting", lambda: None)
        assert ours.tick() <= 1.0
        monkeypatch.undo()
        ours.tick()
        assert ours._client.publisher.count_waiting() == {
            **dict.fromkeys(ours._client.publisher.count_waiting() or {}, 0),
            "system": 1,
        }


def test_each_tick_touches_the_file_of_the_liveness_probe(settings: Settings, tmp_path: Path) -> None:
    with scheduler(settings, alive_file=tmp_path / "alive") as ours:
        ours.tick()
    assert (tmp_path / "alive").exists()


def test_celerys_own_service_runs_it_and_leaves_no_file(
    settings: Settings, broker: redis.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = set(tmp_path.iterdir())
    assert settings.broker.url
    service = Service(
        build_celery_app(settings.broker.url), scheduler_cls=lambda **options: Scheduler(settings=settings, **options)
    )
    tick = service.scheduler.tick

    def last_tick() -> float:
        service.stop()
        return min(tick(), 0.01)

    monkeypatch.setattr(service.scheduler, "tick", last_tick)
    service.start()
    assert broker.llen(SYSTEM) == 1
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {"beat.db-wal", "beat.db-shm"}


def test_celerys_own_command_line_runs_it(settings: Settings, broker: redis.Redis, tmp_path: Path) -> None:
    """``celery -A hermes_worker.worker.app beat``, as people type it, fires a job that is changed while it runs."""
    assert settings.database.url and settings.broker.url
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "HERMES_DATABASE_URL": settings.database.url,
        "HERMES_BROKER_URL": settings.broker.url,
        "HERMES_PROVIDER": "scripted",
    }
    database = Database(settings.database.url)
    jobs = Jobs(database)
    row = work.create(jobs, work.JobRequest(prompt="Look around", schedule="every 1h"))
    command = [str(Path(sys.executable).parent / "celery"), "-A", "hermes_worker.worker.app", "beat"]
    with subprocess.Popen(command, env=environ, cwd=tmp_path, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: broker.llen(SYSTEM))
            work.run_now(jobs, row.job_id)
            wait_until(lambda: broker.llen(MODEL))
            assert [view.outcome for view in jobs.list_firings(row.pk)] == ["fired"]
        finally:
            process.terminate()
            process.wait(timeout=20)
    assert not list(tmp_path.glob("celerybeat-schedule*"))
    database.close()


def test_what_people_change_is_seen_by_the_next_tick_of_every_replica(settings: Settings) -> None:
    assert settings.database.url and beat.TICK_S <= 1
    database = Database(settings.database.url)
    jobs = Jobs(database)
    with scheduler(settings) as first, scheduler(settings) as second:
        assert 0 <= first.tick() <= 1
        row = work.create(jobs, work.JobRequest(prompt="x", schedule="every 1h", more={"overlap": "allow"}))
        for replica in (first, second):
            work.run_now(jobs, row.job_id)
            replica.tick()
        assert [view.outcome for view in jobs.list_firings(row.pk)] == ["fired", "fired"]
        work.run_now(jobs, row.job_id)
        work.pause(jobs, row.job_id)
        first.tick()
        assert len(jobs.list_firings(row.pk)) == 2
    database.close()


def test_more_than_one_look_can_settle_is_gone_on_with_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.database.url
    monkeypatch.setattr("hermes_worker.store.jobs.jobs.DUE_MAX", 3)
    monkeypatch.setattr("scheduler.ticking.DUE_MAX", 3)
    database = Database(settings.database.url)
    jobs = Jobs(database)
    rows = [work.create(jobs, work.JobRequest(prompt="x", schedule="every 1h")) for _ in range(5)]
    for row in rows:
        work.run_now(jobs, row.job_id)
    with scheduler(settings) as ours:
        assert ours.tick() == 0
        assert ours.tick() > 0
    assert all(len(jobs.list_firings(row.pk)) == 1 for row in rows)
    database.close()


def test_a_job_that_breaks_the_scheduler_does_not_hold_up_the_others(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.database.url
    database = Database(settings.database.url)
    jobs = Jobs(database)
    rows = [work.create(jobs, work.JobRequest(prompt="x", schedule="every 1h")) for _ in range(5)]
    for row in rows:
        work.run_now(jobs, row.job_id)
    tick_of = ticking.decide_tick

    def broken(
        due: DueJob, settings: Settings, gathered: ticking.Gathered = ticking.NOTHING_GATHERED
    ) -> JobTick | None:
        if due.row.pk == rows[2].pk:
            raise RuntimeError("a defect")
        return tick_of(due, settings, gathered)

    monkeypatch.setattr(ticking, "decide_tick", broken)
    with scheduler(settings) as ours:
        wait_until(lambda: ours.tick() and sum(len(jobs.list_firings(row.pk)) for row in rows) == 4)
        assert jobs.list_firings(rows[2].pk) == []
        monkeypatch.setattr(ticking, "decide_tick", tick_of)
        ours.tick()
        assert [view.outcome for view in jobs.list_firings(rows[2].pk)] == ["fired"]
    database.close()


def test_a_replica_that_freezes_in_a_transaction_is_replaced_in_less_than_five_seconds(
    settings: Settings, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert beat._FROZEN_AFTER_S + beat.TICK_S < 5
    monkeypatch.setattr(beat, "_FROZEN_AFTER_S", 1.0)
    here = replace(settings, database=replace(settings.database, url=postgres_url))
    bring_up(postgres_url)
    database = Database(postgres_url)
    jobs = Jobs(database)
    row = work.create(jobs, work.JobRequest(prompt="x", schedule="every 1h"))
    work.run_now(jobs, row.job_id)
    with scheduler(here) as frozen, scheduler(here) as standby:
        holding, over = threading.Event(), threading.Event()
        ours = frozen._client.database

        def freeze() -> None:
            with pytest.raises(UnavailableError), ours.write() as connection:
                connection.execute(sa.text("select * from jobs for update"))
                holding.set()
                over.wait()
                connection.execute(sa.text("select 1"))

        thread = threading.Thread(target=freeze)
        thread.start()
        assert holding.wait(PATIENCE_S)
        while not jobs.list_firings(row.pk):
            time.sleep(min(0.2, standby.tick()))
        over.set()
        thread.join(PATIENCE_S)
    database.close()


def test_a_database_without_the_schema_is_refused_at_once(settings: Settings, tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "HERMES_DATABASE_URL": f"sqlite:///{tmp_path / 'empty.db'}"}
    assert settings.broker.url
    with (
        pytest.raises(ConfigurationError, match="hermes-worker data migrate"),
        scheduler(load_settings({**environ, "HERMES_BROKER_URL": settings.broker.url})),
    ):
        pass
