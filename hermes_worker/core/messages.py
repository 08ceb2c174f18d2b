"""The values that travel between the transcript, the model and the tools.

A message row is stored as *canonical JSON*: compact, sorted keys, no ASCII escaping of what UTF-8 can carry. The
same row therefore gives the same bytes on whichever worker the next prompt is built (invariant I7).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

from hermes_worker.core.rate_limits import RateLimits

_CANONICAL = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
_SURROGATE = re.compile("[\ud800-\udfff]")


RESULT_KEY_PREFIX = "result:"
"""Begins the key of a session document that holds the full text of a long result; its digest follows."""


THINKER_FIELD = "_thinker"
"""Field of an assistant's row: which model its reasoning belongs to (``models.catalog.find_thinker``)."""


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


def dump_canonical_json(value: object) -> str:
    """Compact JSON with sorted keys. Lone surrogates become U+FFFD, so that the result always encodes to UTF-8."""
    text = _CANONICAL.encode(value)
    return _SURROGATE.sub("\ufffd", text) if _has_surrogate(text) else text


def _has_surrogate(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One row of a transcript: its position in the session and its canonical JSON in chat-completions form."""

    seq: int
    role: Role
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one or more model calls. ``input`` excludes cached tokens; ``output`` includes reasoning. Attempts of
    unknown outcome (design D17) are counted apart from what is certain: they may have been billed."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    estimated: int = 0
    """How many of these tokens were estimated from the size of texts, because the provider did not count them."""
    refused_attempts: int = 0
    """Requests that were answered by an error and not billed."""
    unknown_attempts: int = 0
    """Requests that were or may have been sent, and whose reply was not written."""
    unknown_input: int = 0
    """Tokens of those requests, as estimated; not in ``total``."""
    unknown_output: int = 0
    """Tokens of the replies to them, as estimated; not in ``total``."""

    @property
    def total(self) -> int:
        return self.input + self.cache_read + self.cache_write + self.output

    @property
    def chargeable(self) -> int:
        """Tokens that count against a limit: the certain ones and those that may have been billed beside them."""
        return self.total + self.unknown_input + self.unknown_output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cache_read=self.cache_read + other.cache_read,
            cache_write=self.cache_write + other.cache_write,
            reasoning=self.reasoning + other.reasoning,
            estimated=self.estimated + other.estimated,
            refused_attempts=self.refused_attempts + other.refused_attempts,
            unknown_attempts=self.unknown_attempts + other.unknown_attempts,
            unknown_input=self.unknown_input + other.unknown_input,
            unknown_output=self.unknown_output + other.unknown_output,
        )


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A tool call as the model asked for it. ``arguments`` is the JSON text exactly as received."""

    id: str
    name: str
    arguments: str
    row_fields: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Opaque fields of the stored call that the provider wants back with it, such as Gemini's thought signature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """Everything one model call needs. ``messages`` and ``tools`` are JSON already, so that a wire can hand the
    SDK bytes instead of objects (design D13)."""

    model: str
    messages: Sequence[str]
    """Canonical JSON of each row, system row first."""
    tools: Sequence[str] = ()
    """Canonical JSON of each chat-completions tool definition; empty for a tool-less call."""
    forced_tools: Sequence[str] = ()
    """Names among ``tools``, one of which the reply has to call; empty where the model is free."""
    output_tokens_max: int | None = None
    session_id: str = ""
    """Stable per conversation; a wire may use it as a prompt-cache key."""
    reasoning_effort: str | None = None
    """``minimal`` to ``max``, or ``none`` for no reasoning; ``None`` leaves it to the wire."""
    replays_reasoning: bool = True
    """Send signed or encrypted reasoning back. Off once the endpoint has rejected it in this turn."""
    window: int | None = None
    """The model's context window in tokens, where it is known."""
    extra_body: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """One complete reply of the model."""

    text: str
    tool_requests: tuple[ToolRequest, ...] = ()
    reasoning: str | None = None
    finish_reason: str = "stop"
    """``stop``, ``tool_calls``, ``length``, ``content_filter`` or ``incomplete``."""
    usage: Usage = field(default_factory=Usage)
    model: str = ""
    row_fields: Mapping[str, object] = field(default_factory=dict)
    """Opaque fields of the stored row that the provider wants back with it, such as signed or encrypted reasoning.
    ``agent.prompt.pipeline.WireNeeds`` says to whom they are sent."""
    was_cut_by_network: bool = False
    """``length`` stands for a stream that broke off, not for a limit."""
    was_cut_by_limit: bool = False
    """``incomplete`` stands for the output limit: the text stops in the middle (Responses API)."""
    dropped_calls: tuple[str, ...] = ()
    """Names of tool calls that were lost with the stream."""
    limits: RateLimits | None = None
    """The credential's rate limits, from the response's headers; ``None`` when it has none."""
    cost_usd: Decimal | None = None
    """US dollars that the provider says it billed; ``None`` when it does not say (only OpenRouter does)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """A piece of a reply that is still being streamed. Exactly one field is set."""

    text: str = ""
    reasoning: str = ""
    tool_name: str = ""
    """Sent once per tool call, when its name is first seen."""


def build_assistant_body(reply: ModelReply) -> str:
    """Build the stored row of a reply."""
    row: dict[str, object] = {**reply.row_fields, "role": "assistant", "content": reply.text or None}
    if reply.tool_requests:
        row["tool_calls"] = [
            {**r.row_fields, "id": r.id, "type": "function", "function": {"name": r.name, "arguments": r.arguments}}
            for r in reply.tool_requests
        ]
    elif not reply.text:
        row["content"] = ""
    if reply.reasoning:
        row["reasoning"] = reply.reasoning
    return dump_canonical_json(row)


def build_tool_body(tool_call_id: str, content: str) -> str:
    """Build the stored row of a tool's result."""
    return dump_canonical_json({"role": "tool", "tool_call_id": tool_call_id, "content": content})


def build_user_body(content: object) -> str:
    """Build the stored row of a user's message: a string, or a list of content parts."""
    return dump_canonical_json({"role": "user", "content": content})
