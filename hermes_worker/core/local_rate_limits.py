"""Local limits: what one process keeps to by itself while it cannot ask the others, and how often it acts on unverified
claims."""

from __future__ import annotations

from dataclasses import dataclass, field

LOCAL_BUSY_WAIT_S = 0.5
"""Seconds until a call tries again while too many are in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The limits of one credential; ``None`` for none."""

    requests_per_min: float | None = None
    tokens_per_min: float | None = None
    in_flight_max: int | None = None


@dataclass(slots=True)
class Pacing:
    """The limits of one credential, kept by one process alone with the generic cell rate algorithm, and in no order. A
    fleet of such processes sends at most its number of processes times the limit; refusals bring the cool-downs that
    each of them keeps to."""

    cool_until: float = 0.0
    _next_request: float = 0.0
    _next_token: float = 0.0
    _busy: dict[str, float] = field(default_factory=dict)

    def cool_down(self, until: float) -> None:
        """Send nothing until ``until``; the longest of several cool-downs counts."""
        self.cool_until = max(self.cool_until, until)

    def request_leave_s(
        self, now: float, *, ticket: str, tokens: int, pace: Pace, minute_s: float, call_s_max: float
    ) -> float:
        """Ask for leave to send. Returns 0 when the request may be sent now, and counts it; else the seconds until the
        next try."""
        at = self.cool_until
        if pace.requests_per_min:
            at = max(at, self._next_request)
        if pace.tokens_per_min:
            # A whole minute's tokens may be asked for at once.
            at = max(at, self._next_token - minute_s)
        if at > now:
            return at - now
        self._busy = {held: until for held, until in self._busy.items() if until > now}
        if pace.in_flight_max and ticket not in self._busy and len(self._busy) >= pace.in_flight_max:
            return LOCAL_BUSY_WAIT_S
        self._busy[ticket] = now + call_s_max
        if pace.requests_per_min:
            self._next_request = max(now, self._next_request) + minute_s / pace.requests_per_min
        if pace.tokens_per_min:
            self._next_token = max(now, self._next_token) + tokens * minute_s / pace.tokens_per_min
        return 0.0

    def end_call(self, ticket: str) -> None:
        """Record the end of a call. Idempotent."""
        self._busy.pop(ticket, None)


class Allowance:
    """Limits how often something is done because of an unverified claim: ``at_once`` times, then ``per_s`` times a
    second. When the claim turns out to be true, it is given back. Not thread-safe."""

    def __init__(self, *, at_once: int, per_s: float) -> None:
        self._at_once = at_once
        self._per_s = per_s
        self._left = float(at_once)
        self._at = 0.0

    def take_one(self, now: float) -> bool:
        """Take one. Returns whether it may be done now; ``now`` is seconds of any clock that never goes back."""
        self._left = min(self._at_once, self._left + max(0.0, now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def return_one(self) -> None:
        self._left = min(self._at_once, self._left + 1)
