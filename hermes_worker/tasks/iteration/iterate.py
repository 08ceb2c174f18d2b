"""One iteration: claim the model call, ask, commit what came of it, send what follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.compactions import CONTEXT_FIELD
from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.events import AskedAgain, Broken, CapacityAwaited, ModelFailed, ModelReplied
from hermes_worker.core.messages import THINKER_FIELD
from hermes_worker.core.pricing import Spent
from hermes_worker.core.run_memory import memory_document
from hermes_worker.features.memory.review_work import review
from hermes_worker.models.catalog import thinker_of
from hermes_worker.observe import count, log
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.runs import CompactionRow, IterationClaim
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.hooks.observing import tell_begun
from hermes_worker.tasks.hooks.rewriting import final_answer
from hermes_worker.tasks.iteration.asking import Answered, Asked, Compacted, Interrupted, Unanswered, ask
from hermes_worker.tasks.iteration.judging import Circumstances, Judged, judge, with_text
from hermes_worker.tasks.iteration.metering import cost_of_reply
from hermes_worker.tasks.iteration.planning import tool_names
from hermes_worker.tasks.iteration.titles import give_title
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.tasks.parts import Parts
from hermes_worker.tasks.steps import RunStep, StepDone, take, written
from hermes_worker.tracing.recording import note, note_messages


def iterate(parts: Parts, effect: Iterate, at: float) -> None:
    """Do the model call ``effect`` names, if it is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    take(_STEP, parts, effect, at)


def _claim(parts: Parts, effect: Iterate) -> IterationClaim | None:
    with parts.fair_semaphore:
        claim = parts.runs.claim_iteration(effect, parts.leases.owner)
    if claim is not None:
        count("iteration.claimed")
    return claim


def _take_iteration(parts: Parts, claim: IterationClaim, abort: AbortSignal) -> StepDone:
    note(request_model=claim.loaded.model)
    parts = parts.serving(claim.loaded)
    tell_begun(parts, claim)
    asked = ask(parts, claim, abort, is_watched=partial(_is_watched, parts, claim))
    judged = None
    if isinstance(asked, Answered):
        usage = asked.reply.usage
        note(input_tokens=usage.input, output_tokens=usage.output)
        note_messages(asked.rows, asked.reply)
        with parts.fair_semaphore:
            judged = _judged(parts, claim, asked)
        judged = rewritten(parts, claim, judged, asked.memory.context, abort)
    faults.point(FaultPoint.ITERATE_AFTER_REPLY, claim.run_id)

    def commit() -> list[Hint]:
        with parts.fair_semaphore:
            return _commit(parts, claim, asked, judged, abort)

    hints = written(parts, commit, abort, refused="iteration.refused")
    is_watched = _is_watched(parts, claim)
    if hints is None:
        return StepDone(hints=(), is_watched=is_watched)
    count("iteration.committed")
    _log_failure(asked if judged is None else judged)
    if not _is_over(asked, judged):
        return StepDone(hints=hints, is_watched=is_watched)
    parts.pool.release(claim.run_id)
    if judged is None or not isinstance(judged.event, ModelReplied) or not isinstance(asked, Answered):
        return StepDone(hints=hints, is_watched=is_watched)
    then = partial(_follow_up, parts, claim, asked, judged.reply.text)
    return StepDone(hints=hints, is_watched=is_watched, then=then)


def _log_failure(outcome: Asked | Judged) -> None:
    """Say that a model call ends its run without a reply, and why."""
    if isinstance(outcome, Unanswered | Judged) and isinstance(outcome.event, ModelFailed | Broken):
        event = outcome.event
        reason = event.reason if isinstance(event, Broken) else event.exit_reason
        log.warning("iteration.failed", reason=reason.value, failure=event.failure.kind)


def _follow_up(parts: Parts, claim: IterationClaim, answered: Answered, answer: str) -> None:
    """Do what is left when a run has answered and its watchers have been told. Best effort."""
    give_title(parts, claim, answered, answer)
    if parts.reviewing is not None and not parts.leases.is_draining:
        parts.sender.send(review(parts.reviewing, claim, parts.runs.session_of(claim.loaded.session_pk)))


def rewritten(parts: Parts, claim: IterationClaim, judged: Judged, context: str, abort: AbortSignal) -> Judged:
    """The reply as it is stored: with the text that hooks put in the place of an answer, and with what they had added
    to its request.
    """
    if not isinstance(judged.event, ModelReplied):
        return judged
    reply = judged.reply
    text = None if judged.event.calls else final_answer(parts, claim, reply.text, abort)
    if text is not None and text != reply.text:
        reply = with_text(reply, text)
    if context:
        reply = replace(reply, row_fields={**reply.row_fields, CONTEXT_FIELD: context})
    return judged if reply is judged.reply else replace(judged, reply=reply)


def _is_over(asked: Asked, judged: Judged | None) -> bool:
    """The run makes no further model call."""
    match asked:
        case Answered():
            assert judged is not None
            return isinstance(judged.event, ModelFailed) or (
                isinstance(judged.event, ModelReplied) and not judged.event.calls
            )
        case Unanswered():
            return not isinstance(asked.event, CapacityAwaited)
        case Compacted():
            return asked.is_requested
        case Interrupted():
            return False


def _judged(parts: Parts, claim: IterationClaim, answered: Answered) -> Judged:
    tools = parts.runs.session_of(claim.loaded.session_pk).tools
    where = Circumstances(
        run=claim.loaded.run,
        memory=answered.memory,
        rows=answered.rows,
        request=answered.request,
        has_fallback=answered.memory.provider + 1 < len(parts.models_of(claim.loaded.session_pk).chain),
        output_tokens_default=parts.model.output_tokens_max,
        calls_max=parts.calls_max,
        offered=tool_names(tools),
        output_schema=_output_schema(parts, claim, answered),
        guardrails=parts.guardrails,
    )
    judged = judge(answered.reply, where, parts.catalog.for_session(tools))
    if judged.reply.reasoning:
        thinker = thinker_of(provider=answered.route.name, model=answered.route.model, host=answered.route.host)
        fields = {**judged.reply.row_fields, THINKER_FIELD: thinker}
        judged = replace(judged, reply=replace(judged.reply, row_fields=fields))
    if not isinstance(judged.event, ModelReplied):
        log.info("reply.discarded", finish_reason=answered.reply.finish_reason, event_kind=judged.event.kind)
        count("reply.discarded")
    return judged


def _output_schema(parts: Parts, claim: IterationClaim, answered: Answered) -> Mapping[str, object] | None:
    """The schema that the reply has to fit if it is the answer; ``None`` where the run has none."""
    if not claim.loaded.has_output_schema or answered.reply.tool_requests:
        return None
    return parts.runs.output_schema_of(claim.loaded.pk)


def _commit(parts: Parts, claim: IterationClaim, asked: Asked, judged: Judged | None, abort: AbortSignal) -> list[Hint]:
    match asked:
        case Interrupted():
            if abort.reason == AbortReason.LOST:
                raise LeaseLost("the claim was lost during the model call")
            # Handed over, or stopped: in a run that is being stopped, giving the claim up is what ends it.
            return parts.runs.release_iteration(claim, asked.in_vain)
        case Unanswered():
            return parts.runs.commit_failure(claim, asked.event, asked.in_vain)
        case Compacted():
            event = AskedAgain(memory=memory_document(asked.memory), is_counted=False)
            made = asked.compaction
            number, spent = asked.memory.compactions, made.spent
            row = CompactionRow(body=made.body, rows=made.rows, number=number, usage=spent.usage)
            if asked.is_requested:
                return parts.runs.commit_requested(claim, row, spent.cost)
            return parts.runs.commit_compacted(claim, event, row, spent.cost)
        case Answered():
            assert judged is not None
            cost = cost_of_reply(asked.reply, asked.route, parts.prices)
            spent = Spent(usage=asked.reply.usage, cost=cost) + asked.in_vain
            reply = replace(judged.reply, usage=spent.usage)
            if isinstance(judged.event, ModelReplied):
                return parts.runs.commit_reply(claim, reply, judged.event, spent.cost)
            return parts.runs.commit_discarded(claim, judged.event, reply, spent.cost)


def _is_watched(parts: Parts, claim: IterationClaim) -> bool:
    return claim.loaded.is_watched or parts.leases.is_watched(claim.run_id)


_STEP = RunStep(
    queue=QueueName.MODEL,
    suspects=QueueName.SUSPECT_MODEL,
    after_claim=FaultPoint.ITERATE_AFTER_CLAIM,
    after_commit=FaultPoint.ITERATE_AFTER_COMMIT,
    claim=_claim,
    may_hand_over=lambda _: True,
    do=_take_iteration,
)
