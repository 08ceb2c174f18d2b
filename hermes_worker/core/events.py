"""Events: what can happen to a run. ``core.step.apply_event`` decides the run after each of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.core.errors import Failure
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, ExitReason, WaitKind


class Loss(StrEnum):
    """The knowledge about the end of the worker that held a lost claim."""

    GIVEN_UP = "given_up"
    """It left in order, or gave up the claim: no step is to blame."""
    UNSEEN = "unseen"
    """It is silent: killed by this step or another one, gone with its machine; or frozen, or cut off, and not dead at
    all."""
    SEEN = "seen"
    """Its parent saw it end by itself; or it lives, and the step has exceeded its time in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCall:
    """A tool call of a reply, after the planner gave it a segment and the catalogue its replay class."""

    name: str
    replay: Replay
    segment: int
    timeout_s: float = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationClaimed:
    """A worker took the outstanding model call."""

    kind: Literal["iteration_claimed"] = "iteration_claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationReleased:
    """The worker gave the model call back unharmed (it drains); costs no attempt."""

    kind: Literal["iteration_released"] = "iteration_released"


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCompleted:
    """The prompt of the run's session is complete: its workspace was read, by this run's worker or by an earlier one.
    The claim is given up."""

    kind: Literal["prompt_completed"] = "prompt_completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationLost:
    """The worker that held the model call vanished."""

    loss: Loss = Loss.UNSEEN
    kind: Literal["iteration_lost"] = "iteration_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied:
    """The model answered. Without calls the reply is the run's answer."""

    calls: tuple[PlannedCall, ...] = ()
    memory: str | None = None
    """The document for the next model call of the turn; see ``Run.memory``."""
    exit_reason: ExitReason = ExitReason.TEXT_RESPONSE
    """Why a reply without calls is the answer."""
    failure: Failure | None = None
    """What is wrong with the answer, when it is not whole; ``None`` otherwise."""
    kind: Literal["model_replied"] = "model_replied"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedAgain:
    """The model's reply cannot be stored, because it was cut short, or empty. The model is asked once more."""

    memory: str | None
    is_counted: bool
    """The reply costs an iteration."""
    kind: Literal["asked_again"] = "asked_again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """The model call failed for good: retries are used up, or trying again cannot help."""

    failure: Failure
    exit_reason: ExitReason
    kind: Literal["model_failed"] = "model_failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityAwaited:
    """The model call failed and is worth trying again, but only after a wait too long to hold a worker for."""

    resume_at: float
    """Epoch seconds by the database's clock."""
    recovery: str
    """What was tried so far, for the worker that goes on."""
    memory: str | None = None
    """The document for the next model call of the turn; see ``Run.memory``."""
    reason: str = ""
    """Why it waits, in a sentence for people."""
    keys: tuple[str, ...] = ()
    """Names of closed keys, any of which lets it go on before its time when it is open (``core.key_states``)."""
    kind: Literal["capacity_awaited"] = "capacity_awaited"


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEnded:
    """The time until which a run was parked has come."""

    kind: Literal["wait_ended"] = "wait_ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallClaimed:
    position: int
    kind: Literal["call_claimed"] = "call_claimed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReleased:
    """The worker gave the call back before running it; costs no attempt."""

    position: int
    has_begun: bool = True
    """Whether its tool may have started. Only a call that may run again, or has not begun, can be given back."""
    kind: Literal["call_released"] = "call_released"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLost:
    """The worker that held the call vanished."""

    position: int
    loss: Loss = Loss.UNSEEN
    has_begun: bool = True
    """Whether its tool may have started; false only where a row proves that it had not."""
    kind: Literal["call_lost"] = "call_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSettled:
    position: int
    status: CallStatus
    kind: Literal["call_settled"] = "call_settled"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallParked:
    """The worker that claimed the call did not begin it, because it has to wait for something. The claim is given
    up."""

    position: int
    waits_for: WaitKind
    kind: Literal["call_parked"] = "call_parked"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAsked:
    """The worker that claimed the call left questions for a model, and let go of it. It has had no effect."""

    position: int
    kind: Literal["call_asked"] = "call_asked"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswered:
    """A question of the call has its answer, or it is known that there will be none."""

    position: int
    is_last: bool = True
    """No other question of the call is open: its tool goes on."""
    kind: Literal["call_answered"] = "call_answered"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAllowed:
    """A waiting call may run. (A call whose wait ends otherwise is settled, by ``CallSettled``.)"""

    position: int
    kind: Literal["call_allowed"] = "call_allowed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequested:
    """Nothing new is begun until ``ResumeRequested``; what is in flight ends as it would."""

    kind: Literal["pause_requested"] = "pause_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequested:
    is_active_run: bool = True
    """The run is its session's active one; without that it was paused while it waited for it, and waits again."""
    kind: Literal["resume_requested"] = "resume_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested:
    kind: Literal["stop_requested"] = "stop_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed:
    reason: Literal[ExitReason.WALL_CLOCK_EXCEEDED, ExitReason.IDLE_EXCEEDED]
    failure: Failure
    kind: Literal["deadline_passed"] = "deadline_passed"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunBroken:
    """The run cannot go on: a row of it is corrupt, or our own code failed on it."""

    reason: Literal[ExitReason.CORRUPT_STATE, ExitReason.INTERNAL_ERROR]
    failure: Failure
    kind: Literal["broken"] = "broken"


Event = (
    IterationClaimed
    | IterationReleased
    | PromptCompleted
    | IterationLost
    | ModelReplied
    | AskedAgain
    | ModelFailed
    | CapacityAwaited
    | WaitEnded
    | CallClaimed
    | CallReleased
    | CallLost
    | CallSettled
    | CallParked
    | CallAsked
    | CallAnswered
    | CallAllowed
    | PauseRequested
    | ResumeRequested
    | StopRequested
    | DeadlinePassed
    | RunBroken
)
