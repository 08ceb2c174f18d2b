"""Requests of the API as they are checked, and answers as they are documented."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, WithJsonSchema

from hermes_worker import __version__
from hermes_worker.api.formats import NO_NUL, NOT_BLANK, TENANT_FORM, TextFormat, text, text_or_nothing
from hermes_worker.api.messages import ITEMS_MAX
from hermes_worker.channels.targets import TARGETS_MAX
from hermes_worker.core.artifact_patterns import PATTERN_CHARS_MAX, PATTERN_FORM, PATTERNS_MAX
from hermes_worker.core.delivery_states import DeliveryState
from hermes_worker.core.messages import NO_USAGE
from hermes_worker.core.principals import USER_HEADER
from hermes_worker.core.priority import LATEST_S
from hermes_worker.core.run import RunKind, RunStatus
from hermes_worker.core.run_views import CallView, RunView, Share, TreeBudget
from hermes_worker.core.search_queries import QUERY_CHARS_MAX
from hermes_worker.core.status_reason import StandingReason, StatusReason
from hermes_worker.resource import WHOLE as WHOLE
from hermes_worker.schemas.runs import (
    BudgetObject,
    CallObject,
    DimensionObject,
    ErrorDetail,
    ShareObject,
    StandingObject,
)
from hermes_worker.schemas.usage import UsageObject
from hermes_worker.services.submission_rules import TAG, TAGS_MAX, TEXT_CHARS_MAX
from hermes_worker.stream.sse import build_usage

VERSION = __version__

# --- requests --------------------------------------------------------------------------------------------------------


TEXT = {"type": "string", "maxLength": TEXT_CHARS_MAX}
TEXT_PART = {
    "type": "object",
    "properties": {"type": {"enum": ["text", "input_text", "output_text"]}, "text": TEXT},
    "required": ["type", "text"],
}
_ADDRESS = {
    "type": "string",
    "pattern": r"^(https?://[!-~]{1,8000}|data:image/[a-z0-9.+-]{1,40};base64,[A-Za-z0-9+/=_-]+)$",
}
_DETAIL = {"enum": ["auto", "low", "high", None]}
IMAGE_PART = {
    "type": "object",
    "properties": {
        "type": {"enum": ["image_url", "input_image"]},
        "image_url": {
            "anyOf": [
                _ADDRESS,
                {"type": "object", "properties": {"url": _ADDRESS, "detail": _DETAIL}, "required": ["url"]},
            ]
        },
        "detail": _DETAIL,
    },
    "required": ["type", "image_url"],
}


class RequestBody(BaseModel, extra="forbid", strict=True):
    """The body of a request. A field that is not known, or of another type, is refused."""


def _declare_message(roles: list[str], parts: list[dict[str, Any]], *, is_role_told: bool) -> dict[str, Any]:
    listed = {"type": "array", "maxItems": ITEMS_MAX, "items": {"anyOf": parts}}
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "type": {"enum": ["message"]},
            "role": {"enum": roles},
            "content": {"anyOf": [TEXT, listed]},
            "id": {},
            "status": {},
        },
        "required": ["role", "content"] if is_role_told else ["content"],
    }


_MESSAGES_SCHEMA = {
    "type": "array",
    "maxItems": ITEMS_MAX,
    "items": {
        "anyOf": [
            {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX},
            _declare_message(["user"], [TEXT, TEXT_PART, IMAGE_PART], is_role_told=False),
            _declare_message(["assistant", "system", "developer"], [TEXT, TEXT_PART], is_role_told=True),
        ]
    },
}
_INPUT_SCHEMA = {
    "anyOf": [
        {"type": "string", "pattern": NOT_BLANK, "maxLength": TEXT_CHARS_MAX},
        {**_MESSAGES_SCHEMA, "minItems": 1},
    ],
    "description": "The user's message, or a list of messages: the last is the user's, those before it are history.",
}

Input = Annotated[Any, WithJsonSchema(_INPUT_SCHEMA)]
"""The input of a run. Checked by ``api.messages``, which names the exact place of an error."""
History = Annotated[Any, WithJsonSchema({**_MESSAGES_SCHEMA, "description": "Earlier turns, oldest first."})]


_ADDRESS_CHARS_MAX = 8_192
"""Longest URL of a webhook, in characters."""
SESSION_FORM = r"^(?!.*\.\.)[!-.0-\[\]-~]{1,256}$"
_TOOLSET = text(TextFormat.TOOLSET, minLength=1, maxLength=64)
_TAG = f"^{TAG.pattern}$"
_ARTIFACT = WithJsonSchema({"type": "string", "pattern": PATTERN_FORM, "minLength": 1, "maxLength": PATTERN_CHARS_MAX})
KEY_FORM = r"^(?=.*[!-~])[\x20-\x7e]{1,256}$"
"""Pattern of an idempotency key."""
MODEL_FORM = r"^[A-Za-z0-9_.:/@+-]{1,200}$"


SettingKey = Annotated[str, StringConstraints(pattern=r"^[a-z_]+(\.[a-z_]+){0,3}$", max_length=100)]
SettingText = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
RunSettings = Annotated[dict[SettingKey, SettingText], Field(max_length=64)]


class CreateRun(RequestBody):
    """A run to be made."""

    input: Input
    instructions: str | None = Field(None, max_length=200_000, description="Joins a new session's system prompt.")
    conversation_history: History = None
    session_id: Annotated[str, WithJsonSchema({"type": "string", "pattern": SESSION_FORM})] | None = Field(
        None,
        description="Continue the session of this name or id, or begin one of this name. Names are those of the API's "
        "callers alone; an id (run_...) may be of any session. Default: a new one, with the id of the run.",
    )
    workspace: Annotated[str, StringConstraints(min_length=1, max_length=4_096)] | None = Field(
        None,
        description="Absolute path of a directory of the server's machine for a new session to work in. Only for the "
        f"person at that machine: with the installation's own key and '{USER_HEADER}'.",
    )
    model: Annotated[str, WithJsonSchema({"type": "string", "pattern": MODEL_FORM})] | None = Field(
        None, description="As the provider calls it. Default, and meaning of 'hermes-agent': the configured model."
    )
    toolsets: list[Annotated[str, StringConstraints(min_length=1, max_length=64), _TOOLSET]] | None = Field(
        None, min_length=1, max_length=50, description="Toolsets of a new session."
    )
    max_iterations: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = Field(
        None, description="Model calls before a last summary."
    )
    max_wall_s: float | None = Field(
        None, gt=0, le=31 * 86_400, allow_inf_nan=False, description="Seconds from now after which the run expires."
    )
    max_total_tokens: Annotated[int, Field(ge=1, le=10**12), WHOLE] | None = Field(
        None, description="Tokens that the run and all it delegates may use."
    )
    max_tool_calls: Annotated[int, Field(ge=1, le=10**9), WHOLE] | None = Field(
        None, description="Tool calls, likewise."
    )
    max_cost_usd: float | None = Field(
        None, gt=0, le=1_000_000, allow_inf_nan=False, description="US dollars, likewise. Needs known prices."
    )
    budget_mode: Literal["shared", "independent", "mixed"] | None = Field(
        None, description="How child runs share these limits. Default: what the installation says."
    )
    metadata: (
        dict[
            Annotated[str, StringConstraints(min_length=1, max_length=64)],
            Annotated[str, StringConstraints(max_length=512)],
        ]
        | None
    ) = Field(None, max_length=16)
    settings: RunSettings | None = Field(
        None,
        description="Settings of this run, as they are written in the environment, by key (docs/settings.md). They may "
        "not allow more than what stands above.",
    )
    output_schema: dict[str, Any] | None = Field(
        None, description="JSON Schema that the answer has to fit; it is sent back twice if it does not."
    )
    skills: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}$")]] | None = Field(
        None, max_length=50, description="Skills and bundles to follow: their texts stand before the input."
    )
    artifacts: list[Annotated[str, StringConstraints(min_length=1, max_length=PATTERN_CHARS_MAX), _ARTIFACT]] | None = (
        Field(
            None,
            max_length=PATTERNS_MAX,
            description="Patterns of files below the workspace that are kept: 'report.md', '*.csv', 'out/**'. "
            "Default: what the installation says; an empty list for none.",
        )
    )
    tags: (
        list[
            Annotated[
                str,
                StringConstraints(max_length=64),
                WithJsonSchema({"type": "string", "pattern": _TAG, "maxLength": 64}),
            ]
        ]
        | None
    ) = Field(None, max_length=TAGS_MAX, description="Words to find the run by.")
    priority: Literal["low", "normal", "high"] | None = Field(
        None, description="Which of a tenant's runs go first when more wait than can be served. Default: normal."
    )
    not_before: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Epoch seconds before which the run does not begin: at most 366 days from now.",
    )
    delay_s: float | None = Field(
        None, ge=0, le=LATEST_S, allow_inf_nan=False, description="The same in seconds from now; not with it."
    )
    deadline: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Epoch seconds at which the run expires; 'max_wall_s' may end it before.",
    )
    deliver: (
        Annotated[str, text_or_nothing(TextFormat.TARGETS)]
        | Annotated[list[Annotated[str, text(TextFormat.TARGETS)]], Field(max_length=TARGETS_MAX)]
        | None
    ) = Field(
        None,
        description="Targets that are sent the answer, or the failure: 'telegram:123', 'email:me@example.org', ...",
    )
    webhook: (
        Annotated[
            str,
            Field(max_length=_ADDRESS_CHARS_MAX),
            text_or_nothing(TextFormat.HTTP_URL, maxLength=_ADDRESS_CHARS_MAX),
        ]
        | None
    ) = Field(None, description="A URL that is sent the same, signed: a target.")
    multitask: Literal["queue", "interrupt", "steer", "reject"] = Field(
        "queue", description="What to do when another run is at work in the session."
    )
    previous_response_id: Annotated[str | None, WithJsonSchema({"type": "null"})] = Field(
        None, description="Not supported on this endpoint yet."
    )


TIME_MAX = 1e11
"""The largest time, in epoch seconds."""


class RunFilters(BaseModel):
    """Which runs are meant: those for which all of this holds."""

    tag: list[Annotated[str, Field(max_length=64, pattern=NO_NUL)]] = Field(
        [], max_length=TAGS_MAX, description="All of these."
    )
    session_id: str | None = Field(None, max_length=256, pattern=NO_NUL)
    job_id: str | None = Field(None, max_length=64, pattern=NO_NUL, description="Runs of this scheduled job.")
    model: str | None = Field(None, max_length=200, pattern=NO_NUL)
    source: str | None = Field(
        None,
        max_length=20,
        pattern=NO_NUL,
        description="The kind of source that the first run of their chain came from: api, cli, cron or webhook.",
    )
    parent_run_id: str | None = Field(
        None, max_length=64, pattern=NO_NUL, description="What this run delegated, or its background answers began."
    )
    created_after: float | None = Field(None, ge=0, le=TIME_MAX, description="Epoch seconds, this moment included.")
    created_before: float | None = Field(None, ge=0, le=TIME_MAX, description="That moment left out.")
    min_cost_usd: float | None = Field(None, ge=0, le=1_000_000, description="What the run itself cost, as is known.")
    max_cost_usd: float | None = Field(None, ge=0, le=1_000_000)
    text: str | None = Field(
        None,
        min_length=1,
        max_length=QUERY_CHARS_MAX,
        pattern=NO_NUL,
        description='Whose input or answer matches: words that must all be there, OR, NOT, "phrases" and begin*. '
        "A page reads up to a thousand runs, so it may come short, or empty, with a 'next_cursor'.",
    )


class ListRuns(RunFilters, extra="forbid"):
    """Which runs to list."""

    limit: int = Field(20, ge=1, le=100)
    before: str | None = Field(
        None, min_length=1, max_length=64, pattern=NO_NUL, description="A run id: list runs older than that one."
    )
    cursor: str | None = Field(
        None,
        min_length=1,
        max_length=1_000,
        pattern=NO_NUL,
        description="'next_cursor' of the page before, with the same filters. It outlives the runs of that page.",
    )
    status: list[RunStatus] = Field([], max_length=12, description="Any of these.")
    kind: list[RunKind] = Field([], max_length=len(RunKind), description="Any of these. Default: all.")
    tenant: str | None = Field(
        None, pattern=TENANT_FORM, description="Whose runs are meant; only operators may name others."
    )


class ListRunsInShort(ListRuns):
    """Which runs to list, and how many characters of their outputs."""

    output_chars: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="At most so many characters of each 'output' and 'error'; default: all. A list of long answers is "
        "megabytes.",
    )


class ListDeliveries(BaseModel, extra="forbid"):
    """Which deliveries to list."""

    limit: int = Field(20, ge=1, le=100)
    before: str | None = Field(
        None,
        min_length=1,
        max_length=64,
        pattern=NO_NUL,
        description="A delivery id: list deliveries older than that one.",
    )
    state: DeliveryState | None = None
    run_id: str | None = Field(None, max_length=64, pattern=NO_NUL)


# --- responses -------------------------------------------------------------------------------------------------------


class ErrorDocument(BaseModel):
    error: ErrorDetail


class FlatError(BaseModel):
    """The flat shape in which Hermes Agent's jobs and webhooks answer errors."""

    error: str


EITHER_ERROR = FlatError | ErrorDocument
"""Errors of a route with flat errors: a guard in front of all routes may answer in the other shape."""


Answers = dict[int | str, dict[str, Any]]


def declare_answer(model: Any) -> Answers:
    """Declare the model of a route's successful answer, where FastAPI does not see it."""
    return {200: {"model": model}}


def declare_body(kind: type[BaseModel], *, is_required: bool = False) -> dict[str, Any]:
    """Describe in the document the body of a route that reads it itself."""
    content = {"application/json": {"schema": kind.model_json_schema()}}
    return {"requestBody": {"required": is_required, "content": content}}


def declare_errors(*statuses: int, shape: Any = ErrorDocument) -> Answers:
    """Declare the errors with which a route, or every route of a router, may answer."""
    return {status: {"model": shape} for status in statuses}


EVERYWHERE = declare_errors(400, 403, 413, 415, 500)
"""The errors with which the guards in front of all routes answer; they also answer 401 where a key is needed. A method
that a path does not take is answered with 405, which is no answer of an operation."""


class Ready(BaseModel):
    """Whether requests should be sent to this process."""

    status: Literal["ready", "leaving", "unavailable"]
    reasons: list[str] | None = None
    """What is wrong with the database or the broker, as sentences; absent when nothing is."""


HealthState = Literal["ok", "degraded", "unavailable"]


class CheckObject(BaseModel, extra="allow"):
    """One check. Facts beside these differ from check to check."""

    status: HealthState
    error: str | None = None


class ReadinessObject(BaseModel):
    status: HealthState
    checks: dict[str, CheckObject]


class HealthInFull(BaseModel):
    """Whether runs can be accepted and worked on."""

    status: HealthState
    readiness: ReadinessObject
    platform: Literal["hermes-agent"]
    version: str
    pid: int
    updated_at: float
    active_agents: int
    readers: int
    """Streams that are being read from this process."""


def build_standing_object(standing: StatusReason) -> StandingObject | None:
    if standing.reason is StandingReason.ENDED:
        return None
    return StandingObject(reason=standing.reason, text=standing.text, since=standing.since, until=standing.until)


def build_call_object(call: CallView) -> CallObject:
    return CallObject(
        iteration=call.iteration,
        position=call.position,
        tool=call.name,
        status=call.status,
        attempts=call.attempt,
        replay=call.replay,
    )


def build_budget_object(tree: TreeBudget) -> BudgetObject:
    return BudgetObject(
        run_id=tree.owner_run_id,
        dimensions=_build_dimensions(tree),
        own=_build_dimensions(tree.own),
        has_unknown_cost=tree.budget.has_unknown_cost,
        children=[
            ShareObject(
                run_id=share.run_id, index=share.index, status=share.status, dimensions=_build_dimensions(share)
            )
            for share in tree.children
        ],
        children_total=tree.children_total,
    )


def _build_dimensions(of: TreeBudget | Share) -> dict[str, DimensionObject]:
    return {
        dimension.value: DimensionObject(limit=limit, reserved=reserved, spent=spent)
        for dimension, limit, reserved, spent in of.iterate_dimensions()
    }


def build_usage_object(view: RunView) -> UsageObject | None:
    if view.usage == NO_USAGE and not view.status.is_terminal:
        return None
    return build_usage(view.usage)
