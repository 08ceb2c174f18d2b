"""Beat replicas on a simulated clock, forked from one process that has imported everything. They tick without a pause
until killed.

The clock of a replica is the row of ``simulated_clock``, plus what ``clock_jumps`` has under its name.
"""

from __future__ import annotations

import multiprocessing.process
import os
import time
from collections.abc import Mapping

import sqlalchemy as sa

from hermes_worker import settings as settings_module
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.worker.celery import build_celery_app
from scheduler.beat import Scheduler
from support.replicas import FORKS


def start(name: str, environ: Mapping[str, str]) -> multiprocessing.process.BaseProcess:
    """A replica in a process of its own."""
    process = FORKS.Process(target=main, args=(name, dict(environ)), daemon=True)
    process.start()
    return process


def main(name: str, environ: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environ)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    settings = settings_module.load_settings()
    assert settings.broker.url and name.isalnum()
    replica = Scheduler(app=build_celery_app(settings.broker.url), settings=settings)
    assert replica._client
    jump = f"(select jump from clock_jumps where name = '{name}')"
    clock = f"(select t + coalesce({jump}, 0) from simulated_clock)"
    replica._jobs = Jobs(replica._client.database, clock=sa.literal_column(clock, sa.Double()))
    parent = os.getppid()
    while os.getppid() == parent:
        replica.tick()
        time.sleep(0.01)
