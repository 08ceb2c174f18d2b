"""How long conversations are made shorter, as plugs: the setting ``compression.compactor`` names one.

A compactor chooses which rows a summary stands for, and what a model is asked about them. It does not write the row:
``compaction.compaction_body`` does, so that every worker shows the same rows of it. ``checked`` refuses a choice that
would touch the rows at the end or part a call from its result, and sees to it that the newest request stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from hermes_worker.agent.prompt.compaction import (
    CompactionPlan,
    asked_in,
    asks_for_tools,
    fallback_summary,
    plan_compaction,
    summary_request,
)
from hermes_worker.core.compactions import is_compaction, visible
from hermes_worker.core.messages import Message, Role
from hermes_worker.extension import CompactorDeclaration, Extension

TAIL_ROWS_MIN = 3
"""Rows at the end of a transcript that no compactor may touch."""


class Compactor(Protocol):
    """Pure: the same rows give the same answers, on whichever worker it is asked."""

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        """What to summarise of the transcript, so that a request has well under ``trigger`` tokens again; ``None`` when
        nothing would be gained."""
        ...

    def question(self, plan: CompactionPlan, *, chars_max: int) -> Sequence[str] | None:
        """The messages that ask a model for the summary, in ``chars_max`` characters; ``None`` to ask no model."""
        ...

    def notes(self, plan: CompactionPlan) -> str:
        """The summary without a model: none is asked, or none answered."""
        ...


class SummaryCompactor:
    """A model writes handover notes of the older part (``compaction``)."""

    def plan(self, rows: Sequence[Message], *, trigger: int) -> CompactionPlan | None:
        return plan_compaction(rows, trigger=trigger)

    def question(self, plan: CompactionPlan, *, chars_max: int) -> Sequence[str] | None:
        return summary_request(plan, chars_max=chars_max)

    def notes(self, plan: CompactionPlan) -> str:
        return fallback_summary(plan)


SUMMARY = SummaryCompactor()


def checked(plan: CompactionPlan, rows: Sequence[Message]) -> CompactionPlan:
    """``plan`` with the newest request as it stands in ``rows``. Raises ``ValueError`` that says what would be lost."""
    if not 0 <= plan.head < plan.through <= len(rows):
        raise ValueError(f"it keeps {plan.head} rows and summarises up to row {plan.through} of {len(rows)}")
    head = rows[: plan.head]
    tail = [row for row in rows[plan.through :] if not is_compaction(row)]
    if len(tail) < TAIL_ROWS_MIN:
        raise ValueError(f"it leaves {len(tail)} rows at the end; {TAIL_ROWS_MIN} must stay")
    if rows[plan.head].role is Role.TOOL or (head and asks_for_tools(head[-1])) or tail[0].role is Role.TOOL:
        raise ValueError("it parts a call from its result")
    if tail[0].role is not Role.ASSISTANT or (head and head[-1].role is Role.USER):
        raise ValueError("the summary speaks as the user does, so a row of the assistant comes before and after it")
    if len(head) + 1 + len(tail) >= len(visible(rows)):
        raise ValueError("it makes nothing shorter")
    asked, position = asked_in([*head, *(row for row in rows[plan.head :] if not is_compaction(row))])
    shown = len(rows[plan.head : plan.through]) - sum(map(is_compaction, rows[plan.head : plan.through]))
    return replace(plan, asked=asked, is_asked_later=position >= plan.head + shown)


EXTENSION = Extension(
    name="compaction",
    version="1",
    summary="The built-in way to make long conversations shorter",
    compactors=(CompactorDeclaration(name="summary", implementation="hermes_worker.agent.prompt.compactors:built_in"),),
)


def built_in(values: object) -> Compactor:
    """The compactor ``summary``, which has no settings."""
    return SUMMARY
