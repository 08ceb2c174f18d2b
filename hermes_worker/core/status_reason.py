"""Why a run is where it is: a reason from a closed list and a sentence, decided from facts that were read in one go.

For a run that waits, the sentence says for what; for a run that works, on what, where and since when. Callers (``runs
show``, ``--watch``, the API) decide by the reason when to show it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes_worker.core.run import CallStatus, RunStatus

MODEL_QUEUE = "model"
TOOLS_QUEUE = "tools"


class StandingReason(StrEnum):
    """Why a run that has not ended does not move, or on what it is at work."""

    ENDED = "ended"
    PAUSED = "paused"
    STOPPING = "stopping"
    BEHIND_SESSION = "behind_session"
    """Another run is at work in its session."""
    BEHIND_SIBLINGS = "behind_siblings"
    """The cap of its parent's children is reached."""
    PUT_OFF = "put_off"
    """It was postponed."""
    NO_WORKER = "no_worker"
    """Its next step is due, and no live worker consumes the queue."""
    DUE = "due"
    """Its next step waits for a free worker."""
    PREPARING = "preparing"
    """A worker for tools reads the workspace, to complete the prompt of a new session."""
    ASKING_MODEL = "asking_model"
    CALLING_TOOLS = "calling_tools"
    WAITING_FOR_PROVIDER = "waiting_for_provider"
    WAITING_FOR_PERSON = "waiting_for_person"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    """Others work for it: runs that it delegated to, and tasks of servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """An open tool call."""

    name: str
    status: CallStatus
    since: float | None
    """When it was claimed, or became due (epoch seconds)."""
    worker: str | None
    """The worker that holds it; ``None`` for none."""
    is_suspect: bool = False
    """It is tried apart from all other work."""
    asks: bool = False
    """An auxiliary call for it is due or at work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingFacts:
    """The facts about a run at one moment. Times are epoch seconds by the database's clock."""

    status: RunStatus
    now: float
    due_since: float | None
    """When its model call, or the preparation before the first, became due; ``None`` when nothing is."""
    asking_since: float | None
    """When that was claimed; ``None`` when it is not."""
    worker: str | None
    """The worker that holds it; ``None`` for none."""
    wants_preparing: bool = False
    """The preparation is due, and not the model call yet (``Run.wants_preparing``)."""
    attempt: int = 1
    is_suspect: bool = False
    """The model call is tried apart from all other work."""
    resume_at: float | None = None
    waits_because: str | None = None
    """The reason in the event of its last wait."""
    active_run: str | None = None
    """The run that is at work in its session, if that is another."""
    parent_run: str | None = None
    not_before: float | None = None
    calls: Sequence[CallFacts] = ()
    """The open calls of the current iteration that may run now, or run."""
    children_total: int = 0
    """Runs that its open calls delegated to, those that have ended included."""
    children_ended: int = 0
    tasks: int = 0
    """Its open calls that servers work on (``core.remote_tasks``)."""
    queues: Collection[str] = ()
    """Queues that some live worker consumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusReason:
    """The state of a run in terms of what it does or waits for, with a sentence."""

    reason: StandingReason
    text: str
    """A sentence for people, without the seconds that pass."""
    since: float | None = None
    """Since when, in epoch seconds; ``None`` when that was not recorded."""
    lasts_s: float | None = None
    """Seconds since then."""
    until: float | None = None
    """When it goes on or is checked again by itself."""


def decide_status_reason(facts: StandingFacts) -> StatusReason:
    """Decide where a run stands. Total and pure."""
    found = _decide_reason(facts)
    return found if found.since is None else replace(found, lasts_s=max(0.0, facts.now - found.since))


def _decide_reason(facts: StandingFacts) -> StatusReason:
    match facts.status:
        case status if status.is_terminal:
            return StatusReason(reason=StandingReason.ENDED, text=f"it has ended: {status.value}")
        case RunStatus.PAUSED:
            return StatusReason(reason=StandingReason.PAUSED, text="it is paused; 'runs resume' lets it go on")
        case RunStatus.STOPPING:
            return StatusReason(
                reason=StandingReason.STOPPING, text="a stop was asked for; it ends when whoever holds a step lets go"
            )
        case RunStatus.WAITING_FOR_CAPACITY:
            return _explain_provider_wait(facts)
        case RunStatus.WAITING_FOR_APPROVAL | RunStatus.WAITING_FOR_INPUT:
            return _explain_person_wait(facts)
        case RunStatus.WAITING_FOR_CHILDREN:
            return _explain_children_wait(facts)
        case _:
            return _explain_work(facts)


def _explain_provider_wait(facts: StandingFacts) -> StatusReason:
    why = facts.waits_because or "the provider asked for a pause"
    return StatusReason(reason=StandingReason.WAITING_FOR_PROVIDER, text=why, until=facts.resume_at)


def _explain_person_wait(facts: StandingFacts) -> StatusReason:
    is_approval = facts.status is RunStatus.WAITING_FOR_APPROVAL
    text = "somebody has to allow a command" if is_approval else "somebody has to answer a question"
    return StatusReason(reason=StandingReason.WAITING_FOR_PERSON, text=text)


def _explain_children_wait(facts: StandingFacts) -> StatusReason:
    tasks = "a task that a server works on" if facts.tasks == 1 else f"{facts.tasks} tasks that servers work on"
    text = f"it waits for {tasks}" if facts.tasks else "it waits for what it delegated"
    if facts.children_total:
        children = f"{facts.children_ended} of {facts.children_total} children have ended"
        text = f"it waits for what it delegated: {children}" + (f"; and for {tasks}" if facts.tasks else "")
    return StatusReason(reason=StandingReason.WAITING_FOR_CHILDREN, text=text)


def _explain_work(facts: StandingFacts) -> StatusReason:
    if facts.asking_since is not None:
        where = f" on {facts.worker}" if facts.worker else ""
        again = f", attempt {facts.attempt}" if facts.attempt > 1 else ""
        again += ", apart from all other work" if facts.is_suspect else ""
        reason, what = (
            (StandingReason.PREPARING, "reading the workspace")
            if facts.wants_preparing
            else (StandingReason.ASKING_MODEL, "asking the model")
        )
        return StatusReason(reason=reason, text=f"{what}{where}{again}", since=facts.asking_since)
    running = [call for call in facts.calls if call.status is CallStatus.RUNNING]
    if running:
        names = _join_names([f"{call.name} on {call.worker}" if call.worker else call.name for call in running])
        since = min((call.since for call in running if call.since is not None), default=None)
        if all(call.asks for call in running):
            return StatusReason(reason=StandingReason.ASKING_MODEL, text=f"asking a model for {names}", since=since)
        return StatusReason(reason=StandingReason.CALLING_TOOLS, text=f"running {names}", since=since)
    pending = [call for call in facts.calls if call.status is CallStatus.PENDING]
    if pending:
        tools = [call for call in pending if not call.asks]
        queue, shown = (TOOLS_QUEUE, tools) if tools else (MODEL_QUEUE, pending)
        since = min((call.since for call in shown if call.since is not None), default=None)
        names = _join_names([call.name for call in shown])
        what = names if tools else f"a question of {names} to a model"
        due = _explain_due_suspect if all(call.is_suspect for call in shown) else _explain_due
        return due(facts, queue, what, since)
    if facts.due_since is not None:
        due = _explain_due_suspect if facts.is_suspect else _explain_due
        if facts.wants_preparing:
            return due(facts, TOOLS_QUEUE, "reading its workspace", facts.due_since)
        return due(facts, MODEL_QUEUE, "its model call", facts.due_since)
    return _explain_not_begun(facts)


def _explain_not_begun(facts: StandingFacts) -> StatusReason:
    """Explain a run that has not begun, and is not due."""
    if facts.not_before is not None and facts.not_before > facts.now:
        return StatusReason(reason=StandingReason.PUT_OFF, text="it is to begin later", until=facts.not_before)
    if facts.active_run is not None:
        return StatusReason(
            reason=StandingReason.BEHIND_SESSION, text=f"run {facts.active_run} of its session goes first"
        )
    if facts.parent_run is not None:
        text = f"as many children of {facts.parent_run} are at work as may be at once"
        return StatusReason(reason=StandingReason.BEHIND_SIBLINGS, text=text)
    return StatusReason(reason=StandingReason.DUE, text="its next step is about to be sent")


def _explain_due(facts: StandingFacts, queue: str, what: str, since: float | None) -> StatusReason:
    if queue not in facts.queues:
        text = f"no worker consumes the queue '{queue}', where {what} waits"
        return StatusReason(reason=StandingReason.NO_WORKER, text=text, since=since)
    text = f"{what} waits in the queue '{queue}' for a worker that is free"
    return StatusReason(reason=StandingReason.DUE, text=text, since=since)


def _explain_due_suspect(facts: StandingFacts, queue: str, what: str, since: float | None) -> StatusReason:
    """Explain a step that is due as a suspect: any worker of the queue starts the lane that it waits for."""
    if queue not in facts.queues:
        return _explain_due(facts, queue, what, since)
    text = f"{what} waits to be tried apart from all other work, because a worker vanished with it"
    is_put_off = since is not None and since > facts.now
    return StatusReason(reason=StandingReason.DUE, text=text, since=since, until=since if is_put_off else None)


_NAMED_MAX = 4


def _join_names(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED_MAX])
    return f"{shown} and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else shown
