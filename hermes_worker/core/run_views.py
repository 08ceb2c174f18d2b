"""Runs as people and clients see them: read models, which decide nothing. The store fills them, the API answers with
them, the client returns them, and commands print them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from hermes_worker.core.budget import NANO, Amounts, Budget, Dimension
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.errors import FailureKind
from hermes_worker.core.hooks import HookCallState
from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.priority import Priority
from hermes_worker.core.run import CallStatus, ExitReason, RunKind, RunStatus, WaitKind, format_exit_reason
from hermes_worker.core.sources import EVALUATION_SOURCE, SessionLabel
from hermes_worker.core.spec import RunNotes
from hermes_worker.core.status_reason import StatusReason

_OVERFLOWS = (FailureKind.CONTEXT_OVERFLOW, FailureKind.PAYLOAD_TOO_LARGE, FailureKind.LONG_CONTEXT_TIER)


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeliveredView:
    """A delivery of what a run said that did not arrive, or not yet at the first attempt."""

    delivery_id: str
    target: str
    state: DeliveryState
    attempts: int
    not_before: float | None
    """When it is tried again, in epoch seconds."""
    error: str | None

    @property
    def is_lost(self) -> bool:
        """Whether nobody tries it again."""
        return self.state in (DeliveryState.FAILED, DeliveryState.ABANDONED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run. Times are epoch seconds."""

    run_id: str
    session: SessionLabel
    status: RunStatus
    exit_reason: str | None
    exhausted: str | None
    """The dimension of its budget that is used up."""
    model: str
    endpoint: str | None
    """Which provider serves it, as ``models.identity`` names it; ``None`` leaves that to the workers."""
    iteration: int
    iterations_max: int
    refunds: int
    """Iterations that do not count against ``iterations_max``."""
    usage: Usage
    cost_usd: Decimal | None
    """US dollars that the run is known to have cost; ``None`` before its first reply."""
    cost_status: CostStatus | None
    """How reliable ``cost_usd`` is; ``unknown`` when the run may have cost more."""
    doubtful_cost_usd: Decimal
    """US dollars that may have been billed beside ``cost_usd``, at most: for replies whose tokens their provider did
    not count, and for attempts of unknown outcome. It counts against limits."""
    created_at: float
    started_at: float | None
    updated_at: float
    finished_at: float | None
    resume_at: float | None
    last_event: str | None
    output: str | None
    """The final answer, once there is one."""
    failure_kind: str | None
    error: str | None
    title: str | None
    """What was asked, in one line (``core.titles``); that of the conversation for runs from before they had titles."""
    session_title: str | None = None
    """The title of the conversation: its beginning, or what a model made of it."""
    kind: RunKind = RunKind.REQUEST
    delegated: int = 0
    """Runs that were delegated in the chain that it is the first of; only counted where runs are listed."""
    priority: Priority = Priority.NORMAL
    not_before: float | None = None
    """Epoch seconds before which the run does not or did not begin; ``None`` when it was not postponed."""
    tags: Sequence[str] = ()
    retry_of: str | None = None
    """The id of the run whose submission it repeats; ``None`` also when that run was deleted."""
    pending_steer: str | None = None
    """Steering text that no tool result contains yet; only filled where one run is read."""
    undelivered: Sequence[UndeliveredView] = ()
    """What it said and did not arrive; not filled where nothing is shown to people."""

    def with_tags(self, tags: Sequence[str]) -> RunView:
        """Add its tags. One of them makes a request an evaluation: somebody has an answer judged by it."""
        judges = self.kind is RunKind.REQUEST and EVALUATION_SOURCE in tags
        return replace(self, tags=tags, kind=RunKind.EVALUATION if judges else self.kind)

    @property
    def exit_text(self) -> str | None:
        """The exit reason, with the limit that was reached; ``None`` before the end."""
        if self.exit_reason is None:
            return None
        used = self.iteration - self.refunds
        return format_exit_reason(self.exit_reason, used=used, allowed=self.iterations_max, exhausted=self.exhausted)

    @property
    def is_partial(self) -> bool:
        """The run ended with less than a whole answer."""
        is_cut = self.exit_reason in (ExitReason.TRUNCATED, ExitReason.UNKNOWN_TOOLS)
        return is_cut or self.failure_kind in _OVERFLOWS

    @property
    def is_completed(self) -> bool:
        """Whether the model ended the turn by its own answer, and no limit, failure or person did."""
        reasons = (None, ExitReason.TRUNCATED, ExitReason.MAX_ITERATIONS_REACHED)
        return self.status is RunStatus.COMPLETED and self.exit_reason not in reasons

    @property
    def is_failed(self) -> bool:
        return self.status in (RunStatus.FAILED, RunStatus.EXPIRED)

    @property
    def is_interrupted(self) -> bool:
        return self.status is RunStatus.CANCELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class CallView:
    """A tool call in the ledger."""

    iteration: int
    position: int
    name: str
    replay: str
    status: CallStatus
    attempt: int
    claimed_at: float | None
    settled_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitView:
    """An open question. Times are epoch seconds."""

    wait_id: int
    run_id: str
    tenant: str
    session: SessionLabel
    kind: WaitKind
    iteration: int
    position: int
    tool: str
    request: dict[str, Any]
    choices: tuple[str, ...]
    opened_at: float
    expires_at: float | None
    title: str | None
    """The title of its run (``core.titles``); ``None`` where that is not kept."""
    tools: str
    """The tool definitions of its session, as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerView:
    """A question that was answered, or whose time was over."""

    wait_id: int
    kind: WaitKind
    iteration: int
    position: int
    tool: str
    outcome: str
    """The choice, ``answered`` or ``expired``."""
    by: str
    """The principal who answered (``core.principals``)."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child run."""

    run_id: str
    index: int
    """The index of its task in the call that made it, from 0."""
    status: RunStatus
    goal: str
    """The first line of its task."""
    cost_usd: Decimal | None
    """US dollars that the child itself cost; ``None`` before its first reply."""
    cost_status: CostStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalView:
    """A call of a run below that was not allowed."""

    run_id: str
    seq: int
    """Number of the event in its run."""
    tool: str
    refused_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """The part of a budget that one run and everything it delegated have used, or hold at the moment."""

    run_id: str
    index: int | None
    """The index of its task in its call; ``None`` for the run that was asked about and for runs that background answers
    began."""
    status: RunStatus
    iterations_max: int
    reserved: Amounts
    spent: Amounts
    has_unknown_cost: bool

    def iterate_dimensions(self) -> Iterator[tuple[Dimension, float | None, float, float]]:
        """Yield each dimension with its limit, the reserved and the spent amount, as ``TreeBudget.iterate_dimensions``
        does; without the time, which is the root's."""
        spent, reserved = self.spent, self.reserved
        yield Dimension.ITERATIONS, self.iterations_max, reserved.iterations, spent.iterations
        yield Dimension.TOKENS, None, reserved.tokens, spent.tokens
        yield Dimension.TOOL_CALLS, None, 0, spent.tool_calls
        yield Dimension.COST, None, reserved.nano_usd / NANO, spent.nano_usd / NANO


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeBudget:
    """The budget a run draws from, and who used what of it."""

    owner_run_id: str
    """The run whose limits these are: the root of the tree, or the run itself."""
    budget: Budget
    wall_s: float | None
    """Seconds from the acceptance of the run to its deadline; ``None`` without one."""
    elapsed_s: float
    own: Share
    """The part that the run used itself, without its children."""
    children: Sequence[Share]
    """Its children and the turns that background answers began, each with all below it; the first
    ``CHILDREN_SHOWN_MAX``."""
    children_total: int

    def iterate_dimensions(self) -> Iterator[tuple[Dimension, float | None, float, float]]:
        """Yield each dimension with its limit (``None`` without one), the reserved and the spent amount; money in US
        dollars, time in seconds."""
        limits, reserved, spent = self.budget.limits, self.budget.reserved, self.budget.spent
        yield Dimension.ITERATIONS, limits.iterations, reserved.iterations, spent.iterations
        yield Dimension.TOKENS, limits.tokens, reserved.tokens, spent.tokens
        yield Dimension.TOOL_CALLS, limits.tool_calls, 0, spent.tool_calls
        usd = None if limits.nano_usd is None else limits.nano_usd / NANO
        yield Dimension.COST, usd, reserved.nano_usd / NANO, spent.nano_usd / NANO
        yield Dimension.WALL_CLOCK, self.wall_s, 0, self.elapsed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCallView:
    """A call of an observer, for people. Times are epoch seconds."""

    event_id: str
    hook: str
    event: str
    run_id: str
    state: HookCallState
    attempts: int
    reason: str | None
    created_at: float
    settled_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSheet:
    """One run. Times are epoch seconds."""

    view: RunView
    calls_by_status: Mapping[str, int]
    doubtful: Sequence[CallView]
    """Calls whose worker vanished and whose effect is unknown."""
    notes: RunNotes
    answers: Sequence[AnswerView]
    waits: Sequence[WaitView]
    """The questions and approvals that it waits for now."""
    children: Sequence[ChildView]
    refusals: Sequence[RefusalView]
    budget: TreeBudget
    standing: StatusReason | None
    """Why it is where it is; ``None`` for a run that has ended."""

    @property
    def calls(self) -> int:
        return sum(self.calls_by_status.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNews:
    """What a follower of a run learns beside its events."""

    standing: StatusReason | None
    """Why it is where it is; ``None`` for a run that has ended."""
    children: Sequence[ChildView]
    refusals: Sequence[RefusalView]
    """Of runs below it, the oldest first."""
