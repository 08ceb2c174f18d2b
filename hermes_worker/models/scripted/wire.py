"""The reply in OpenAI's chat-completions format, streamed or whole."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence

from hermes_worker.models.scripted.reply import Reply, ScriptedCall

CHARS_PER_TOKEN = 4
CACHED_BLOCK_TOKENS = 128
CACHED_MIN_TOKENS = 1_024
"""Real prefix caches remember whole blocks, and nothing below a minimum; these are OpenAI's numbers."""


def estimate_usage(request: Mapping[str, object], reply: Reply) -> dict[str, object]:
    """Tokens as a real provider would report them, counted as a quarter of the characters.

    Input is the text of all messages and tools. Cached is what the previous request of the same conversation must have
    put into a prefix cache: everything before the newest assistant row. Output is text, reasoning and arguments.
    """
    messages = request.get("messages")
    rows = messages if isinstance(messages, list) else []
    sizes = [len(_dump_compactly(row)) for row in rows]
    tools_size = len(_dump_compactly(request.get("tools") or []))
    known = next((n for n in range(len(rows) - 1, -1, -1) if _is_assistant(rows[n])), 0)
    prompt = _count_tokens(sum(sizes) + tools_size)
    seen_before = _count_tokens(sum(sizes[:known]) + tools_size) if known else 0
    cached = seen_before - seen_before % CACHED_BLOCK_TOKENS if seen_before >= CACHED_MIN_TOKENS else 0
    reasoning = _count_tokens(len(reply.reasoning))
    spoken = len(reply.text) + sum(len(call.name) + len(call.arguments_text) for call in reply.calls)
    completion = _count_tokens(spoken) + reasoning
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def _count_tokens(chars: int) -> int:
    return -(-chars // CHARS_PER_TOKEN)


def _is_assistant(row: object) -> bool:
    return isinstance(row, dict) and row.get("role") == "assistant"


def render_completion(request: Mapping[str, object], reply: Reply) -> dict[str, object]:
    """Build the whole completion."""
    message: dict[str, object] = {"role": "assistant", "content": reply.text or None}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["tool_calls"] = [_call(call) for call in reply.calls]
    return {
        **_render_envelope(request, reply, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": reply.settled_reason}],
        "usage": estimate_usage(request, reply),
    }


def render_events(request: Mapping[str, object], reply: Reply, chunks: int) -> Iterator[str]:
    """Yield the data of each server-sent event, the last being ``[DONE]``. ``chunks`` is how many pieces each text is
    cut into.
    """
    envelope = _render_envelope(request, reply, "chat.completion.chunk")
    for number, delta in enumerate(_split_deltas(reply, max(1, chunks))):
        # The first event names the speaker, as OpenAI's does.
        spoken = {"role": "assistant", **delta} if number == 0 else delta
        yield _dump_compactly({**envelope, "choices": [{"index": 0, "delta": spoken, "finish_reason": None}]})
    yield _dump_compactly({**envelope, "choices": [{"index": 0, "delta": {}, "finish_reason": reply.settled_reason}]})
    options = request.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        yield _dump_compactly({**envelope, "choices": [], "usage": estimate_usage(request, reply)})
    yield "[DONE]"


def _split_deltas(reply: Reply, chunks: int) -> Iterator[dict[str, object]]:
    for piece in _split_text(reply.reasoning, chunks):
        yield {"reasoning_content": piece}
    for piece in _split_text(reply.text, chunks):
        yield {"content": piece}
    for index, call in enumerate(reply.calls):
        head = {**_call(call), "index": index}
        yield {"tool_calls": [{**head, "function": {"name": call.name, "arguments": ""}}]}
        for piece in _split_text(call.arguments_text, chunks):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _split_text(text: str, count: int) -> Sequence[str]:
    size = max(1, -(-len(text) // count))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _call(call: ScriptedCall) -> dict[str, object]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_text},
    }


def _render_envelope(request: Mapping[str, object], reply: Reply, kind: str) -> dict[str, object]:
    """The fields around a reply. The id is made from the request and the reply, without a count or a clock, so that
    both together always get the same id.
    """
    digest = hashlib.sha256(f"{len(_dump_compactly(request.get('messages')))}:{reply!r}".encode()).hexdigest()[:16]
    return {"id": f"chatcmpl-{digest}", "object": kind, "created": 0, "model": str(request.get("model") or "scripted")}


def _dump_compactly(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
