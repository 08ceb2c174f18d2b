"""Assemble one reply from the events of Bedrock's Converse API. Pure: no network, no clock.

Converse writes the blocks of a reply as Anthropic does, under other names, so its events are translated for the
assembler of that wire. Shapes as in botocore's service model ``bedrock-runtime`` (1.44, November 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hermes_worker.core.json_values import read_mapping
from hermes_worker.core.messages import Delta, ModelReply
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.models.wires.chat_reply import MalformedReply
from hermes_worker.models.wires.conversions.converse import to_anthropic_block

_STOP_REASONS: Mapping[str, str] = {
    "guardrail_intervened": "refusal",
    "content_filtered": "refusal",
    "malformed_model_output": "end_turn",
    "malformed_tool_use": "end_turn",
}
"""Converse's stop reasons where Anthropic's name differs."""
_COUNTS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadInputTokens": "cache_read_input_tokens",
    "cacheWriteInputTokens": "cache_creation_input_tokens",
}


class ConverseAssembler:
    """Assembles a reply: ``feed`` it every event, in order, then ``finish`` it. ``on_delta`` gets each new piece as it
    comes.
    """

    def __init__(self, on_delta: Callable[[Delta], None], *, model: str, issuer: str) -> None:
        """Converse does not repeat the ``model``, so it is the requested one; ``issuer`` is the one whose signature the
        thinking carries.
        """
        self._messages = MessageAssembler(on_delta, issuer=issuer)
        self._messages.feed({"type": "message_start", "message": {"model": model}})
        self._model = model
        self._begun: set[int] = set()
        self._has_stopped = self._has_counted = False

    @property
    def is_over(self) -> bool:
        """Whether the token counts have come, which come last."""
        return self._has_stopped and self._has_counted

    @property
    def has_content(self) -> bool:
        return self._messages.has_content

    def feed(self, document: object) -> None:
        """Take the next event of the stream. Raises ``MalformedReply``."""
        for name, event in read_mapping(document).items():
            said = read_mapping(event)
            match name:
                case "contentBlockStart":
                    self._begin_block(_read_index(said), read_mapping(said.get("start")))
                case "contentBlockDelta":
                    self._add_delta(_read_index(said), read_mapping(said.get("delta")))
                case "messageStop":
                    self._has_stopped = True
                    self._feed_stop(said.get("stopReason"))
                case "metadata":
                    self._has_counted = True
                    self._messages.feed({"type": "message_delta", "usage": convert_usage(said.get("usage"))})

    def feed_whole(self, document: object) -> None:
        """Take a reply of ``Converse``, which does not stream. Raises ``MalformedReply`` when it is no reply."""
        said = read_mapping(document)
        message = read_mapping(read_mapping(said.get("output")).get("message"))
        content = message.get("content")
        if not isinstance(content, list):
            raise MalformedReply("the reply has no output")
        self._messages.feed_whole(
            {
                "model": self._model,
                "content": [block for part in content if (block := to_anthropic_block(part)) is not None],
                "stop_reason": _stop_reason(said.get("stopReason")),
                "usage": convert_usage(said.get("usage")),
            }
        )

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """The reply. Raises ``CutShort`` when it broke off before any text of it had come."""
        return self._messages.finish(was_cut_short=was_cut_short)

    def _begin_block(self, index: int, start: Mapping[str, Any]) -> None:
        used = start.get("toolUse")
        if isinstance(used, Mapping):
            self._feed_start(
                index, {"type": "tool_use", "id": used.get("toolUseId"), "name": used.get("name"), "input": {}}
            )

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        """Add a piece. Only calls are announced: text and thinking begin with their first piece."""
        if isinstance(text := delta.get("text"), str):
            self._feed_start(index, {"type": "text", "text": ""})
            self._feed_delta(index, {"type": "text_delta", "text": text})
        elif isinstance(used := delta.get("toolUse"), Mapping):
            if index not in self._begun:
                raise MalformedReply(f"a piece of block {index} came before the block")
            self._feed_delta(index, {"type": "input_json_delta", "partial_json": used.get("input")})
        elif isinstance(thought := delta.get("reasoningContent"), Mapping):
            self._add_thinking(index, thought)

    def _add_thinking(self, index: int, thought: Mapping[str, Any]) -> None:
        if isinstance(hidden := thought.get("redactedContent"), str):
            self._feed_start(index, {"type": "redacted_thinking", "data": hidden})
            return
        self._feed_start(index, {"type": "thinking", "thinking": "", "signature": ""})
        if isinstance(text := thought.get("text"), str):
            self._feed_delta(index, {"type": "thinking_delta", "thinking": text})
        if isinstance(signature := thought.get("signature"), str):
            self._feed_delta(index, {"type": "signature_delta", "signature": signature})

    def _feed_start(self, index: int, block: Mapping[str, Any]) -> None:
        if index not in self._begun:
            self._begun.add(index)
            self._messages.feed({"type": "content_block_start", "index": index, "content_block": dict(block)})

    def _feed_delta(self, index: int, delta: Mapping[str, Any]) -> None:
        self._messages.feed({"type": "content_block_delta", "index": index, "delta": dict(delta)})

    def _feed_stop(self, reason: object) -> None:
        self._messages.feed({"type": "message_delta", "delta": {"stop_reason": _stop_reason(reason)}})


def convert_usage(usage: object) -> dict[str, Any]:
    """Token counts under Anthropic's names; cached tokens are not part of the input on either side."""
    return {ours: count for theirs, ours in _COUNTS.items() if (count := read_mapping(usage).get(theirs)) is not None}


def _stop_reason(reason: object) -> str:
    text = reason if isinstance(reason, str) else "end_turn"
    return _STOP_REASONS.get(text, text)


def _read_index(event: Mapping[str, Any]) -> int:
    index = event.get("contentBlockIndex")
    if not isinstance(index, int):
        raise MalformedReply("an event of a block has no index")
    return index
