"""Run one worker process until it is told to leave."""

from __future__ import annotations

import logging
import os
import resource
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from celery.apps.worker import Worker
from celery.exceptions import CPendingDeprecationWarning
from celery.platforms import SecurityWarning
from celery.worker import state

from hermes_worker.broker.queue import STANDING_QUEUES, QueueName, refuse_cluster
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import find_broker_url
from hermes_worker.local.process import format_root_warning, title_process
from hermes_worker.local.readiness import readiness
from hermes_worker.local.startup import LEAVING_SIGNALS, wait_for_database
from hermes_worker.models.build import build_provider
from hermes_worker.observe import configure_logging, log
from hermes_worker.settings import RemoteControl, Settings, is_supervised
from hermes_worker.system import faults, heap
from hermes_worker.system.open_files import raise_open_file_limit
from hermes_worker.tasks.build import WorkerOptions
from hermes_worker.tasks.heartbeat import request_exit
from hermes_worker.wiring import open_client
from hermes_worker.worker import lifecycle
from hermes_worker.worker.app import build_app, connect_signals, get_process
from hermes_worker.worker.monitoring import guard_control
from hermes_worker.workspaces.command_mark import build_worker_title

if TYPE_CHECKING:
    from celery.beat import Service

EX_OK = 0


class WorkerPool(StrEnum):
    """The ways in which a worker runs several tasks at once."""

    THREADS = "threads"
    PREFORK = "prefork"
    SOLO = "solo"


def run_worker(
    settings: Settings,
    options: WorkerOptions,
    *,
    pool: WorkerPool,
    concurrency: int,
    make_beat: Callable[[Celery], Service] | None = None,
) -> int:
    """Consume ``options.queues`` until SIGTERM or SIGINT; returns the process's exit status. ``make_beat`` makes the
    scheduler that lives in this process, if one does.

    Raises ``ConfigurationError`` before anything is consumed. A database or a broker that is away, full or read-only is
    waited for.
    """
    if {QueueName.MODEL, QueueName.SUSPECT_MODEL} & set(options.queues):
        _prepare_model_calls(settings)
    options = replace(
        options, slots=1 if pool is WorkerPool.PREFORK else concurrency
    )  # a prefork child is a process each
    if make_beat is not None and pool is not WorkerPool.THREADS:
        raise ConfigurationError("a scheduler lives in a worker of the pool 'threads' alone: start a beat of its own")
    if options.is_lane:
        _require_apart(options, pool, concurrency)
        _limit_memory(settings.lease.lane_memory_mb)
    configure_logging(settings.log, "worker", secrets=settings.secrets)
    _quiet_celery()
    raise_open_file_limit()
    if settings.faults:
        faults.arm_faults(settings.faults)
    connect_signals(settings, lifecycle.open_lanes(settings, options))
    role = f"worker {','.join(options.queues)} [{concurrency}] pool process"
    title = build_worker_title(role, may_call_us=settings.terminal.allow_hermes_worker)
    signals.worker_process_init.connect(partial(_title_child, title), weak=False)
    readiness.ready_file = options.ready_file
    readiness.withdraw()
    refuse_cluster(find_broker_url(settings))
    wait_for_database(partial(_fail_early, settings, pool), alive_file=options.alive_file)
    app = build_app(settings)
    guard_control(RemoteControl(settings.worker.remote_control))
    if make_beat is not None:
        _start_beat(make_beat(app), options.alive_file)
    worker = _Worker(
        app=app,
        hostname=build_node_name(options.queues),
        queues=list(options.queues),
        pool=pool.value,
        concurrency=concurrency,
        loglevel="WARNING",
        without_gossip=True,
        without_mingle=True,
        prefetch_multiplier=1,
        quiet=True,
    )
    worker.start()
    return int(worker.exitcode or EX_OK)


def _start_beat(beat: Service, alive_file: Path | None) -> None:
    """Run a scheduler in a thread, until the worker begins to leave. One that meets a defect takes the worker along,
    for its supervisor to start both."""
    wait_for_database(lambda: beat.scheduler, alive_file=alive_file)

    def run() -> None:
        try:
            beat.start()
        except Exception:
            log.exception("thread.failed", doing="beat")
            request_exit()

    signals.worker_shutting_down.connect(lambda **_: beat.stop(), weak=False)
    threading.Thread(target=run, name="hermes_beat", daemon=True).start()
    log.info("worker.started", schedule="maintenance")


def build_node_name(queues: Sequence[str]) -> str:
    """The worker's name for Celery's tools: the queues that it consumes, and unique in the fleet."""
    role = "worker" if set(queues) == {name.value for name in STANDING_QUEUES} else "-".join(queues)
    return f"{role}.{os.getpid()}@{socket.gethostname()}"


def run_lane(settings: Settings, options: WorkerOptions) -> int:
    """Be a lane for the queues of ``options``; see ``worker.lanes``."""
    return run_worker(settings, options, pool=WorkerPool.THREADS, concurrency=1)


def _require_apart(options: WorkerOptions, pool: WorkerPool, concurrency: int) -> None:
    """Raise ``ConfigurationError`` for a lane that would do more than one step at a time."""
    is_mixed = not all(QueueName(queue).is_for_lanes for queue in options.queues)
    if is_mixed or pool is not WorkerPool.THREADS or concurrency != 1:
        raise ConfigurationError(
            "suspects are tried one at a time and apart from all other work: a worker for their queues takes no other "
            "queue, the pool 'threads' and concurrency 1; other workers start such processes by themselves"
        )


def _limit_memory(megabytes: int) -> None:
    """Make allocations fail, of data that this process alone has, above so many megabytes; 0 for no limit."""
    if megabytes and sys.platform == "linux":
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = megabytes * 1024 * 1024
        resource.setrlimit(resource.RLIMIT_DATA, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _prepare_model_calls(settings: Settings) -> None:
    """Import and build what model calls need, or raise ``ConfigurationError``."""
    if settings.model.is_scripted:
        raise ConfigurationError(
            "no model is configured: set HERMES_API_KEY, OPENAI_API_KEY, ANTHROPIC_API_KEY or HERMES_BASE_URL; "
            "'hermes-worker dev scripted-model' serves a stand-in"
        )
    build_provider(settings)


def _fail_early(settings: Settings, pool: WorkerPool) -> None:
    """Build what the first task would build: a signal handler of Celery's would log an error and go on without."""
    if pool is WorkerPool.PREFORK:
        open_client(settings).close()
    else:
        get_process(settings)


def _title_child(title: str, **_: Any) -> None:
    """Title a process of the prefork pool, which Celery has just given a title of its own."""
    title_process(title)


def _quiet_celery() -> None:
    # Celery's own INFO lines, two for every task, would cost a tenth of a task's CPU and tell nothing ours do not.
    logging.getLogger("celery").setLevel(logging.WARNING)
    signals.setup_logging.connect(_keep_our_logging, weak=False)
    # Root is who runs in many containers, and what Celery warns of is unpickling: we take JSON only.
    warnings.simplefilter("ignore", SecurityWarning)
    # Said at every loss of the broker: that tasks which are acknowledged late are not cancelled. None of ours is.
    warnings.simplefilter("ignore", CPendingDeprecationWarning)


def _keep_our_logging(**_: Any) -> None:
    """Keep the loggers alone: a receiver of ``setup_logging`` tells Celery to do so."""


class _Worker(Worker):  # type: ignore[misc]
    """Celery's worker, without its banner on shutdown, and leaving at the first signal of either kind."""

    _waker: int | None = None

    def install_platform_tweaks(self, worker: Any) -> None:
        for number in LEAVING_SIGNALS:
            signal.signal(number, self._on_signal)

    def set_process_status(self, info: str) -> None:
        """Do nothing: the process has its title from the command; Celery's would say ``celeryd`` of every role."""

    def on_consumer_ready(self, consumer: Any) -> None:
        super().on_consumer_ready(consumer)
        if consumer.hub is not None:
            # A signal that arrives while the loop waits for the broker would be noticed up to a second later.
            reader, self._waker = os.pipe()
            consumer.hub.add_reader(reader, os.read, reader, 1)
        heap.freeze_objects()
        log.info("worker.started", queues=",".join(self.app.amqp.queues.consume_from), concurrency=self.concurrency)
        if not is_supervised() and not lifecycle.is_lane() and (warning := format_root_warning()):
            log.warning("worker.root", warning=warning)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if state.should_stop is not None:
            lifecycle.end_drain()
            return
        state.should_stop = EX_OK
        readiness.withdraw()
        if self._waker is not None:
            os.write(self._waker, b"!")
        signals.worker_shutting_down.send(
            sender=self.hostname, sig=signal.Signals(number).name, how="Warm", exitcode=EX_OK
        )
