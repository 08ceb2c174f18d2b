"""The state of one run, as far as decisions depend on it.

A run is one turn of an agent: a user's input, a number of *iterations* (one model reply and its tool calls), and an
end. The rows in SQL are the truth (invariant I1); ``Run`` is what the store makes of them when something has to be
decided, and ``core.step`` is where it is decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from hermes_worker.core.errors import Failure
from hermes_worker.core.replay import Replay

STATE_VERSION = 1
"""Version of the meaning of the rows. A worker leaves rows of a newer version to a worker that knows them."""

ArtifactsState = Literal["none", "open", "pending", "done", "failed"]
"""Where the gathering of a run's artifacts stands. ``none``: the run declared nothing; ``open``: it has not ended;
``pending``: it has, and its files are being gathered; ``failed``: see the reason."""


class RunStatus(StrEnum):
    QUEUED = "queued"
    """Accepted; no model call has been claimed yet."""
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    WAITING_FOR_INPUT = "waiting_for_input"
    WAITING_FOR_CHILDREN = "waiting_for_children"
    WAITING_FOR_CAPACITY = "waiting_for_capacity"
    """Parked until a time, because the provider asked us to wait (invariant I8)."""
    PAUSED = "paused"
    STOPPING = "stopping"
    """A stop was requested; a worker still holds a claim and will write the end."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """A deadline passed: wall clock or idle limit."""

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL

    @property
    def is_parked(self) -> bool:
        return self in PARKED


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.EXPIRED})
OPEN_STATUSES = tuple(status for status in RunStatus if not status.is_terminal)
"""The statuses of runs that have not ended."""
PARKED = frozenset(
    {
        RunStatus.WAITING_FOR_APPROVAL,
        RunStatus.WAITING_FOR_INPUT,
        RunStatus.WAITING_FOR_CHILDREN,
        RunStatus.WAITING_FOR_CAPACITY,
        RunStatus.PAUSED,
    }
)
"""Waiting for an event, not for a worker: nothing is outstanding."""


class Halt(StrEnum):
    """A stop or pause of a run together with everything that it caused. It holds when the run itself has ended."""

    PAUSED = "paused"
    STOPPING = "stopping"
    """Some of what the run caused may not have been told yet."""
    STOPPED = "stopped"


RUN_TRANSITIONS: Mapping[RunStatus, frozenset[RunStatus]] = {
    RunStatus.QUEUED: frozenset({RunStatus.RUNNING, RunStatus.PAUSED}) | TERMINAL,
    RunStatus.RUNNING: PARKED | {RunStatus.STOPPING} | TERMINAL,
    **{parked: (PARKED | {RunStatus.RUNNING, RunStatus.STOPPING} | TERMINAL) - {parked} for parked in PARKED},
    RunStatus.PAUSED: (PARKED | {RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.STOPPING} | TERMINAL)
    - {RunStatus.PAUSED},
    RunStatus.STOPPING: TERMINAL,
    **{terminal: frozenset[RunStatus]() for terminal in TERMINAL},
}
"""The statuses that may follow each status. A terminal status is never left."""


class CallStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    """Claimed: the intent to run it is recorded."""
    WAITING = "waiting"
    """It has not run: it waits for what ``Call.waits_for`` says, and no worker holds it (invariant I8)."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """The tool answered with an error; the model sees it and goes on."""
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"
    """Its worker vanished and it must not run again: it may or may not have had its effect (invariant I5)."""

    @property
    def is_settled(self) -> bool:
        return self in SETTLED


SETTLED = frozenset({CallStatus.SUCCEEDED, CallStatus.FAILED, CallStatus.CANCELLED, CallStatus.UNKNOWN})
CALL_TRANSITIONS: Mapping[CallStatus, frozenset[CallStatus]] = {
    CallStatus.PENDING: frozenset({CallStatus.RUNNING, CallStatus.CANCELLED}),
    CallStatus.RUNNING: SETTLED | {CallStatus.PENDING, CallStatus.WAITING},
    CallStatus.WAITING: (SETTLED - {CallStatus.UNKNOWN}) | {CallStatus.PENDING},
    **{settled: frozenset[CallStatus]() for settled in SETTLED},
}
"""A running call goes back to pending only when its claim was lost or handed back, or when a model has to answer it or
has answered; a waiting one when it may run."""


class RunKind(StrEnum):
    """What made a run begin."""

    REQUEST = "request"
    """A person or a program asked for it."""
    JOB = "job"
    """A slot of a job came due."""
    CHILD = "child"
    """Another run delegated it."""
    FOLLOW_UP = "follow_up"
    """A background answer, or a report of a process, goes on with its conversation."""
    REVIEW = "review"
    """It looks back at a conversation for what to remember."""
    EVALUATION = "evaluation"
    """It looks at the answer of another run, and says so by the tag ``evaluation``: it repeats that one as part of a
    replay, or judges it."""

    @property
    def is_beside_work(self) -> bool:
        """Whether such runs look back at work and do none. Lists leave them out until they are asked for."""
        return self in (RunKind.REVIEW, RunKind.EVALUATION)


class WaitKind(StrEnum):
    """The kinds of things that a waiting call waits for."""

    APPROVAL = "approval"
    """A person has to allow it. Allowed, it becomes pending again; otherwise it is settled without having run."""
    INPUT = "input"
    """A person has to answer a question. The answer is its result."""
    CHILDREN = "children"
    """Other runs have to end. Their outcome is its result."""
    TASK = "task"
    """A task of a server has to end (``core.remote_tasks``). Now and then the call is pending again, to poll it."""

    @property
    def parked_status(self) -> RunStatus:
        if self is WaitKind.TASK:
            return RunStatus.WAITING_FOR_CHILDREN  # like children, a task is the work of others
        return RunStatus(f"waiting_for_{self.value}")


CALL_WAITS = frozenset(kind.parked_status for kind in WaitKind)
"""The statuses of a run in which nothing can go on until one of its calls has what it waits for."""


class ExitReason(StrEnum):
    """Why a run ended: a closed list. The first group are the original's, the
    second are ours."""

    TEXT_RESPONSE = "text_response"
    PARTIAL_STREAM_RECOVERY = "partial_stream_recovery"
    """The answer is what was streamed before the last reply turned out to be empty."""
    FALLBACK_PRIOR_TURN_CONTENT = "fallback_prior_turn_content"
    """The answer is what the model had said beside its last housekeeping calls."""
    MAX_ITERATIONS_REACHED = "max_iterations_reached"
    BUDGET_EXHAUSTED = "budget_exhausted"
    INTERRUPTED_BY_USER = "interrupted_by_user"
    INTERRUPTED_DURING_API_CALL = "interrupted_during_api_call"
    ALL_RETRIES_EXHAUSTED = "all_retries_exhausted_no_response"
    EMPTY_RESPONSE_EXHAUSTED = "empty_response_exhausted"
    CONTENT_POLICY_BLOCKED = "content_policy_blocked"
    TRUNCATED = "truncated"
    """The answer, if there is one, is not whole; the failure says how it was cut."""
    GUARDRAIL_HALT = "guardrail_halt"
    UNKNOWN_TOOLS = "unknown_tools"
    """All the model called, several times in a row, were tools that do not exist."""

    OUTPUT_INVALID = "output_invalid"
    """The answer does not fit the schema that was asked for, however often it was sent back."""
    MODEL_CALL_REFUSED = "model_call_refused"
    """The provider refused the call for a reason that trying again cannot change."""
    STEP_QUARANTINED = "step_quarantined"
    """One step took its worker down, alone in it, as often as is allowed."""
    WALL_CLOCK_EXCEEDED = "wall_clock_exceeded"
    IDLE_EXCEEDED = "idle_exceeded"
    CORRUPT_STATE = "corrupt_state"
    """A stored row of this run cannot be read."""
    INTERNAL_ERROR = "internal_error"
    """A defect of ours. The failure's message says where it was logged."""


def format_exit_reason(reason: str, *, used: int, allowed: int, exhausted: str | None) -> str:
    """Format an exit reason for people and clients: the limit that was reached
    stands in brackets."""
    if reason == ExitReason.MAX_ITERATIONS_REACHED:
        return f"{reason}({used}/{allowed})"
    if reason == ExitReason.BUDGET_EXHAUSTED and exhausted:
        return f"{reason}({exhausted})"
    return reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One tool call of the current iteration."""

    position: int
    """0-based, in the order the model asked for them; results are shown to the model in this order."""
    name: str
    replay: Replay
    segment: int
    """Calls of one segment may run at the same time; a segment starts when the one before it is settled."""
    timeout_s: float
    """Seconds that the tool may take once it is claimed."""
    status: CallStatus = CallStatus.PENDING
    attempt: int = 1
    """Which try of the call this is, from 1; every lost claim makes the next one."""
    deaths: int | None = None
    """How often the call took a worker down alone; ``None`` while it is no suspect. See ``Run.deaths``."""
    waits_for: WaitKind | None = None
    """Set exactly while ``status`` is waiting."""
    asks: bool = False
    """A model has to answer a question of the call before it goes on. Then an auxiliary call is due and claimed, and
    not its tool."""

    @property
    def is_suspect(self) -> bool:
        return self.deaths is not None

    @property
    def may_have_acted(self) -> bool:
        """Whether the tool runs, or did when its worker vanished. An auxiliary call for it has no effect."""
        return self.status is CallStatus.RUNNING and not self.asks


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The state of a run from which ``core.step`` decides."""

    run_id: str
    status: RunStatus = RunStatus.QUEUED
    iteration: int = 0
    """Model replies committed so far."""
    iterations_max: int = 90
    refunds: int = 0
    """Iterations that do not count against ``iterations_max``, see ``core.budget.is_refunded``."""
    attempt: int = 1
    """Which try of the outstanding model call this is, from 1; every lost claim makes the next one."""
    attempts_max: int = 3
    """Times a single step may take a worker down alone before it is quarantined."""
    deaths: int | None = None
    """How often the outstanding model call took a worker down alone. ``None`` while it is no suspect; a number makes it
    one, because a worker vanished that held it, and it is tried apart from all others."""
    is_asking: bool = False
    """A worker holds the claim on the next model call, or on the preparation before the first."""
    is_prepared: bool = True
    """The prompt of its session is whole. Otherwise its workspace has to be read before the first model call."""
    recovery: str | None = None
    """What was already tried about failures of the outstanding model call, stored while the run is parked
    (``core.recovery.retry.build_document`` as JSON)."""
    memory: str | None = None
    """What earlier replies of the turn left for the next model call (``core.recovery_state`` as JSON)."""
    resume_at: float | None = None
    """Epoch seconds by the database's clock; set while waiting for capacity."""
    exhausted: str | None = None
    """The dimension of its chain's budget (``core.budget``) that refused it another model call; ``None`` for none."""
    calls: tuple[Call, ...] = ()
    """The calls of iteration ``iteration``; settled ones stay until the next reply."""
    exit_reason: ExitReason | None = None
    failure: Failure | None = None

    @property
    def is_suspect(self) -> bool:
        """The outstanding model call is tried apart."""
        return self.deaths is not None

    @property
    def wants_preparing(self) -> bool:
        """The preparation before the first model call is outstanding, and not the model call yet."""
        return not self.is_prepared and self.iteration == 0

    @property
    def wants_summary(self) -> bool:
        """The next model call is the last one: no tools, write down what is known."""
        return self.iteration - self.refunds >= self.iterations_max or self.exhausted is not None

    @property
    def unsettled_calls(self) -> tuple[Call, ...]:
        return tuple(call for call in self.calls if not call.status.is_settled)

    @property
    def open_segment(self) -> tuple[Call, ...]:
        """The unsettled calls that may run now, which belong to the first segment that has any."""
        unsettled = self.unsettled_calls
        first = min((call.segment for call in unsettled), default=0)
        return tuple(call for call in unsettled if call.segment == first)

    @property
    def is_held(self) -> bool:
        """A worker holds a claim on this run, so its end has to wait for that or fence it out."""
        return self.is_asking or any(call.status is CallStatus.RUNNING for call in self.calls)
