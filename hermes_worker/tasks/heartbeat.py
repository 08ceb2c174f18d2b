"""The threads beside the work: two renew the leases and sweep, one listens for nudges, one indexes messages for search.

None of them depends on another or on Celery's event loop, and none ever waits for a task.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import redis

from hermes_worker.broker.queue import CONTROL_CHANNEL, log_broker_failure
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.local_rate_limits import Allowance
from hermes_worker.observe import count, database_outage, log, record_duration
from hermes_worker.store.runs.runs import NudgedRuns
from hermes_worker.store.search.indexing import Indexer
from hermes_worker.store.sweep import Sweeper, SweepResult
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.leases import AbortReason, Leases

if TYPE_CHECKING:  # what a task works with is more than a scheduler needs
    from hermes_worker.tasks.context import Sender

_PRUNE_EVERY_S = 600.0
_INDEX_EVERY_S = 2.0
_INDEX_S = 0.5
STALLED_AFTER_S = 30.0
"""A process that claimed nothing for this long while its queue is not empty does not consume; see ``WorkerKeeper``."""
EX_STALLED = 70
_LOOKS_AT_ONCE = 3
_LOOK_EVERY_S = 0.1
"""Seconds between two looks at nudged runs. The first nudge is looked into at once; later ones within this time,
together.
"""
LANE_IDLE_S = 20.0
"""A lane that has had nothing to do for this long leaves."""


def request_exit(pid: int | None = None) -> None:
    """Have a process drain and end: this one, or the parent of its pool. Returns at once."""
    os.kill(pid or os.getpid(), signal.SIGTERM)


class LaneStarter(Protocol):
    """Starts lanes, in which suspects are tried. Implemented by ``worker.lanes.LanePool``."""

    def request_lane(self) -> None: ...


class RowPruner(Protocol):
    """Deletes rows that may go. Implemented by ``features.retention.rows.Pruner``."""

    def prune_once(self) -> Counter[str] | None:
        """Delete what may go, unless another process did within the interval; return how many of each kind."""
        ...


class WorkerKeeper:
    """Renews leases, sweeps, and watches that this process really consumes.

    Liveness is "claimed something lately, or nothing was due": a Celery consumer can be alive and deaf. A process that
    finds itself deaf ends with status 70, and its supervisor starts another.
    """

    def __init__(
        self,
        *,
        leases: Leases,
        sweeper: Sweeper,
        pruner: RowPruner,
        sender: Sender,
        stopping: Callable[[Collection[str]], set[str]],
        queues: Collection[str],
        sweep_every_s: float,
        alive_file: Path | None,
        suspects: Collection[str] = (),
        lanes: LaneStarter | None = None,
        indexer: Indexer | None = None,
        is_lane: bool = False,
        stalled_after_s: float = STALLED_AFTER_S,
    ) -> None:
        """``suspects`` are the queues of the suspects that this process has tried in its ``lanes``; ``indexer`` makes
        messages searchable, beside the work.
        """
        self._indexer = indexer
        self._leases = leases
        self._sweeper = sweeper
        self._pruner = pruner
        self._sender = sender
        self._stopping = stopping
        self._queues = queues
        # A lapsed lease is worth noticing soon: the wait for a sweep adds to every takeover.
        self._sweep_every_s = min(sweep_every_s, leases.heartbeat_interval_s / 2)
        self._alive_file = alive_file
        self._suspects = suspects
        self._lanes = lanes
        self._is_lane = is_lane
        self._stalled_after_s = stalled_after_s
        self._backlog_since: float | None = None
        self._next_prune = time.monotonic() + _PRUNE_EVERY_S
        self._next_strays = 0.0
        self._pool_pid: int | None = None
        self._is_leaving = False
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def join_pool(self, pid: int) -> None:
        """Tell the keeper that this process is a child of a pool, which leaves as a whole: ``pid`` is its parent."""
        self._pool_pid = pid

    def start(self) -> None:
        targets = [self._keep_leases, self._keep_sweeping]
        if self._indexer is not None:
            targets.append(partial(self._keep_indexing, self._indexer))
        for target in targets:
            name = getattr(target, "__name__", "_keep_indexing")
            thread = threading.Thread(target=target, name=f"hermes{name}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """End all threads; returns when they have, or after 2 s."""
        self._end.set()
        for thread in self._threads:
            thread.join(timeout=2)

    def _keep_leases(self) -> None:
        while True:
            began = time.monotonic()
            try:
                if not self._leases.renew() and self._is_lane:
                    # Another worker has its step, or will have: this one was frozen, or the step outstayed its time.
                    os._exit(0)
                self._leave_if_asked()
                for run_id in self._stopping(self._leases.list_held_runs()):
                    self._leases.abort_run(run_id, AbortReason.STOP)
                database_outage.note_success()
                self._touch_liveness_file()
            except UnavailableError as error:
                database_outage.note_failure(doing="heartbeat", error=str(error))
                self._touch_liveness_file()  # this process is well: to end it would not bring the database back
            except Exception:
                # Without its heartbeat this process would claim step after step and lose every one of them.
                log.exception("thread.failed", doing="heartbeat")
            if self._end.wait(max(0.05, self._leases.heartbeat_interval_s - (time.monotonic() - began))):
                return

    def _leave_if_asked(self) -> None:
        # Once: a second signal would say that the drain period is over.
        if self._leases.was_asked_to_leave and not self._is_leaving:
            self._is_leaving = True
            log.info("worker.draining", reason="asked over the API")
            request_exit(self._pool_pid)

    def _keep_sweeping(self) -> None:
        while not self._end.wait(self._sweep_every_s):
            try:
                self._sweep_once()
            except UnavailableError as error:
                database_outage.note_failure(doing="sweep", error=str(error))
            except Exception:
                log.exception("thread.failed", doing="sweep")

    def _keep_indexing(self, indexer: Indexer) -> None:
        """A thread of its own, so that a long backlog (after an upgrade, say) holds up neither leases nor sweeps."""
        while not self._end.wait(_INDEX_EVERY_S):
            try:
                if indexer.claim_interval(_INDEX_EVERY_S):
                    indexer.index_due(_INDEX_S, is_over=self._end.is_set)
            except UnavailableError as error:
                database_outage.note_failure(doing="index", error=str(error))
            except Exception:
                log.exception("thread.failed", doing="index")

    def _sweep_once(self) -> None:
        depths = self._sender.count_waiting()
        self._check_consuming(depths)
        self._tend_lanes(depths)
        began = time.monotonic()
        swept = self._sweeper.sweep(depths)
        if swept is not None:
            record_duration("sweep.took", time.monotonic() - began)
            faults.pass_point(FaultPoint.SWEEP_AFTER_RELEASE)
            report_sweep(swept)
            self._sender.send(swept.hints)
        now = time.monotonic()
        if now > self._next_strays:
            self._next_strays = now + self._leases.term_s
            self._leases.release_orphaned_claims()
        if now > self._next_prune:
            self._next_prune = now + _PRUNE_EVERY_S
            self._sweeper.prune()
            report_pruned(self._pruner.prune_once())

    def _tend_lanes(self, depths: Mapping[str, int] | None) -> None:
        """Start a lane more for suspects that wait; in a lane, leave when there is nothing to do."""
        if self._is_lane and not self._leases.in_flight and self._leases.idle_s > LANE_IDLE_S:
            request_exit()
        has_suspects = any((depths or {}).get(queue, 0) for queue in self._suspects)
        if has_suspects and self._lanes is not None and not self._leases.is_draining:
            self._lanes.request_lane()

    def _touch_liveness_file(self) -> None:
        """Touch the file whose age Kubernetes checks; asking Celery instead costs 2.6 s of CPU. The file grows old when
        the thread hangs or meets a defect, and not when the database is away.
        """
        if self._alive_file is None:
            return
        try:
            self._alive_file.touch()
        except OSError as error:
            log.warning("thread.failed", doing="alive file", error=str(error))

    def _check_consuming(self, depths: object) -> None:
        backlog = isinstance(depths, dict) and any(depths.get(queue, 0) for queue in self._queues)
        now = time.monotonic()
        if not backlog or self._leases.is_draining:
            self._backlog_since = None
            return
        self._backlog_since = self._backlog_since or now
        quiet_s = min(now - self._backlog_since, self._leases.idle_s)
        if quiet_s > self._stalled_after_s:
            log.error("worker.stalled", quiet_s=round(quiet_s), queues=sorted(self._queues))
            os._exit(EX_STALLED)


def report_sweep(swept: SweepResult) -> None:
    """Log and count what a sweep repaired; do nothing when it found nothing."""
    count("sweep.completed")
    if swept.hints or swept.workers_expired or swept.iterations_lost or swept.calls_lost:
        log.info(
            "sweep.completed",
            workers_expired=swept.workers_expired,
            iterations_lost=swept.iterations_lost,
            calls_lost=swept.calls_lost,
            resent=swept.resent,
            resumed=swept.resumed,
            expired=swept.expired,
        )


def report_pruned(deleted: Counter[str] | None) -> None:
    """Log and count what the pruner deleted; do nothing when it deleted nothing."""
    if deleted is not None and (counts := {what: count for what, count in deleted.items() if count}):
        log.info("rows.pruned", **counts)


class NudgeListener:
    """Receives ``stop`` and ``watch`` nudges: a stop reaches a call in flight at once instead of at the next heartbeat.

    A nudge says where to look, and nothing else, since anybody who reaches the broker can send one. What a run's row
    says is done. Only runs that this process works on are looked up, all that were named meanwhile by one statement,
    and no more often than every ``_LOOK_EVERY_S``, however many nudges come.
    """

    def __init__(
        self,
        client: redis.Redis,
        leases: Leases,
        nudged: Callable[[Collection[str]], NudgedRuns],
    ) -> None:
        """``nudged`` reads what the rows of runs say."""
        self._client = client
        self._leases = leases
        self._nudged = nudged
        self._named: set[str] = set()
        self._looks = Allowance(at_once=_LOOKS_AT_ONCE, per_s=1 / _LOOK_EVERY_S)
        self._end = threading.Event()

    def start(self) -> None:
        threading.Thread(target=self._listen, name="hermes_listener", daemon=True).start()

    def stop(self) -> None:
        self._end.set()

    def _listen(self) -> None:
        while not self._end.is_set():
            try:
                with self._client.pubsub(ignore_subscribe_messages=True) as pubsub:  # type: ignore[no-untyped-call]
                    pubsub.subscribe(CONTROL_CHANNEL)
                    while not self._end.is_set():
                        message = pubsub.get_message(timeout=self._compute_patience_s())
                        if message is not None:
                            self.note_nudge(str(message["data"]))
                        self.poll_once()
            except (redis.RedisError, OSError) as error:
                # Heartbeats carry the same news; until the broker is back they are all there is.
                log_broker_failure("listen", error)
                self._end.wait(1.0)

    def _compute_patience_s(self) -> float:
        """How many seconds to wait for the next nudge, so that nudges received already are not held up by it."""
        return _LOOK_EVERY_S if self._named else 1.0

    def note_nudge(self, text: str) -> None:
        """Note the run that a nudge names; ``poll_once`` does the rest."""
        _, _, run_id = text.partition(" ")
        if run_id in self._leases.list_held_runs():
            self._named.add(run_id)

    def poll_once(self) -> None:
        """Do what the rows of the noted runs say, if it is time to look again."""
        if not self._named or not self._looks.take_one(time.monotonic()):
            return
        named, self._named = self._named, set()
        try:
            found = self._nudged(named)
        except UnavailableError as error:
            # The heartbeat, which has the same news, waits for the database too.
            database_outage.note_failure(doing="nudge", error=str(error))
            return
        self._leases.watch(found.watched)
        for run_id in found.stopping:
            self._leases.abort_run(run_id, AbortReason.STOP)
