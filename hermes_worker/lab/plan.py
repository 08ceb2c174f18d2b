"""Make a schedule of faults from a seed. Pure: the same options give the same schedule, on any machine.

A fault is due by *progress* (steps done by the whole fleet), not by time, so that a slow machine breaks at the same
places as a fast one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.system.faults import FaultPoint


class FaultKind(StrEnum):
    KILL = "kill"
    """SIGKILL a worker, wherever it is."""
    KILL_AT_POINT = "kill_at_point"
    """A worker that kills itself at a named fault point."""
    FREEZE = "freeze"
    """SIGSTOP a worker for longer than its lease, then SIGCONT: a zombie."""
    FLUSH_BROKER = "flush_broker"
    RESTART_BROKER = "restart_broker"
    """SIGKILL the broker, wipe its directory, start it again."""
    RESTART_DATABASE = "restart_database"
    """Stop PostgreSQL at once and start it again. Never done to a database that was handed to us."""
    DUPLICATE_MESSAGES = "duplicate_messages"
    DROP_MESSAGES = "drop_messages"
    JUMP_CLOCK = "jump_clock"
    """Replace a worker by one whose own clock is 90 s off."""


class FleetRole(StrEnum):
    """The kind of worker that a fault hits."""

    MODEL = "model"
    TOOLS = "tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFault:
    after_steps: int
    """Due when the fleet has committed this many steps."""
    kind: FaultKind
    role: FleetRole = FleetRole.MODEL
    index: int = 0
    """The number of the worker within its role."""
    point: FaultPoint | Literal[""] = ""
    """Where the worker of a ``KILL_AT_POINT`` kills itself; empty for other faults."""
    clock_offset_s: float = 0.0


_POINTS: dict[FleetRole, tuple[FaultPoint, ...]] = {
    FleetRole.MODEL: (FaultPoint.ITERATE_AFTER_CLAIM, FaultPoint.ITERATE_AFTER_REPLY, FaultPoint.ITERATE_AFTER_COMMIT),
    FleetRole.TOOLS: (
        FaultPoint.CALL_TOOL_AFTER_CLAIM,
        FaultPoint.CALL_TOOL_AFTER_BEGIN,
        FaultPoint.CALL_TOOL_AFTER_RUN,
        FaultPoint.CALL_TOOL_AFTER_SETTLE,
    ),
}
_KILLS_PER_OTHER_FAULT = 8


def make_schedule(
    *, seed: int, kills: int, steps_total: int, workers_per_role: int, restarts_database: bool, only_kills: bool = False
) -> tuple[PlannedFault, ...]:
    """The schedule: ``kills`` kills, half of them at named points, and one other fault for every eight kills.

    ``steps_total`` is the number of steps the fleet will commit when nothing goes wrong; faults fall into the first
    nine tenths of it, so that there is something left to recover.
    """
    chance = random.Random(seed)
    kinds: list[FaultKind] = [FaultKind.KILL if n % 2 else FaultKind.KILL_AT_POINT for n in range(kills)]
    if not only_kills:
        kinds += _choose_other_faults(kills, restarts_database=restarts_database)
    chance.shuffle(kinds)
    horizon = max(1, steps_total * 9 // 10)
    due = sorted(chance.randrange(horizon) for _ in kinds)
    return tuple(_make_fault(chance, kind, after, workers_per_role) for kind, after in zip(kinds, due, strict=True))


def _choose_other_faults(kills: int, *, restarts_database: bool) -> list[FaultKind]:
    rotation: Sequence[FaultKind] = [
        FaultKind.FREEZE,
        FaultKind.DUPLICATE_MESSAGES,
        FaultKind.FLUSH_BROKER,
        FaultKind.DROP_MESSAGES,
        FaultKind.JUMP_CLOCK,
        FaultKind.RESTART_BROKER,
        *([FaultKind.RESTART_DATABASE] if restarts_database else []),
    ]
    return [rotation[n % len(rotation)] for n in range(max(len(rotation), kills // _KILLS_PER_OTHER_FAULT))]


def _make_fault(chance: random.Random, kind: FaultKind, after: int, workers_per_role: int) -> PlannedFault:
    role = chance.choice(list(FleetRole))
    return PlannedFault(
        after_steps=after,
        kind=kind,
        role=role,
        index=chance.randrange(workers_per_role),
        point=chance.choice(_POINTS[role]) if kind is FaultKind.KILL_AT_POINT else "",
        clock_offset_s=chance.choice((-90.0, 90.0)) if kind is FaultKind.JUMP_CLOCK else 0.0,
    )
