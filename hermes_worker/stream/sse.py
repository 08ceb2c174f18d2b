"""One reader's view of a run's stream: rows and live entries in, events for the wire out. Pure.

Theory of operation. A run's stream has two sources. *Rows* are numbered, complete and kept; *live entries* are pieces
of the row that is being written, exist only while the run has readers, and may be lost, repeated or late. A reader must
get every row once and every character once, whichever source brings it first, and again so when it comes back after a
broken connection.

So ``Merge`` keeps account of what the reader has got: the number of its last row, and how much of the reply that is
being written, as a length and a checksum. A live piece is passed on when it continues exactly that. When the row of the
reply comes, the part of its text that the reader lacks is sent first and the row after it:

| what comes | the account before | what is sent |
|---|---|---|
| row 6, a tool call ended | row 5 | row 6 |
| live, offset 0: "Hel" | row 6, nothing ahead | "Hel" |
| live, offset 0: "Hello" (repeated) | row 6 + 3 characters | "lo" |
| live, offset 8: "ld" (a piece was lost) | row 6 + 5 characters | nothing, and nothing more of this attempt |
| row 7, the reply "Hello world" | row 6 + 5 characters | " world", then row 7 |

If the text that was sent is not the beginning of the row's text (the worker died in the middle and another one asked
again), nothing is appended: the row carries the whole text and is right. A reply can also be discarded and asked for
anew; its row says so, the account of it is closed, and pieces of it that still come are void.

A live entry may overtake the row that it depends on: a tool is announced as soon as the reply that asks for it is
committed, and the next reply begins as soon as the last call has its result, which the worker of a subagent commits.
Such an entry is kept back until that row was sent (``wants_rows``).

The account is the ``id`` of every event, so ``Last-Event-ID`` brings it back, to any replica, without memory here. With
nothing sent ahead of its row it is the plain number of the row.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from hermes_worker.core.call_descriptions import ABOUT_CHARS_MAX, describe_call
from hermes_worker.core.cloud_events import wrap_in_cloud_event
from hermes_worker.core.json_values import parse_json
from hermes_worker.core.messages import Usage
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import TERMINAL_EVENTS, RunEventName, StoredEvent
from hermes_worker.core.sent_text_marks import EventMark
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.usage import UsageObject
from hermes_worker.stream.events import (
    MessageCompletedFields,
    MessageDeltaFields,
    ReasoningFields,
    RunCancelledFields,
    RunCompletedFields,
    RunFailedFields,
    ToolCompletedFields,
    ToolGeneratingFields,
    ToolProgressFields,
    ToolStartedFields,
    find_field_names,
)
from hermes_worker.stream.live import PROGRESS_CHARS_MAX, LiveEntry
from hermes_worker.stream.wire_events import (
    MESSAGE_DELTA,
    REASONING_AVAILABLE,
    TOOL_GENERATING,
    TOOL_PROGRESS,
    WireEvent,
)

KEEPALIVE = b": keepalive\n\n"
CLOSED = b": stream closed\n\n"
"""A comment that follows the last event of a run."""
GOING_AWAY = b": server is going away, reconnect with Last-Event-ID\n\n"


# --- what a reader has been told -------------------------------------------------------------------------------------


_NOTHING = EventMark()
CURSOR_FORM = r"^[0-9]{1,10}(\.[0-9]{1,9}(\.[0-9]{1,10}-[0-9a-f]{1,8}){2}\.[0-9a-f]{1,64}\.[0-9]{1,10})?$"
"""The text form of a cursor, for the API's document."""
_CURSOR = re.compile(
    r"(?P<seq>\d{1,10})"
    r"(?:\.(?P<iteration>\d{1,9})\.(?P<text>\d{1,10}-[0-9a-f]{1,8})\.(?P<reasoning>\d{1,10}-[0-9a-f]{1,8})"
    r"\.(?P<started>[0-9a-f]{1,64})\.(?P<void>\d{1,10}))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """What a reader has got. Its text form is the ``id`` of an event; clients need not understand it."""

    seq: int = 0
    """Number of the last row."""
    iteration: int = 0
    """The last iteration whose reply was complete when the rest was sent."""
    text: EventMark = _NOTHING
    """How much of the text of the next reply was sent."""
    reasoning: EventMark = _NOTHING
    started: int = 0
    """Bit n: the start of call n of ``iteration`` was sent, and its row was not."""
    void: int = 0
    """The number of the row that discarded an earlier reply of this iteration: pieces asked for before it are void."""

    @property
    def is_ahead(self) -> bool:
        """Whether anything was sent ahead of its row."""
        return bool(self.text.chars or self.reasoning.chars or self.started or self.void)

    def __str__(self) -> str:
        if not self.is_ahead:
            return str(self.seq)
        marks = ".".join(f"{mark.chars}-{mark.crc:x}" for mark in (self.text, self.reasoning))
        return f"{self.seq}.{self.iteration}.{marks}.{self.started:x}.{self.void}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Parse a cursor. Raises ``ValueError`` for anything that ``str`` of a cursor does not give."""
        match = _CURSOR.fullmatch(text) if text.isascii() else None
        if match is None:
            raise ValueError("not the id of an event")
        seq = int(match["seq"])
        if match["iteration"] is None:
            return cls(seq=seq)
        return cls(
            seq=seq,
            iteration=int(match["iteration"]),
            text=_parse_mark(match["text"]),
            reasoning=_parse_mark(match["reasoning"]),
            started=int(match["started"], 16),
            void=int(match["void"]),
        )


def _parse_mark(text: str) -> EventMark:
    chars, _, crc = text.partition("-")
    return EventMark(int(chars), int(crc, 16))


# --- the wire --------------------------------------------------------------------------------------------------------


def format_cloud_event(run_id: str, event: WireEvent) -> bytes:
    """Write an event in SSE form, as a CloudEvent; nothing for a hint, which has no id of its own."""
    if event.name in (TOOL_PROGRESS, TOOL_GENERATING):
        return b""
    return _format_document(event.id, wrap_in_cloud_event(event.fields, event.name, event.id, run_id, event.at))


def format_frame(run_id: str, event: WireEvent) -> bytes:
    """Write an event in SSE form: its id, and one line of JSON."""
    return _format_document(event.id, {"event": event.name, "run_id": run_id, "timestamp": event.at, **event.fields})


def _format_document(event_id: str, document: Mapping[str, object]) -> bytes:
    # JSON writes every line break inside a string as an escape, so this is one line whatever the model wrote.
    line = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return b"id: %b\ndata: %b\n\n" % (event_id.encode("ascii"), line.encode("utf-8", "replace"))


def build_usage(usage: Usage) -> UsageObject:
    """Count tokens as Hermes Agent does: those read from a cache are input too. What is not certain has names of its
    own, which are left out when they are zero."""
    read = usage.input + usage.cache_read + usage.cache_write
    told = UsageObject(input_tokens=read, output_tokens=usage.output, total_tokens=read + usage.output)
    if usage.estimated:
        told["estimated_tokens"] = usage.estimated
    if usage.refused_attempts:
        told["refused_attempts"] = usage.refused_attempts
    if usage.unknown_attempts:
        told["unknown_attempts"] = usage.unknown_attempts
    if usage.unknown_input:
        told["unknown_input_tokens"] = usage.unknown_input
    if usage.unknown_output:
        told["unknown_output_tokens"] = usage.unknown_output
    return told


def build_row_fields(row: StoredEvent, usage: Usage) -> Mapping[str, Any]:
    """Build the fields of a row's event. ``usage`` is that of its run, for the event that ends it."""
    data = row.data
    match row.name:
        case RunEventName.MESSAGE_COMPLETED:
            return MessageCompletedFields(
                text=_read_text(data), iteration=data["iteration"], finish_reason=data.get("finish_reason")
            )
        case RunEventName.TOOL_STARTED:
            return _build_start_fields(data)
        case RunEventName.TOOL_COMPLETED:
            return _build_completion_fields(data)
        case RunEventName.RUN_COMPLETED:
            return RunCompletedFields(
                output=_read_text(data), usage=build_usage(usage), exit_reason=data.get("exit_reason")
            )
        case RunEventName.RUN_FAILED:
            error = redact(str(data.get("error")))
            return RunFailedFields(
                error=error,
                status=data.get("status", RunStatus.FAILED.value),
                exit_reason=data.get("exit_reason"),
                usage=build_usage(usage),
            )
        case RunEventName.RUN_CANCELLED:
            cancelled = RunCancelledFields(exit_reason=data.get("exit_reason"), usage=build_usage(usage))
            if "by" in data:
                cancelled["by"] = data["by"]
            return cancelled
        case _:
            return _copy_fields(row.name, data)


def _copy_fields(name: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Copy the fields of a row that go out as they are. A row of a kind that this version does not know goes out
    whole."""
    known = find_field_names(name)
    if known is None:
        return {field: value for field, value in data.items() if field != "message_seq"}
    return {field: value for field, value in data.items() if field in known}


def _read_text(data: Mapping[str, Any]) -> str:
    text = data.get("text")
    return text if isinstance(text, str) else ""


def _build_start_fields(data: Mapping[str, Any]) -> ToolStartedFields:
    tool, preview = data["tool"], str(data.get("preview") or "")
    about = str(data.get("about") or describe_call(tool, preview))
    shown = ToolStartedFields(tool=tool, preview=redact(preview), about=redact(about)[:ABOUT_CHARS_MAX])
    if position := _read_later_position(data):
        shown["position"] = position
    if "tool_call_id" in data:
        shown["tool_call_id"] = data["tool_call_id"]
    return shown


def _parse_announced_start(text: str) -> ToolStartedFields | None:
    """Parse the fields of a start that a worker announced; ``None`` when no worker wrote it."""
    if len(text) > _ANNOUNCEMENT_CHARS_MAX:
        return None
    data = parse_json(text)
    is_ours = isinstance(data, dict) and isinstance(data.get("tool"), str)
    return _build_start_fields(data) if is_ours and isinstance(data.get("tool_call_id", ""), str) else None


def _read_later_position(data: Mapping[str, Any]) -> int:
    """Read which call of its reply it is, from 0; it is sent for all but the first, which is most often the only
    one."""
    position = data.get("position")
    return position if type(position) is int and position > 0 else 0


def _build_completion_fields(data: Mapping[str, Any]) -> ToolCompletedFields:
    # The duration of a call whose worker vanished is unknown; ``outcome`` says so, and the duration stays a number for
    # clients.
    shown = ToolCompletedFields(tool=data["tool"], duration=data.get("duration", 0.0), error=bool(data.get("error")))
    if position := _read_later_position(data):
        shown["position"] = position
    told = ("tool_call_id", "outcome", "is_answered", "refused_by", "sandbox", "network")
    more = {name: data[name] for name in told if name in data}
    if "reason" in data:
        more["reason"] = redact(str(data["reason"]))
    return cast("ToolCompletedFields", shown | more)


# --- the merge -------------------------------------------------------------------------------------------------------


_TOLD_LIVE = ("text", "reasoning", "tool", "tool_started", "tool_progress")
_ANNOUNCEMENT_CHARS_MAX = 65_536
_EARLY_MAX = 1_000
"""Most live entries that are kept back; rows tell what is in the others."""
_CALLS_MAX = 256
"""Positions that fit into the account; a reply may ask for far fewer calls."""


@dataclass(slots=True)
class _Pieces:
    """Follows the pieces of one text as one attempt after the other sends them, and finds those that continue what was
    sent."""

    attempt: int = 0
    seen: EventMark = _NOTHING
    """This attempt's text, without a gap from its beginning."""
    is_useless: bool = False
    """Whether a piece is missing, or this attempt says something else than what was sent. The row will tell the
    rest."""

    def find_new_text(self, entry: LiveEntry, told: EventMark) -> str:
        """Find what in ``entry`` comes next after ``told``; empty for nothing."""
        # A worker that drains hands its call over, and the next one begins anew under the same number.
        if entry.attempt > self.attempt or (entry.attempt == self.attempt and entry.offset == 0):
            self.attempt, self.seen, self.is_useless = entry.attempt, _NOTHING, False
        if entry.attempt < self.attempt or self.is_useless:
            return ""
        if entry.offset > self.seen.chars:
            self.is_useless = True
            return ""
        more = entry.text[self.seen.chars - entry.offset :]
        repeated = max(0, told.chars - self.seen.chars)
        self.seen = self.seen.advance(more[:repeated])
        if self.seen.chars == told.chars and self.seen != told:
            self.is_useless = True
            return ""
        self.seen = self.seen.advance(more[repeated:])
        return more[repeated:]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """Where a run stood when a reader came. Live entries about anything before that are old: its rows are there."""

    seq: int
    """Number of the newest row."""
    iteration: int
    """Replies that were committed. Read before ``seq``."""
    settled: Collection[int] = ()
    """Calls of that iteration that had ended. Read before ``seq``."""
    is_ended: bool = False
    """Whether the run had ended: then the newest row is its last. Read before ``seq``."""


class Merge:
    """Turns rows and live entries into events for one reader."""

    def __init__(self, told: Cursor, start: StreamStart) -> None:
        if told.seq > start.seq:
            # No event of this run as it is now: the id was made up, or is from after the backup that was restored. What
            # comes is sent from here on; to wait for that number would be to wait for ever.
            told = Cursor(seq=start.seq)
        self._told = told
        self._rows_due = start.seq
        self._iteration = start.iteration
        self._settled = set(start.settled)
        self._text = _Pieces()
        self._reasoning = _Pieces()
        self._early: list[tuple[LiveEntry, float]] = []
        self._shown: dict[int, ToolStartedFields] = {}
        """The starts that were sent of calls whose row has not come, by position."""
        self._open: set[int] = set()
        """Calls of this iteration whose start was sent, and whose end was not."""
        self._discarded = 0
        """The iteration whose reply was discarded last; the next one may be asked for although it has no reply."""
        self.is_over = start.is_ended and told.seq >= start.seq
        """Whether the last event of the run was sent, now or on an earlier connection."""

    @property
    def cursor(self) -> Cursor:
        return self._told

    @property
    def seq(self) -> int:
        """The number of the last row that was sent."""
        return self._told.seq

    @property
    def wants_rows(self) -> bool:
        """Whether live entries are kept back until rows come that must be sent before them, and that can be read
        now."""
        return bool(self._early)

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> list[WireEvent]:
        """Make the events for the rows that are new. ``usage`` is what the run has spent, for its last event."""
        events = [event for row in rows if row.seq > self._told.seq for event in self._translate_row(row, usage)]
        early, self._early = self._early, []
        return [*events, *(event for entry, at in early for event in self.translate_live(entry, at))]

    def translate_live(self, entry: LiveEntry, at: float) -> list[WireEvent]:
        """Make the events for a live entry that was written at ``at``: one, or none."""
        if self.is_over or entry.kind not in _TOLD_LIVE:
            return []
        if self._is_early(entry):
            if len(self._early) < _EARLY_MAX:
                self._early.append((entry, at))
            return []
        self._begin_account(entry)
        if _count_iterations_before(entry) < self._iteration:
            return []
        if entry.kind == "tool_progress":
            return list(self._translate_progress(entry, at))
        return list(self._start(entry, at) if entry.kind == "tool_started" else self._translate_piece(entry, at))

    # --- rows ---

    def _translate_row(self, row: StoredEvent, usage: Usage) -> Iterator[WireEvent]:
        match row.name:
            case RunEventName.MESSAGE_COMPLETED:
                yield from self._build_rest_of_reply(row)
                self._told = Cursor(seq=row.seq, iteration=row.data["iteration"])
                self._begin_iteration(self._told.iteration)
            case RunEventName.REPLY_DISCARDED:
                self._discard(row)
            case RunEventName.TOOL_STARTED if self._note_start(row):
                self._told = replace(self._told, seq=row.seq)
                return
            case RunEventName.TOOL_COMPLETED:
                self._open.discard(_read_later_position(row.data))
                self._told = replace(self._told, seq=row.seq)
            case _:
                self._told = replace(self._told, seq=row.seq)
        self.is_over = row.name in TERMINAL_EVENTS
        yield self._build_event(row.name, row.at, build_row_fields(row, usage))

    def _build_rest_of_reply(self, row: StoredEvent) -> Iterator[WireEvent]:
        """Make the events for the part of the reply that the reader has not got when ``row`` completes it."""
        before = row.data["iteration"] - 1
        if self._told.iteration != before:
            # What was sent ahead, if anything, was not of this reply.
            self._told = Cursor(seq=self._told.seq, iteration=before)
        reasoning = row.data.get("reasoning")
        if missing := self._told.reasoning.find_missing(reasoning if isinstance(reasoning, str) else ""):
            self._told = replace(self._told, reasoning=self._told.reasoning.advance(missing))
            yield self._build_event(REASONING_AVAILABLE, row.at, ReasoningFields(text=missing))
        if missing := self._told.text.find_missing(_read_text(row.data)):
            self._told = replace(self._told, text=self._told.text.advance(missing))
            yield self._build_event(MESSAGE_DELTA, row.at, MessageDeltaFields(delta=missing))

    def _discard(self, row: StoredEvent) -> None:
        """Forget what the reader got of a reply that will not be completed."""
        self._discarded = row.data["iteration"]
        self._told = Cursor(seq=row.seq, iteration=self._discarded - 1, void=row.seq)
        self._text, self._reasoning = _Pieces(), _Pieces()

    def _begin_iteration(self, iteration: int) -> None:
        if iteration > self._iteration:
            self._iteration = iteration
            self._settled.clear()
            self._open.clear()
            self._shown.clear()
            self._text, self._reasoning = _Pieces(), _Pieces()

    def _note_start(self, row: StoredEvent) -> bool:
        """Note that the row of a call's start has come. Returns whether the reader got the start before."""
        iteration, position = row.data["iteration"], row.data["position"]
        if iteration == self._iteration:
            self._settled.add(position)
            self._open.add(position)
        shown = self._shown.pop(position, None) if iteration == self._told.iteration else None
        if iteration != self._told.iteration or not self._told.started >> position & 1:
            return False
        self._told = replace(self._told, started=self._told.started & ~(1 << position))
        # What came over the broker was a preview. Where it differs from the row, the row is sent too.
        return shown is None or shown == _build_start_fields(row.data)

    # --- live entries ---

    def _is_early(self, entry: LiveEntry) -> bool:
        """Whether rows must be sent before this entry: the reply that asked for a tool, and the ends of all calls
        before the next reply."""
        before = _count_iterations_before(entry)
        is_next_reply = bool(self._open) and before == self._iteration and not entry.kind.startswith("tool_")
        return is_next_reply or self._told.seq < self._rows_due or before > max(self._iteration, self._discarded)

    def _begin_account(self, entry: LiveEntry) -> None:
        """Begin the account of the current reply: all rows that ``entry`` may depend on were sent."""
        self._begin_iteration(_count_iterations_before(entry))
        if self._told.iteration != self._iteration:
            self._told = Cursor(seq=self._told.seq, iteration=self._iteration)

    def _translate_piece(self, entry: LiveEntry, at: float) -> Iterator[WireEvent]:
        if entry.attempt < self._told.void:
            return
        if entry.kind == "tool":
            yield self._build_event(TOOL_GENERATING, at, ToolGeneratingFields(tool=entry.text))
        elif entry.kind == "text":
            if new := self._text.find_new_text(entry, self._told.text):
                self._told = replace(self._told, text=self._told.text.advance(new))
                yield self._build_event(MESSAGE_DELTA, at, MessageDeltaFields(delta=new))
        elif new := self._reasoning.find_new_text(entry, self._told.reasoning):
            self._told = replace(self._told, reasoning=self._told.reasoning.advance(new))
            yield self._build_event(REASONING_AVAILABLE, at, ReasoningFields(text=new))

    def _start(self, entry: LiveEntry, at: float) -> Iterator[WireEvent]:
        if entry.offset not in range(_CALLS_MAX) or entry.offset in self._settled:
            return
        fields = _parse_announced_start(entry.text)
        if fields is None:
            return
        shown = self._shown.setdefault(entry.offset, fields)
        if self._told.started >> entry.offset & 1:
            return
        self._open.add(entry.offset)
        self._told = replace(self._told, started=self._told.started | 1 << entry.offset)
        yield self._build_event(RunEventName.TOOL_STARTED, at, shown)

    def _translate_progress(self, entry: LiveEntry, at: float) -> Iterator[WireEvent]:
        """Make the event of a tool's progress. It previews nothing: no row will say it again."""
        match parse_json(entry.text):
            case {"tool": str(name), "text": str(text)} if entry.offset not in self._settled:
                fields = ToolProgressFields(tool=name, text=redact(text[:PROGRESS_CHARS_MAX]))
                if entry.offset > 0:
                    fields["position"] = entry.offset
                yield self._build_event(TOOL_PROGRESS, at, fields)

    def _build_event(self, name: str, at: float, fields: Mapping[str, Any]) -> WireEvent:
        return WireEvent(id=str(self._told), name=str(name), at=at, fields=fields)


class MergedView:
    """One reader's view of a run in a dialect: the dialect writes the events, and the merge knows where the reader
    stands."""

    def __init__(self, merge: Merge) -> None:
        self.merge = merge

    @property
    def seq(self) -> int:
        return self.merge.seq

    @property
    def is_over(self) -> bool:
        return self.merge.is_over

    @property
    def wants_rows(self) -> bool:
        return self.merge.wants_rows


def _count_iterations_before(entry: LiveEntry) -> int:
    """Count the iterations that had their reply, or lost it, before this entry was written."""
    return entry.iteration if entry.kind.startswith("tool_") else entry.iteration - 1
