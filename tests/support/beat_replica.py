"""A beat replica on a simulated clock: ``python -m support.beat_replica NAME``. Ticks without a pause until killed.

Its clock is the row of ``simulated_clock``, plus what ``clock_jumps`` has under its name.
"""

from __future__ import annotations

import os
import sys
import time

import sqlalchemy as sa

from hermes_worker import settings as settings_module
from hermes_worker.store.jobs import Jobs
from hermes_worker.tasks.celery import celery_app
from scheduler.beat import Scheduler


def main(name: str) -> None:
    settings = settings_module.load()
    assert settings.broker.url and name.isalnum()
    replica = Scheduler(app=celery_app(settings.broker.url), settings=settings)
    assert replica._client
    jump = f"(select jump from clock_jumps where name = '{name}')"
    clock = f"(select t + coalesce({jump}, 0) from simulated_clock)"
    replica._jobs = Jobs(replica._client.database, clock=sa.literal_column(clock, sa.Double()))
    parent = os.getppid()
    while os.getppid() == parent:
        replica.tick()
        time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1])
