"""Compacting a conversation in the middle of a turn: a compactor plans it and a model writes it.

Theory of operation. ``agent.prompt.compaction`` has the form of a compaction: one more row that stands for older ones.
Here it is decided how to get one, from cheap to dear; each step is taken only when the one before did not help:

1. *Prune.* Old results of tools are shown in short, if that alone brings the request well below the trigger. No model
   is asked, and no turn is lost.
2. *Plan.* The chosen compactor picks the rows to summarise. One that raises, or that would touch the rows at the end,
   is put aside with a line in the log, and the built-in one plans: a conversation gets shorter whatever a plug does.
3. *Ask.* A model writes the summary, in an auxiliary call within this same claim.
4. *Write blindly.* Where no model answers, the row is made of the turns themselves (``notes``), so the run goes on.

A failed summary loses nothing. ``CompactionRequest.may_wait`` says that the request still fits into the window, only
not below the trigger: then step 4 is not taken, ``SummaryMissing`` is raised and the request is sent as it is.

Two numbers decide, in tokens of our own estimate (``Bounds``): a request above ``trigger`` is compacted before it is
sent, one above ``room`` cannot be sent at all. Providers count otherwise than we do, and ``weight_percent`` has the
ratio of the last reply:

    window 200,000 tokens, output limit 0, share 0.75, the provider counts 125 % of our estimate
    trigger = 150,000 * 100 / 125 = 120,000        room = 200,000 * 100 / 125 = 160,000

A compaction that takes away too little counts as futile in its own row (``add_futile_count``); after futile ones
another is tried only when enough new has been said. Without that a conversation that cannot get shorter would be
summarised before every call. No row of the transcript ever changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from hermes_worker.agent.prompt.compaction import (
    CHARS_PER_TOKEN,
    PRUNED_PART,
    REQUEST_CHARS_MIN,
    CompactionPlan,
    add_futile_count,
    add_reminder,
    build_compaction_body,
    build_pruning_body,
    compute_request_tokens_max,
    estimate_tokens,
    find_share,
    trigger_tokens,
)
from hermes_worker.agent.prompt.compactors import SUMMARY, Compactor, ResultPruner, check_plan, check_pruning
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxTask
from hermes_worker.core.compactions import find_newest_compaction, parse_facts, select_visible
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import Message, ModelRequest, Role
from hermes_worker.core.pricing import NOTHING_SPENT, Spent
from hermes_worker.observe import count, log
from hermes_worker.safety.redaction import redact
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.iteration.requests import ModelOptions
from hermes_worker.tasks.iteration.spending import Bill

_REQUEST_PART = 0.2
"""The part of the trigger that the user's request may fill and still be kept word for word."""
_SUMMARY_TOKENS_MIN, _SUMMARY_TOKENS_MAX = 2_000, 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """A row that makes the conversation shorter, and what it cost to write."""

    body: str
    rows: int
    """How many rows of the transcript it replaces or shortens."""
    spent: Spent = NOTHING_SPENT


class SummaryMissing(Exception):
    """No model wrote the summary, and the conversation fits without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The limits that a conversation has to fit into."""

    window: int
    options: ModelOptions
    provider: str = ""
    model: str = ""
    weight_percent: int = 0
    """The provider's count of tokens, in per cent of our estimate; 0 while it is not known."""
    summary_window: int | None = None
    """Context window of the model that writes summaries, where it is another one and its window is known."""

    @property
    def trigger(self) -> int:
        """The size at which a request is compacted before it is sent, in tokens of our estimate."""
        options = self.options
        share, is_exact = find_share(self.provider, self.model, options.compact_at, options.compact_models_at)
        return self._to_estimate(trigger_tokens(self.window, options.output_tokens_max, share, is_exact=is_exact))

    @property
    def room(self) -> int:
        """The largest size of a request, in tokens of our estimate."""
        return self._to_estimate(compute_request_tokens_max(self.window, self.options.output_tokens_max))

    @property
    def question_chars(self) -> int:
        """Characters that the question for a summary may have: half of what the summarising model can read."""
        window = min(self.window, self.summary_window or self.window)
        return self._to_estimate(window) * CHARS_PER_TOKEN // 2

    def _to_estimate(self, tokens: int) -> int:
        return max(1, tokens * 100 // (self.weight_percent or 100))


def _write_no_reminder(_: CompactionPlan) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRequest:
    """A request to make a conversation shorter."""

    tokens: int = 0
    """Tokens of the request; 0 when there is no request."""
    focus: str | None = None
    """What a person who asks for a summary wants it to keep above all; ``None`` when nobody asks for one."""
    has_too_many_rows: bool = False
    """Whether the request has too many messages, and not too many tokens."""
    may_wait: bool = False
    """The request fits as it is: without a model's summary nothing is changed."""
    reminder: Callable[[CompactionPlan], str] = _write_no_reminder
    """Called for what the notes must keep, before they are written."""


def compact(
    rows: Sequence[Message],
    bounds: Bounds,
    auxiliary: Auxiliary,
    abort: AbortSignal,
    *,
    model: str,
    ticket: str,
    bill: Bill,
    wish: CompactionRequest | None = None,
) -> Compaction | None:
    """Build the row that makes the transcript ``rows`` shorter; ``None`` when nothing does. Where no model writes the
    summary, it is made of the turns themselves.

    Adds the cost to ``bill``; the result holds the sum of the bill. Raises ``ModelCallError`` when ``abort`` was
    set, and ``SummaryMissing`` where ``wish`` may wait.
    """
    wish = wish or CompactionRequest()
    if wish.focus is None and not wish.has_too_many_rows and (made := _prune_results(rows, bounds, wish)) is not None:
        return replace(made, spent=bill.spent)
    chosen = _plan_summary(rows, bounds, wish)
    if chosen is None:
        return None
    plan, question, reminder = chosen.plan, chosen.question, wish.reminder(chosen.plan)

    def build_compaction(summary: str) -> Compaction:
        through = parse_facts(find_newest_compaction(rows)).pruned
        body = build_compaction_body(plan, redact(summary), pruned_through=through if through > plan.through else 0)
        if wish.tokens and wish.focus is None:
            body = add_futile_count(rows, body, tokens=wish.tokens, trigger=bounds.trigger)
        return Compaction(body=body, rows=len(plan.turns), spent=bill.spent)

    count("conversation.compacted")
    blindly = "\n\n".join(filter(None, (chosen.write_notes(), reminder)))
    if question is None:
        return build_compaction(blindly)
    try:
        request = _build_request(plan, add_reminder(question, reminder), bounds, model)
        said = auxiliary.ask(AuxTask.COMPRESSION, request, abort, ticket=ticket, bill=bill)
    except ModelCallError as error:
        if abort.is_set():
            raise
        if wish.may_wait:
            log.warning("conversation.left_long", kind=error.kind.value)
            raise SummaryMissing(error.kind.value) from error
        log.warning("conversation.compacted_blindly", kind=error.kind.value)
        return build_compaction(blindly)
    made = build_compaction(said.text or blindly)
    log.info("conversation.compacted", rows=len(plan.turns), summary_chars=len(said.text))
    return made


def _prune_results(rows: Sequence[Message], bounds: Bounds, wish: CompactionRequest) -> Compaction | None:
    """Shorten old results, where that is enough for the request; ``None`` where it is not."""
    compactor = bounds.options.compactor
    if not wish.tokens or not isinstance(compactor, ResultPruner):
        return None
    over = wish.tokens - int(bounds.trigger * PRUNED_PART)
    try:
        through = compactor.pruning(rows, over=over, trigger=bounds.trigger)
        if through is None:
            return None
        body = build_pruning_body(rows, check_pruning(through, rows))
    except Exception as error:  # others wrote it
        _log_compactor_failure(error)
        return None
    shown = select_visible([*rows, Message(seq=rows[-1].seq + 1, role=Role.USER, body=body)])
    before = {row.seq: row.body for row in select_visible(rows)}
    changed = sum(row.body != before.get(row.seq, row.body) for row in shown)
    count("conversation.pruned")
    log.info("conversation.pruned", rows=changed)
    return Compaction(body=add_futile_count(rows, body, tokens=wish.tokens, trigger=bounds.trigger), rows=changed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SummaryPlan:
    """The rows to summarise and the compactor that does it."""

    plan: CompactionPlan
    question: Sequence[str] | None
    by: Compactor

    def write_notes(self) -> str:
        """The summary without a model; the built-in one where the chosen compactor has none."""
        try:
            if said := str(self.by.notes(self.plan)).strip():
                return said
        except Exception as error:  # others wrote it
            _log_compactor_failure(error)
        return SUMMARY.notes(self.plan)


def _plan_summary(rows: Sequence[Message], bounds: Bounds, wish: CompactionRequest) -> _SummaryPlan | None:
    """Plan with the chosen compactor, or with the built-in one where that fails. ``None`` when nothing would be
    gained.
    """
    try:
        return _plan_with(bounds.options.compactor, rows, bounds, wish)
    except Exception as error:  # others wrote it: whatever it does wrong, the conversation gets shorter
        if bounds.options.compactor is SUMMARY:
            raise
        _log_compactor_failure(error)
        return _plan_with(SUMMARY, rows, bounds, wish)


def _plan_with(
    compactor: Compactor, rows: Sequence[Message], bounds: Bounds, wish: CompactionRequest
) -> _SummaryPlan | None:
    trigger = bounds.trigger
    if wish.focus is not None or wish.has_too_many_rows:
        # It is to be shorter than it is, however short that is.
        trigger = min(trigger, max(1, estimate_tokens(select_visible(rows))))
    plan = compactor.plan(rows, trigger=trigger)
    if plan is None:
        return None
    kept = max(REQUEST_CHARS_MIN, int(bounds.trigger * _REQUEST_PART) * CHARS_PER_TOKEN)
    plan = replace(check_plan(plan, rows), focus=wish.focus or "", asked_chars_max=kept)
    question = compactor.question(plan, chars_max=bounds.question_chars)
    return _SummaryPlan(plan=plan, question=question, by=compactor)


def _log_compactor_failure(error: Exception) -> None:
    log.warning("conversation.compactor_refused", reason=f"{type(error).__name__}: {error}")


def _build_request(plan: CompactionPlan, question: Sequence[str], bounds: Bounds, model: str) -> ModelRequest:
    tokens = estimate_tokens(plan.turns)
    most = min(bounds.window // 20, _SUMMARY_TOKENS_MAX)
    budget = max(_SUMMARY_TOKENS_MIN, min(tokens // 5, most))
    return ModelRequest(model=model, messages=[redact(text) for text in question], output_tokens_max=budget)
