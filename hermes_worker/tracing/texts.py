"""Texts of people, models and tools as attributes of spans: without secrets, and of bounded length. Pure.

Messages are written as the semantic conventions for generative AI have them: a role, and parts of a type.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from hermes_worker.core.messages import Message, ModelReply, dump_canonical_json
from hermes_worker.safety.redaction import Redactor

TEXT_CHARS_MAX = 16_000
"""Characters of one attribute. Collectors drop much larger ones."""
_LOOKED_AT_CHARS_MAX = 4 * TEXT_CHARS_MAX
"""Characters in which secrets are looked for. Fewer are shown, so half a secret is never shown."""


def redact_and_cut(text: str, redactor: Redactor, chars_max: int = TEXT_CHARS_MAX) -> str:
    """``text`` without secrets, cut where it is too long."""
    hidden = redactor.redact_text(text[:_LOOKED_AT_CHARS_MAX])
    return hidden if len(hidden) <= chars_max and len(text) <= _LOOKED_AT_CHARS_MAX else f"{hidden[:chars_max]}[...]"


def render_told(rows: Sequence[Message], redactor: Redactor) -> str:
    """The messages to the model since its last reply."""
    answered = next((place for place in range(len(rows), 0, -1) if rows[place - 1].role == "assistant"), 0)
    return _render_document(
        [{"role": row.role, "parts": list(_iterate_message_parts(row))} for row in rows[answered:]], redactor
    )


def render_reply(reply: ModelReply, redactor: Redactor) -> str:
    """The model's answer, its tool calls included."""
    parts: list[dict[str, str]] = [{"type": "text", "content": reply.text}] if reply.text else []
    for call in reply.tool_requests:
        parts.append({"type": "tool_call", "id": call.id, "name": call.name, "arguments": call.arguments})
    return _render_document([{"role": "assistant", "parts": parts, "finish_reason": reply.finish_reason}], redactor)


def _iterate_message_parts(row: Message) -> Iterator[dict[str, str]]:
    body: dict[str, Any] = json.loads(row.body)
    content = body.get("content")
    for part in content if isinstance(content, list) else [{"type": "text", "text": content}]:
        text = part.get("text")
        if not isinstance(text, str):
            yield {"type": str(part.get("type"))}  # an image or a file, which is not shown
        elif row.role == "tool":
            yield {"type": "tool_call_response", "id": str(body.get("tool_call_id")), "response": text}
        else:
            yield {"type": "text", "content": text}


def _render_document(messages: list[dict[str, Any]], redactor: Redactor) -> str:
    """The messages as JSON. All texts together have a bounded number of characters."""
    left = TEXT_CHARS_MAX
    for part in (part for message in messages for part in message["parts"]):
        for name in ("content", "response", "arguments"):
            if name in part:
                part[name] = redact_and_cut(part[name], redactor, max(0, left))
                left -= len(part[name])
    return dump_canonical_json(messages)
