"""Celery beat without a file, and without a leader.

``celery -A hermes_worker.worker.app beat`` works as well as ``hermes-worker start beat``. Nothing here must happen
exactly once: any number of beats may run, and none needs to know of the others. What is due is read from SQL, by the
database's clock, and taken by compare-and-set.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any

import redis
from celery import beat
from kombu.exceptions import OperationalError

from hermes_worker import settings as settings_module
from hermes_worker.broker.queue import QueueName, TaskName, log_broker_failure
from hermes_worker.core.errors import UnavailableError
from hermes_worker.models.build import build_pricing
from hermes_worker.observe import database_outage, log, record_duration
from hermes_worker.settings import Settings
from hermes_worker.store.build import build_sweep_policy
from hermes_worker.store.jobs.executions import Executions
from hermes_worker.store.jobs.jobs import SCHEDULER_NOTED_EVERY_S, Jobs
from hermes_worker.store.sweep import Sweeper
from hermes_worker.tasks.heartbeat import report_sweep
from hermes_worker.tracing.beginning import trace_if_wanted
from hermes_worker.tracing.recording import get_recorder, record_ends
from hermes_worker.wiring import Client, open_client
from scheduler.ticking import AT_ONCE, tick

MAINTAIN_EVERY_S = 60.0
TICK_S = 1.0
"""Seconds between two ticks: after so long a change to a job is seen, and work that another scheduler left is taken
over. Beat looks for its end only between ticks, so this also bounds how long it takes to leave."""
_FROZEN_AFTER_S = 3.0
"""Seconds after which a scheduler that hangs inside a transaction loses it, and with it the locks on its jobs."""
_LOST_AFTER_S = 300.0
"""Seconds that a message may wait in a queue that is not empty before it is sent again."""


class Scheduler(beat.Scheduler):  # type: ignore[misc]
    """Settles the due slots of jobs every second, and sends ``hermes.maintain`` once a minute; sweeps beside that in
    case no worker is there to receive it."""

    def __init__(
        self,
        *args: Any,
        settings: Settings | None = None,
        alive_file: Path | None = None,
        is_in_worker: bool = False,
        **options: Any,
    ) -> None:
        """``alive_file`` is touched at every tick, for a liveness probe that only looks at its age. A worker that it
        lives in (``is_in_worker``) serves the metrics of the process, and sweeps by itself.

        Raises ``ConfigurationError``, and ``UnavailableError`` when the database or the broker cannot be used.
        """
        self._settings = settings or settings_module.load_settings()
        self._alive_file = alive_file
        self._is_in_worker = is_in_worker
        self._exit = ExitStack()
        self._next_maintain = 0.0
        self._next_noted = 0.0
        self._at_once = AT_ONCE
        super().__init__(*args, **options)

    @cached_property
    def _client(self) -> Client:
        """Opened when it is first needed: ``celery beat`` makes a scheduler that never works, for its banner."""
        client = open_client(self._settings)
        self._exit.callback(client.close)
        return client

    @cached_property
    def _jobs(self) -> Jobs:
        return Jobs(self._client.database)

    def setup_schedule(self) -> None:
        self._client.database.end_idle_transactions(_FROZEN_AFTER_S)
        trace_if_wanted(self._settings, "beat", self._client.database)
        sweeping = _Sweeping(self._client, self._settings, is_in_worker=self._is_in_worker)
        sweeping.start()
        self._exit.callback(sweeping.stop)
        if not self._is_in_worker and self._settings.metrics.port is not None:
            from hermes_worker.metrics.serving import (  # loaded where they are wanted
                build_connection_gauges,
                serve_metrics,
            )

            database = self._client.database
            serve_metrics(self._settings, "beat", build_connection_gauges(database), fleet=database)

    def tick(self, *_: Any, **__: Any) -> float:
        """Do what is due. Returns the seconds until the next tick."""
        began = now = time.monotonic()
        if now >= self._next_maintain and self._ask_for_maintenance():
            self._next_maintain = now + MAINTAIN_EVERY_S
        has_more = self._settle_jobs()
        if self._alive_file is not None:
            self._alive_file.touch()
        return 0.0 if has_more else max(0.0, TICK_S - (time.monotonic() - began))

    def _settle_jobs(self) -> bool:
        """Settle due jobs. Returns whether there is more to do at once."""
        try:
            if (now := time.monotonic()) >= self._next_noted:
                self._jobs.record_scheduler()
                self._next_noted = now + SCHEDULER_NOTED_EVERY_S
            ticked = tick(
                self._jobs,
                self._settings,
                at_once=self._at_once,
                tool_sources=self._client.tool_sources,
                skills=self._client.skills,
                live_settings=self._client.live_settings,
            )
            self._client.publisher.send(ticked.settled.hints)
            for run_id in ticked.settled.stopped:
                self._stop(run_id)
        except UnavailableError as error:
            database_outage.note_failure(doing="tick", error=str(error))
            return False
        except Exception:
            # A defect in one job's path must not stop the others: until a tick succeeds, each job is settled alone.
            log.exception("thread.failed", doing="tick")
            self._at_once = 1
            return False
        database_outage.note_success()
        self._at_once = AT_ONCE
        return ticked.has_more

    def _stop(self, run_id: str) -> None:
        """Tell the workers about the end of a run that made room for a later slot, and stop what it caused."""
        self._client.publisher.nudge("stop", run_id)
        for below, hints in self._client.runs.stop_descendants(run_id).items():
            self._client.publisher.send(hints)
            self._client.publisher.nudge("stop", below)

    def _ask_for_maintenance(self) -> bool:
        """Send the request for maintenance unless one waits already, however long it has waited. Returns whether the
        queue holds one."""
        depths = self._client.publisher.count_waiting()
        if depths is None:
            return False
        if depths[QueueName.SYSTEM.value] == 0:
            try:
                self.app.send_task(TaskName.MAINTAIN.value, ignore_result=True)
            except (OperationalError, redis.RedisError, OSError) as error:
                log_broker_failure("ask for maintenance", error)
                return False
        return True

    @property
    def info(self) -> str:
        return "    . every replica active, state in SQL"

    def close(self) -> None:
        super().close()
        self._exit.close()


class _Sweeping:
    """A thread that sweeps, as every worker does too: the database lets one of them all do it per interval. In a worker
    it only looks after executions, which no worker does."""

    def __init__(self, client: Client, settings: Settings, *, is_in_worker: bool) -> None:
        self._client = client
        self._is_in_worker = is_in_worker
        tell = None if get_recorder() is None else record_ends
        self._sweeper = Sweeper(client.database, build_sweep_policy(settings), build_pricing(settings), tell=tell)
        self._executions = Executions(client.database)
        self._grace_s = settings.lease.resend_grace_s
        self._every_s = settings.lease.sweep_interval_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="hermes_sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(timeout=2)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                depths = self._client.publisher.count_waiting()
                began = time.monotonic()
                swept = None if self._is_in_worker else self._sweeper.sweep(depths)
                self._repair_executions(depths)
            except UnavailableError as error:
                database_outage.note_failure(doing="sweep", error=str(error))
                continue
            if swept is not None:
                record_duration("sweep.took", time.monotonic() - began)
                report_sweep(swept)
                self._client.publisher.send(swept.hints)

    def _repair_executions(self, depths: Mapping[str, int] | None) -> None:
        """End the executions of dead workers, and send lost messages again: an empty queue holds none."""
        self._executions.end_lost()
        is_lost = depths is not None and depths[QueueName.TOOLS.value] == 0
        self._client.publisher.send(self._executions.take_overdue(self._grace_s if is_lost else _LOST_AFTER_S))
