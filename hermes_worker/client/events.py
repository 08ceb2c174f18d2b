"""The events of a run's stream, as values. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from hermes_worker.core.run_events import TERMINAL_EVENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageDelta:
    """Text of the reply that is being written."""

    text: str
    kind: Literal["message.delta"] = "message.delta"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDelta:
    text: str
    kind: Literal["reasoning.available"] = "reasoning.available"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolGenerating:
    """The name of a tool was seen in the reply that is being written. A hint: it may come twice, or not at all."""

    tool: str
    kind: Literal["tool.generating"] = "tool.generating"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCompleted:
    text: str
    iteration: int
    finish_reason: str | None
    kind: Literal["message.completed"] = "message.completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyDiscarded:
    """The text that was sent of this iteration's reply is void; another reply follows."""

    iteration: int
    finish_reason: str | None
    kind: Literal["reply.discarded"] = "reply.discarded"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStarted:
    call_id: str
    tool: str
    preview: str
    """The beginning of its arguments."""
    about: str = ""
    """Its arguments in words, on one line."""
    kind: Literal["tool.started"] = "tool.started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCompleted:
    call_id: str
    tool: str
    duration_s: float
    is_error: bool
    outcome: str | None = None
    """``unknown`` when its worker vanished and it is unknown whether it took effect."""
    kind: Literal["tool.completed"] = "tool.completed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequested:
    command: str
    description: str
    choices: Sequence[str]
    wait_id: int
    """Names the question in an answer."""
    code: str = ""
    """The code by which people name the question in chats."""
    kind: Literal["approval.request"] = "approval.request"


@dataclass(frozen=True, slots=True, kw_only=True)
class InputRequested:
    question: str
    choices: Sequence[str]
    wait_id: int
    """Names the question in an answer."""
    code: str = ""
    """The code by which people name the question in chats."""
    kind: Literal["input.request"] = "input.request"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatusChanged:
    """A change of the run that people may want to know of: it waits, is stopped, or a step is tried again."""

    name: str
    message: str
    kind: Literal["status"] = "status"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded:
    name: str
    output: str | None
    error: str | None
    exit_reason: str | None
    usage: Mapping[str, int] = field(default_factory=dict)
    """``input_tokens``, ``output_tokens`` and ``total_tokens``; where there are any, also ``estimated_tokens`` (of
    those, what the provider did not count), ``refused_attempts`` (requests that failed) and ``unknown_attempts`` with
    ``unknown_input_tokens`` and ``unknown_output_tokens`` (beside those, what may have been billed without a reply)."""
    kind: Literal["ended"] = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherEvent:
    """An event that this version has no type for."""

    name: str
    fields: Mapping[str, Any]
    kind: Literal["other"] = "other"


Event = (
    MessageDelta
    | ReasoningDelta
    | ToolGenerating
    | MessageCompleted
    | ReplyDiscarded
    | ToolStarted
    | ToolCompleted
    | ApprovalRequested
    | InputRequested
    | RunStatusChanged
    | RunEnded
    | OtherEvent
)


def parse_event(document: Mapping[str, Any]) -> Event:
    """Parse an event of the stream. Raises ``ValueError`` when a field that it needs is missing."""
    try:
        return _parse(str(document["event"]), document)
    except (KeyError, TypeError) as error:
        raise ValueError(f"an event of the stream lacks {error}") from error


def _parse(name: str, document: Mapping[str, Any]) -> Event:
    if name in TERMINAL_EVENTS:
        return RunEnded(
            name=name,
            output=document.get("output"),
            error=document.get("error"),
            exit_reason=document.get("exit_reason"),
            usage=document.get("usage") or {},
        )
    make = _PARSERS.get(name)
    return make(document) if make else OtherEvent(name=name, fields=dict(document))


def _make_status_parser(name: str, message: Callable[[Mapping[str, Any]], str]) -> Callable[[Mapping[str, Any]], Event]:
    return lambda document: RunStatusChanged(name=name, message=message(document))


_PARSERS: Mapping[str, Callable[[Mapping[str, Any]], Event]] = {
    "message.delta": lambda d: MessageDelta(text=d["delta"]),
    "reasoning.available": lambda d: ReasoningDelta(text=d["text"]),
    "tool.generating": lambda d: ToolGenerating(tool=d["tool"]),
    "message.completed": lambda d: MessageCompleted(
        text=d["text"], iteration=d["iteration"], finish_reason=d.get("finish_reason")
    ),
    "reply.discarded": lambda d: ReplyDiscarded(iteration=d["iteration"], finish_reason=d.get("finish_reason")),
    "tool.started": lambda d: ToolStarted(
        call_id=d.get("tool_call_id", ""),
        tool=d["tool"],
        preview=d.get("preview") or "",
        about=d.get("about") or "",
    ),
    "tool.completed": lambda d: ToolCompleted(
        call_id=d.get("tool_call_id", ""),
        tool=d["tool"],
        duration_s=float(d.get("duration") or 0.0),
        is_error=bool(d.get("error")),
        outcome=d.get("outcome"),
    ),
    "approval.request": lambda d: ApprovalRequested(
        command=d.get("command") or "",
        description=d.get("description") or "",
        choices=tuple(d.get("choices") or ()),
        wait_id=d["wait_id"],
        code=d.get("code") or "",
    ),
    "input.request": lambda d: InputRequested(
        question=d["question"],
        choices=tuple(d.get("choices") or ()),
        wait_id=d["wait_id"],
        code=d.get("code") or "",
    ),
    "run.waiting": _make_status_parser(
        "run.waiting", lambda d: f"The run is {str(d.get('status')).replace('_', ' ')}."
    ),
    "budget.exhausted": _make_status_parser(
        "budget.exhausted", lambda d: f"The limit of {str(d.get('dimension')).replace('_', ' ')} is reached."
    ),
    "run.resumed": _make_status_parser("run.resumed", lambda d: "The run goes on."),
    "run.stopping": _make_status_parser("run.stopping", lambda d: "The run was asked to stop."),
    "session.compress": _make_status_parser(
        "session.compress", lambda d: f"{d.get('rows')} older messages were summarised to make room."
    ),
    "step.retried": _make_status_parser(
        "step.retried",
        lambda d: f"A worker vanished; {d.get('step')} is tried again{' by itself' if 'deaths' in d else ''}.",
    ),
}
