"""Assemble one reply from the events of Anthropic's Messages API. Pure: no network, no clock.

The blocks of a reply are put together as they were sent, signatures included, and handed to the conversion as if they
had come in one piece. https://docs.anthropic.com/en/docs/build-with-claude/streaming (July 2026)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes_worker.core.json_values import read_mapping, read_text
from hermes_worker.core.messages import Delta, ModelReply
from hermes_worker.core.recovery.repair import to_plain_json
from hermes_worker.models.wires.chat_reply import (
    CutShort,
    MalformedReply,
    decide_finish_reason,
    join_pieces,
    make_ids_unique,
    parse_number,
    raise_reported,
)
from hermes_worker.models.wires.conversions.anthropic import ISSUER, from_message

_PIECE_OF = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""Kind of delta to the field in which it brings its piece."""


@dataclass(slots=True)
class _Block:
    """A content block that is still being sent."""

    fields: dict[str, Any]
    pieces: dict[str, list[str]]

    @property
    def kind(self) -> object:
        return self.fields.get("type")

    @property
    def arguments(self) -> str:
        """The input of a call as it was sent: JSON, if it is whole."""
        return join_pieces(self.pieces.get("partial_json", []))

    def finish_block(self) -> dict[str, Any]:
        grown = {name: join_pieces(pieces) for name, pieces in self.pieces.items() if name != "partial_json"}
        block = {**self.fields, **{name: f"{read_text(self.fields.get(name))}{text}" for name, text in grown.items()}}
        if self.kind == "tool_use" and (arguments := self.arguments):
            block["input"] = _parse_object(arguments)
        return block


class MessageAssembler:
    """Assembles a reply: ``feed`` it every event, in order, then ``finish`` it. ``on_delta`` gets each new piece as it
    comes.
    """

    def __init__(self, on_delta: Callable[[Delta], None], *, issuer: str = ISSUER) -> None:
        """``issuer`` is the one whose signature the thinking carries."""
        self._on_delta = on_delta
        self._issuer = issuer
        self._blocks: list[_Block] = []
        self._block_at: dict[int | None, _Block] = {}
        """The newest block of each index: some servers number every block 0, or none."""
        self._message: Mapping[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._stop_reason: object = None
        self._is_over = False

    @property
    def is_over(self) -> bool:
        return self._is_over

    @property
    def has_content(self) -> bool:
        return bool(self._blocks) or self._stop_reason is not None

    def feed(self, document: object) -> None:
        """Take the next event of the stream. Raises ``MalformedReply`` or ``StreamedError``."""
        event = read_mapping(document)
        match event.get("type"):
            case "content_block_delta":
                self._add_delta(parse_number(event.get("index")), read_mapping(event.get("delta")))
            case "content_block_start":
                self._begin_block(parse_number(event.get("index")), read_mapping(event.get("content_block")))
            case "message_start":
                self._message = read_mapping(event.get("message"))
                self._add_usage(self._message.get("usage"))
            case "message_delta":
                self._stop_reason = read_mapping(event.get("delta")).get("stop_reason") or self._stop_reason
                self._add_usage(event.get("usage"))
            case "message_stop":
                self._is_over = True
            case kind if kind == "error" or not isinstance(kind, str):
                raise_reported(event)
                raise MalformedReply("an event has no type")

    def feed_whole(self, document: object) -> None:
        """Take a message that was not streamed. Raises ``MalformedReply``, ``StreamedError``."""
        message = read_mapping(document)
        if "content" not in message:
            raise_reported(message)
        content = message.get("content")
        if not isinstance(content, list) or not (content or message.get("stop_reason") in _MAY_BE_EMPTY):
            raise MalformedReply("the reply has no content")
        self._message = message
        self._stop_reason = message.get("stop_reason")
        self._add_usage(message.get("usage"))
        for index, block in enumerate(content):
            self._begin_block(index, read_mapping(block))

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """Return the reply. ``was_cut_short`` says that the stream ended without its regular end.

        Text without an end counts as cut by a length limit, so that the loop asks to go on; what else had come of such
        a stream is dropped: calls may lack arguments, thinking its signature. Raises ``CutShort`` without any text.
        """
        blocks = self._blocks
        is_cut = was_cut_short and self._stop_reason is None
        calls = [block for block in blocks if block.kind == "tool_use"]
        if is_cut:
            blocks = [block for block in blocks if block.kind == "text"]
        reply = from_message(
            {
                "model": self._message.get("model"),
                "content": [block.finish_block() for block in blocks],
                "stop_reason": "max_tokens" if is_cut else self._stop_reason,
                "usage": self._usage,
            },
            issuer=self._issuer,
        )
        if not is_cut:
            return _restore_raw_arguments(reply, calls)
        if not reply.text:
            raise CutShort
        dropped = tuple(str(call.fields.get("name")) for call in calls)
        return replace(reply, was_cut_by_network=True, dropped_calls=dropped)

    def _begin_block(self, index: int | None, block: Mapping[str, Any]) -> None:
        if "type" not in block:
            raise MalformedReply("a block has no type")
        self._blocks.append(_Block(dict(block), {}))
        self._block_at[index] = self._block_at[None] = self._blocks[-1]
        match block.get("type"):
            case "text":
                self._publish_delta(text=block.get("text"))
            case "thinking":
                self._publish_delta(reasoning=block.get("thinking"))
            case "tool_use" if isinstance(block.get("name"), str):
                self._on_delta(Delta(tool_name=block["name"]))

    def _add_delta(self, index: int | None, delta: Mapping[str, Any]) -> None:
        block = self._block_at.get(index)
        if block is None:
            raise MalformedReply(f"a piece of block {index} came before the block")
        field = _PIECE_OF.get(read_text(delta.get("type")))
        piece = delta.get(field) if field else None
        if field is None or not isinstance(piece, str):
            return  # citations and kinds to come: nothing that we send back
        block.pieces.setdefault(field, []).append(piece)
        if field == "text":
            self._publish_delta(text=piece)
        elif field == "thinking":
            self._publish_delta(reasoning=piece)

    def _publish_delta(self, *, text: object = "", reasoning: object = "") -> None:
        if text and isinstance(text, str):
            self._on_delta(Delta(text=text))
        elif reasoning and isinstance(reasoning, str):
            self._on_delta(Delta(reasoning=reasoning))

    def _add_usage(self, usage: object) -> None:
        """Take over token counts. They are cumulative; a zero at the end does not take back what was counted at the
        start.
        """
        for name, value in read_mapping(usage).items():
            if value or name not in self._usage:
                self._usage[name] = value


_MAY_BE_EMPTY = ("end_turn", "refusal", "max_tokens", "stop_sequence", "model_context_window_exceeded")


def _restore_raw_arguments(reply: ModelReply, calls: list[_Block]) -> ModelReply:
    """Put back arguments that are no JSON object as they came, for the loop to judge; the conversion cannot express
    them.
    """
    requests = tuple(
        replace(request, arguments=call.arguments) if _is_not_an_object(call) else request
        for request, call in zip(reply.tool_requests, calls, strict=True)
    )
    unique = make_ids_unique(requests)
    fields = dict(reply.row_fields)
    if unique != requests:
        fields.pop("anthropic_content_blocks", None)  # they hold the ids as they came
    return replace(
        reply,
        tool_requests=unique,
        row_fields=fields,
        finish_reason=decide_finish_reason(reply.finish_reason, unique),
    )


def _is_not_an_object(call: _Block) -> bool:
    return bool(call.arguments) and not isinstance(_parse_json(call.arguments), dict)


def _parse_object(text: str) -> Mapping[str, Any]:
    return read_mapping(_parse_json(text))


def _parse_json(text: str) -> object:
    said = to_plain_json(text)
    return None if said is None else json.loads(said)
