"""The three wires from the server's side: how replies and errors are written, and which requests are refused.

What is refused here is what the real services refuse, in their words as far as these are known: OpenAI's and
Anthropic's API references and the error messages that their users quote (July 2026). Some rules are those of the
strictest of the servers that speak a wire; a comment says so.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Document = Mapping[str, Any]

# ------------------------------------------------------------------------------------------------- what a model says


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    id: str
    name: str
    arguments: str = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """A reply, before any wire has written it down."""

    text: str = ""
    calls: tuple[ToolUse, ...] = ()
    thinking: str = ""
    """Comes signed, or sealed, where the wire does that."""
    refusal: str = ""
    """Why the model does not answer; written as each wire writes that."""
    finish: str = ""
    """The wire's own finish reason; empty for the usual one."""


HELLO = Said(text="hello world, this is the answer")


def seal(text: str) -> str:
    """What only this server could have written: a signature or encrypted reasoning."""
    return hashlib.sha256(f"a secret of the server's own:{text}".encode()).hexdigest()


def _pieces(text: str, size: int = 6) -> Iterator[str]:
    yield from (text[start : start + size] for start in range(0, len(text), size))


# ---------------------------------------------------------------------------------------------------------- refusing


class Refused(Exception):
    """The request breaks a rule of the wire."""


def _require(holds: object, complaint: str) -> None:
    if not holds:
        raise Refused(complaint)


def _only(document: Document, allowed: frozenset[str], where: str) -> None:
    _require(isinstance(document, dict), f"{where}: expected an object")
    unknown = sorted(set(document) - allowed)
    _require(not unknown, f"{where}: Unknown parameter(s), extra inputs are not permitted: {', '.join(unknown)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# ---------------------------------------------------------------------------------------------------- chat completions

_CHAT_FIELDS = _names(
    "model messages stream stream_options tools tool_choice parallel_tool_calls max_tokens max_completion_tokens"
    " temperature top_p stop prompt_cache_key reasoning_effort response_format seed user"
)
_CHAT_ROWS = {
    "system": _names("role content name"),
    "developer": _names("role content name"),
    "user": _names("role content name"),
    "assistant": _names("role content name tool_calls refusal"),
    "tool": _names("role content tool_call_id"),
}


def check_chat(document: Document, header: Callable[[str], str | None]) -> None:
    """Raises ``Refused``."""
    _only(document, _CHAT_FIELDS, "request")
    _require(_is_text(document.get("model")), "you must provide a model parameter")
    messages = document.get("messages")
    _require(isinstance(messages, list) and messages, "messages: empty array")
    assert isinstance(messages, list)
    for tool in document.get("tools") or ():
        _only(tool, _names("type function"), "tools[]")
        _check_function(tool["function"], _names("name description parameters strict"))
    awaited: list[str] = []
    previous = ""
    for index, row in enumerate(messages):
        where = f"messages[{index}]"
        role = row.get("role")
        _require(role in _CHAT_ROWS, f"{where}: invalid role {role!r}")
        _only(row, _CHAT_ROWS[role], where)
        if role == "tool":
            _require(
                row.get("tool_call_id") in awaited,
                f"{where}: messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
            )
            _require(isinstance(row.get("content"), str | list), f"{where}: content must be a string")
            awaited.remove(row["tool_call_id"])
            previous = role
            continue
        _require(
            not awaited,
            "An assistant message with 'tool_calls' must be followed by tool messages responding to each"
            f" 'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(awaited)}",
        )
        # Not OpenAI itself, but Mistral and every chat template that says so.
        _require(role != previous, f"{where}: conversation roles must alternate user/assistant/user/assistant")
        _require(role != "system" or index == 0, f"{where}: system message must be at the beginning")
        previous = role
        if role == "assistant":
            awaited = _check_chat_calls(row, where)
            _require(
                isinstance(row.get("content"), str | list) or awaited,
                f"{where}: content is required unless tool_calls is specified",
            )
        else:
            _require(isinstance(row.get("content"), str | list), f"{where}: content must be a string or an array")
    _require(not awaited, f"tool_call_ids did not have response messages: {', '.join(awaited)}")


def _check_chat_calls(row: Document, where: str) -> list[str]:
    if "tool_calls" not in row:
        return []
    calls = row["tool_calls"]
    _require(isinstance(calls, list) and calls, f"{where}: tool_calls: empty array")
    for call in calls:
        _only(call, _names("id type function"), f"{where}.tool_calls[]")
        _require(_is_text(call.get("id")) and len(call["id"]) <= 40, f"{where}: tool_calls[].id: 1 to 40 characters")
        _only(call.get("function"), _names("name arguments"), f"{where}.function")
        _require(_TOOL_NAME.fullmatch(call["function"].get("name") or ""), f"{where}: function.name: bad pattern")
        _check_json(call["function"].get("arguments"), where)
    ids = [call["id"] for call in calls]
    _require(len(set(ids)) == len(ids), f"{where}: duplicate tool_call ids")
    return ids


def _check_json(arguments: object, where: str) -> None:
    """OpenAI takes any string; servers with a chat template parse it."""
    _require(isinstance(arguments, str), f"{where}: arguments must be a string")
    try:
        parsed = json.loads(str(arguments))
    except ValueError:
        parsed = None
    _require(isinstance(parsed, dict), f"{where}: arguments must be a JSON object")


def _check_function(function: Document, allowed: frozenset[str]) -> None:
    _only(function, allowed, "function")
    _require(_TOOL_NAME.fullmatch(function.get("name") or ""), "function.name does not match the pattern")
    _require((function.get("parameters") or {}).get("type") == "object", "function.parameters: must be an object")


def chat_events(said: Said) -> list[object]:
    def chunk(delta: Document, finish: str | None = None) -> Document:
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "model": "strict",
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
        }

    events: list[object] = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"reasoning_content": piece}) for piece in _pieces(said.thinking)]
    events += [chunk({"content": piece}) for piece in _pieces(said.text)]
    events += [chunk({"refusal": piece}) for piece in _pieces(said.refusal)]
    for index, call in enumerate(said.calls):
        opening = {"index": index, "id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        events.append(chunk({"tool_calls": [opening]}))
        events += [
            chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
            for piece in _pieces(call.arguments)
        ]
    events.append(chunk({}, said.finish or ("tool_calls" if said.calls else "stop")))
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    return [*events, {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 8}}}, "[DONE]"]


def chat_document(said: Said) -> Document:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None, "refusal": said.refusal or None}
    if said.calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
    finish = said.finish or ("tool_calls" if said.calls else "stop")
    return {
        "object": "chat.completion",
        "model": "strict",
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}},
    }


def openai_error(message: str, code: str | None = None, status: int = 400) -> Document:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


# ----------------------------------------------------------------------------------------------------------- messages

_MESSAGES_FIELDS = _names(
    "model messages max_tokens system tools tool_choice stream thinking output_config temperature metadata"
    " stop_sequences top_k top_p"
)
_BLOCKS = {
    "text": _names("type text citations cache_control"),
    "image": _names("type source cache_control"),
    "tool_use": _names("type id name input cache_control"),
    "tool_result": _names("type tool_use_id content is_error cache_control"),
    "thinking": _names("type thinking signature"),
    "redacted_thinking": _names("type data"),
}
_ALLOWED_BLOCKS = {
    "user": frozenset({"text", "image", "tool_result"}),
    "assistant": frozenset({"text", "tool_use", "thinking", "redacted_thinking"}),
}
_TOOL_USE_ID = re.compile(r"[a-zA-Z0-9_-]+")


def check_messages(document: Document, header: Callable[[str], str | None]) -> None:
    """Raises ``Refused``."""
    _require(header("anthropic-version"), "anthropic-version: header is required")
    _require(header("x-api-key") or header("authorization"), "x-api-key header is required")
    _only(document, _MESSAGES_FIELDS, "request")
    _require(isinstance(document.get("max_tokens"), int) and document["max_tokens"] > 0, "max_tokens: Field required")
    for tool in document.get("tools") or ():
        _only(tool, _names("name description input_schema cache_control"), "tools.0")
        schema = tool["input_schema"]
        _require(schema.get("type") == "object", "tools.0.input_schema.type: Input should be 'object'")
        _require(
            not {"oneOf", "anyOf", "allOf"} & set(schema), "input_schema does not support oneOf, allOf, or anyOf here"
        )
    messages = document.get("messages")
    _require(isinstance(messages, list) and messages, "messages: at least one message is required")
    assert isinstance(messages, list)
    _require(messages[0].get("role") == "user", "messages: first message must use the user role")
    # The newest models; older ones took an assistant's row at the end as the beginning of their reply.
    _require(messages[-1].get("role") == "user", "The conversation must end with a user message.")
    marks = json.dumps(document.get("system") or "").count('"cache_control"')
    awaited: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        _only(message, _names("role content"), where)
        if index:
            _require(message["role"] != messages[index - 1]["role"], f"{where}: roles must alternate")
        blocks = _blocks_of(message, where)
        marks += sum("cache_control" in block for block in blocks)
        marks += sum(
            "cache_control" in part
            for block in blocks
            if isinstance(block.get("content"), list)
            for part in block["content"]
        )
        awaited = _check_pairs(message["role"], blocks, awaited, where)
    _require(not awaited, f"`tool_use` ids were found without `tool_result` blocks: {', '.join(sorted(awaited))}")
    _require(marks <= 4, f"A maximum of 4 blocks with cache_control may be provided. Found {marks}.")


def _blocks_of(message: Document, where: str) -> list[dict[str, Any]]:
    role, content = message.get("role"), message.get("content")
    _require(role in _ALLOWED_BLOCKS, f"{where}: Unexpected role {role!r}")
    if isinstance(content, str):
        _require(content.strip(), f"{where}: text content blocks must contain non-whitespace text")
        return [{"type": "text", "text": content}]
    _require(isinstance(content, list) and content, f"{where}: content: must be non-empty")
    assert isinstance(content, list) and isinstance(role, str)
    for block in content:
        kind = block.get("type")
        _require(kind in _ALLOWED_BLOCKS[role], f"{where}: block type {kind!r} is not allowed for {role}")
        _only(block, _BLOCKS[str(kind)], f"{where}.content")
        _check_block(block, where)
    return content


def _check_block(block: Document, where: str) -> None:
    match block["type"]:
        case "text":
            _require(block["text"].strip(), f"{where}: text content blocks must contain non-whitespace text")
        case "thinking":
            _require(
                block.get("signature") == seal(block["thinking"]), f"{where}: Invalid `signature` in `thinking` block"
            )
        case "tool_use":
            _require(_TOOL_USE_ID.fullmatch(block["id"]), f"{where}: tool_use.id: String should match pattern")
            _require(_TOOL_NAME.fullmatch(block["name"]), f"{where}: tool_use.name: String should match pattern")
            _require(isinstance(block["input"], dict), f"{where}: tool_use.input: Input should be a valid dictionary")
        case "tool_result":
            content = block.get("content", "")
            _require(isinstance(content, str | list), f"{where}: tool_result.content: Input should be a valid string")
            for part in content if isinstance(content, list) else ():
                _only(part, _BLOCKS[part["type"]], f"{where}.tool_result.content")


def _check_pairs(role: str, blocks: Sequence[Document], awaited: set[str], where: str) -> set[str]:
    """The calls of this message; those of the one before must be answered here, first thing."""
    if role == "assistant":
        _require(not awaited, f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after")
        ids = [block["id"] for block in blocks if block["type"] == "tool_use"]
        _require(len(set(ids)) == len(ids), f"{where}: `tool_use` ids must be unique")
        return set(ids)
    kinds = [block["type"] == "tool_result" for block in blocks]
    _require(kinds == sorted(kinds, reverse=True), f"{where}: tool_result blocks must come first in the content")
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    _require(set(answered) <= awaited, f"{where}: unexpected `make_tool_use_id` found in `tool_result` blocks")
    _require(len(set(answered)) == len(answered), f"{where}: each tool_use must have a single result")
    missing = awaited - set(answered)
    _require(
        not missing,
        f"{where}: `tool_use` ids were found without `tool_result` blocks immediately after: {', '.join(missing)}",
    )
    return set()


def _as_input(arguments: str) -> object:
    """What is no JSON can only be streamed, piece by piece."""
    try:
        return json.loads(arguments)
    except ValueError:
        return {}


def _message_blocks(said: Said) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.thinking:
        blocks.append({"type": "thinking", "thinking": said.thinking, "signature": seal(said.thinking)})
    if text := said.text or said.refusal:
        blocks.append({"type": "text", "text": text})
    for call in said.calls:
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": _as_input(call.arguments)})
    return blocks


def _stop_reason(said: Said) -> str:
    if said.refusal:
        return "refusal"
    return said.finish or ("tool_use" if said.calls else "end_turn")


_MESSAGE_USAGE = {"input_tokens": 12, "output_tokens": 5, "cache_read_input_tokens": 8}


def messages_events(said: Said) -> list[object]:
    events: list[object] = [
        {
            "type": "message_start",
            "message": {
                "type": "message",
                "role": "assistant",
                "model": "strict",
                "content": [],
                "usage": {**_MESSAGE_USAGE, "output_tokens": 1},
            },
        },
        {"type": "ping"},
    ]
    arguments = {call.id: call.arguments for call in said.calls}
    for index, block in enumerate(_message_blocks(said)):
        deltas: list[dict[str, Any]]
        match block["type"]:
            case "text":
                opening = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block["text"])]
            case "thinking":
                opening = {"type": "thinking", "thinking": "", "signature": ""}
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block["thinking"])]
                deltas.append({"type": "signature_delta", "signature": block["signature"]})
            case _:
                opening = {**block, "input": {}}
                pieces = _pieces(arguments[block["id"]])
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        events.append({"type": "content_block_start", "index": index, "content_block": opening})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    ending = {"stop_reason": _stop_reason(said), "stop_sequence": None}
    events.append({"type": "message_delta", "delta": ending, "usage": {"output_tokens": 5}})
    return [*events, {"type": "message_stop"}]


def messages_document(said: Said) -> Document:
    return {
        "type": "message",
        "role": "assistant",
        "model": "strict",
        "content": _message_blocks(said),
        "stop_reason": _stop_reason(said),
        "usage": _MESSAGE_USAGE,
    }


def messages_error(message: str, code: str | None = None, status: int = 400) -> Document:
    kind = code or ("api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


# ---------------------------------------------------------------------------------------------------------- responses

_RESPONSES_FIELDS = _names(
    "model input instructions tools tool_choice parallel_tool_calls stream store include reasoning prompt_cache_key"
    " max_output_tokens temperature"
)
_ITEMS = {
    "message": _names("type role content status id phase"),
    "reasoning": _names("type encrypted_content summary"),
    "function_call": _names("type call_id name arguments status id"),
    "function_call_output": _names("type call_id output"),
}
_PARTS = {"user": {"input_text", "input_image"}, "assistant": {"output_text"}}


def check_responses(document: Document, header: Callable[[str], str | None]) -> None:
    """Raises ``Refused``."""
    _only(document, _RESPONSES_FIELDS, "request")
    _require(_is_text(document.get("instructions")), "Instructions are required")
    _require(document.get("store") is False, "Store must be set to false")
    for tool in document.get("tools") or ():
        _only(tool, _names("type name description strict parameters"), "tools[0]")
        _check_function({key: tool[key] for key in ("name", "parameters")}, _names("name parameters"))
    items = document.get("input")
    _require(isinstance(items, list) and items, "input: must not be empty")
    assert isinstance(items, list)
    awaited: set[str] = set()
    known: set[str] = set()
    for index, item in enumerate(items):
        where = f"input[{index}]"
        kind = item.get("type", "message")
        _require(kind in _ITEMS, f"{where}: Invalid value: {kind!r}")
        _only(item, _ITEMS[kind], where)
        match kind:
            case "message":
                _check_item_message(item, where)
            case "reasoning":
                text = "".join(part["text"] for part in item["summary"])
                _require(
                    item.get("encrypted_content") == seal(text),
                    f"{where}: The encrypted content for item could not be verified (invalid_encrypted_content)",
                )
                _require(
                    index + 1 < len(items), f"{where}: 'reasoning' was provided without its required following item"
                )
            case "function_call":
                call_id = item.get("call_id")
                _require(_is_text(call_id) and len(call_id) <= 64, f"{where}: call_id: 1 to 64 characters")
                _require(call_id not in known, f"{where}: Duplicate call_id {call_id!r}")
                _require(_TOOL_NAME.fullmatch(item.get("name") or ""), f"{where}: name: invalid")
                _check_json(item.get("arguments"), where)
                known.add(call_id)
                awaited.add(call_id)
            case "function_call_output":
                call_id = item.get("call_id")
                _require(call_id in awaited, f"No tool call found for function call output with call_id {call_id}.")
                _require(isinstance(item.get("output"), str | list), f"{where}: output must be a string or an array")
                awaited.remove(call_id)
    _require(not awaited, f"No tool output found for function call {', '.join(sorted(awaited))}.")


def _check_item_message(item: Document, where: str) -> None:
    role, content = item.get("role"), item.get("content")
    _require(role in _PARTS, f"{where}: Invalid role {role!r}")
    assert isinstance(role, str)
    _require(isinstance(content, str | list), f"{where}: content must be a string or an array")
    for part in content if isinstance(content, list) else ():
        _require(part.get("type") in _PARTS[role], f"{where}: Invalid value: {part.get('type')!r} for role {role}")
    if "id" in item:
        _require(item["id"].startswith("msg_") and len(item["id"]) <= 64, f"{where}: id: must begin with 'msg_'")


def _items(said: Said) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if said.thinking:
        summary = [{"type": "summary_text", "text": said.thinking}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": seal(said.thinking)})
    parts: list[dict[str, Any]] = [{"type": "output_text", "text": said.text, "annotations": []}] if said.text else []
    parts += [{"type": "refusal", "refusal": said.refusal}] if said.refusal else []
    if parts:
        items.append({"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": parts})
    for call in said.calls:
        items.append(
            {
                "type": "function_call",
                "id": f"fc_{call.id}",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
                "status": "completed",
            }
        )
    if said.finish and items and items[-1]["type"] != "reasoning":
        items[-1]["status"] = "incomplete"
    return items


def responses_document(said: Said) -> Document:
    usage = {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 8}, "output_tokens": 5}
    cut = {"status": "incomplete", "incomplete_details": {"reason": said.finish}} if said.finish else {}
    return {
        "object": "response",
        "status": "completed",
        "model": "strict",
        "output": _items(said),
        "usage": usage,
    } | cut


def responses_events(said: Said) -> list[object]:
    begun = {"object": "response", "status": "in_progress", "model": "strict", "output": []}
    events: list[object] = [{"type": kind, "response": begun} for kind in ("response.created", "response.in_progress")]
    for index, item in enumerate(_items(said)):
        bare = {key: value for key, value in item.items() if key not in ("content", "summary", "encrypted_content")}
        opening = {**bare, "status": "in_progress"} if item["type"] != "reasoning" else {**bare, "summary": []}
        if item["type"] == "function_call":
            opening["arguments"] = ""
        events.append({"type": "response.output_item.added", "output_index": index, "item": opening})
        kind, text = {
            "reasoning": ("response.reasoning_summary_text.delta", said.thinking),
            "message": ("response.output_text.delta", said.text)
            if said.text
            else ("response.refusal.delta", said.refusal),
            "function_call": ("response.function_call_arguments.delta", item.get("arguments", "")),
        }[item["type"]]
        events += [{"type": kind, "output_index": index, "delta": piece} for piece in _pieces(text)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    whole = responses_document(said)
    return [*events, {"type": f"response.{whole['status']}", "response": whole}]


# -------------------------------------------------------------------------------------------------------------- tables


def sse_event(event: object) -> bytes:
    """A server-sent event, with its name where the wire gives it one."""
    if isinstance(event, str):
        return f"data: {event}\n\n".encode()
    kind = event.get("type") if isinstance(event, dict) else None
    name = f"event: {kind}\n" if kind else ""
    return f"{name}data: {json.dumps(event)}\n\n".encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRules:
    """Everything a server of one wire does."""

    path: str
    check: Callable[[Document, Callable[[str], str | None]], None]
    events: Callable[[Said], list[object]]
    document: Callable[[Said], Document]
    error: Callable[..., Document]
    length: str
    """Its word for a reply that ran into its limit."""
    headers: Mapping[str, str] = field(default_factory=dict)
    encode: Callable[[object], bytes] = sse_event
    """An event as it goes over the wire."""
    content_type: str = "text/event-stream"
    """Of a stream."""

    def is_for(self, path: str) -> bool:
        """Whether a request to ``path`` is of this wire; one that names its model in the path begins with it."""
        named = f"/v1{self.path}"
        return path.startswith(named) if self.path.endswith("/") else path == named

    def streams(self, path: str, document: Document) -> bool:
        """Whether the request asks for a stream: in its body, or by its path."""
        return bool(document.get("stream")) or "stream" in path


RULES: Mapping[str, WireRules] = {
    "chat": WireRules(
        path="/chat/completions",
        check=check_chat,
        events=chat_events,
        document=chat_document,
        error=openai_error,
        length="length",
    ),
    "responses": WireRules(
        path="/responses",
        check=check_responses,
        events=responses_events,
        document=responses_document,
        error=openai_error,
        length="max_output_tokens",
    ),
    "messages": WireRules(
        path="/messages",
        check=check_messages,
        events=messages_events,
        document=messages_document,
        error=messages_error,
        length="max_tokens",
    ),
}

API_MODE = {"chat": "chat_completions", "responses": "codex_responses", "messages": "anthropic_messages"}
"""What the setting of this name says for each wire."""
