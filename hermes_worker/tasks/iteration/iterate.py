"""One iteration: claim the model call, ask, commit what came of it, send what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.compactions import CONTEXT_FIELD
from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.events import AskedAgain, CapacityAwaited, ModelFailed, ModelReplied, RunBroken
from hermes_worker.core.messages import THINKER_FIELD
from hermes_worker.core.pricing import Spent
from hermes_worker.core.recovery_state import dump_recovery_state
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.models.catalog import find_thinker
from hermes_worker.observe import count, log
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import CompactionRow, IterationClaim
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.hooks.observing import record_run_begin
from hermes_worker.tasks.hooks.rewriting import ask_about_answer
from hermes_worker.tasks.iteration.model_request import Answered, Compacted, Interrupted, Unanswered, ask
from hermes_worker.tasks.iteration.planning import read_tool_names
from hermes_worker.tasks.iteration.reply_validation import JudgeContext, JudgedReply, judge, with_text
from hermes_worker.tasks.iteration.spending import compute_reply_cost
from hermes_worker.tasks.iteration.titles import give_title
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.tasks.step_runner import RunStep, StepDone, run_step, write_outcome
from hermes_worker.tracing.recording import add_attributes, add_messages


@dataclass(frozen=True, slots=True, kw_only=True)
class _JudgedAnswer:
    """The model answered, and it is decided what becomes of the reply."""

    answered: Answered
    judged: JudgedReply


_Outcome = _JudgedAnswer | Unanswered | Interrupted | Compacted


def iterate(parts: WorkerContext, effect: Iterate, at: float) -> None:
    """Do the model call ``effect`` names, if it is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    run_step(_STEP, parts, effect, at)


def _claim(parts: WorkerContext, effect: Iterate) -> IterationClaim | None:
    with parts.fair_semaphore:
        claim = parts.rows.runs.claim_iteration(effect, parts.leases.owner)
    if claim is not None:
        count("iteration.claimed")
    return claim


def _run_iteration(parts: WorkerContext, claim: IterationClaim, abort: AbortSignal) -> StepDone:
    add_attributes(request_model=claim.loaded.model)
    parts = parts.for_run(claim.loaded)
    record_run_begin(parts, claim)
    asked = ask(parts, claim, abort, is_watched=partial(_is_watched, parts, claim))
    outcome: _Outcome = _judge_answer(parts, claim, asked, abort) if isinstance(asked, Answered) else asked
    if isinstance(asked, Answered):
        faults.pass_point(FaultPoint.ITERATE_AFTER_REPLY, claim.run_id)

    def commit() -> list[Hint]:
        with parts.fair_semaphore:
            return _commit(parts, claim, outcome, abort)

    hints = write_outcome(parts, commit, abort, refused="iteration.refused")
    is_watched = _is_watched(parts, claim)
    if hints is None:
        return StepDone(hints=(), is_watched=is_watched)
    count("iteration.committed")
    _log_failure(outcome)
    if not _is_over(outcome):
        return StepDone(hints=hints, is_watched=is_watched)
    parts.models.pool.release_key(claim.run_id)
    if not isinstance(outcome, _JudgedAnswer) or not isinstance(outcome.judged.event, ModelReplied):
        return StepDone(hints=hints, is_watched=is_watched)
    then = partial(_follow_up, parts, claim, outcome.answered, outcome.judged.reply.text)
    return StepDone(hints=hints, is_watched=is_watched, then=then)


def _judge_answer(parts: WorkerContext, claim: IterationClaim, answered: Answered, abort: AbortSignal) -> _JudgedAnswer:
    """Decide what becomes of the reply, and let hooks rewrite what is stored of it."""
    reply, usage = answered.reply, answered.reply.usage
    add_attributes(input_tokens=usage.input, output_tokens=usage.output)
    add_attributes(response_model=reply.model or answered.route.model, finish_reasons=(reply.finish_reason,))
    add_messages(answered.rows, answered.reply)
    with parts.fair_semaphore:
        judged = _judge_reply(parts, claim, answered)
    return _JudgedAnswer(answered=answered, judged=rewrite_reply(parts, claim, judged, answered.memory.context, abort))


def _log_failure(outcome: _Outcome) -> None:
    """Say that a model call ends its run without a reply, and why."""
    decided = outcome.judged if isinstance(outcome, _JudgedAnswer) else outcome
    if isinstance(decided, Unanswered | JudgedReply) and isinstance(decided.event, ModelFailed | RunBroken):
        event = decided.event
        reason = event.reason if isinstance(event, RunBroken) else event.exit_reason
        log.warning("iteration.failed", reason=reason.value, failure=event.failure.kind)


def _follow_up(parts: WorkerContext, claim: IterationClaim, answered: Answered, answer: str) -> None:
    """Do what is left when a run has answered and its watchers have been told. Best effort."""
    if claim.loaded.origin != EVALUATION_SOURCE:
        give_title(parts, claim, answered, answer)
    if parts.rules.reviewing is not None and not parts.leases.is_draining:
        parts.sender.send(
            parts.rules.reviewing.begin_review(claim, parts.rows.runs.load_session_context(claim.loaded.session_pk))
        )


def rewrite_reply(
    parts: WorkerContext, claim: IterationClaim, judged: JudgedReply, context: str, abort: AbortSignal
) -> JudgedReply:
    """The reply as it is stored: with the text that hooks put in the place of an answer, and with what they had added
    to its request.
    """
    if not isinstance(judged.event, ModelReplied):
        return judged
    reply = judged.reply
    text = None if judged.event.calls else ask_about_answer(parts, claim, reply.text, abort)
    if text is not None and text != reply.text:
        reply = with_text(reply, text)
    if context:
        reply = replace(reply, row_fields={**reply.row_fields, CONTEXT_FIELD: context})
    return judged if reply is judged.reply else replace(judged, reply=reply)


def _is_over(outcome: _Outcome) -> bool:
    """The run makes no further model call."""
    match outcome:
        case _JudgedAnswer(judged=judged):
            return isinstance(judged.event, ModelFailed) or (
                isinstance(judged.event, ModelReplied) and not judged.event.calls
            )
        case Unanswered():
            return not isinstance(outcome.event, CapacityAwaited)
        case Compacted():
            return outcome.is_requested
        case Interrupted():
            return False


def _judge_reply(parts: WorkerContext, claim: IterationClaim, answered: Answered) -> JudgedReply:
    tools = parts.rows.runs.load_session_context(claim.loaded.session_pk).tools
    where = JudgeContext(
        run=claim.loaded.run,
        memory=answered.memory,
        rows=answered.rows,
        request=answered.request,
        has_fallback=answered.memory.provider + 1 < len(parts.find_models(claim.loaded.session_pk).chain),
        output_tokens_default=parts.rules.model.output_tokens_max,
        calls_max=parts.rules.calls_max,
        offered=read_tool_names(tools),
        output_schema=_load_output_schema(parts, claim, answered),
        guardrails=parts.rules.guardrails,
    )
    judged = judge(answered.reply, where, parts.catalog.for_session(tools))
    if judged.reply.reasoning:
        thinker = find_thinker(provider=answered.route.name, model=answered.route.model, host=answered.route.host)
        fields = {**judged.reply.row_fields, THINKER_FIELD: thinker}
        judged = replace(judged, reply=replace(judged.reply, row_fields=fields))
    if not isinstance(judged.event, ModelReplied):
        log.info("reply.discarded", finish_reason=answered.reply.finish_reason, event_kind=judged.event.kind)
        count("reply.discarded")
    return judged


def _load_output_schema(parts: WorkerContext, claim: IterationClaim, answered: Answered) -> Mapping[str, object] | None:
    """The schema that the reply has to fit if it is the answer; ``None`` where the run has none."""
    if not claim.loaded.has_output_schema or answered.reply.tool_requests:
        return None
    return parts.rows.runs.load_output_schema(claim.loaded.pk)


def _commit(parts: WorkerContext, claim: IterationClaim, outcome: _Outcome, abort: AbortSignal) -> list[Hint]:
    match outcome:
        case Interrupted():
            if abort.reason == AbortReason.LOST:
                raise LeaseLost("the claim was lost during the model call")
            # Handed over, or stopped: in a run that is being stopped, giving the claim up is what ends it.
            return parts.rows.runs.release_iteration(claim, outcome.in_vain)
        case Unanswered():
            return parts.rows.runs.commit_failure(claim, outcome.event, outcome.in_vain)
        case Compacted():
            event = AskedAgain(memory=dump_recovery_state(outcome.memory), is_counted=False)
            made = outcome.compaction
            number, spent = outcome.memory.compactions, made.spent
            row = CompactionRow(body=made.body, rows=made.rows, number=number, usage=spent.usage)
            if outcome.is_requested:
                return parts.rows.runs.commit_requested_compaction(claim, row, spent.cost)
            return parts.rows.runs.commit_compaction(claim, event, row, spent.cost)
        case _JudgedAnswer(answered=answered, judged=judged):
            cost = compute_reply_cost(answered.reply, answered.route, parts.models.prices)
            spent = Spent(usage=answered.reply.usage, cost=cost) + answered.in_vain
            reply = replace(judged.reply, usage=spent.usage)
            if isinstance(judged.event, ModelReplied):
                return parts.rows.runs.commit_reply(claim, reply, judged.event, spent.cost)
            return parts.rows.runs.commit_discarded_reply(claim, judged.event, reply, spent.cost)


def _is_watched(parts: WorkerContext, claim: IterationClaim) -> bool:
    return claim.loaded.is_watched or parts.leases.is_watched(claim.run_id)


_STEP = RunStep(
    queue=QueueName.MODEL,
    suspects=QueueName.SUSPECT_MODEL,
    after_claim=FaultPoint.ITERATE_AFTER_CLAIM,
    after_commit=FaultPoint.ITERATE_AFTER_COMMIT,
    claim=_claim,
    may_hand_over=lambda _: True,
    do=_run_iteration,
)
