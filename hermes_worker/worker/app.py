"""The Celery application of a worker: its tasks, and what happens when a process starts and leaves.

``celery -A hermes_worker.worker.app worker`` works as well as ``hermes-worker start worker``, which it is made of.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from celery import Celery, signals

from hermes_worker import settings as settings_module
from hermes_worker.broker.queue import TaskName
from hermes_worker.core.effects import (
    AskAuxiliary,
    CallHook,
    Effect,
    FetchFile,
    GatherArtifacts,
    Iterate,
    Prepare,
    RunTool,
    SendDelivery,
)
from hermes_worker.core.errors import ConfigurationError, LeaseLost, UnavailableError
from hermes_worker.local.paths import find_broker_url
from hermes_worker.observe import database_outage, log
from hermes_worker.settings import RemoteControl, Settings
from hermes_worker.settings import secret_transfer as handover
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.tasks.calls.ask_auxiliary import ask_auxiliary
from hermes_worker.tasks.calls.call_tool import call_tool
from hermes_worker.tasks.deliver import deliver
from hermes_worker.tasks.heartbeat import report_pruned, report_sweep, request_exit
from hermes_worker.tasks.hooks.observing import call_hook
from hermes_worker.tasks.inbound_files import fetch_file
from hermes_worker.tasks.iteration.iterate import iterate
from hermes_worker.tasks.jobs.collect import collect
from hermes_worker.tasks.jobs.data import remove_data
from hermes_worker.tasks.prepare import prepare
from hermes_worker.wiring import WorkerProcess
from hermes_worker.worker.celery import build_celery_app
from hermes_worker.worker.lifecycle import connect_signals, get_process, is_lane
from hermes_worker.worker.monitoring import guard_control

__all__ = ["build_app", "connect_signals", "get_process"]

_CELERY = ("celery", "__main__.py")
"""``celery -A`` and ``python -m celery -A``: programs that do nothing else, so they may be started again."""
_PRUNE_S = 5.0
"""Seconds of each minute that pruning takes at most, over all processes: some hundred runs (docs/retention.md)."""
EX_STARVED = 71
"""EX_OSERR of sysexits.h: the system did not give the memory that a step needs."""


def build_app(settings: Settings) -> Celery:
    """The application for ``settings``."""
    app = build_celery_app(find_broker_url(settings), sends_events=settings.worker.sends_events)

    @app.task(name=TaskName.ITERATE.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def iterate_task(run_id: str, iteration: int, attempt: int, at: float) -> None:
        effect = Iterate(run_id=run_id, iteration=iteration, attempt=attempt, is_suspect=is_lane())
        _run_guarded(settings, effect, lambda here: iterate(here.parts, effect, at))

    @app.task(name=TaskName.CALL_TOOL.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def call_tool_task(run_id: str, iteration: int, position: int, attempt: int, at: float) -> None:
        effect = RunTool(run_id=run_id, iteration=iteration, position=position, attempt=attempt, is_suspect=is_lane())
        _run_guarded(settings, effect, lambda here: call_tool(here.parts, effect, at))

    @app.task(name=TaskName.ASK_AUXILIARY.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def ask_auxiliary_task(run_id: str, iteration: int, position: int, attempt: int, at: float) -> None:
        effect = AskAuxiliary(
            run_id=run_id, iteration=iteration, position=position, attempt=attempt, is_suspect=is_lane()
        )
        _run_guarded(settings, effect, lambda here: ask_auxiliary(here.parts, effect, at))

    @app.task(name=TaskName.DELIVER.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def deliver_task(delivery_id: str, attempt: int, at: float) -> None:
        effect = SendDelivery(run_id=delivery_id, delivery_id=delivery_id, attempt=attempt, is_suspect=is_lane())
        _deliver_guarded(settings, effect, at)

    @app.task(name=TaskName.COLLECT.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def collect_task(firing_id: int, at: float) -> None:
        _work_guarded(settings, lambda here: collect(here.collecting, firing_id, at), firing_id=firing_id)

    @app.task(name=TaskName.CALL_HOOK.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def call_hook_task(event_id: str, hook: str, attempt: int, at: float) -> None:
        effect = CallHook(run_id=event_id.partition(".")[0], event_id=event_id, hook=hook, attempt=attempt)
        _work_guarded(settings, lambda here: call_hook(here.parts, effect, at), run_id=effect.run_id)

    @app.task(name=TaskName.GATHER_ARTIFACTS.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def gather_artifacts_task(run_id: str, attempt: int, at: float) -> None:
        effect = GatherArtifacts(run_id=run_id, attempt=attempt)
        _work_guarded(settings, lambda here: here.gather_artifacts(effect, at), run_id=run_id)

    @app.task(name=TaskName.MAINTAIN.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def maintain_task() -> None:
        """Sweep once, for fleets whose workers all sit on long calls, and prune for a moment. Idempotent."""
        here = get_process(settings)
        try:
            swept = here.sweeper.sweep(here.parts.sender.count_waiting())
            here.sweeper.prune()
            report_pruned(here.pruner.prune_once(_PRUNE_S))
            here.prune_files()
            remove_data(settings.home, here.collecting.executions.find_removed)
        except UnavailableError as error:
            database_outage.note_failure(doing="maintain", error=str(error))
            return
        if swept is not None:
            report_sweep(swept)
            here.parts.sender.send(swept.hints)

    _add_preparing(app, settings)
    _add_fetching(app, settings)
    return app


def _add_preparing(app: Celery, settings: Settings) -> None:
    @app.task(name=TaskName.PREPARE.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def prepare_task(run_id: str, attempt: int, at: float) -> None:
        effect = Prepare(run_id=run_id, attempt=attempt, is_suspect=is_lane())
        _run_guarded(settings, effect, lambda here: prepare(here.parts, effect, at))


def _add_fetching(app: Celery, settings: Settings) -> None:
    @app.task(name=TaskName.FETCH_FILE.value, ignore_result=True)  # type: ignore[untyped-decorator]
    def fetch_file_task(file_id: int, attempt: int, at: float) -> None:
        effect = FetchFile(run_id=f"file {file_id}", file_id=file_id, attempt=attempt)
        _work_guarded(settings, lambda here: fetch_file(here.fetching, effect, at), file_id=file_id)


def _run_guarded(settings: Settings, effect: Effect, body: Callable[[WorkerProcess], None]) -> None:
    """Run a task body and handle every error: Celery acknowledges a task that raised, so nothing may be left to it.

    A server that is away leaves the row due or claimed, and the sweeper finds it. Anything else is a defect or a row
    that cannot be read: it ends this one run, visibly, as long as the step is still ours.
    """
    here = get_process(settings)
    try:
        body(here)
    except (UnavailableError, LeaseLost) as error:
        log.warning("task.interrupted", run_id=effect.run_id, error=str(error))
        _leave_lane()
    except Exception as error:
        _end_starved_lane(error, effect)
        log.exception("task.failed", run_id=effect.run_id)
        message = f"{type(error).__name__} in the worker; the worker's log has the details"
        try:
            here.parts.sender.send(here.runs.end_broken_step(effect, here.parts.leases.owner, message))
        except (RunNotFound, UnavailableError) as second:
            log.warning("task.interrupted", run_id=effect.run_id, error=str(second))


def _leave_lane() -> None:
    """Let a lane leave after a task that was broken off: it may hold a claim that it does not know of."""
    if is_lane():
        request_exit()


def _end_starved_lane(error: Exception, effect: Effect | SendDelivery) -> None:
    """End a lane whose memory does not suffice: it dies of its step, as a worker without a limit would have."""
    if is_lane() and isinstance(error, MemoryError):
        log.error("task.failed", run_id=effect.run_id, error="MemoryError: see lease.lane_memory_mb")
        os._exit(EX_STARVED)


def _deliver_guarded(settings: Settings, effect: SendDelivery, at: float) -> None:
    """Make a delivery and raise nothing, because Celery acknowledges a task that raised. A delivery that meets a defect
    stays claimed; its claim is released as orphaned, and it is tried again until its attempts are used up."""
    try:
        deliver(get_process(settings).deliveries, effect, at)
    except (UnavailableError, LeaseLost) as error:
        log.warning("task.interrupted", delivery_id=effect.delivery_id, error=str(error))
        _leave_lane()
    except Exception as error:
        _end_starved_lane(error, effect)
        log.exception("task.failed", delivery_id=effect.delivery_id)
        _leave_lane()


def _work_guarded(settings: Settings, body: Callable[[WorkerProcess], None], **about: object) -> None:
    """Do the work of a row beside the runs and raise nothing, because Celery acknowledges a task that raised. A row
    that meets a defect stays claimed. Its claim is released as orphaned: then the row is due again until its attempts
    are used up, and a job's script, whose effect is unknown, has ended. ``about`` names the row in logs."""
    try:
        body(get_process(settings))
    except (UnavailableError, LeaseLost) as error:
        log.warning("task.interrupted", **about, error=str(error))
    except Exception:
        log.exception("task.failed", **about)


def __getattr__(name: str) -> Any:
    """``app`` is built when Celery's command line asks for it: importing this module has no side effects."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    is_celerys = Path(sys.argv[0]).name in _CELERY
    if is_celerys:
        handover.begin_program()
    try:
        app = _build_app()
    except ConfigurationError as error:
        if is_celerys:
            sys.exit(f"hermes-worker: {error}")
        raise
    globals()["app"] = app
    return app


def _build_app() -> Celery:
    """Build the Celery application from the environment. Raises ``ConfigurationError``."""
    settings = settings_module.load_settings()
    connect_signals(settings)
    app = build_app(settings)

    def begin(**_: Any) -> None:
        guard_control(RemoteControl(settings.worker.remote_control))

    signals.celeryd_init.connect(begin, weak=False)
    return app
