"""Turn a run into the stream of a response: rows and live entries in, OpenAI's events out. Pure.

Theory of operation. A client that comes back says the last ``sequence_number`` that it has seen, to any replica, and
must get the rest. So numbers are made from what stands in rows, and from nothing else: each event takes one number, and
a piece of text takes as many as it has characters. However a text was cut on its way, the same place in it has the same
number. For a client that comes back, all events are made again from the first row, and those up to its number are
dropped; of a piece that was sent in part, the rest is sent.

| a run says "Hello" in two pieces | event | numbers |
|---|---|---|
| the run begins | ``response.created``, ``response.in_progress`` | 0, 1 |
| the message begins | ``response.output_item.added``, ``response.content_part.added`` | 2, 3 |
| "Hel" | ``response.output_text.delta`` | 4 to 6, sent as 6 |
| "lo" | ``response.output_text.delta`` | 7 to 8, sent as 8 |

A client that returns with 5 gets "l" as 6, and then "lo".

Two things are not in rows. A reply that was sent in part and then discarded, or asked for again, is sent no further;
its item ends with the right text, and numbers go on behind the longer of the two. And a client whose number lies behind
the end of a run still learns that the run has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.api.openai.response_objects import PartName, build_call_item, build_function_item, build_message_item
from hermes_worker.core.client_tools import IS_CLIENTS, HandedReply, HandoverWatch
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import TERMINAL_EVENTS, RunEventName, StoredEvent
from hermes_worker.stream import sse
from hermes_worker.stream.live import LiveEntry
from hermes_worker.stream.wire_events import MESSAGE_DELTA, WireEvent

LAST = "response.end"
"""A placeholder for the last event, whose name says how the response ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseEvent:
    """One event, without what has to be read from the database first."""

    kind: str
    number: int
    fields: Mapping[str, Any]
    wants_response: bool = False
    """Whether the response goes with it, as it is when the event is sent."""
    item_index: int | None = None
    """The place of the item that goes with it, as it is when the event is sent."""
    is_handover: bool = False
    """Whether the part ended because the rest is left to its client."""


@dataclass(slots=True)
class _OpenText:
    """A message that is being written."""

    index: int
    began_at: int
    """The number of the event before its first character."""
    is_void: bool = False
    """Whether the text that was sent will not be the text of the message."""


class ResponseTeller(sse.MergedView):
    """Makes the events of one part of a run for one reader, without those up to the number ``seen``."""

    def __init__(
        self,
        of: PartName,
        start: sse.StreamStart,
        *,
        before: HandedReply | None = None,
        of_client: Collection[str] = (),
        seen: int = -1,
    ) -> None:
        """``before`` is the reply behind which the part begins; ``of_client`` names the tools of the client."""
        self._of = of
        told = sse.Cursor(seq=before.event_seq, iteration=before.iteration) if before else sse.Cursor()
        super().__init__(sse.Merge(told, start))
        self.handover = HandoverWatch()
        self._of_client = of_client
        self._seen = seen
        self._number = -1
        self._items = 0
        self._text: _OpenText | None = None
        self._calls: dict[tuple[int, int], int] = {}
        """The places of the items of calls, by iteration and position."""

    def begin(self) -> Sequence[ResponseEvent]:
        """Make the events with which every stream begins."""
        kinds = ("response.created", "response.in_progress")
        return [event for kind in kinds for event in self._emit_event(kind, {}, wants_response=True)]

    @property
    def is_over(self) -> bool:
        return self.handover.is_handed_over or self.merge.is_over

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[ResponseEvent]:
        return [event for row in rows if not self.is_over for event in self._translate_row(row, usage)]

    def translate_live(self, entry: LiveEntry, at: float) -> Sequence[ResponseEvent]:
        if entry.kind != "text" or self.is_over:
            return ()  # events about tools come from rows
        return [event for told in self.merge.translate_live(entry, at) for event in self._translate(told)]

    def _translate_row(self, row: StoredEvent, usage: Usage) -> Iterator[ResponseEvent]:
        for told in self.merge.translate_rows([row], usage):
            yield from self._translate(told)
        self.handover.add_event(row)
        match row.name:
            case RunEventName.MESSAGE_COMPLETED:
                yield from self._complete(row)
            case RunEventName.REPLY_DISCARDED if self._text is not None:
                self._text.is_void = True
            case RunEventName.TOOL_COMPLETED:
                yield from self._end_call(row)
            case RunEventName.INPUT_REQUESTED if row.data.get(IS_CLIENTS):
                yield from self._hand_call(row)
            case name if name in TERMINAL_EVENTS:
                yield from self._end()
        if self.handover.is_handed_over:
            yield from self._end(is_handover=True)

    # --- texts ---

    def _translate(self, event: WireEvent) -> Iterator[ResponseEvent]:
        if event.name != MESSAGE_DELTA:
            return
        text = self._text
        if text is None:
            text = yield from self._open()
        if not text.is_void:
            yield from self._emit_delta(text, event.fields["delta"])

    def _open(self) -> Generator[ResponseEvent, None, _OpenText]:
        index = self._items
        self._items += 1
        item = build_message_item(self._of, index, None)
        yield from self._emit_event("response.output_item.added", {"output_index": index, "item": item})
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._emit_event("response.content_part.added", {**self._build_place(index), "part": part})
        self._text = _OpenText(index, self._number)
        return self._text

    def _emit_delta(self, text: _OpenText, delta: str) -> Iterator[ResponseEvent]:
        known = max(0, self._seen - self._number)
        self._number += len(delta)
        if rest := delta[known:]:
            fields = {**self._build_place(text.index), "delta": rest, "logprobs": []}
            yield ResponseEvent(kind="response.output_text.delta", number=self._number, fields=fields)

    def _complete(self, row: StoredEvent) -> Iterator[ResponseEvent]:
        """Make the events for a reply that became a row: its text ends as the row says, and its calls are known."""
        whole = row.data.get("text")
        whole = whole if isinstance(whole, str) else ""
        text = self._text
        if text is None and whole:
            text = yield from self._open()  # something else was told before and discarded
        if text is not None:
            self._number = max(self._number, text.began_at + len(whole))
            yield from self._close(text, whole)
        for position, call in enumerate(row.data.get("tool_calls") or ()):
            index = self._calls[row.data["iteration"], position] = self._items
            self._items += 1
            item = self._call_item(index, position, call)
            yield from self._emit_event("response.output_item.added", {"output_index": index, "item": item})

    def _close(self, text: _OpenText, whole: str) -> Iterator[ResponseEvent]:
        self._text = None
        item = build_message_item(self._of, text.index, whole)
        place = self._build_place(text.index)
        yield from self._emit_event("response.output_text.done", {**place, "text": whole, "logprobs": []})
        yield from self._emit_event("response.content_part.done", {**place, "part": item["content"][0]})
        yield from self._emit_event("response.output_item.done", {"output_index": text.index, "item": item})

    # --- calls, and the end ---

    def _end_call(self, row: StoredEvent) -> Iterator[ResponseEvent]:
        index = self._calls.pop((row.data.get("iteration", 0), row.data.get("position", 0)), None)
        if index is not None:
            yield from self._emit_event("response.output_item.done", {"output_index": index}, item_index=index)

    def _call_item(self, index: int, position: int, call: Mapping[str, Any]) -> dict[str, Any]:
        told = self.handover.call(position)
        if told.name not in self._of_client:
            return build_call_item(self._of, index, call, None)
        return build_function_item(self._of, index, told, self.handover.iteration, is_told=False)

    def _hand_call(self, row: StoredEvent) -> Iterator[ResponseEvent]:
        """Make the events for a call that is left to the client; its arguments are sent in one piece."""
        index = self._calls.pop((row.data["iteration"], row.data["position"]), None)
        if index is None:
            return
        call = self.handover.call(row.data["position"])
        item = build_function_item(self._of, index, call, self.handover.iteration)
        place = {"item_id": item["id"], "output_index": index}
        yield from self._emit_event("response.function_call_arguments.delta", {**place, "delta": call.arguments})
        told = {**place, "name": call.name, "arguments": call.arguments}
        yield from self._emit_event("response.function_call_arguments.done", told)
        yield from self._emit_event("response.output_item.done", {"output_index": index, "item": item})

    def _end(self, *, is_handover: bool = False) -> Iterator[ResponseEvent]:
        if self._seen > self._number + 1:
            self._number = self._seen  # told of a text that was discarded since; the end is news all the same
        yield from self._emit_event(LAST, {}, wants_response=True, is_handover=is_handover)

    def _build_place(self, index: int) -> dict[str, Any]:
        return {"item_id": build_message_item(self._of, index, None)["id"], "output_index": index, "content_index": 0}

    def _emit_event(self, kind: str, fields: Mapping[str, Any], **wants: Any) -> Iterator[ResponseEvent]:
        self._number += 1
        if self._number > self._seen:
            yield ResponseEvent(kind=kind, number=self._number, fields=fields, **wants)
