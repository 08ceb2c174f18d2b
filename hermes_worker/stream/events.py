"""Types of the fields of a stream's events. ``sse`` builds events from them, and the API's document describes them.

A type names the fields that one kind of event has beside ``event``, ``run_id`` and ``timestamp``. A field that is not
in the type of its event is not sent: what a row holds beside it is internal.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any, NotRequired

from pydantic import TypeAdapter, with_config
from typing_extensions import TypedDict  # pydantic reads that of ``typing`` from Python 3.12 on only

from hermes_worker.core.budget import Dimension
from hermes_worker.core.list_kinds import ListKind
from hermes_worker.core.questions import RefusedBy
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.schemas.usage import UsageObject
from hermes_worker.stream.wire_events import MESSAGE_DELTA, REASONING_AVAILABLE, TOOL_GENERATING, TOOL_PROGRESS

ANY_RUN_EVENT = "RunStreamEvent"
ANY_TREE_EVENT = "TreeStreamEvent"
"""The names under which the document has all events of a stream."""
LISTS_CHANGED = "lists.changed"
"""The only event of the stream of changes; a later version may name more lists in it."""


class MessageDeltaFields(TypedDict):
    """Text of the reply that is being written."""

    delta: str


class ReasoningFields(TypedDict):
    """Thinking that precedes the reply, piece by piece."""

    text: str


class ToolGeneratingFields(TypedDict):
    """The name of a tool was seen in the reply that is being written. It may come twice, or not at all."""

    tool: str


class ToolProgressFields(TypedDict):
    """Progress that a tool reports while it runs. It may be lost."""

    tool: str
    text: str
    position: NotRequired[int]


class MessageCompletedFields(TypedDict):
    """The reply of an iteration, whole. Where its pieces said something else, this is right."""

    text: str
    iteration: int
    finish_reason: str | None


class ReplyDiscardedFields(TypedDict):
    """The text that was sent of this iteration's reply is void; another reply follows."""

    iteration: int
    finish_reason: str | None


class SessionCompressedFields(TypedDict):
    """The older part of the conversation was replaced by a summary."""

    rows: int
    """Messages that the summary stands for."""
    compression_count: int
    """How often that happened in this turn."""


class ToolStartedFields(TypedDict):
    """A call began. ``position`` is its place in the reply, from 0; left out for the first."""

    tool: str
    preview: str
    """The beginning of its arguments, without secrets."""
    about: str
    """Its arguments in words, on one line, without secrets."""
    tool_call_id: NotRequired[str]
    position: NotRequired[int]


class ToolCompletedFields(TypedDict):
    """A call ended."""

    tool: str
    duration: float
    """Seconds; 0 where it was not measured."""
    error: bool
    tool_call_id: NotRequired[str]
    position: NotRequired[int]
    outcome: NotRequired[str]
    """``unknown`` when its effect is unknown, ``cancelled`` when it did not begin."""
    is_answered: NotRequired[bool]
    """Whether its tool returned without knowing its effect; otherwise its worker vanished."""
    refused_by: NotRequired[RefusedBy]
    """What refused it, such as a rule, a person or a time-out."""
    reason: NotRequired[str]
    """Why it was not allowed."""
    sandbox: NotRequired[str]
    """What confined its command."""
    network: NotRequired[str]
    """The network that its command had: ``open``, ``proxy`` or ``none``."""


class ApprovalRequestFields(TypedDict):
    """A command waits for approval: ``POST /v1/runs/{run_id}/approval``."""

    wait_id: int
    code: NotRequired[str]
    """The code by which people name the question in chats; absent in events of earlier versions."""
    command: str
    description: str
    pattern_key: str
    pattern_keys: NotRequired[list[str]]
    """All its danger patterns; what is chosen counts for all of them."""
    choices: list[str]
    expires_at: float | None
    tool: str
    tool_call_id: str
    iteration: int
    position: int


class ApprovalAnsweredFields(TypedDict):
    """The command was allowed or denied, or the time to answer was over."""

    wait_id: int
    choice: str
    resolved: int
    by: str
    changed_arguments: NotRequired[str]
    """JSON: the call runs with these instead."""
    iteration: int
    position: int


class InputRequestFields(TypedDict):
    """The model asks the user something: ``POST /v1/runs/{run_id}/input``."""

    wait_id: int
    code: NotRequired[str]
    """The code by which people name the question in chats; absent in events of earlier versions."""
    question: str
    choices: list[str]
    expires_at: float | None
    tool: str
    tool_call_id: str
    iteration: int
    position: int
    client_tool: NotRequired[bool]
    """Whether the answer is the result of a tool of the client."""


class InputAnsweredFields(TypedDict):
    """The question was answered, or its time was over."""

    wait_id: int
    resolved: int
    by: str
    iteration: int
    position: int


class RunWaitingFields(TypedDict):
    """The run is parked: ``status`` says for what, ``until`` until when, in epoch seconds."""

    status: RunStatus
    until: float | None
    reason: NotRequired[str]
    by: NotRequired[str]


class RunResumedFields(TypedDict):
    """The run was resumed."""

    by: NotRequired[str]


class RunStoppingFields(TypedDict):
    """The run was asked to stop."""

    by: NotRequired[str]


class RunSteeredFields(TypedDict):
    """The user steered the run at work."""

    text: str
    by: NotRequired[str]


class BudgetExhaustedFields(TypedDict):
    """A limit is reached; the next reply is the last one, a summary."""

    dimension: Dimension


class StepRetriedFields(TypedDict):
    """A worker vanished and its step is tried again."""

    step: str
    attempt: int
    deaths: NotRequired[int]
    """How often it took a worker down where it is tried apart from all other work; absent for other steps."""


class HookFailedFields(TypedDict):
    """A hook failed to act; the run continues as if there were no hook."""

    hook: str
    hook_event: str
    """The event on which it should have acted, such as ``pre_tool_call``."""
    reason: str


class RunCompletedFields(TypedDict):
    """The run ended with an answer."""

    output: str
    usage: UsageObject
    exit_reason: str | None


class RunFailedFields(TypedDict):
    """The run ended without an answer: ``status`` is ``failed`` or ``expired``."""

    error: str
    status: str
    exit_reason: str | None
    usage: UsageObject


class RunCancelledFields(TypedDict):
    """The run was stopped."""

    exit_reason: str | None
    usage: UsageObject
    by: NotRequired[str]


ROW_FIELDS: Mapping[str, type] = {
    RunEventName.MESSAGE_COMPLETED: MessageCompletedFields,
    RunEventName.REPLY_DISCARDED: ReplyDiscardedFields,
    RunEventName.COMPACTED: SessionCompressedFields,
    RunEventName.TOOL_STARTED: ToolStartedFields,
    RunEventName.TOOL_COMPLETED: ToolCompletedFields,
    RunEventName.STOP_REQUESTED: RunStoppingFields,
    RunEventName.WAITING: RunWaitingFields,
    RunEventName.RESUMED: RunResumedFields,
    RunEventName.BUDGET_EXHAUSTED: BudgetExhaustedFields,
    RunEventName.STEERED: RunSteeredFields,
    RunEventName.APPROVAL_REQUESTED: ApprovalRequestFields,
    RunEventName.APPROVAL_ANSWERED: ApprovalAnsweredFields,
    RunEventName.INPUT_REQUESTED: InputRequestFields,
    RunEventName.INPUT_ANSWERED: InputAnsweredFields,
    RunEventName.STEP_RETRIED: StepRetriedFields,
    RunEventName.HOOK_FAILED: HookFailedFields,
    RunEventName.RUN_COMPLETED: RunCompletedFields,
    RunEventName.RUN_FAILED: RunFailedFields,
    RunEventName.RUN_CANCELLED: RunCancelledFields,
}
LIVE_FIELDS: Mapping[str, type] = {
    MESSAGE_DELTA: MessageDeltaFields,
    REASONING_AVAILABLE: ReasoningFields,
    TOOL_GENERATING: ToolGeneratingFields,
    TOOL_PROGRESS: ToolProgressFields,
}
"""Fields of events that have no row: a tree's stream has none of them."""

for _kind in (UsageObject, *LIVE_FIELDS.values(), *ROW_FIELDS.values()):
    with_config(use_attribute_docstrings=True)(_kind)


@cache
def find_field_names(event: str) -> frozenset[str] | None:
    """Find the fields that such an event may have; ``None`` for an event that this version does not know."""
    kind = ROW_FIELDS.get(event)
    return None if kind is None else frozenset(kind.__annotations__)


# --- the document ----------------------------------------------------------------------------------------------------

_COMMON = {
    "run_id": {"type": "string"},
    "timestamp": {"type": "number", "description": "Epoch seconds."},
}
_PLACE_IN_TREE = {
    "depth": {"type": "integer", "description": "How often work was handed down to this run."},
    "parent_run_id": {
        "type": ["string", "null"],
        "description": "The run that delegated to it; null for the first of the tree.",
    },
}
_OTHER = "OtherStreamEvent"


def build_event_schemas() -> dict[str, Any]:
    """Build the JSON schemas of all events, by the names that they have in the document."""
    schemas: dict[str, Any] = {}
    for event, kind in {**LIVE_FIELDS, **ROW_FIELDS}.items():
        schemas |= _build_schemas_of_event(str(event), kind)
    schemas[_OTHER] = _build_other_schema()
    schemas[LISTS_CHANGED] = _build_changes_schema()
    schemas[ANY_RUN_EVENT] = _build_any_of([*LIVE_FIELDS, *ROW_FIELDS], "An event of a run.")
    of_tree = _build_any_of([*ROW_FIELDS], "An event of a run of the tree.")
    schemas[ANY_TREE_EVENT] = {
        **of_tree,
        "type": "object",
        "properties": _PLACE_IN_TREE,
        "required": [*_PLACE_IN_TREE],
    }
    return schemas


def build_item_schema(name: str, id_form: str) -> dict[str, Any]:
    """Describe one event of ``text/event-stream`` (OpenAPI 3.2, section 4.14.4), whose data is the schema ``name``."""
    data = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": {"$ref": _reference(name)},
    }
    identity = {"type": "string", "pattern": id_form, "description": "For 'Last-Event-ID' and 'after'."}
    return {"type": "object", "properties": {"id": identity, "data": data}, "required": ["id", "data"]}


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def _build_schemas_of_event(event: str, kind: type) -> dict[str, Any]:
    """Build the schema of an event under its name, and the schemas that it refers to."""
    described = TypeAdapter(kind).json_schema(ref_template=_reference("{model}"))
    schemas: dict[str, Any] = described.pop("$defs", {})
    described["title"] = event
    described["properties"] = {"event": {"const": event}, **_COMMON, **described.get("properties", {})}
    described["required"] = ["event", *_COMMON, *described.get("required", ())]
    return {**schemas, event: described}


def _build_other_schema() -> dict[str, Any]:
    known = [*LIVE_FIELDS, *(str(name) for name in ROW_FIELDS)]
    return {
        "type": "object",
        "description": "An event of a later version, as a reader meets it while servers are replaced one by one.",
        "properties": {"event": {"type": "string", "not": {"enum": known}}, **copy.deepcopy(_COMMON)},
        "required": ["event", *_COMMON],
    }


def _build_changes_schema() -> dict[str, Any]:
    known = ", ".join(f"``{kind}``" for kind in ListKind)
    lists = {"type": "array", "items": {"type": "string"}, "description": f"Of {known}. Ignore what you do not know."}
    return {
        "title": LISTS_CHANGED,
        "type": "object",
        "description": "Lists that differ from what the id before said.",
        "properties": {"event": {"const": LISTS_CHANGED}, "timestamp": _COMMON["timestamp"], "lists": lists},
        "required": ["event", "timestamp", "lists"],
    }


def _build_any_of(events: list[str], description: str) -> dict[str, Any]:
    choices = [{"$ref": _reference(name)} for name in (*(str(event) for event in events), _OTHER)]
    return {"description": description, "anyOf": choices}
