"""The answers of the API, as types: the names are those of its document, which a test compares. A field that a later
server adds is kept."""

from __future__ import annotations

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic reads that of ``typing`` from Python 3.12 on only


class UsageDocument(TypedDict):
    """Tokens; those read from and written to a cache are among ``input_tokens``."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    estimated_tokens: NotRequired[int]
    refused_attempts: NotRequired[int]
    unknown_attempts: NotRequired[int]
    unknown_input_tokens: NotRequired[int]
    unknown_output_tokens: NotRequired[int]


class StartedDocument(TypedDict):
    """A run was accepted: ``started``, ``scheduled`` for later, or its text ``steered`` the run that was at work."""

    run_id: str
    status: NotRequired[str]
    not_before: NotRequired[float | None]


class StoppingDocument(TypedDict):
    """A stop was asked for; ``caused`` are the runs that are stopped with it."""

    run_id: str
    status: str
    caused: NotRequired[list[str]]


class CallDocument(TypedDict):
    """A tool call to look at: its outcome is unknown, or it took more than one attempt."""

    iteration: int
    position: int
    tool: str
    status: str
    attempts: int
    replay: str


class CallsDocument(TypedDict):
    """The tool calls of a run."""

    total: int
    by_status: dict[str, int]
    attention: list[CallDocument]


class DimensionDocument(TypedDict):
    """How much of one dimension of a budget may be used, is reserved, and is spent."""

    limit: NotRequired[float | None]
    reserved: float
    spent: float


class ShareDocument(TypedDict):
    """The use of one child and all below it."""

    run_id: str
    index: NotRequired[int | None]
    status: str
    dimensions: dict[str, DimensionDocument]


class BudgetDocument(TypedDict):
    """The budget a run draws from. Money is in US dollars, time in seconds."""

    run_id: str
    dimensions: dict[str, DimensionDocument]
    own: dict[str, DimensionDocument]
    has_unknown_cost: bool
    children: list[ShareDocument]
    children_total: int


class StandingDocument(TypedDict):
    """Why a run stands where it does."""

    reason: str
    text: str
    since: NotRequired[float | None]
    until: NotRequired[float | None]


class ExplanationDocument(TypedDict):
    """Why a run is where it is, and the facts behind it."""

    object: NotRequired[str]
    run_id: str
    because: str
    text: str
    since: NotRequired[float | None]
    until: NotRequired[float | None]
    facts: dict[str, str | int | float | bool]


class BeganDocument(TypedDict):
    """The versions that a run began with."""

    program: NotRequired[str | None]
    configuration: NotRequired[str | None]
    prompt: str
    layers: NotRequired[dict[str, str] | None]
    overrides: NotRequired[dict[str, str] | None]
    overridden_by: NotRequired[dict[str, str] | None]


class RunDocument(TypedDict):
    """A run. Times are epoch seconds; absent fields have no value."""

    object: NotRequired[str]
    run_id: str
    status: str
    created_at: float
    updated_at: float
    session_id: str
    title: NotRequired[str | None]
    tags: NotRequired[list[str] | None]
    metadata: NotRequired[dict[str, str] | None]
    priority: NotRequired[str | None]
    not_before: NotRequired[float | None]
    retry_of: NotRequired[str | None]
    model: str
    last_event: NotRequired[str | None]
    output: NotRequired[str | None]
    usage: NotRequired[UsageDocument | None]
    error: NotRequired[str | None]
    exit_reason: NotRequired[str | None]
    completed: NotRequired[bool | None]
    partial: NotRequired[bool | None]
    failed: NotRequired[bool | None]
    interrupted: NotRequired[bool | None]
    estimated_cost_usd: NotRequired[float | None]
    cost_status: NotRequired[str | None]
    doubtful_cost_usd: NotRequired[float | None]
    iteration: int
    iterations_max: int
    started_at: NotRequired[float | None]
    finished_at: NotRequired[float | None]
    resume_at: NotRequired[float | None]
    tool_calls: NotRequired[CallsDocument | None]
    pending_steer: NotRequired[str | None]
    standing: NotRequired[StandingDocument | None]
    budget: NotRequired[BudgetDocument | None]
    began_with: NotRequired[BeganDocument | None]


class ResultDocument(TypedDict):
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
    pending_steer: NotRequired[str]


class ErrorDetails(TypedDict):
    """What was wrong."""

    message: str
    type: str
    param: NotRequired[str | None]
    code: str


class BatchItemDocument(TypedDict):
    """The result for one run of a batch: ``run_id``, or ``error``."""

    index: int
    run_id: NotRequired[str | None]
    session_id: NotRequired[str | None]
    status: NotRequired[str | None]
    not_before: NotRequired[float | None]
    error: NotRequired[ErrorDetails | None]


class BatchDocument(TypedDict):
    """The results of a batch, in the order of the request."""

    object: NotRequired[str]
    data: list[BatchItemDocument]
    accepted: int
    refused: int


class StoppedDocument(TypedDict):
    """The runs that were asked to stop, or would be."""

    dry_run: bool
    run_ids: list[str]
    has_more: bool
    next_cursor: str | None


class EndDocument(TypedDict):
    """How a run ended, if it has."""

    run_id: str
    ended: bool
    status: NotRequired[str | None]
    exit_reason: NotRequired[str | None]


class JoinedDocument(TypedDict):
    """The runs that had ended when the waiting did."""

    done: bool
    runs: list[EndDocument]


class AnsweredDocument(TypedDict):
    """An answer counted: it was the first."""

    object: str
    run_id: str
    choice: NotRequired[str | None]
    by: str
    resolved: NotRequired[int]


class WaitDocument(TypedDict):
    """Something a run waits for: an approval, an answer."""

    id: int
    code: NotRequired[str]
    run_id: str
    tenant: NotRequired[str]
    session_id: str
    kind: str
    tool: str
    iteration: int
    position: int
    command: NotRequired[str | None]
    description: NotRequired[str | None]
    pattern_key: NotRequired[str | None]
    pattern_keys: NotRequired[list[str]]
    question: NotRequired[str | None]
    choices: list[str]
    created_at: float
    expires_at: NotRequired[float | None]


class ControlledDocument(TypedDict):
    """The status of a run that was paused, resumed or steered."""

    run_id: str
    status: str


class RepeatDocument(TypedDict):
    """How often a job ran, and may run."""

    times: int | None
    completed: int


class FiringDocument(TypedDict):
    """A slot of a job and its outcome."""

    slot: float
    slot_at: str
    outcome: str
    reason: str | None
    settled_at: str
    is_waiting: bool
    run_id: str | None
    run_status: str | None
    execution: str | None
    remark: str | None
    ended_at: str | None


class JobDocument(TypedDict):
    """A job, under Hermes Agent's names. Times are ISO 8601 in UTC."""

    id: str
    name: str
    prompt: str
    schedule: dict[str, Any]
    schedule_display: str | None
    repeat: RepeatDocument
    enabled: bool
    state: str
    deliver: str
    origin: dict[str, str | None] | None
    skill: str | None
    skills: list[str]
    model: str | None
    provider: str | None
    base_url: str | None
    model_snapshot: str | None
    provider_snapshot: str | None
    enabled_toolsets: list[str] | None
    workdir: str | None
    script: str | None
    no_agent: bool
    context_from: list[str] | None
    attach_to_session: str | None
    overlap: str
    catch_up: str
    misfire_grace_s: int | None
    failures_max: int | None
    iterations_max: int | None
    tokens_max: int | None
    wall_s_max: float | None
    idle_s_max: float | None
    iterations_per_day: int | None
    tokens_per_day: int | None
    cost_usd_per_day: str | None
    cost_usd_max: str | None
    approvals: str | None
    approval_s: float | None
    network: str | None
    created_at: str
    next_run_at: str | None
    last_run_at: str | None
    last_status: str | None
    last_error: str | None
    paused_at: str | None
    paused_reason: str | None


class FullJobDocument(JobDocument):
    """A job, with what became of its latest slot."""

    last_delivery_error: str | None
    latest_execution: FiringDocument | None


class SessionDocument(TypedDict):
    """A session, under Hermes Agent's names. Times are epoch seconds."""

    id: str
    source: str | None
    user_id: NotRequired[None]
    model: str | None
    title: str | None
    started_at: float
    ended_at: float | None
    end_reason: str | None
    message_count: int
    tool_call_count: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_cost_usd: float
    actual_cost_usd: NotRequired[None]
    api_call_count: int
    parent_session_id: str | None
    last_active: float
    preview: str
    _lineage_root_id: str
    has_system_prompt: NotRequired[bool]
    has_model_config: bool
    is_at_work: bool
    archived_at: float | None


class MessageDocument(TypedDict):
    """A row of a transcript."""

    id: int
    session_id: str
    role: str
    content: Any
    tool_call_id: str | None
    tool_calls: list[dict[str, Any]] | None
    tool_name: str | None
    timestamp: float
    token_count: NotRequired[None]
    finish_reason: str | None
    reasoning: str | None
    reasoning_content: str | None
