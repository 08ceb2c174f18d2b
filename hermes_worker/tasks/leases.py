"""The claims of this process, and the lease that keeps them.

Theory of operation. A process has one row in ``workers``, and its claims name that row. One statement renews the row,
and with it every claim: a *heartbeat*, four times in the lease's length (``ttl_s``). The thread that beats
(``heartbeat.WorkerKeeper``) is not the thread that works, so a tool that blocks for minutes does not lose its claim; a
process that is frozen or cut off does. With a lease of 40 s:

    t = 0    registered, first renewal
    10 20    heartbeats
    30       heartbeat at 30: the lease now ends at 70. Then the process is frozen, or its database is away
    62       30 + 0.8 * 40: the lease is not *trusted* any more, so nothing new begins under it
    70       the lease ends: the next sweep marks the row as dead and takes each claim away by replacing its token
             (before that sweep a renewal still succeeds, and nothing was lost)
    95       thawed. ``owner`` renews before the next claim and finds the row dead: every claim is LOST, its step is
             told to stop, and the process registers again under a new number

Being told to stop is a courtesy. What makes a late writer harmless is the token: it has been replaced, so each write of
the lost claim matches nothing (invariant I2). The trusted part is counted from *before* the statement of the renewal,
and by a clock that no one can set back, so we never trust longer than the database does.

Three sets say what the process is doing. ``admit_task`` counts a task from before its claim until its hints are sent,
so that a drain never sees an idle process in between. ``hold_claim`` keeps a claim while its step is done. A claim that
stands in the rows and in neither (the database failed its task at a bad moment) is an orphan, which
``release_orphaned_claims`` releases after a whole lease: before that it may be a claim that is only just being made.

A drain goes through the same signals: first nothing may begin, then, when the drain period is over, ``hand_over`` tells
those steps to stop that another worker can do again, and the others finish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import count, log
from hermes_worker.store.clock import STEADY_CLOCK
from hermes_worker.store.workers import Registration, Workers

_BEATS_PER_TERM = 4
_TRUSTED_PART = 0.8
"""A process believes in its leases for this part of their term; then it starts nothing new under them."""


class AbortReason(StrEnum):
    STOP = "stop"
    """The run is being stopped."""
    LOST = "lost"
    """The claim was taken away."""
    DRAIN = "drain"
    """The process is leaving and wants to hand the step over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldClaim:
    """A claim that this process works on."""

    run_id: str
    abort: AbortSignal
    owner: int | None
    """The number of the row in ``workers`` that it was claimed under."""
    may_hand_over: bool
    """Whether the step can be given back when the process drains; false for a tool that must not run twice."""
    announce: Callable[[], None] | None = None
    """Shows what is done under the claim to a watcher who has come since; ``None`` where nothing is announced."""


class Leases:
    """The claims of this process. Thread-safe."""

    def __init__(
        self,
        workers: Workers,
        *,
        name: str,
        queues: str,
        ttl_s: float,
        slots: int | None = None,
        sends_with: Collection[str] | None = None,
        sandbox: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``slots`` is how many model calls the process makes at once, if it makes any, and ``sends_with`` names the
        variables that it delivers with, if it does. ``sandbox`` returns the rung of its commands' sandbox, once one was
        started.
        """
        self._sends_with = sends_with
        self._sandbox = sandbox
        self._workers = workers
        self._slots = slots
        self._name = name
        self._queues = queues
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._beating = threading.RLock()
        self._held: dict[str, HeldClaim] = {}
        self._watched: set[str] = set()
        self._watermarks: dict[str, float] = {}
        self._registration: Registration | None = None
        self._claiming = threading.local()
        self._renewed_at = 0.0
        self._last_claim_at = time.monotonic()
        self._begun = 0
        self._is_draining = False
        self._is_handing_over = False
        self._was_asked_to_leave = False

    @property
    def name(self) -> str | None:
        """The name of this process for people, or ``None`` before it is registered."""
        return self._name

    @property
    def owner(self) -> int:
        """The number of this process's row in ``workers``, under which it claims. Raises ``UnavailableError`` when
        there is none and none can be had.

        A process that was frozen learns here, before it claims, whether its row is still its own: claims under a row
        that was taken away are lost as soon as they are made.
        """
        if not self.is_trusted:
            with self._beating:
                if not self.is_trusted:
                    self.renew()
        registration = self._registration or self.register()
        self._claiming.owner = registration.pk
        return registration.pk

    @property
    def is_trusted(self) -> bool:
        """Whether our leases surely live: the last renewal is younger than the trusted part of the term."""
        return time.clock_gettime(STEADY_CLOCK) - self._renewed_at < self._ttl_s * _TRUSTED_PART

    def is_surely_held(self, token: str) -> bool:
        """Whether the claim that is held under ``token`` surely is ours still, so that something may begin under it. A
        process that was thawed may be trusted again under a new row, and has lost what it claimed under the old one."""
        with self._lock:
            holding = self._held.get(token)
            return holding is not None and self._is_row_trusted(holding.owner)

    def _is_row_trusted(self, owner: int | None) -> bool:
        return self.is_trusted and self._registration is not None and self._registration.pk == owner

    @property
    def term_s(self) -> float:
        """The seconds that a renewal lasts."""
        return self._ttl_s

    @property
    def heartbeat_interval_s(self) -> float:
        return self._ttl_s / _BEATS_PER_TERM

    def register(self) -> Registration:
        """Insert this process's row into ``workers``. Raises ``UnavailableError``."""
        with self._lock:
            if self._registration is None:
                began = time.clock_gettime(STEADY_CLOCK)
                self._registration = self._workers.register(
                    name=self._name,
                    queues=self._queues,
                    ttl_s=self._ttl_s,
                    slots=self._slots,
                    sends_with=self._sends_with,
                )
                self._renewed_at = began
            return self._registration

    @property
    def is_draining(self) -> bool:
        """Whether the process takes no new work."""
        return self._is_draining

    @property
    def was_asked_to_leave(self) -> bool:
        """Whether a drain of this process was requested and has not begun."""
        return self._was_asked_to_leave and not self._is_draining

    def drain(self) -> None:
        """Refuse every new step from now on. Steps that have begun go on until they end. Idempotent."""
        with self._lock:
            self._is_draining = True

    @contextmanager
    def admit_task(self, queue: str, at: float) -> Iterator[bool]:
        """Surround all that a task does for a message of ``queue`` that was hinted at ``at``; yields whether it may
        begin.

        The task counts as in flight from before its claim until its hints are sent, so that the process never looks
        idle in between.
        """
        with self._lock:
            if at > self._watermarks.get(queue, 0.0):
                self._watermarks[queue] = at
            may_begin = not self._is_draining
            self._begun += may_begin
        try:
            yield may_begin
        finally:
            with self._lock:
                self._begun -= may_begin

    @contextmanager
    def hold_claim(self, token: str, run_id: str, *, may_hand_over: bool) -> Iterator[AbortSignal]:
        """Keep a claim while the block runs; the signal says when to give up, and its reason why. The thread made the
        claim under the ``owner`` that it read last."""
        abort = AbortSignal()
        with self._lock:
            ours = self._registration.pk if self._registration is not None else None
            owner = getattr(self._claiming, "owner", ours)
            self._held[token] = HeldClaim(run_id=run_id, abort=abort, owner=owner, may_hand_over=may_hand_over)
            self._last_claim_at = time.monotonic()
            # The claim took longer than the drain period, or this process was frozen in it and another worker may have
            # the step by now.
            is_too_late = may_hand_over and (self._is_handing_over or not self._is_row_trusted(owner))
        if is_too_late:
            abort.set(AbortReason.DRAIN.value)
        try:
            yield abort
        finally:
            with self._lock:
                self._held.pop(token, None)
                if self._watched:
                    self._watched &= {holding.run_id for holding in self._held.values()}

    @property
    def in_flight(self) -> int:
        """The number of tasks that have begun and not ended."""
        return self._begun

    @property
    def idle_s(self) -> float:
        """Seconds since the last claim; 0 while a claim is held."""
        return 0.0 if self._held else time.monotonic() - self._last_claim_at

    def renew(self) -> bool:
        """Renew once. False when the lease was gone; then every claim is lost and the process registers again.

        Raises ``UnavailableError`` when the database did not answer.
        """
        with self._beating:
            return self._send_heartbeat()

    def _send_heartbeat(self) -> bool:
        registration = self.register()
        began = time.clock_gettime(STEADY_CLOCK)
        renewed = self._workers.renew(
            registration,
            ttl_s=self._ttl_s,
            watermarks=dict(self._watermarks),
            is_draining=self._is_draining,
            sandbox=self._sandbox(),
        )
        if renewed is not None:
            self._renewed_at = began  # counted from before the statement, so that we never trust too long
            self._was_asked_to_leave = renewed.draining_at is not None
            with self._lock:  # a mark of before the clock was set back would make every later hint look lost
                self._watermarks = {queue: at for queue, at in self._watermarks.items() if at <= renewed.now}
            return True
        lost = self._abort_where(lambda holding: True, AbortReason.LOST)
        count("lease.lost", lost)
        log.warning("lease.lost", claims=lost, worker=self._name)
        with self._lock:
            self._registration = None
        self.register()
        return False

    def release_orphaned_claims(self) -> int:
        """Release claims of this process that nothing in it works on; return how many.

        A task that the database fails (in the middle of a claim, before its work, after all patience) ends and cannot
        say so. Raises ``UnavailableError``.
        """
        registration = self.register()
        with self._lock:
            held = set(self._held)
        strays = self._workers.release_stray_claims(registration, except_for=held, older_than_s=self._ttl_s)
        if strays:
            count("lease.stray", strays)
            log.warning("lease.stray", claims=strays, worker=self._name)
        return strays

    def abort_run(self, run_id: str, reason: AbortReason) -> int:
        """Tell every step that this process does for a run to give up; return how many steps were told."""
        return self._abort_where(lambda holding: holding.run_id == run_id, reason)

    def hand_over(self) -> int:
        """End the drain period: tell every step that another worker can take over safely to give its claim back, steps
        included whose claim is only just being made. Returns how many were told.
        """
        with self._lock:
            self._is_handing_over = True
        return self._abort_where(lambda holding: holding.may_hand_over, AbortReason.DRAIN)

    def list_held_runs(self) -> set[str]:
        with self._lock:
            return {holding.run_id for holding in self._held.values()}

    def retire(self) -> None:
        """Give up this process's row: other workers may take at once what is still held. Idempotent."""
        registration = self._registration
        if registration is None:
            return
        try:
            self._workers.retire(registration)
        except UnavailableError:
            log.warning("database.unreachable", doing="retire")

    def watch(self, run_ids: Collection[str]) -> None:
        """Note that these runs have watchers. The note lasts while a claim is held for the run: later claims read the
        row.
        """
        with self._lock:
            named = [holding for holding in self._held.values() if holding.run_id in run_ids]
            self._watched |= {holding.run_id for holding in named}
        for holding in named:
            if holding.announce is not None:
                holding.announce()

    def announce_to_watchers(self, token: str, announce: Callable[[], None]) -> None:
        """Have ``announce`` called whenever a watcher of the run of this claim is noted, while the claim is held; now,
        if one was noted since the claim was made. Watchers may get it twice."""
        with self._lock:
            holding = self._held.get(token)
            if holding is None:
                return
            self._held[token] = replace(holding, announce=announce)
            is_due = holding.run_id in self._watched
        if is_due:
            announce()

    def is_watched(self, run_id: str) -> bool:
        """Whether a watcher began to follow the run while a claim was held for it."""
        return run_id in self._watched

    def _abort_where(self, applies: Callable[[HeldClaim], bool], reason: AbortReason) -> int:
        with self._lock:
            chosen = [holding for holding in self._held.values() if applies(holding)]
        for holding in chosen:
            holding.abort.set(reason.value)
        return len(chosen)
