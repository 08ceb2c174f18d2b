"""A compactor: forgets the older part of a conversation, and asks no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.extending import CompactionPlan, Message, Role

_KEPT = 12


@dataclass(frozen=True, slots=True)
class Short:
    """A ``Compactor``."""

    values: Mapping[str, Any]

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        """Everything before the last reply that has twelve rows behind it."""
        starts = [n for n, row in enumerate(rows) if row.role is Role.ASSISTANT and n <= len(rows) - _KEPT]
        if not starts or starts[-1] < 2:
            return None
        turns = rows[: starts[-1]]
        return CompactionPlan(head=0, through=turns[-1].seq, previous=None, turns=turns, asked="", is_asked_later=False)

    def question(self, plan: CompactionPlan, *, chars_max: int) -> None:
        """No model is asked."""

    def notes(self, plan: CompactionPlan) -> str:
        """What the summary says."""
        return f"{len(plan.turns)} earlier messages were left out."
