"""Hooks: code of others that is called on the way of a run. The events, the possible answers, and who observes what.
Pure.

An *observer* is called after an event is committed, at least once. A *rewriter* is asked inside a claim, before the
step is written, and its answer is part of the step. The event decides which of the two a hook is. The names are the
original's (docs/hooks.md has the whole table).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from hermes_worker.core.json_values import read_mapping, read_stripped_text, read_text
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.run_events import RunEventName

__all__ = [
    "ABSENT_EVENTS",
    "ANSWER_CHARS_MAX",
    "HOOK_EVENTS",
    "MODEL_EVENTS",
    "NOTHING",
    "NOT_OBSERVED",
    "Approve",
    "Block",
    "HookCallState",
    "HookEvent",
    "HookKind",
    "InvalidHookAnswer",
    "NoHookAnswer",
    "Observed",
    "PendingHookCall",
    "ReplaceArguments",
    "ReplaceText",
    "build_event_id",
    "build_observed",
    "expand_events",
    "list_beginning_calls",
    "list_pending_calls",
    "parse_answer",
]


class HookCallState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The hook raised, hung or cannot be called."""
    LOST = "lost"
    """Its workers vanished while it ran, as often as is allowed."""


class HookKind(StrEnum):
    OBSERVER = "observer"
    REWRITER = "rewriter"


PRE_TOOL_CALL = "pre_tool_call"
TRANSFORM_TOOL_RESULT = "transform_tool_result"
PRE_LLM_CALL = "pre_llm_call"
TRANSFORM_LLM_OUTPUT = "transform_llm_output"
PRE_COMPRESS = "pre_compress"
_REWRITERS = (PRE_TOOL_CALL, TRANSFORM_TOOL_RESULT, PRE_LLM_CALL, TRANSFORM_LLM_OUTPUT, PRE_COMPRESS)

MODEL_EVENTS = frozenset({PRE_LLM_CALL, TRANSFORM_LLM_OUTPUT, PRE_COMPRESS})
"""Events whose rewriters run on workers for models; all others run on workers for tools."""

_STARTS = ("agent:start", "on_session_start", "session:start", "subagent_start")
_ENDS = ("agent:end", "on_session_end", "subagent_stop")
_TOLD_OF: Mapping[RunEventName, tuple[str, ...]] = MappingProxyType(
    {
        RunEventName.MESSAGE_COMPLETED: ("agent:step", "post_api_request"),
        RunEventName.TOOL_COMPLETED: ("post_tool_call",),
        RunEventName.APPROVAL_REQUESTED: ("pre_approval_request",),
        RunEventName.APPROVAL_ANSWERED: ("post_approval_response",),
        RunEventName.COMPACTED: ("session:compress",),
        RunEventName.RUN_COMPLETED: ("post_llm_call", *_ENDS),
        RunEventName.RUN_FAILED: _ENDS,
        RunEventName.RUN_CANCELLED: _ENDS,
    }
)
"""The hooks' events that an event of a run causes."""
_OF_CHILDREN = frozenset({"subagent_start", "subagent_stop"})
_OF_FIRST_RUNS = frozenset({"on_session_start", "session:start"})

HOOK_EVENTS: Mapping[str, HookKind] = MappingProxyType(
    {
        **dict.fromkeys(_REWRITERS, HookKind.REWRITER),
        **dict.fromkeys(_STARTS, HookKind.OBSERVER),
        **{name: HookKind.OBSERVER for names in _TOLD_OF.values() for name in names},
    }
)
"""Every event that a hook can be for."""

ABSENT_EVENTS = frozenset(
    {
        *("transform_terminal_output", "pre_verify", "pre_api_request", "api_request_error"),
        *("on_session_finalize", "on_session_reset", "pre_gateway_dispatch"),
        *("kanban_task_claimed", "kanban_task_completed", "kanban_task_blocked"),
        *("tool_request", "tool_execution", "llm_request", "llm_execution"),
        *("gateway:startup", "session:end", "session:reset"),
    }
)
"""Events of the original that never happen here; docs/hooks.md says why."""
GATEWAY_BASES = ("agent", "command", "gateway", "session")
"""The first parts of the events that a ``HOOK.yaml`` may name."""

ANSWER_CHARS_MAX = 1_000_000
"""The most characters of an answer as JSON. A longer one is refused."""
_REASON_CHARS_MAX = 2_000
_CONTEXT_CHARS_MAX = 50_000
_TEXT_CHARS_MAX: Mapping[str, int] = {
    PRE_LLM_CALL: _CONTEXT_CHARS_MAX,
    TRANSFORM_LLM_OUTPUT: 200_000,
    PRE_COMPRESS: 8_000,
}
_ADDS_CONTEXT = (PRE_LLM_CALL, PRE_COMPRESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookEvent:
    """The argument of a hook: one event."""

    id: str
    """Equal at each repetition of the same event, and different for any other event."""
    name: str
    payload: Mapping[str, Any]
    """What happened, with the original's keys. A copy: changing it changes nothing."""
    values: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    """The settings that the hook's extension declares, by name."""


def expand_events(events: Iterable[str]) -> tuple[str, ...]:
    """Expand ``agent:*`` and the like in ``events``. Unknown events are left unchanged."""
    names: list[str] = []
    for event in events:
        below = [name for name in HOOK_EVENTS if event.endswith(":*") and name.startswith(event[:-1])]
        names += below or [event]
    return tuple(dict.fromkeys(names))


# --- observers -------------------------------------------------------------------------------------------------------

Observed = Mapping[str, tuple[str, ...]]
"""By event, the names of the hooks that observe it."""
NOT_OBSERVED: Observed = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingHookCall:
    """A pending call of a hook about an event."""

    event: str
    hook: str


def build_observed(hooks: Iterable[tuple[str, Sequence[str]]]) -> Observed:
    """Build the mapping from the names of hooks with their events, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for name, events in hooks:
        for event in expand_events(events):
            if HOOK_EVENTS.get(event) is HookKind.OBSERVER:
                found[event] = (*found.get(event, ()), name)
    return MappingProxyType(found)


def list_pending_calls(name: RunEventName, observed: Observed, *, is_child: bool) -> list[PendingHookCall]:
    """List the calls of observers about an event of a run; ``is_child`` when another run waits for the run."""
    return _build_pending_calls(_TOLD_OF.get(name, ()), observed, lacking=frozenset() if is_child else _OF_CHILDREN)


def list_beginning_calls(observed: Observed, *, is_child: bool, is_first: bool) -> list[PendingHookCall]:
    """List the calls of observers about the beginning of a run; ``is_first`` for the run that opened its session."""
    lacking = (frozenset() if is_child else _OF_CHILDREN) | (frozenset() if is_first else _OF_FIRST_RUNS)
    return _build_pending_calls(_STARTS, observed, lacking=lacking)


def _build_pending_calls(
    events: Iterable[str], observed: Observed, *, lacking: frozenset[str]
) -> list[PendingHookCall]:
    return [
        PendingHookCall(event=event, hook=hook)
        for event in events
        if event not in lacking
        for hook in observed.get(event, ())
    ]


def build_event_id(run_id: str, number: int, event: str) -> str:
    """Build the id of a hook's event. ``number`` is the number of the run's event; 0 for its beginning, which has
    none."""
    return f"{run_id}.{number}.{event}"


# --- answers of rewriters --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NoHookAnswer:
    """The hook leaves everything as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The call does not run; ``reason`` is its result."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Approve:
    """The call runs if a person allows it."""

    reason: str
    rule: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceArguments:
    """The call runs with these arguments."""

    arguments: str
    """Canonical JSON of an object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaceText:
    """The text that stands in for a result or an answer, or is added to a request."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidHookAnswer:
    """The hook's answer is invalid; it counts as no answer."""

    why: str


HookAnswer = NoHookAnswer | Block | Approve | ReplaceArguments | ReplaceText | InvalidHookAnswer
NOTHING = NoHookAnswer()


def parse_answer(event: str, answer_json: str | None) -> HookAnswer:
    """Parse the answer to a rewriter's event. Total. ``answer_json`` is what the hook returned, as JSON."""
    if answer_json is None or answer_json == "null":
        return NOTHING
    if len(answer_json) > ANSWER_CHARS_MAX:
        return InvalidHookAnswer(
            why=f"its answer has {len(answer_json):,} characters; at most {ANSWER_CHARS_MAX:,} are read"
        )
    try:
        value = json.loads(answer_json)
    except (ValueError, RecursionError):
        return InvalidHookAnswer(why="its answer is no JSON")
    if event == PRE_TOOL_CALL:
        return _parse_call_answer(value)
    return _parse_text(event, value)


def _parse_text(event: str, value: object) -> HookAnswer:
    said = read_mapping(value).get("context") if event in _ADDS_CONTEXT and isinstance(value, dict) else value
    if not isinstance(said, str):
        return InvalidHookAnswer(why=f"its answer to {event} must be a text")
    most = _TEXT_CHARS_MAX.get(event, ANSWER_CHARS_MAX)
    if len(said) > most:
        return InvalidHookAnswer(why=f"its text has {len(said):,} characters; at most {most:,} are allowed for {event}")
    return ReplaceText(text=_clean(said)) if said.strip() else NOTHING


def _parse_call_answer(value: object) -> HookAnswer:
    answer = read_mapping(value)
    action, reason = (
        read_text(answer.get("action")),
        _clean(read_stripped_text(answer.get("message")))[:_REASON_CHARS_MAX],
    )
    if action == "block" and reason:
        return Block(reason=reason)
    if action == "approve":
        return Approve(reason=reason or "a hook wants somebody to look at it", rule=read_text(answer.get("rule_key")))
    if not action and isinstance(answer.get("args"), dict):
        return ReplaceArguments(arguments=_clean(dump_canonical_json(answer["args"])))
    return InvalidHookAnswer(why="its answer to pre_tool_call must be {action, message} or {args}")


def _clean(text: str) -> str:
    """Replace what neither database nor JSON can carry."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode("utf-8")
