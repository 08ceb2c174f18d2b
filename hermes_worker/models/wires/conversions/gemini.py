"""Convert between chat-completions rows, which is what transcripts hold, and the contents of Gemini's own API. Pure.

Gemini wants the results of a turn's calls right behind it, as Anthropic does, so rows are made Anthropic's messages
first (``conversions.anthropic``), and those are renamed part by part. What a model signed travels in the row of the
call it belongs to (``extra_content``), in the shape of Google's OpenAI-compatible API, so a session may move between
the two. https://ai.google.dev/api/generate-content and .../gemini-api/docs/thought-signatures (November 2026); shapes
as in the types of google-genai 3.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.json_values import read_mapping
from hermes_worker.core.model_capabilities import UNSIGNED, ThinkingPolicy
from hermes_worker.models.wires.conversions import anthropic

Part = dict[str, Any]
Row = Mapping[str, Any]

_ROLES = {"user": "user", "assistant": "model"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeminiPrompt:
    """The parts of a request that come from the transcript."""

    system: str
    contents: list[Part]


def to_contents(rows: Sequence[Row], *, demands_signatures: bool) -> GeminiPrompt:
    """The rows as Gemini takes them. Thinking itself is not sent back; its signatures are."""
    prompt = anthropic.to_messages(rows, ThinkingPolicy.STRIP)
    signatures = {anthropic.make_tool_use_id(call.get("id")): _find_signature(call) for call in _iterate_calls(rows)}
    names: dict[str, str] = {}
    contents = []
    for message in anthropic.begin_with_user(prompt.messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        names |= {block["id"]: block["name"] for block in blocks if block["type"] == "tool_use"}
        parts = [part for block in blocks for part in _convert_block(block, names, signatures)]
        if demands_signatures:
            parts = _sign_first_call(parts)
        contents.append({"role": _ROLES[message["role"]], "parts": parts})
    return GeminiPrompt(system=_join_system_text(prompt.system), contents=contents)


def _join_system_text(system: object) -> str:
    if isinstance(system, list):
        return "\n\n".join(block["text"] for block in system)
    return system if isinstance(system, str) else ""


def _iterate_calls(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        calls = row.get("tool_calls")
        yield from (call for call in calls if isinstance(call, Mapping)) if isinstance(calls, list) else ()


def _find_signature(call: Row) -> str:
    google = read_mapping(read_mapping(call.get("extra_content")).get("google"))
    signature = google.get("thought_signature")
    return signature if isinstance(signature, str) else ""


def _convert_block(block: Part, names: Mapping[str, str], signatures: Mapping[str, str]) -> Iterator[Part]:
    match block["type"]:
        case "tool_use":
            signature = signatures.get(block["id"], "")
            call = {"id": block["id"], "name": block["name"], "args": block["input"]}
            yield {"functionCall": call, **({"thoughtSignature": signature} if signature else {})}
        case "tool_result":
            content = block["content"]
            told: Sequence[Row] = [{"type": "text", "text": content}] if isinstance(content, str) else content
            said = "\n".join(part["text"] for part in told if part["type"] == "text")
            result = {"id": block["tool_use_id"], "name": names.get(block["tool_use_id"], "tool")}
            yield {"functionResponse": {**result, "response": {"output": said}}}
            yield from (_convert_image(part["source"]) for part in told if part["type"] == "image")
        case "image":
            yield _convert_image(block["source"])
        case _:
            yield {"text": block["text"]}


def _convert_image(source: Row) -> Part:
    if source.get("type") == "base64":
        return {"inlineData": {"mimeType": source["media_type"], "data": source["data"]}}
    return {"fileData": {"fileUri": source.get("url", "")}}


def _sign_first_call(parts: list[Part]) -> list[Part]:
    """Return the parts with a signature on the first call: Gemini refuses a turn whose first call is not signed."""
    for position, part in enumerate(parts):
        if "functionCall" in part:
            signed = {"thoughtSignature": part.get("thoughtSignature") or UNSIGNED}
            return [*parts[:position], {**part, **signed}, *parts[position + 1 :]]
    return parts


def to_tools(tools: Iterable[Row]) -> list[Part]:
    """Chat-completions tool definitions as Gemini takes them: JSON Schema as it is. Of two with one name the first
    stays."""
    declared = [
        {"name": tool["name"], "description": tool["description"], "parametersJsonSchema": tool["input_schema"]}
        for tool in anthropic.to_tools(tools)
    ]
    return [{"functionDeclarations": declared}] if declared else []


_LEVELS = {"minimal": "minimal", "low": "low", "medium": "medium", "high": "high"}
_BUDGETS = {"none": 0, "minimal": 512, "low": 4_000, "medium": 8_000, "high": 16_000}
_BUDGET_MAX = 24_576
"""Tokens that the smallest model with a thinking budget takes."""


def build_thinking_config(effort: str | None, *, is_leveled: bool) -> Part | None:
    """The thinking effort for the request; ``None`` leaves it to the model. Models from Gemini 3 on know levels and
    cannot do without thinking; earlier ones have a budget in tokens.
    """
    if effort is None:
        return None
    if is_leveled:
        return {"includeThoughts": True, "thinkingLevel": "low" if effort == "none" else _LEVELS.get(effort, "high")}
    budget = _BUDGETS.get(effort, _BUDGET_MAX)
    return {"includeThoughts": budget > 0, "thinkingBudget": budget}
