"""Runs and what belongs to them, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.explanations import ExplainedReason
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.run import CallStatus, RunKind, RunStatus
from hermes_worker.core.status_reason import StandingReason
from hermes_worker.resource import ListOf, PageOf, Resource
from hermes_worker.schemas.usage import UsageObject


class StartedRun(Resource):
    """A run was accepted."""

    run_id: str
    status: Literal["started", "scheduled", "steered"] = "started"
    """``steered``: no run was made, the text was steered into this one. ``scheduled``: it begins later."""
    not_before: float | None = None
    """When it begins (epoch seconds), if it was put off."""


class Stopping(Resource):
    """A stop was asked for; ``status`` is ``stopping``, or how the run ended if it had. ``caused`` are the runs that
    were at work because of it and are stopped with it; left out when there are none."""

    run_id: str
    status: str
    caused: list[str] = Field([])


class Controlled(Resource):
    """The run's status after the request."""

    run_id: str
    status: str


class CallObject(Resource):
    """A tool call to look at: its outcome is unknown, or it took more than one attempt."""

    iteration: int
    position: int
    tool: str
    status: CallStatus
    attempts: int
    replay: str


class CallSummary(Resource):
    """The tool calls of a run."""

    total: int
    by_status: dict[CallStatus, int]
    attention: list[CallObject]
    """The newest hundred that need attention."""


class DimensionObject(Resource):
    """How much of one dimension may be used, is reserved for calls in flight, and is spent."""

    limit: float | None = None
    reserved: float
    spent: float


class ShareObject(Resource):
    """The use of one child and all below it."""

    run_id: str
    index: int | None = None
    """Which task of its call; ``null`` for a turn that the answer of a background child began."""
    status: RunStatus
    dimensions: dict[str, DimensionObject]


class BudgetObject(Resource):
    """The budget a run draws from: ``iterations``, ``tokens``, ``tool_calls``, ``cost`` (US dollars) and
    ``wall_clock`` (seconds)."""

    run_id: str
    """The run that these limits belong to: the root of the tree, or the run itself."""
    dimensions: dict[str, DimensionObject]
    own: dict[str, DimensionObject]
    """The part that the run used itself."""
    has_unknown_cost: bool
    """Whether a call was made whose price is not known: then more was spent than ``cost`` shows."""
    children: list[ShareObject]
    """The run's children, each with all below it: the first two hundred."""
    children_total: int


class StandingObject(Resource):
    """Why a run is where it is. Times are epoch seconds."""

    reason: StandingReason
    text: str
    """A sentence for people."""
    since: float | None = None
    until: float | None = None
    """When it is looked at again by itself."""


class ExplanationObject(Resource):
    """Why a run is where it is, at this moment. Times are epoch seconds."""

    object: Literal["hermes.explanation"] = "hermes.explanation"
    run_id: str
    because: ExplainedReason
    text: str
    """A sentence for people."""
    since: float | None = None
    until: float | None = None
    """When it goes on by itself, where that is known."""
    facts: dict[str, str | int | float | bool]
    """Further facts: ``tenant``, ``queue`` and how many steps are ``ahead`` in it, ``worker``, ``held_since``,
    ``lease_until``, ``active_run`` of its session, ``parent_run``, ``child_number`` of ``siblings``, ``children_ended``
    of ``children_total``, ``wait_id`` and ``who`` may answer, ``resume_at``, ``retry_at``, ``not_before``,
    ``deadline_at``, ``budget_dimension``, ``exit_reason``, ``failure``, ``hooks_owed``, ``deliveries_open``."""


class BeganWithObject(Resource):
    """The versions that a run began with. What is absent was not recorded yet when it was submitted."""

    program: str | None = None
    """The version of the program that accepted it."""
    configuration: str | None = None
    """A hash of the configuration: equal for two runs that were accepted under the same configuration, as far as that
    shapes runs."""
    prompt: str
    """SHA-256 of the system prompt of its session."""
    layers: dict[str, str] | None = None
    """Which version of the configuration of the ``fleet`` and of the ``tenant`` counted, and which ``file``."""
    overrides: dict[str, str] | None = None
    """Settings that the run has and that its processes were not started with, by key."""
    overridden_by: dict[str, str] | None = None
    """The layer that set each of these: ``fleet``, ``file``, ``tenant``, ``session`` or ``run``."""


class UndeliveredObject(Resource):
    """A delivery of what a run said that did not arrive, or not yet at the first attempt."""

    delivery_id: str
    target: str
    state: DeliveryState
    """``failed`` and ``abandoned`` are not tried again until somebody asks for it; the others are."""
    attempts: int
    not_before: float | None = None
    """When it is tried again."""
    error: str | None = None


class RunObject(Resource):
    """A run. Times are epoch seconds; absent fields have no
    value."""

    object: Literal["hermes.run"] = "hermes.run"
    run_id: str
    status: RunStatus
    created_at: float
    updated_at: float
    session_id: str
    title: str | None = None
    """What was asked, in one line: for a scheduled run its job and slot, for a child its goal, for a background answer
    its cause. Secrets are hidden. Runs of earlier versions have the title of their conversation."""
    session_title: str | None = None
    """The title of the conversation."""
    kind: RunKind = RunKind.REQUEST
    """What made it begin: a ``request``, a ``job``, a run that delegated it (``child``), a background answer or report
    (``follow_up``), looking back for what to remember (``review``), or a repetition without effects
    or a judgement (``evaluation``)."""
    delegated: int | None = None
    """How many runs were delegated in the chain that it is the first of. Only in lists, and absent for none."""
    tags: list[str] | None = None
    metadata: dict[str, str] | None = None
    """Only where one run is read."""
    priority: Literal["low", "high"] | None = None
    """Absent for a normal one."""
    not_before: float | None = None
    """When it begins, or began at the earliest, if it was put off."""
    retry_of: str | None = None
    """The run whose submission it repeats."""
    forked_from: str | None = None
    """The run that it goes on from, as a fork. Only where one run is read; so is the next one."""
    fork_step: int | None = None
    """How many iterations of that run stand before it."""
    model: str
    last_event: str | None = None
    output: str | None = None
    usage: UsageObject | None = None
    error: str | None = None
    exit_reason: str | None = None
    completed: bool | None = None
    """Whether the model came to an end by itself. This and the next three are there for runs that have ended."""
    partial: bool | None = None
    """There is less than a whole answer."""
    failed: bool | None = None
    interrupted: bool | None = None
    estimated_cost_usd: float | None = None
    cost_status: CostStatus | None = None
    """How well the cost is known: ``known``, ``estimated``, ``included``, or ``unknown`` for a lower bound."""
    doubtful_cost_usd: float | None = None
    """The most that may have been billed beside it: for replies whose tokens their provider did not count, and for
    attempts whose outcome is unknown. It counts against limits."""
    iteration: int
    iterations_max: int
    started_at: float | None = None
    finished_at: float | None = None
    resume_at: float | None = None
    tool_calls: CallSummary | None = None
    pending_steer: str | None = None
    """Text that was steered into the run and reached no tool result."""
    standing: StandingObject | None = None
    """Why a run that has not ended is where it is. Only where one run is read."""
    undelivered: list[UndeliveredObject] | None = None
    """What it said and did not arrive; absent where everything did, or may still at the first attempt."""
    budget: BudgetObject | None = None
    """Only where one run is read."""
    began_with: BeganWithObject | None = None
    """Only where one run is read."""


class RunList(PageOf[RunObject]):
    """A page of runs, newest first. It may have fewer runs than were asked for and still not be the last: looking for
    what is rare takes several pages."""

    next_cursor: str | None = None
    """For the next page, if there is one."""


class TurnResult(Resource):
    """The result of a run so far, under the names of Hermes Agent's result. Costs are US dollars."""

    final_response: str | None
    last_reasoning: str | None
    messages: list[dict[str, Any]]
    api_calls: int
    completed: bool
    turn_exit_reason: str | None
    failed: bool
    partial: bool
    interrupted: bool
    error: str | None
    failure_reason: str | None
    model: str
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    estimated_tokens: int
    refused_attempts: int
    unknown_attempts: int
    unknown_input_tokens: int
    unknown_output_tokens: int
    estimated_cost_usd: float | None
    cost_status: str | None
    doubtful_cost_usd: float
    cost_source: str | None
    session_id: str
    pending_steer: Annotated[str | None, WithJsonSchema({"type": "string"})] = None
    """Left out when there is none."""


class TrajectoryObject(Resource):
    """A run as a training sample (ShareGPT), without what looks like a credential."""

    conversations: Sequence[Mapping[str, str]]
    timestamp: str
    """When it ended, ISO 8601."""
    model: str
    completed: bool


class LedgerEntryObject(Resource):
    """A tool call of a run. Times are epoch seconds."""

    object: Literal["hermes.call"] = "hermes.call"
    call: str
    """Its place in the run: iteration and position in its reply, ``3.0``."""
    iteration: int
    position: int
    tool: str
    effect: Literal["pure", "keyed", "once"]
    """Whether it may run again when its worker is lost: at will, with the same key, or never."""
    status: CallStatus
    waits_for: str | None
    attempts: int
    """How often it was begun."""
    takeovers: int
    """How often somebody else went on with it."""
    deaths: int
    """How many workers died while they held it."""
    claimed_at: float | None
    settled_at: float | None
    worker: str | None
    """The worker that holds it now."""
    about: str = ""
    """Its arguments in words, on one line, in which secrets are hidden."""
    denied: bool = False
    """It did not run, because a person said no or nobody answered in time."""

    @property
    def word(self) -> str:
        """Its status in a word for people: one that was denied is no failure."""
        return "denied" if self.denied else self.status.value.replace("_", " ")


class CallDetailObject(LedgerEntryObject):
    """A tool call with its texts, in which secrets are hidden."""

    tool_call_id: str
    """The call's id in the model's reply."""
    arguments: str
    """JSON, as the model wrote it."""
    changed_arguments: str | None
    """JSON that it ran with instead, because a person or a rewriter changed it."""
    result: str | None
    """The result as the model got it; ``null`` before it is settled."""


class CallList(PageOf[LedgerEntryObject]):
    """Calls in the order in which the model asked for them."""


class TreeRunObject(Resource):
    """A run of a tree."""

    run: RunObject
    parent_run_id: str | None
    """The run that delegated to it, or whose background answer began it; ``null`` for the first."""
    depth: int
    child_index: int | None
    """Which task of the call that delegated to it."""
    parent_call: str | None
    """The place of that call, ``3.0``."""
    background: bool


class TreeObject(Resource):
    """The runs of a tree, in the order in which they came."""

    object: Literal["hermes.tree"] = "hermes.tree"
    root_run_id: str
    total: int
    """How many there are; the first 1000 are shown."""
    data: list[TreeRunObject]


class PromptObject(Resource):
    """The prompt of one model call, in the form in which it is stored. Secrets are hidden."""

    object: Literal["hermes.prompt"] = "hermes.prompt"
    run_id: str
    model: str
    reply: int
    """Which reply of the run it led to, from 1; one more than there are for a call that is due."""
    replies: int
    """How many replies the run has."""
    system: str
    tools: list[dict[str, Any]]
    """The definitions of the tools."""
    messages: list[dict[str, Any]]
    """Chat-completions messages, in order, the system prompt left out."""


class ErrorDetail(Resource):
    message: str
    type: str
    param: str | None = None
    code: str


class BatchResult(Resource):
    """The result for one run of a batch."""

    index: int
    run_id: str | None = None
    session_id: str | None = None
    status: Literal["started", "scheduled", "steered"] | None = None
    not_before: float | None = None
    error: ErrorDetail | None = None
    """Why there is no run."""


class BatchResults(ListOf[BatchResult]):
    """The results of a batch, in the order of the request."""

    accepted: int
    refused: int


class StoppedRuns(Resource):
    """The runs that were asked to stop, or would be."""

    dry_run: bool
    run_ids: list[str]
    has_more: bool
    """There may be more of them: ask again with ``next_cursor``."""
    next_cursor: str | None
    """Where to go on. A request looks at so many runs and no more, and may find none of those that match."""


class WaitedRun(Resource):
    """How a run ended, if it has."""

    run_id: str
    ended: bool
    status: RunStatus | None = None
    """``null`` while the run is open."""
    exit_reason: str | None = None


class JoinedRuns(Resource):
    """The runs that had ended when the waiting did."""

    done: bool
    """All of them have ended; with the mode ``any``, one of them."""
    runs: list[WaitedRun]
