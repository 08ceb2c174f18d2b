"""Compacting a conversation in the middle of a turn: a compactor plans it and a model writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_worker.agent.prompt.compaction import CHARS_PER_TOKEN, CompactionPlan, compaction_body, trigger_tokens
from hermes_worker.agent.prompt.compactors import SUMMARY, Compactor, checked
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import Message, ModelRequest
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import redact
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.iteration.metering import Bill
from hermes_worker.tasks.iteration.requests import ModelOptions

_SUMMARY_TOKENS_MIN, _SUMMARY_TOKENS_MAX = 2_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A row that makes the conversation shorter, and what it cost to write."""

    body: str
    rows: int
    """How many it stands for."""
    spent: Spent = NOTHING_SPENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a conversation has to fit into."""

    window: int
    options: ModelOptions

    @property
    def trigger(self) -> int:
        """Tokens of a request from which on it is compacted before it is sent."""
        return trigger_tokens(self.window, self.options.output_tokens_max, self.options.compact_at)


def compact(
    rows: Sequence[Message],
    bounds: Bounds,
    auxiliary: Auxiliary,
    abort: AbortSignal,
    *,
    model: str,
    ticket: str,
    bill: Bill,
) -> Compaction | None:
    """What makes the transcript ``rows`` shorter; ``None`` when nothing does. A model that fails is done without.

    What that takes is added to ``bill``, whose sum then stands in the compaction. Raises ``ModelCallError`` when
    ``abort`` was set.
    """
    chosen = _planned(rows, bounds)
    if chosen is None:
        return None
    plan, question = chosen.plan, chosen.question
    count("conversation.compacted")
    if question is None:
        return Compaction(body=compaction_body(plan, redact(chosen.notes())), rows=len(plan.turns), spent=bill.spent)
    try:
        said = auxiliary.ask(
            AuxTask.COMPRESSION, _request(plan, question, bounds, model), abort, ticket=ticket, bill=bill
        )
    except ModelCallError as error:
        if abort.is_set():
            raise
        log.warning("conversation.compacted_blindly", kind=error.kind.value)
        return Compaction(body=compaction_body(plan, redact(chosen.notes())), rows=len(plan.turns), spent=bill.spent)
    summary = redact(said.text or chosen.notes())
    log.info("conversation.compacted", rows=len(plan.turns), summary_chars=len(summary))
    return Compaction(body=compaction_body(plan, summary), rows=len(plan.turns), spent=bill.spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """What is summarised, and how."""

    plan: CompactionPlan
    question: Sequence[str] | None
    by: Compactor

    def notes(self) -> str:
        """The summary without a model; the built-in one where the chosen compactor has none."""
        try:
            if said := str(self.by.notes(self.plan)).strip():
                return said
        except Exception as error:  # others wrote it
            _refuse(error)
        return SUMMARY.notes(self.plan)


def _planned(rows: Sequence[Message], bounds: Bounds) -> _Chosen | None:
    """By the chosen compactor; by the built-in one where that fails. ``None`` when nothing would be gained."""
    try:
        return _planned_by(bounds.options.compactor, rows, bounds)
    except Exception as error:  # others wrote it: whatever it does wrong, the conversation gets shorter
        if bounds.options.compactor is SUMMARY:
            raise
        _refuse(error)
        return _planned_by(SUMMARY, rows, bounds)


def _planned_by(compactor: Compactor, rows: Sequence[Message], bounds: Bounds) -> _Chosen | None:
    plan = compactor.plan(rows, trigger=bounds.trigger)
    if plan is None:
        return None
    plan = checked(plan, rows)
    question = compactor.question(plan, chars_max=bounds.window * CHARS_PER_TOKEN // 2)
    return _Chosen(plan=plan, question=question, by=compactor)


def _refuse(error: Exception) -> None:
    log.warning("conversation.compactor_refused", reason=f"{type(error).__name__}: {error}")


def _request(plan: CompactionPlan, question: Sequence[str], bounds: Bounds, model: str) -> ModelRequest:
    tokens = sum(len(row.body) for row in plan.turns) // CHARS_PER_TOKEN
    most = min(bounds.window // 20, _SUMMARY_TOKENS_MAX)
    budget = max(_SUMMARY_TOKENS_MIN, min(tokens // 5, most))
    return ModelRequest(model=model, messages=[redact(text) for text in question], output_tokens_max=budget)
