"""Assemble one reply from the chunks of Gemini's own API. Pure: no network, no clock.

A chunk is a ``GenerateContentResponse``; a reply that is not streamed is one. Shapes as in the types of google-genai
3.4 (November 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hermes_worker.core.json_values import read_count, read_list, read_mapping, read_text
from hermes_worker.core.messages import Delta, ModelReply, ToolRequest, Usage
from hermes_worker.core.recovery.repair import dump_arguments
from hermes_worker.models.wires.chat_reply import (
    CutShort,
    MalformedReply,
    decide_finish_reason,
    join_pieces,
    make_call_id,
    make_ids_unique,
    raise_reported,
)

_FINISH_REASONS: Mapping[str, str] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    "SAFETY": "content_filter",
    "RECITATION": "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
"""Anything else counts as ``stop``: a call that the model wrote wrongly is no call."""


class GeminiAssembler:
    """Assembles a reply: ``feed`` it every chunk, in order, then ``finish`` it. ``on_delta`` gets each new piece as it
    comes.
    """

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolRequest] = []
        self._finish_reason: str | None = None
        self._blocked = ""
        self._usage: Mapping[str, Any] = {}
        self._model = ""

    @property
    def is_over(self) -> bool:
        return self._finish_reason is not None and "candidatesTokenCount" in self._usage

    @property
    def has_content(self) -> bool:
        return bool(self._text or self._calls or self._finish_reason)

    def feed(self, document: object) -> None:
        """Take the next chunk of the stream. Raises ``MalformedReply`` or ``StreamedError``."""
        if not isinstance(document, dict):
            raise MalformedReply(f"expected a JSON object, got {type(document).__name__}")
        if "candidates" not in document:
            raise_reported(document)
        for candidate in _list_objects(document.get("candidates")):
            if not candidate.get("index"):
                self._feed_candidate(candidate)
        self._usage = {**self._usage, **read_mapping(document.get("usageMetadata"))}
        self._model = self._model or read_text(document.get("modelVersion"))
        if blocked := read_text(read_mapping(document.get("promptFeedback")).get("blockReason")):
            self._blocked, self._finish_reason = blocked, "content_filter"

    def feed_whole(self, document: object) -> None:
        """Take a reply that was not streamed. Raises ``MalformedReply``, ``StreamedError``."""
        self.feed(document)
        if not self.has_content:
            raise MalformedReply("the reply has no candidates")

    def finish(self, *, was_cut_short: bool = False) -> ModelReply:
        """Return the reply. ``was_cut_short`` says that the stream ended without its regular end.

        Text without an end counts as cut by a length limit, so that the loop asks to go on; calls of such a stream are
        dropped. Raises ``CutShort`` when no text had come.
        """
        is_cut = was_cut_short and self._finish_reason is None
        if is_cut and not self._text:
            raise CutShort
        requests = () if is_cut else make_ids_unique(tuple(self._calls))
        reason = "length" if is_cut else self._finish_reason or "stop"
        return ModelReply(
            text=join_pieces(self._text),
            tool_requests=requests,
            reasoning=join_pieces(self._reasoning) or None,
            finish_reason=decide_finish_reason(reason, requests),
            usage=parse_usage(self._usage),
            model=self._model,
            was_cut_by_network=is_cut,
            dropped_calls=tuple(call.name for call in self._calls) if is_cut else (),
        )

    def _feed_candidate(self, candidate: Mapping[str, Any]) -> None:
        for part in _list_objects(read_mapping(candidate.get("content")).get("parts")):
            if isinstance(text := part.get("text"), str) and text:
                self._add_text(text, is_thought=bool(part.get("thought")))
            elif isinstance(call := part.get("functionCall"), dict):
                self._calls.append(self._build_request(call, part))
                self._on_delta(Delta(tool_name=self._calls[-1].name))
        if reason := candidate.get("finishReason"):
            self._finish_reason = _FINISH_REASONS.get(str(reason), "stop")

    def _add_text(self, text: str, *, is_thought: bool) -> None:
        if is_thought:
            self._reasoning.append(text)
            self._on_delta(Delta(reasoning=text))
        else:
            self._text.append(text)
            self._on_delta(Delta(text=text))

    def _build_request(self, call: Mapping[str, Any], part: Mapping[str, Any]) -> ToolRequest:
        name = read_text(call.get("name"))
        said = call.get("args")
        arguments = said if isinstance(said, str) else dump_arguments(said or {})
        signature = read_text(part.get("thoughtSignature"))
        signed = {"extra_content": {"google": {"thought_signature": signature}}} if signature else {}
        return ToolRequest(
            id=read_text(call.get("id")) or make_call_id(name, arguments, len(self._calls)),
            name=name,
            arguments=arguments,
            row_fields=signed,
        )


def parse_usage(usage: Mapping[str, Any]) -> Usage:
    """Token counts with the cached ones taken out of ``input``; thinking is part of the output."""
    cached = read_count(usage.get("cachedContentTokenCount"))
    thoughts = read_count(usage.get("thoughtsTokenCount"))
    read = read_count(usage.get("promptTokenCount")) + read_count(usage.get("toolUsePromptTokenCount"))
    return Usage(
        input=max(0, read - cached),
        output=read_count(usage.get("candidatesTokenCount")) + thoughts,
        cache_read=cached,
        reasoning=thoughts,
    )


def _list_objects(value: object) -> list[dict[str, Any]]:
    return [item for item in read_list(value) if isinstance(item, dict)]
