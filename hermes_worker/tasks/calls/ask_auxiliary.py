"""One auxiliary call: claim a tool call's question, ask a model, write the answer and its price, send what follows.

The tool call waits for it as a row. A worker for models asks, because no other worker has their keys.
"""

from __future__ import annotations

from functools import partial

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.auxiliary import AuxiliaryAnswer
from hermes_worker.core.effects import AskAuxiliary
from hermes_worker.core.errors import LeaseLost, ModelCallError
from hermes_worker.core.messages import ModelRequest
from hermes_worker.observe import count, log
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.auxiliary import AuxiliaryClaim
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.calls.auxiliary import Auxiliary
from hermes_worker.tasks.context import WorkerContext
from hermes_worker.tasks.iteration.spending import Bill
from hermes_worker.tasks.leases import AbortReason
from hermes_worker.tasks.step_runner import RunStep, StepDone, run_step, write_outcome

BUDGET_EXHAUSTED = "budget_exhausted"


def ask_auxiliary(parts: WorkerContext, effect: AskAuxiliary, at: float) -> None:
    """Make the auxiliary call ``effect`` names, if it is still to be made. ``at`` is when its message was hinted.

    Safe to deliver any number of times: of all deliveries one gets the claim, and a stale one finds nothing.
    """
    run_step(_STEP, parts, effect, at)


def _claim(parts: WorkerContext, effect: AskAuxiliary) -> AuxiliaryClaim | None:
    with parts.fair_semaphore:
        claim = parts.rows.auxiliary_calls.claim(effect, parts.leases.owner)
    if claim is not None:
        count("auxiliary.claimed")
    return claim


def _ask_and_answer(parts: WorkerContext, claim: AuxiliaryClaim, abort: AbortSignal) -> StepDone:
    bill = Bill()
    answer = _answer(parts, claim, abort, bill)
    faults.pass_point(FaultPoint.ASK_AUXILIARY_AFTER_REPLY, claim.run_id)
    write = partial(_write, parts, claim, answer, bill, abort)
    hints = write_outcome(parts, write, abort, refused="auxiliary.refused", task=claim.question.task.value)
    if hints is None:
        return StepDone(hints=())
    count("auxiliary.answered")
    return StepDone(hints=hints)


def _answer(parts: WorkerContext, claim: AuxiliaryClaim, abort: AbortSignal, bill: Bill) -> AuxiliaryAnswer | None:
    """Ask the model and return its answer; ``None`` when the question is given up so that another worker may ask it."""
    task = claim.question.task
    if claim.refused_by is not None:
        log.info("auxiliary.failed", task=task.value, provider="", kind=f"{BUDGET_EXHAUSTED}({claim.refused_by.value})")
        return AuxiliaryAnswer(failure=BUDGET_EXHAUSTED)
    request = ModelRequest(
        model=claim.loaded.model,
        messages=tuple(claim.question.messages),
        output_tokens_max=claim.question.output_tokens_max,
        reasoning_effort=claim.question.reasoning_effort,
    )
    auxiliary = Auxiliary.for_run(parts, claim.loaded, claim.run_id)
    try:
        said = auxiliary.ask(task, request, abort, ticket=f"{claim.key}:{claim.attempt}", bill=bill)
    except ModelCallError as error:
        return None if abort.is_set() else AuxiliaryAnswer(failure=error.kind.value)
    return AuxiliaryAnswer(text=said.text)


def _write(
    parts: WorkerContext, claim: AuxiliaryClaim, answer: AuxiliaryAnswer | None, bill: Bill, abort: AbortSignal
) -> list[Hint]:
    with parts.fair_semaphore:
        if answer is not None:
            return parts.rows.auxiliary_calls.settle_question(claim, answer, bill.spent)
        if abort.reason == AbortReason.LOST:
            raise LeaseLost("the claim was lost during the auxiliary call")
        # Handed over, or stopped: in a run that is being stopped, giving the claim up is what ends it.
        return parts.rows.auxiliary_calls.release(claim, bill.spent)


_STEP = RunStep(
    queue=QueueName.MODEL,
    suspects=QueueName.SUSPECT_MODEL,
    after_claim=FaultPoint.ASK_AUXILIARY_AFTER_CLAIM,
    after_commit=FaultPoint.ASK_AUXILIARY_AFTER_COMMIT,
    claim=_claim,
    may_hand_over=lambda _: True,
    do=_ask_and_answer,
)
