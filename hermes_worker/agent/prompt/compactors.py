"""The ways of making conversations shorter, as plugs: the setting ``compression.compactor`` names one.

A compactor chooses which rows a summary stands for, and what a model is asked about them. It does not write the row:
``compaction.build_compaction_body`` does, so that every worker shows the same rows of it. ``check_plan`` refuses a
choice that would touch the rows at the end or part a call from its result, and sees to it that the newest request
stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from hermes_worker.agent.prompt.compaction import (
    PROTECTED,
    CompactionPlan,
    ProtectedRows,
    asks_for_tools,
    build_summary_request,
    find_newest_request,
    list_image_parts,
    plan_compaction,
    plan_pruning,
    write_fallback_summary,
)
from hermes_worker.agent.prompt.todo_notes import render_todo_notes
from hermes_worker.core.compactions import is_compaction, select_visible
from hermes_worker.core.messages import Message, Role
from hermes_worker.extension import CompactorDeclaration, Extension

TAIL_ROWS_MIN = 3
"""Rows at the end of a transcript that no compactor may touch."""


class Compactor(Protocol):
    """Plans how a conversation is made shorter. Pure: the same rows give the same answers on every worker."""

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        """Choose what to summarise of the transcript, so that a request has well under ``trigger`` tokens again;
        ``None`` when nothing would be gained.
        """

    def question(self, plan: CompactionPlan, *, chars_max: int) -> Sequence[str] | None:
        """The messages that ask a model for the summary, in ``chars_max`` characters; ``None`` to ask no model."""

    def notes(self, plan: CompactionPlan) -> str:
        """Write the summary without a model: none is asked, or none answered."""


@runtime_checkable
class ResultPruner(Protocol):
    """A compactor that can also show results of tools in short, which asks no model and loses no turn."""

    def pruning(self, rows: Sequence[Message], *, over: int, trigger: int) -> int | None:
        """``seq`` of the row up to which results are shown in short, where that alone takes ``over`` tokens away;
        ``None`` where it does not. Pure."""


@dataclass(frozen=True, slots=True)
class SummaryCompactor:
    """A model writes handover notes of the older part (``compaction``)."""

    protected: ProtectedRows = PROTECTED

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        return plan_compaction(rows, trigger=trigger, protected=self.protected)

    def pruning(self, rows: Sequence[Message], *, over: int, trigger: int) -> int | None:
        return plan_pruning(rows, over=over, trigger=trigger, protected=self.protected)

    def question(self, plan: CompactionPlan, *, chars_max: int) -> Sequence[str] | None:
        return build_summary_request(plan, chars_max=chars_max)

    def notes(self, plan: CompactionPlan) -> str:
        return write_fallback_summary(plan)


SUMMARY = SummaryCompactor()


def check_plan(plan: CompactionPlan, rows: Sequence[Message]) -> CompactionPlan:
    """``plan`` with the newest request as it stands in ``rows``, and with the agent's to-do list. Raises ``ValueError``
    that says what would be lost.
    """
    if not 0 <= plan.head < plan.through <= len(rows):
        raise ValueError(f"it keeps {plan.head} rows and summarises up to row {plan.through} of {len(rows)}")
    left = [row for row in rows if not is_compaction(row)]
    head = [row for row in left if row.seq <= plan.head]
    gone = [row for row in left if plan.head < row.seq <= plan.through]
    tail = [row for row in left if row.seq > plan.through]
    if len(tail) < TAIL_ROWS_MIN:
        raise ValueError(f"it leaves {len(tail)} rows at the end; {TAIL_ROWS_MIN} must stay")
    if (gone and gone[0].role is Role.TOOL) or (head and asks_for_tools(head[-1])) or tail[0].role is Role.TOOL:
        raise ValueError("it parts a call from its result")
    if tail[0].role is not Role.ASSISTANT or (head and head[-1].role is Role.USER):
        raise ValueError("the summary speaks as the user does, so a row of the assistant comes before and after it")
    if len(head) + 1 + len(tail) >= len(select_visible(rows)):
        raise ValueError("it makes nothing shorter")
    asked, position = find_newest_request(left)
    return replace(
        plan,
        asked=asked,
        is_asked_later=position >= len(head) + len(gone),
        is_answered=left[-1].role is Role.ASSISTANT and not asks_for_tools(left[-1]),
        asked_images=list_image_parts(left[position]) if position >= 0 else (),
        todos=render_todo_notes(left, through=plan.through),
    )


def check_pruning(through: int, rows: Sequence[Message]) -> int:
    """Return ``through`` if it touches none of the rows at the end. Raises ``ValueError``."""
    left = [row.seq for row in rows if not is_compaction(row)]
    if not 0 < through <= len(rows) or sum(seq > through for seq in left) < TAIL_ROWS_MIN:
        raise ValueError(f"it shortens results up to row {through} of {len(rows)}; {TAIL_ROWS_MIN} rows must stay")
    return through


EXTENSION = Extension(
    name="compaction",
    version="1",
    summary="The built-in way to make long conversations shorter",
    compactors=(
        CompactorDeclaration(
            name="summary", implementation="hermes_worker.agent.prompt.compactors:get_builtin_compactor"
        ),
    ),
)


def get_builtin_compactor(values: object) -> Compactor:
    """The compactor ``summary``, which has no settings."""
    return SUMMARY
