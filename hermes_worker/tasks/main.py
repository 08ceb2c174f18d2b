"""Run one worker process until it is told to leave."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from hermes_worker import faults
from hermes_worker.observe import configure_logging, log
from hermes_worker.settings import Settings
from hermes_worker.tasks.app import build, connect_signals
from hermes_worker.wiring import WorkerOptions


class Pool(StrEnum):
    """How a worker runs several tasks at once."""

    THREADS = "threads"
    PREFORK = "prefork"
    SOLO = "solo"


def run_worker(settings: Settings, options: WorkerOptions, *, pool: Pool, concurrency: int) -> int:
    """Consume ``options.queues`` until SIGTERM; returns the process's exit status.

    Raises ``ConfigurationError`` and ``UnavailableError`` before anything is consumed.
    """
    configure_logging(settings.log, "worker")
    if settings.faults:
        faults.arm(settings.faults)
    connect_signals(settings, options)
    worker: Any = build(settings).Worker(
        queues=list(options.queues),
        pool=pool.value,
        concurrency=concurrency,
        # Celery's own INFO lines, two for every task, would cost a tenth of a task's CPU and tell nothing ours do not.
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        prefetch_multiplier=1,
        quiet=True,
    )
    log.info("worker.started", queues=",".join(options.queues), pool=pool.value, concurrency=concurrency)
    worker.start()
    return int(worker.exitcode or 0)
