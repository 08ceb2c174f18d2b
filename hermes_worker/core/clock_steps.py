"""Decide whether the database's clock was set to another time, by which every stored time would be wrong. Pure.

A sweeping process reads the database's clock and its own monotonic clock, which nobody can set and which goes on while
the machine sleeps. When the two moved apart between two looks, the database's clock was stepped.
"""

from __future__ import annotations

from dataclasses import dataclass

APART_S = 10.0
"""A smaller difference in seconds between two looks is ignored: no lease or limit of ours is so exact."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockLook:
    """One reading of both clocks by a process."""

    at: float
    """The database's time, which was read between ``began`` and ``ended``."""
    began: float
    """The process's own clock before it asked for the database's time."""
    ended: float
    """The process's own clock after it had the answer."""
    shifted_s: float
    """The sum of all steps by which stored times were corrected so far, by any process."""
    swept_at: float
    """The time of the last sweep of any process, by the database's clock then; 0 when there was none."""

    @property
    def silence_s(self) -> float:
        """Seconds since the last sweep; negative when the clock was set back since."""
        return self.at - self.swept_at


def decide_step(last: ClockLook | None, look: ClockLook, *, swept_every_s: float) -> float | None:
    """Decide by how many seconds the database's clock was stepped without a correction, 0 for not at all; ``None`` when
    only the next look can tell. The caller corrects every stored time by the result.

    A process that was frozen sees the same difference on both clocks. One whose own clock stood still (its virtual
    machine was halted) sees the database's run ahead, and that others have swept in the meantime.
    """
    is_swept = not look.swept_at or abs(look.silence_s) < APART_S + 2 * swept_every_s
    if last is None:
        return 0.0 if is_swept else None  # a process that knew the clock before may be about to correct it
    moved_s = look.at - last.at - (look.shifted_s - last.shifted_s)
    step_s = moved_s - min(max(moved_s, look.began - last.ended), look.ended - last.began)
    if step_s >= APART_S:
        return 0.0 if is_swept else step_s
    if step_s > -APART_S:
        is_left_ahead = look.silence_s <= -APART_S and look.swept_at == last.swept_at
        return look.silence_s if is_left_ahead else 0.0  # the process that swept before the step back is gone
    return step_s
