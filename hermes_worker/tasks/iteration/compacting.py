"""Compacting a conversation in the middle of a turn: ``agent.prompt.compaction`` plans it and a model writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_worker.agent.prompt.compaction import (
    CHARS_PER_TOKEN,
    CompactionPlan,
    compaction_body,
    fallback_summary,
    plan_compaction,
    summary_request,
    trigger_tokens,
)
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
    plan = plan_compaction(rows, trigger=bounds.trigger)
    if plan is None:
        return None
    count("conversation.compacted")
    try:
        said = auxiliary.ask(AuxTask.COMPRESSION, _request(plan, bounds, model), abort, ticket=ticket, bill=bill)
    except ModelCallError as error:
        if abort.is_set():
            raise
        log.warning("conversation.compacted_blindly", kind=error.kind.value)
        body = compaction_body(plan, redact(fallback_summary(plan)))
        return Compaction(body=body, rows=len(plan.turns), spent=bill.spent)
    summary = redact(said.text or fallback_summary(plan))
    log.info("conversation.compacted", rows=len(plan.turns), summary_chars=len(summary))
    return Compaction(body=compaction_body(plan, summary), rows=len(plan.turns), spent=bill.spent)


def _request(plan: CompactionPlan, bounds: Bounds, model: str) -> ModelRequest:
    tokens = sum(len(row.body) for row in plan.turns) // CHARS_PER_TOKEN
    most = min(bounds.window // 20, _SUMMARY_TOKENS_MAX)
    budget = max(_SUMMARY_TOKENS_MIN, min(tokens // 5, most))
    messages = summary_request(plan, chars_max=bounds.window * CHARS_PER_TOKEN // 2)
    return ModelRequest(model=model, messages=[redact(text) for text in messages], output_tokens_max=budget)
