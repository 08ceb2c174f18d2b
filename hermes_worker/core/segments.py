"""Plan which calls of one reply may run at the same time.

A reply's calls are split into ordered segments. The calls of a segment may run in parallel; a segment starts when the
one before it is settled. A call never moves in front of an earlier call of another segment, so what the model wrote
first happens first wherever it could matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from posixpath import normpath


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCall:
    """The facts about a call that the planner needs; it knows no tools."""

    name: str
    is_parallel_safe: bool = False
    """The tool may run beside any other call."""
    is_barrier: bool = False
    """It runs alone whatever its tool allows: its arguments are unreadable, or it waits for a person."""
    path: str | None = None
    """Canonical path of the one file or folder the call touches; ``None`` when it has no such path."""
    is_read_only: bool = False
    """Two calls that only read never disturb each other, even on the same path."""

    @property
    def may_share(self) -> bool:
        """Whether the call may be in a segment with others at all."""
        return not self.is_barrier and (self.is_parallel_safe or self.path is not None)


def plan_segments(calls: Sequence[SegmentCall]) -> tuple[int, ...]:
    """Return the segment of each call, in call order: ``0`` first, never decreasing, without gaps."""
    segments: list[int] = []
    run: list[SegmentCall] = []
    segment = -1
    for call in calls:
        if not run or not call.may_share or any(_do_conflict(call, other) for other in run):
            segment += 1
            run = []
        segments.append(segment)
        # After a call that must be alone, start an empty segment, so that the next call is not joined to it.
        run = [*run, call] if call.may_share else []
    return tuple(segments)


def _do_conflict(one: SegmentCall, other: SegmentCall) -> bool:
    if one.path is None or other.path is None or (one.is_read_only and other.is_read_only):
        return False
    return _do_overlap(one.path, other.path)


def _do_overlap(one: str, other: str) -> bool:
    """Whether the paths are equal or one holds the other."""
    first, second = PurePosixPath(normpath(one)), PurePosixPath(normpath(other))
    return first.is_relative_to(second) or second.is_relative_to(first)
