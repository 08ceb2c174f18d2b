"""One iteration: claim the model call, ask, commit the reply and its calls, send what follows."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import partial

from hermes_worker import faults
from hermes_worker.core import events as ev
from hermes_worker.core import retry
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.classify import Classification, classification_of
from hermes_worker.core.effects import AskModel
from hermes_worker.core.errors import ConfigurationError, Failure, FailureKind, HermesError, LeaseLost, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest, canonical_json, user_body
from hermes_worker.core.notices import SUMMARY_REQUEST
from hermes_worker.core.run import ExitReason
from hermes_worker.faults import FaultPoint
from hermes_worker.live import DeltaBuffer
from hermes_worker.observe import bound, count, log
from hermes_worker.prompt.pipeline import prepare
from hermes_worker.queue import QueueName
from hermes_worker.redaction import redact
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs import TurnClaim
from hermes_worker.store.transcripts import CorruptTranscript
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.tasks.parts import Parts
from hermes_worker.tasks.persistence import persist
from hermes_worker.tasks.planning import plan_calls, tool_texts

_EXIT_OF: dict[retry.GiveUpReason, ExitReason] = {
    retry.GiveUpReason.RETRIES_EXHAUSTED: ExitReason.ALL_RETRIES_EXHAUSTED,
    retry.GiveUpReason.CONTENT_POLICY_BLOCKED: ExitReason.CONTENT_POLICY_BLOCKED,
    retry.GiveUpReason.INTERRUPTED: ExitReason.INTERRUPTED_DURING_API_CALL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """How the attempts to get a reply ended."""

    reply: ModelReply | None = None
    event: ev.ModelFailed | ev.CapacityAwaited | ev.Broken | None = None
    is_interrupted: bool = False


def iterate(parts: Parts, effect: AskModel, at: float) -> None:
    """Do the model call ``effect`` names, if it is still to be done. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    parts.leases.saw(QueueName.MODEL, at)
    if parts.leases.is_draining:
        parts.sender.send([Hint(effect=effect, at=at)])
        return
    claim = parts.runs.claim_turn(effect, parts.leases.owner)
    if claim is None:
        count("hint.stale")
        return
    count("iteration.claimed")
    faults.point(FaultPoint.ITERATE_AFTER_CLAIM)
    with (
        bound(run_id=effect.run_id, iteration=effect.iteration, attempt=effect.attempt),
        parts.leases.holding(claim.token, effect.run_id, may_hand_over=True) as abort,
    ):
        hints = _take_turn(parts, claim, effect, abort)
    faults.point(FaultPoint.ITERATE_AFTER_COMMIT)
    parts.sender.send(hints)
    if _is_watched(parts, claim):
        parts.live.nudge(effect.run_id)


def _take_turn(parts: Parts, claim: TurnClaim, effect: AskModel, abort: AbortSignal) -> list[Hint]:
    asked = _ask(parts, claim, effect, abort)
    faults.point(FaultPoint.ITERATE_AFTER_REPLY)
    try:
        hints = persist(partial(_commit, parts, claim, asked, abort), abort, patience_s=parts.commit_patience_s)
    except LeaseLost as lost:
        count("iteration.refused")
        log.warning("iteration.refused", reason=str(lost))
        return []
    count("iteration.committed")
    return hints


def _commit(parts: Parts, claim: TurnClaim, asked: _Asked, abort: AbortSignal) -> list[Hint]:
    if asked.is_interrupted:
        if abort.reason == AbortReason.LOST:
            raise LeaseLost("the claim was lost during the model call")
        # Handed over, or stopped: in a run that is being stopped, giving the claim up is what ends it.
        return parts.runs.release_turn(claim)
    if asked.event is not None:
        return parts.runs.commit_failure(claim, asked.event)
    assert asked.reply is not None
    reply, calls = plan_calls(asked.reply, parts.catalog)
    if len(calls) > parts.calls_max:
        return parts.runs.commit_failure(claim, _too_many_calls(len(calls), parts.calls_max))
    return parts.runs.commit_reply(claim, reply, calls)


def _too_many_calls(asked_for: int, calls_max: int) -> ev.ModelFailed:
    message = f"the model asked for {asked_for} tool calls in one reply; at most {calls_max} are run"
    return ev.ModelFailed(
        failure=Failure(kind="too_many_tool_calls", message=message), exit_reason=ExitReason.MODEL_CALL_REFUSED
    )


def _ask(parts: Parts, claim: TurnClaim, effect: AskModel, abort: AbortSignal) -> _Asked:
    try:
        request = build_request(parts, claim)
        provider = parts.provider()
    except CorruptTranscript as error:
        failure = Failure(kind="corrupt_transcript", message=str(error))
        return _Asked(event=ev.Broken(reason=ExitReason.CORRUPT_STATE, failure=failure))
    except ConfigurationError as error:
        failure = Failure(kind=FailureKind.CONFIGURATION.value, message=str(error))
        return _Asked(event=ev.ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED))
    deltas = DeltaBuffer(
        parts.live,
        effect.run_id,
        iteration=effect.iteration,
        attempt=effect.attempt,
        is_watched=partial(_is_watched, parts, claim),
    )
    history = _history(claim)
    while True:
        try:
            reply = provider.ask(request, on_delta=deltas, abort=abort)
        except ModelCallError as error:
            if abort.is_set():
                return _Asked(is_interrupted=True)
            classification = classification_of(error)
            decision = retry.decide(classification, history, retry.Situation(jitter=random.random()))
            history = retry.advance(history, decision, classification)
            count(f"model.failed.{error.kind.value}")
            log.info("model.failed", kind=error.kind.value, status=error.status, decision=decision.kind)
            ended = _after_failure(parts, decision, classification, history, abort)
            if ended is not None:
                return ended
            continue
        deltas.flush()
        return _Asked(reply=reply)


def _after_failure(
    parts: Parts,
    decision: retry.Decision,
    classification: Classification,
    history: retry.AttemptHistory,
    abort: AbortSignal,
) -> _Asked | None:
    """What the decision makes of the turn; ``None`` to ask again now."""
    if isinstance(decision, retry.Wait) and decision.should_park:
        recovery = canonical_json(retry.history_document(history))
        return _Asked(event=ev.CapacityAwaited(resume_at=parts.now() + decision.seconds, recovery=recovery))
    if isinstance(decision, retry.Wait | retry.RenewConnection):
        return _Asked(is_interrupted=True) if abort.wait(decision.seconds) else None
    if not isinstance(decision, retry.GiveUp):
        raise HermesError(f"no remedy {decision.kind!r} was offered, yet it was decided on")
    message = redact(retry.explain(decision, classification))
    failure = Failure(kind=classification.kind.value, message=message)
    exit_reason = _EXIT_OF.get(decision.reason, ExitReason.MODEL_CALL_REFUSED)
    return _Asked(event=ev.ModelFailed(failure=failure, exit_reason=exit_reason))


def _history(claim: TurnClaim) -> retry.AttemptHistory:
    recovery = claim.loaded.run.recovery
    return retry.history_from(json.loads(recovery)) if recovery else retry.AttemptHistory()


def build_request(parts: Parts, claim: TurnClaim) -> ModelRequest:
    """The request for the claimed call: the same bytes on every worker, up to what is new (invariant I7).

    Raises ``CorruptTranscript``.
    """
    run = claim.loaded.run
    session = parts.runs.session_of(claim.loaded.session_pk)
    rows = parts.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
    system = canonical_json({"role": "system", "content": session.system_prompt})
    messages = [system, *prepare(rows)]
    if run.wants_summary:
        messages.append(user_body(SUMMARY_REQUEST))
    return ModelRequest(
        model=claim.loaded.model,
        messages=messages,
        tools=() if run.wants_summary else tool_texts(session.tools),
        session_id=session.session_id,
    )


def _is_watched(parts: Parts, claim: TurnClaim) -> bool:
    return claim.loaded.is_watched or claim.run_id in parts.watched
