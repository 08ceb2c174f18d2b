"""A turn of a session as Hermes Agent streams it: named events, made from one reader's view of the run. Pure.

An event's ``id`` says how many events the reader has got, how many of those that the end of the run makes are among
them, and where the reader stands in the run (``stream.sse``). So a client that comes back to any replica with its
``Last-Event-ID`` goes on with the next event, under the next ``seq``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hermes_worker.core.json_values import parse_object
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import RunEventName, StoredEvent
from hermes_worker.schemas.usage import UsageObject
from hermes_worker.stream import sse
from hermes_worker.stream.live import LiveEntry
from hermes_worker.stream.wire_events import MESSAGE_DELTA, REASONING_AVAILABLE, TOOL_PROGRESS, WireEvent

THINKING = "_thinking"
"""The tool name under which thinking is sent as progress, as in Hermes Agent."""
_OPENING = 2
"""How many events come before the first one of the run itself."""
TURN_CURSOR_FORM = rf"^[0-9]{{1,10}}~[0-9]~{sse.CURSOR_FORM[1:-1]}$"
_TURN_CURSOR = re.compile(r"(?P<told>[0-9]{1,10})~(?P<part>[0-9])~(?P<run>.+)")
EVENT_NAMES = (
    "run.started",
    "message.started",
    "assistant.delta",
    "tool.progress",
    "tool.started",
    "tool.completed",
    "tool.failed",
    "assistant.completed",
    "run.completed",
    "error",
    "done",
)
"""Hermes Agent's names of events; events that it does not have keep the names of the run's own stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCursor:
    """The position of a reader in a turn's stream."""

    told: int = 0
    part: int = 0
    """How many events of the run's end the reader has got, while some are still to come."""
    run: sse.Cursor = field(default_factory=sse.Cursor)

    def __str__(self) -> str:
        return f"{self.told}~{self.part}~{self.run}"

    @classmethod
    def parse(cls, text: str) -> TurnCursor:
        """Read a cursor from text. Raises ``ValueError`` for anything that ``str`` of a cursor does not give."""
        match = _TURN_CURSOR.fullmatch(text) if text.isascii() else None
        if match is None:
            raise ValueError("not the id of an event")
        return cls(told=int(match["told"]), part=int(match["part"]), run=sse.Cursor.parse(match["run"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFacts:
    """The fields that every event of a turn has."""

    session_id: str
    run_id: str
    user_content: Any
    began_at: float

    @property
    def message_id(self) -> str:
        """One id for all that the assistant says in a turn."""
        return f"msg_{self.run_id.removeprefix('run_')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnd:
    """The end of a turn."""

    at: float
    content: str
    completed: bool
    partial: bool
    interrupted: bool
    error: str | None
    """Why there is no answer; ``None`` where there is one, or the turn was stopped."""
    code: str | None
    messages: Sequence[Mapping[str, Any]]
    """The messages that the turn added to the transcript."""
    usage: UsageObject


class TurnTeller(sse.MergedView):
    """One reader's view of a turn, as frames. ``closing`` makes the last ones: they need rows."""

    def __init__(self, turn: TurnFacts, told: TurnCursor, start: sse.StreamStart) -> None:
        super().__init__(sse.Merge(told.run, start))
        self._turn = turn
        self._told = told
        self._skips = told.part
        self._last: WireEvent | None = None

    def build_opening(self) -> list[bytes]:
        """Make the frames that come before the run's own events."""
        turn = self._turn
        fields: list[tuple[str, Mapping[str, Any]]] = [
            ("run.started", {"user_message": {"role": "user", "content": turn.user_content}}),
            ("message.started", {"message": {"id": turn.message_id, "role": "assistant"}}),
        ]
        return [self._render_frame(name, turn.began_at, told) for name, told in fields[self._told.told : _OPENING]]

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> list[bytes]:
        return self._render_frames(self.merge.translate_rows(rows, usage))

    def translate_live(self, entry: LiveEntry, at: float) -> list[bytes]:
        return self._render_frames(self.merge.translate_live(entry, at))

    def build_closing(self, end: TurnEnd) -> list[bytes]:
        """Make the last frames; none where they were sent on an earlier connection."""
        if self._last is None:
            return []
        told = _build_closing(self._turn, end)
        frames = []
        for number, (name, fields) in enumerate(told, start=1):
            if number <= self._skips:
                continue
            is_all = number == len(told)
            run = sse.Cursor.parse(self._last.id) if is_all else self._told.run
            frames.append(self._render_frame(name, end.at, fields, run=run, part=0 if is_all else number))
        return frames

    def _render_frames(self, events: Iterable[WireEvent]) -> list[bytes]:
        frames = []
        for event in events:
            if event.is_last:
                self._last = event
                continue
            name, fields = _translate(self._turn, event)
            frames.append(self._render_frame(name, event.at, fields, run=sse.Cursor.parse(event.id)))
        return frames

    def _render_frame(
        self, name: str, at: float, fields: Mapping[str, Any], *, run: sse.Cursor | None = None, part: int = 0
    ) -> bytes:
        self._told = TurnCursor(told=self._told.told + 1, part=part, run=run or self._told.run)
        turn = self._turn
        same = {"session_id": turn.session_id, "run_id": turn.run_id, "seq": self._told.told, "ts": at}
        line = json.dumps({**same, **fields}, ensure_ascii=False, separators=(",", ":"))
        body = (name.encode(), str(self._told).encode("ascii"), line.encode("utf-8", "replace"))
        return b"event: %b\nid: %b\ndata: %b\n\n" % body


def _translate(turn: TurnFacts, event: WireEvent) -> tuple[str, Mapping[str, Any]]:
    fields = event.fields
    of_message = {"message_id": turn.message_id}
    match event.name:
        case name if name == MESSAGE_DELTA:
            return "assistant.delta", {**of_message, "delta": fields["delta"]}
        case name if name == REASONING_AVAILABLE:
            return "tool.progress", {**of_message, "tool_name": THINKING, "delta": fields["text"]}
        case name if name == TOOL_PROGRESS:
            return "tool.progress", {**of_message, "tool_name": fields["tool"], "delta": fields["text"]}
        case RunEventName.TOOL_STARTED:
            preview = fields["preview"]
            return "tool.started", {
                **of_message,
                **_describe_tool(fields),
                "preview": preview,
                "args": parse_object(preview),
            }
        case RunEventName.TOOL_COMPLETED:
            more = {"duration": fields["duration"], **_describe_tool(fields)}
            return "tool.failed" if fields["error"] else "tool.completed", {**of_message, **more}
        case name:
            return name, fields


def _describe_tool(fields: Mapping[str, Any]) -> dict[str, Any]:
    named = {"tool_name": fields["tool"]}
    return named | {name: fields[name] for name in ("tool_call_id", "position", "outcome") if name in fields}


def _build_closing(turn: TurnFacts, end: TurnEnd) -> list[tuple[str, Mapping[str, Any]]]:
    of_message = {"message_id": turn.message_id}
    how = {"completed": end.completed, "partial": end.partial, "interrupted": end.interrupted}
    if end.error is not None:
        return [("error", {"message": end.error, "code": end.code, **how, "usage": end.usage}), ("done", {})]
    return [
        ("assistant.completed", {**of_message, "content": end.content, **how}),
        ("run.completed", {**of_message, **how, "messages": end.messages, "usage": end.usage}),
        ("done", {}),
    ]


def build_item_schema() -> dict[str, Any]:
    """Describe one event of the stream (OpenAPI 3.2, section 4.14.4)."""
    data = {
        "type": "object",
        "properties": {
            "session_id": {"type": "string"},
            "run_id": {"type": "string"},
            "seq": {"type": "integer", "description": "Number of the event in the stream, from 1."},
            "ts": {"type": "number", "description": "Epoch seconds."},
        },
        "required": ["session_id", "run_id", "seq", "ts"],
    }
    named = {"type": "string", "examples": [*EVENT_NAMES]}
    identity = {"type": "string", "pattern": TURN_CURSOR_FORM, "description": "For 'Last-Event-ID'."}
    told = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    properties = {"event": named, "id": identity, "data": told}
    return {"type": "object", "properties": properties, "required": [*properties]}
