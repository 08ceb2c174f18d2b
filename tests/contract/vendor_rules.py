"""Bedrock and Gemini from the server's side, made from what their vendors ship: botocore's service model and the types
of google-genai. These validate requests and build replies; frames are those that botocore reads."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import botocore.loaders
import pydantic
from botocore.model import ServiceModel
from botocore.validate import ParamValidator
from dialects import HELLO, Document, Refused, Said, WireRules, _as_input, _pieces, _require, seal
from google.genai import types

SERVICE = ServiceModel(botocore.loaders.Loader().load_service_model("bedrock-runtime", "service-2"), "bedrock-runtime")
CONVERSE_MODEL = "us.anthropic.claude-sonnet-4-6"

# ------------------------------------------------------------------------------------------------------------ converse

_STREAM_MEMBERS = SERVICE.operation_model("ConverseStream").input_shape.members
_BLOBS = (("image", "source", "bytes"), ("reasoningContent", "redactedContent"))


def check_converse(document: Document, header: Callable[[str], str | None]) -> None:
    """Raises ``Refused``: what botocore would not send, and what the service is known to refuse beyond that."""
    _require(header("authorization"), "Missing Authentication Token")
    _require(set(document) <= set(_STREAM_MEMBERS), f"extraneous key(s) {sorted(set(document) - set(_STREAM_MEMBERS))}")
    shape = SERVICE.operation_model("ConverseStream").input_shape
    report = ParamValidator().validate(_with_bytes({**document, "modelId": CONVERSE_MODEL}), shape)
    _require(not report.has_errors(), report.generate_report())
    messages = document["messages"]
    _require(messages, "The conversation is empty")
    has_tools = "toolConfig" in document
    awaited: list[str] = []
    for index, message in enumerate(messages):
        where = f"messages.{index}"
        _require(message["role"] == ("assistant" if index % 2 else "user"), f"{where}: roles must alternate")
        _require(message["content"], f"{where}: The content field is empty")
        awaited = _check_converse_blocks(message["content"], awaited, where, has_tools=has_tools)
    _require(messages[-1]["role"] == "user", "A conversation must end with a user message.")
    _require(not awaited, "Expected toolResult blocks")


def _check_converse_blocks(blocks: list[Any], awaited: list[str], where: str, *, has_tools: bool) -> list[str]:
    asked: list[str] = []
    answered: list[str] = []
    for block in blocks:
        _require(len(block) == 1, f"{where}: a block has one member")
        kind = next(iter(block))
        if kind in ("toolUse", "toolResult"):
            _require(
                has_tools, "The toolConfig field must be defined when using toolUse and toolResult content blocks."
            )
            (asked if kind == "toolUse" else answered).append(block[kind]["toolUseId"])
        if kind == "text":
            _require(block["text"].strip(), f"{where}: The text field in the ContentBlock object is blank")
        if kind == "reasoningContent" and "reasoningText" in block[kind]:
            said = block[kind]["reasoningText"]
            _require(said.get("signature") == seal(said["text"]), f"{where}: Invalid `signature` in `thinking` block")
    _require(sorted(answered) == sorted(awaited), f"{where}: Expected toolResult blocks for {awaited}, got {answered}")
    _require(len(set(asked)) == len(asked), f"{where}: duplicate toolUseId")
    return asked


def _with_bytes(value: Any) -> Any:
    """What JSON carries as base64 is bytes to botocore."""
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if not isinstance(value, dict):
        return value
    made = {key: _with_bytes(item) for key, item in value.items()}
    if isinstance(made.get("redactedContent"), str):
        made["redactedContent"] = base64.b64decode(made["redactedContent"], validate=True)
    if set(made) == {"bytes"} and isinstance(made["bytes"], str):
        made["bytes"] = base64.b64decode(made["bytes"], validate=True)
    return made


_STOPS = {"": "end_turn"}
_USAGE = {"inputTokens": 12, "outputTokens": 5, "totalTokens": 25, "cacheReadInputTokens": 8}


def _converse_stop(said: Said) -> str:
    if said.refusal:
        return "content_filtered"
    return said.finish or ("tool_use" if said.calls else "end_turn")


def converse_events(said: Said) -> list[object]:
    events: list[object] = [("messageStart", {"role": "assistant"})]
    index = 0

    def delta(part: Mapping[str, Any]) -> tuple[str, Any]:
        return "contentBlockDelta", {"contentBlockIndex": index, "delta": part}

    if said.thinking:
        events += [delta({"reasoningContent": {"text": piece}}) for piece in _pieces(said.thinking)]
        events.append(delta({"reasoningContent": {"signature": seal(said.thinking)}}))
        events.append(("contentBlockStop", {"contentBlockIndex": index}))
        index += 1
    if text := said.text or said.refusal:
        events += [delta({"text": piece}) for piece in _pieces(text)]
        events.append(("contentBlockStop", {"contentBlockIndex": index}))
        index += 1
    for call in said.calls:
        start = {"toolUse": {"toolUseId": call.id, "name": call.name}}
        events.append(("contentBlockStart", {"contentBlockIndex": index, "start": start}))
        events += [delta({"toolUse": {"input": piece}}) for piece in _pieces(call.arguments)]
        events.append(("contentBlockStop", {"contentBlockIndex": index}))
        index += 1
    events.append(("messageStop", {"stopReason": _converse_stop(said)}))
    return [*events, ("metadata", {"usage": _USAGE, "metrics": {"latencyMs": 7}})]


def converse_document(said: Said) -> Document:
    content: list[dict[str, Any]] = []
    if said.thinking:
        thought = {"text": said.thinking, "signature": seal(said.thinking)}
        content.append({"reasoningContent": {"reasoningText": thought}})
    if text := said.text or said.refusal:
        content.append({"text": text})
    for call in said.calls:
        used = {"toolUseId": call.id, "name": call.name, "input": _as_input(call.arguments)}
        content.append({"toolUse": used})
    return {
        "output": {"message": {"role": "assistant", "content": content}},
        "stopReason": _converse_stop(said),
        "usage": _USAGE,
        "metrics": {"latencyMs": 7},
    }


def frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    """An event stream frame, by its published layout: lengths, their checksum, headers, payload, checksum of it all."""
    named = b"".join(
        struct.pack("!B", len(name)) + name.encode() + struct.pack("!BH", 7, len(value.encode())) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack("!II", 16 + len(named) + len(payload), len(named))
    prelude += struct.pack("!I", binascii.crc32(prelude))
    body = prelude + named + payload
    return body + struct.pack("!I", binascii.crc32(body))


def converse_frame(event: object) -> bytes:
    """An event, or the document of an error inside a stream."""
    if isinstance(event, dict):
        error = event["error"]
        headers = {":message-type": "exception", ":exception-type": str(error.get("code") or error.get("type"))}
        return frame(
            {**headers, ":content-type": "application/json"}, json.dumps({"message": error["message"]}).encode()
        )
    assert isinstance(event, tuple)
    name, payload = event
    headers = {":event-type": name, ":content-type": "application/json", ":message-type": "event"}
    return frame(headers, json.dumps({**payload, "p": "abcdefgh"}).encode())  # padded, as the service does


def converse_error(message: str, code: str | None = None, status: int = 400) -> Document:
    return {"message": message, **({"code": code} if code else {})}


# -------------------------------------------------------------------------------------------------------------- gemini

_GEMINI_FIELDS = frozenset(
    {"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings", "cachedContent"}
)


def check_gemini(document: Document, header: Callable[[str], str | None]) -> None:
    """Raises ``Refused``."""
    _require(header("x-goog-api-key") or header("authorization"), "Method doesn't allow unregistered callers")
    unknown = sorted(set(document) - _GEMINI_FIELDS)
    _require(not unknown, f"Invalid JSON payload received. Unknown name: {', '.join(unknown)}: Cannot find field.")
    try:
        contents = [types.Content.model_validate(content) for content in document["contents"]]
        types.Content.model_validate(document.get("systemInstruction") or {})
        for tool in document.get("tools") or ():
            types.Tool.model_validate(tool)
        types.GenerationConfig.model_validate(document.get("generationConfig") or {})
    except pydantic.ValidationError as error:
        raise Refused(f"Invalid JSON payload received. {error}") from error
    _require(contents, "contents is not specified")
    awaited: list[str | None] = []
    for index, content in enumerate(contents):
        where = f"contents[{index}]"
        _require(content.role == ("model" if index % 2 else "user"), f"{where}: roles must alternate, user first")
        _require(content.parts, f"{where}.parts must not be empty")
        parts = content.parts or []
        answered = [part.function_response.id for part in parts if part.function_response]
        _require(
            sorted(map(str, answered)) == sorted(map(str, awaited)),
            "Please ensure that the number of function response parts is equal to the number of function call parts",
        )
        awaited = [part.function_call.id for part in parts if part.function_call]
        signed = [part.thought_signature for part in parts if part.function_call]
        for signature in filter(None, signed[:1]):
            is_excused = base64.urlsafe_b64encode(signature).decode() == "skip_thought_signature_validator"
            is_ours = base64.b64encode(signature).decode() in SIGNED
            _require(is_excused or is_ours, f"{where}: thought_signature is not valid")
    _require(contents[-1].role == "user" and not awaited, "the last turn must be the user's")


SIGNED: set[str] = set()
"""What this server signed."""


def _gemini_parts(said: Said) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in _pieces(said.thinking)]
    parts += [{"text": piece} for piece in _pieces(said.text or said.refusal)]
    for number, call in enumerate(said.calls):
        part: dict[str, Any] = {"functionCall": {"id": call.id, "name": call.name, "args": _as_input(call.arguments)}}
        if not number:
            part["thoughtSignature"] = base64.b64encode(seal(call.id).encode()).decode()
            SIGNED.add(part["thoughtSignature"])
        parts.append(part)
    return parts


_GEMINI_USAGE = {
    "promptTokenCount": 20,
    "cachedContentTokenCount": 8,
    "candidatesTokenCount": 5,
    "totalTokenCount": 25,
}


def _gemini_chunk(parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    candidate = {
        "index": 0,
        "content": {"role": "model", "parts": parts},
        **({"finishReason": finish} if finish else {}),
    }
    chunk = {
        "candidates": [candidate],
        "usageMetadata": _GEMINI_USAGE if finish else {"promptTokenCount": 20},
        "modelVersion": "strict",
        "responseId": "r1",
    }
    types.GenerateContentResponse.model_validate(chunk)
    return chunk


def _gemini_finish(said: Said) -> str:
    return said.finish or ("SAFETY" if said.refusal else "STOP")


def gemini_events(said: Said) -> list[object]:
    return [*(_gemini_chunk([part]) for part in _gemini_parts(said)), _gemini_chunk([], _gemini_finish(said))]


def gemini_document(said: Said) -> Document:
    return _gemini_chunk(_gemini_parts(said), _gemini_finish(said))


def gemini_error(message: str, code: str | None = None, status: int = 400) -> Document:
    return {"error": {"code": status, "message": message, "status": code or "INVALID_ARGUMENT"}}


def gemini_event(event: object) -> bytes:
    return f"data: {json.dumps(event)}\r\n\r\n".encode()


VENDOR_RULES: Mapping[str, WireRules] = {
    "converse": WireRules(
        path="/model/",
        check=check_converse,
        events=converse_events,
        document=converse_document,
        error=converse_error,
        length="max_tokens",
        encode=converse_frame,
        content_type="application/vnd.amazon.eventstream",
    ),
    "gemini": WireRules(
        path="/models/",
        check=check_gemini,
        events=gemini_events,
        document=gemini_document,
        error=gemini_error,
        length="MAX_TOKENS",
        encode=gemini_event,
    ),
}

assert HELLO.text
