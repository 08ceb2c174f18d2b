"""What this process holds, and the thread that keeps it.

One thread per process renews the term of all leases with one statement. It is not the thread that works, so a tool
that blocks for minutes does not lose its claim; a process that is frozen or cut off does. When a renewal says that the
term was taken away, every claim is lost: the work in flight is told to stop, and what it still writes is refused by
the token anyway.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
    """The claim is no longer ours."""
    DRAIN = "drain"
    """The process is leaving and wants to hand the step over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One claim in flight."""

    run_id: str
    abort: AbortSignal
    may_hand_over: bool
    """The step can be given back when the process drains; false for a tool that must not run twice."""


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
        sandbox: Callable[[], str | None] = lambda: None,
    ) -> None:
        """``slots`` is how many model calls the process makes at once, if it makes any. ``sandbox`` names the rung of
        its commands, once one was started."""
        self._sandbox = sandbox
        self._workers = workers
        self._slots = slots
        self._name = name
        self._queues = queues
        self._ttl_s = ttl_s
        self._lock = threading.Lock()
        self._beating = threading.RLock()
        self._held: dict[str, Holding] = {}
        self._watched: set[str] = set()
        self._watermarks: dict[str, float] = {}
        self._registration: Registration | None = None
        self._renewed_at = 0.0
        self._last_claim_at = time.monotonic()
        self._begun = 0
        self._is_draining = False
        self._is_handing_over = False
        self._was_asked_to_leave = False

    @property
    def name(self) -> str | None:
        """What people call this process."""
        return self._name

    @property
    def owner(self) -> int:
        """The number claims are made under. Raises ``UnavailableError`` when there is none and none can be had.

        A process that was frozen learns here, before it claims, whether its place is still its own: claims under a
        place that was taken away are lost as soon as they are made.
        """
        if not self.is_trusted:
            with self._beating:
                if not self.is_trusted:
                    self.beat()
        registration = self._registration
        return registration.pk if registration is not None else self.register().pk

    @property
    def is_trusted(self) -> bool:
        """Whether our leases surely live: the last renewal is younger than the trusted part of the term."""
        return time.clock_gettime(STEADY_CLOCK) - self._renewed_at < self._ttl_s * _TRUSTED_PART

    @property
    def term_s(self) -> float:
        """How long a renewal lasts."""
        return self._ttl_s

    @property
    def beat_every_s(self) -> float:
        return self._ttl_s / _BEATS_PER_TERM

    def register(self) -> Registration:
        """Enter the process among the workers. Raises ``UnavailableError``."""
        with self._lock:
            if self._registration is None:
                began = time.clock_gettime(STEADY_CLOCK)
                self._registration = self._workers.register(
                    name=self._name, queues=self._queues, ttl_s=self._ttl_s, slots=self._slots
                )
                self._renewed_at = began
            return self._registration

    @property
    def is_draining(self) -> bool:
        """The process takes no new work."""
        return self._is_draining

    @property
    def was_asked_to_leave(self) -> bool:
        """Somebody asked for a drain of this process, and it has not begun to."""
        return self._was_asked_to_leave and not self._is_draining

    def drain(self) -> None:
        """From now on nothing may begin. What has begun is in flight until it ends. Idempotent."""
        with self._lock:
            self._is_draining = True

    @contextmanager
    def beginning(self, queue: str, at: float) -> Iterator[bool]:
        """Around all that a task does for a message of ``queue`` that was hinted at ``at``; says whether it may begin.

        It counts from before its claim until its hints are sent, so that the process never looks idle in between.
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
    def holding(self, token: str, run_id: str, *, may_hand_over: bool) -> Iterator[AbortSignal]:
        """Keep a claim while the block runs; the signal says when to give up, and its reason why."""
        abort = AbortSignal()
        with self._lock:
            self._held[token] = Holding(run_id=run_id, abort=abort, may_hand_over=may_hand_over)
            self._last_claim_at = time.monotonic()
            # The claim took longer than the drain period, or this process was frozen in it and somebody else may have
            # the step by now.
            is_too_late = may_hand_over and (self._is_handing_over or not self.is_trusted)
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
        """Tasks that have begun and not ended."""
        return self._begun

    @property
    def idle_s(self) -> float:
        """Seconds since the last claim; 0 while something is held."""
        return 0.0 if self._held else time.monotonic() - self._last_claim_at

    def beat(self) -> bool:
        """Renew once. False when the term was gone; then everything held is lost and a new place is taken.

        Raises ``UnavailableError`` when the database did not answer.
        """
        with self._beating:
            return self._beat()

    def _beat(self) -> bool:
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

    def give_up_strays(self) -> int:
        """Let go of claims that stand under this process and that nothing in it works on; returns how many.

        A task that the database fails (in the middle of a claim, before its work, after all patience) ends and cannot
        say so. Raises ``UnavailableError``.
        """
        registration = self.register()
        with self._lock:
            held = set(self._held)
        strays = self._workers.give_up(registration, except_for=held, older_than_s=self._ttl_s)
        if strays:
            count("lease.stray", strays)
            log.warning("lease.stray", claims=strays, worker=self._name)
        return strays

    def abort_run(self, run_id: str, reason: AbortReason) -> int:
        """Tell whatever this process does for a run to give up; returns how many steps that were."""
        return self._abort_where(lambda holding: holding.run_id == run_id, reason)

    def hand_over(self) -> int:
        """The drain period is over: give back every step that another worker can take over safely, those included
        whose claim is only just being made. Returns how many were told."""
        with self._lock:
            self._is_handing_over = True
        return self._abort_where(lambda holding: holding.may_hand_over, AbortReason.DRAIN)

    def held_runs(self) -> set[str]:
        with self._lock:
            return {holding.run_id for holding in self._held.values()}

    def retire(self) -> None:
        """Leave: what is still held may be taken by others at once. Idempotent."""
        registration = self._registration
        if registration is None:
            return
        try:
            self._workers.retire(registration)
        except UnavailableError:
            log.warning("database.unreachable", doing="retire")

    def watch(self, run_ids: Collection[str]) -> None:
        """Somebody follows these runs. It counts for as long as something is held for them: later claims read it."""
        with self._lock:
            self._watched |= {holding.run_id for holding in self._held.values()}.intersection(run_ids)

    def is_watched(self, run_id: str) -> bool:
        """Whether somebody began to follow the run while something was held for it."""
        return run_id in self._watched

    def _abort_where(self, applies: Callable[[Holding], bool], reason: AbortReason) -> int:
        with self._lock:
            chosen = [holding for holding in self._held.values() if applies(holding)]
        for holding in chosen:
            holding.abort.set(reason.value)
        return len(chosen)
