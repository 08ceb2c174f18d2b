"""The frame of every step: begin it if this process may, claim it, hold the claim, do it, send what follows.

A message names a step. Of all its deliveries one gets the claim, and a stale one finds nothing, so a frame may be
entered any number of times. What a step does is in its own module: ``iterate``, ``call_tool``,
``ask_auxiliary``, ``deliver``, ``collect``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hermes_worker.broker.queue import QueueName
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.effects import Effect, Iterate, Prepare, RunTool, TurnEffect
from hermes_worker.core.errors import LeaseLost
from hermes_worker.observe import bind_facts, count, log, record_duration
from hermes_worker.store.rows import Hint
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.tasks.context import Sender, WorkerContext
from hermes_worker.tasks.iteration.persistence import persist
from hermes_worker.tasks.leases import Leases
from hermes_worker.tracing import names
from hermes_worker.tracing import recording as tracing


class StepContext(Protocol):
    """The parts that the frame of every step needs."""

    @property
    def sender(self) -> Sender: ...

    @property
    def leases(self) -> Leases: ...


class StepClaim(Protocol):
    """The right to do a step."""

    @property
    def token(self) -> str: ...


EffectT = TypeVar("EffectT", bound=Effect)
ClaimT = TypeVar("ClaimT", bound=StepClaim)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """The outcome of a step that was done and written."""

    hints: Sequence[Hint]
    is_watched: bool = False
    """Whether the run has watchers, who are told that it has moved."""
    then: Callable[[], None] | None = None
    """Follow-up work, done after watchers were told; nothing waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStep(Generic[EffectT, ClaimT]):
    """One kind of step of a run."""

    queue: QueueName
    suspects: QueueName
    """The queue of suspects of this kind, which lanes take."""
    after_claim: FaultPoint
    after_commit: FaultPoint
    claim: Callable[[WorkerContext, EffectT], ClaimT | None]
    """Claims the step; returns ``None`` when it is done already, or another worker has it."""
    may_hand_over: Callable[[ClaimT], bool]
    """Whether a process that leaves may give the step back unfinished."""
    do: Callable[[WorkerContext, ClaimT, AbortSignal], StepDone]
    """Does the step and writes its outcome."""


def run_step(step: RunStep[EffectT, ClaimT], parts: WorkerContext, effect: EffectT, at: float) -> None:
    """Do the step that ``effect`` names, if it is still to be done. ``at`` is when its message was hinted."""
    queue = step.suspects if effect.is_suspect else step.queue
    begin_step(parts, queue, Hint(effect=effect, at=at), lambda: _run_claimed(step, parts, effect))


def begin_step(parts: StepContext, queue: QueueName, hint: Hint, do: Callable[[], None]) -> None:
    """Call ``do``, if this process may begin something from ``queue``; else send the message back to its queue."""
    with parts.leases.admit_task(queue, hint.at) as may_begin:
        if may_begin:
            record_duration(f"hint.waited.{queue.value}", time.time() - hint.at)
            do()
        else:
            parts.sender.send([hint])


def _run_claimed(step: RunStep[EffectT, ClaimT], parts: WorkerContext, effect: EffectT) -> None:
    claim = step.claim(parts, effect)
    if claim is None:
        count("hint.stale")
        return
    began = time.monotonic()
    faults.pass_point(step.after_claim, effect.run_id)
    with (
        bind_facts(**_build_log_fields(effect), **tracing.list_log_facts(effect.run_id, claim.token)),
        parts.leases.hold_claim(claim.token, effect.run_id, may_hand_over=step.may_hand_over(claim)) as abort,
        tracing.record_step(effect.run_id, claim.token, _build_span_attributes(effect)),
    ):
        done = step.do(parts, claim, abort)
    record_duration(f"step.held.{step.queue.value}", time.monotonic() - began)
    faults.pass_point(step.after_commit, effect.run_id)
    parts.sender.send(done.hints)
    if done.is_watched:
        parts.live.nudge(effect.run_id)
    if done.then is not None:
        with bind_facts(run_id=effect.run_id):
            done.then()


def _build_span_attributes(effect: Effect) -> dict[str, tracing.Value]:
    """The attributes of the step's span, beside those that the step adds."""
    place = {names.ITERATION: effect.iteration, names.ATTEMPT: effect.attempt}
    if isinstance(effect, Iterate):
        return {names.OPERATION: names.CHAT, **place}
    if isinstance(effect, Prepare):
        return {names.OPERATION: names.PREPARE, **place}
    operation = names.EXECUTE_TOOL if isinstance(effect, RunTool) else names.CHAT
    return {names.OPERATION: operation, names.POSITION: effect.position, **place}


def _build_log_fields(effect: Effect) -> Mapping[str, object]:
    """The fields of every log line of the step."""
    named = {"run_id": effect.run_id, "iteration": effect.iteration, "attempt": effect.attempt}
    return named if isinstance(effect, TurnEffect) else {**named, "call": effect.position}


def write_outcome(
    parts: WorkerContext, write: Callable[[], list[Hint]], abort: AbortSignal, *, refused: str, **facts: object
) -> list[Hint] | None:
    """Write the outcome of a step with ``write`` and return what follows; ``None``, counted and logged as ``refused``,
    when the claim was taken away and nothing was written.
    """
    try:
        return persist(write, abort, patience_s=parts.commit_patience_s)
    except LeaseLost as lost:
        count(refused)
        log.warning(refused, reason=str(lost), **facts)
        return None
