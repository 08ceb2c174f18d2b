"""Assemble one reply from the events of the Responses API. Pure: no network, no clock.

The last event of a stream repeats the whole response, except on the ChatGPT backend, whose last event comes empty; so
the items are gathered as they are finished. https://platform.openai.com/docs/api-reference/responses-streaming (July
2026)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import Any

from hermes_worker.core.json_values import read_mapping, read_text
from hermes_worker.core.messages import Delta, ModelReply
from hermes_worker.models.wires.chat_reply import (
    CutShort,
    MalformedReply,
    StreamedError,
    join_pieces,
    make_ids_unique,
    parse_number,
    raise_reported,
)
from hermes_worker.models.wires.conversions.responses import FailedResponse, from_response, parse_usage

_LAST_EVENTS = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_CALLS = frozenset({"function_call", "custom_tool_call"})
_COMMENTARY = frozenset({"commentary", "analysis"})


class ResponseAssembler:
    """Assembles a reply: ``feed`` it every event, in order, then ``finish`` it. ``on_delta`` gets each new piece as it
    comes.
    """

    def __init__(self, on_delta: Callable[[Delta], None], *, issuer: str) -> None:
        self._on_delta = on_delta
        self._issuer = issuer
        self._items: dict[tuple[int, str], Mapping[str, Any]] = {}
        """Items by index and id: some servers number every item 0, or not at all."""
        self._thinks_aloud: set[int] = set()
        """Messages that are notes on the way: they are shown as reasoning."""
        self._text: list[str] = []
        self._has_answered = False
        """Some of the text is more than a refusal."""
        self._reasoning: list[str] = []
        self._text_item = self._reasoning_item = -1
        self._calls: list[str] = []
        self._model = ""
        self._usage: object = None
        self._reply: ModelReply | None = None

    @property
    def is_over(self) -> bool:
        return self._reply is not None

    @property
    def has_content(self) -> bool:
        return self._reply is not None

    def feed(self, document: object) -> None:
        """Take the next event of the stream. Raises ``MalformedReply`` or ``StreamedError``."""
        event = read_mapping(document)
        kind = event.get("type")
        match kind:
            case "response.output_text.delta" | "response.refusal.delta":
                self._has_answered |= kind == "response.output_text.delta"
                self._add_text(_read_index(event), event.get("delta"))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_reasoning(_read_index(event), event.get("delta"))
            case "response.reasoning_summary_part.added" if event.get("summary_index"):
                self._publish_reasoning("\n")
            case "response.output_item.added":
                self._begin_item(_read_index(event), read_mapping(event.get("item")))
            case "response.output_item.done":
                item = read_mapping(event.get("item"))
                self._items[_read_index(event), read_text(item.get("call_id") or item.get("id"))] = item
            case "response.created" | "response.in_progress":
                self._model = read_text(read_mapping(event.get("response")).get("model"))
            case _ if kind in _LAST_EVENTS:
                self._reply = self._build_reply(read_mapping(event.get("response")))
            case _ if kind == "error" or not isinstance(kind, str):
                raise_reported(event)
                raise MalformedReply("an event has no type")

    def feed_whole(self, document: object) -> None:
        """Take a response that was not streamed. Raises ``MalformedReply``, ``StreamedError``."""
        response = read_mapping(document)
        if "output" not in response and "output_text" not in response and response.get("status") is None:
            raise_reported(response)
            raise MalformedReply("the reply has no output")
        reply = self._reply = self._build_reply(response)
        if reply.reasoning:
            self._on_delta(Delta(reasoning=reply.reasoning))
        if reply.text:
            self._on_delta(Delta(text=reply.text))
        for request in reply.tool_requests:
            self._on_delta(Delta(tool_name=request.name))

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """Return the reply. A stream without its last event was cut short, whatever ``was_cut_short`` says.

        Text counts then as cut by a length limit, so that the loop asks to go on; what else had come is dropped. The
        beginning of a refusal is a refusal. Raises ``CutShort`` without any text.
        """
        if self._reply is not None:
            return self._reply
        if not self._text:
            raise CutShort
        return ModelReply(
            text=join_pieces(self._text),
            reasoning=join_pieces(self._reasoning) or None,
            finish_reason="length" if self._has_answered else "content_filter",
            usage=parse_usage(self._usage),
            model=self._model,
            was_cut_by_network=self._has_answered,
            dropped_calls=tuple(self._calls),
        )

    def _build_reply(self, response: Mapping[str, Any]) -> ModelReply:
        output = response.get("output") or [self._items[key] for key in sorted(self._items, key=itemgetter(0))]
        shown = response.get("output_text") or ("" if output else join_pieces(self._text))
        try:
            reply = from_response({**response, "output": output, "output_text": shown}, issuer=self._issuer)
        except FailedResponse as error:
            told = read_mapping(error.body.get("error"))
            raise StreamedError({**told, "message": str(error)}) from error
        streamed = join_pieces(self._text)
        is_refusal = not output and bool(streamed) and not self._has_answered
        return replace(
            reply,
            text=streamed if streamed.strip() == reply.text.strip() else reply.text,
            tool_requests=make_ids_unique(reply.tool_requests),
            finish_reason="content_filter" if is_refusal else reply.finish_reason,
            model=reply.model or self._model,
        )

    def _begin_item(self, index: int, item: Mapping[str, Any]) -> None:
        name = item.get("name")
        if item.get("type") in _CALLS and isinstance(name, str) and name:
            self._calls.append(name)
            self._on_delta(Delta(tool_name=name))
        elif item.get("type") == "message" and read_text(item.get("phase")).lower() in _COMMENTARY:
            self._thinks_aloud.add(index)

    def _add_text(self, index: int, piece: object) -> None:
        if index in self._thinks_aloud:
            self._add_reasoning(index, piece)
            return
        if isinstance(piece, str) and piece:
            if self._text and index != self._text_item:
                piece = f"\n{piece}"  # as the conversion joins the texts of several messages
            self._text_item = index
            self._text.append(piece)
            self._on_delta(Delta(text=piece))

    def _add_reasoning(self, index: int, piece: object) -> None:
        if isinstance(piece, str) and piece:
            if self._reasoning and index != self._reasoning_item:
                piece = f"\n\n{piece}"
            self._reasoning_item = index
            self._publish_reasoning(piece)

    def _publish_reasoning(self, piece: str) -> None:
        self._reasoning.append(piece)
        self._on_delta(Delta(reasoning=piece))


def _read_index(event: Mapping[str, Any]) -> int:
    index = parse_number(event.get("output_index", 0))
    if index is None:
        raise MalformedReply("the index of an item is no number")
    return index
