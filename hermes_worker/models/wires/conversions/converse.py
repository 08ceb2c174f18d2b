"""Convert between chat-completions rows, which is what transcripts hold, and the messages of Bedrock's Converse API.

Converse has the shape of Anthropic's messages under other names, and is as strict about pairs of calls and results, so
rows are made Anthropic's messages first (``conversions.anthropic``), and those are renamed block by block. Pure. Shapes
as in botocore's service model ``bedrock-runtime`` (1.44, November 2026).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.model_capabilities import ThinkingPolicy
from hermes_worker.models.wires.conversions import anthropic

Block = dict[str, Any]
Row = Mapping[str, Any]

ID_CHARS_MAX = 64
_FORMATS = frozenset({"png", "jpeg", "gif", "webp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversePrompt:
    """The parts of a request that come from the transcript."""

    system: list[Block]
    messages: list[Block]


def to_messages(rows: Iterable[Row], policy: ThinkingPolicy, *, has_tools: bool, marks: bool = True) -> ConversePrompt:
    """The rows as Converse takes them. Without tools, calls and results become text, since a request that holds them
    must define tools; ``marks`` says whether places for the cache are kept.
    """
    prompt = anthropic.to_messages(rows, policy)
    told = [_convert_message(message, has_tools=has_tools) for message in anthropic.begin_with_user(prompt.messages)]
    system = [{"type": "text", "text": prompt.system}] if isinstance(prompt.system, str) else prompt.system or []
    found = ConversePrompt(system=list(_convert_blocks(system)), messages=told)
    return found if marks else _drop_marks(found)


def _convert_message(message: Block, *, has_tools: bool) -> Block:
    content = message["content"]
    blocks: Sequence[Block] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    told = blocks if has_tools else list(map(_block_as_text, blocks))
    return {"role": message["role"], "content": list(_convert_blocks(told))}


def _block_as_text(block: Block) -> Block:
    match block["type"]:
        case "tool_use":
            return {"type": "text", "text": f"[called {block['name']} with {dump_canonical_json(block['input'])}]"}
        case "tool_result":
            content = block["content"]
            parts = [content] if isinstance(content, str) else [part.get("text", "[an image]") for part in content]
            return {"type": "text", "text": f"[the result: {' '.join(parts)}]"}
        case _:
            return block


def _convert_blocks(blocks: Iterable[Block]) -> Iterator[Block]:
    """Rename each block, and put the place for the cache behind a marked one."""
    for block in blocks:
        yield _convert_block(block)
        if isinstance(mark := block.get("cache_control"), Mapping):
            yield {"cachePoint": {"type": "default", **({"ttl": mark["ttl"]} if mark.get("ttl") else {})}}


def _convert_block(block: Block) -> Block:
    match block["type"]:
        case "tool_use":
            name, used = block["name"], block["input"]
            return {"toolUse": {"toolUseId": _shorten_id(block["id"]), "name": name, "input": used}}
        case "tool_result":
            content = block["content"]
            told = [{"text": content}] if isinstance(content, str) else list(map(_convert_block, content))
            return {"toolResult": {"toolUseId": _shorten_id(block["tool_use_id"]), "content": told}}
        case "thinking":
            signed = {"signature": block["signature"]} if block.get("signature") else {}
            return {"reasoningContent": {"reasoningText": {"text": block["thinking"], **signed}}}
        case "redacted_thinking":
            return {"reasoningContent": {"redactedContent": block["data"]}}
        case "image":
            return _convert_image(block["source"])
        case _:
            return {"text": block["text"]}


def _convert_image(source: Row) -> Block:
    """An image as bytes: Bedrock fetches nothing from the web."""
    kind = str(source.get("media_type", "")).removeprefix("image/")
    if source.get("type") != "base64" or kind not in _FORMATS:
        return {"text": f"[an image that cannot be sent here: {source.get('url') or kind}]"}
    return {"image": {"format": kind, "source": {"bytes": source["data"]}}}


def _shorten_id(call_id: str) -> str:
    """A hash of the whole id, which names both a call and its result."""
    return call_id if len(call_id) <= ID_CHARS_MAX else f"call_{hashlib.sha256(call_id.encode()).hexdigest()[:40]}"


def _drop_marks(prompt: ConversePrompt) -> ConversePrompt:
    def drop_marks(blocks: list[Block]) -> list[Block]:
        return [block for block in blocks if "cachePoint" not in block]

    messages = [{**message, "content": drop_marks(message["content"])} for message in prompt.messages]
    return ConversePrompt(system=drop_marks(prompt.system), messages=messages)


def to_tools(tools: Iterable[Row]) -> list[Block]:
    """Chat-completions tool definitions as Converse takes them. Of two with one name the first stays."""
    return [
        {
            "toolSpec": {
                "name": tool["name"],
                "description": tool["description"] or tool["name"],  # an empty one is refused
                "inputSchema": {"json": tool["input_schema"]},
            }
        }
        for tool in anthropic.to_tools(tools)
    ]


def to_anthropic_block(part: object) -> Block | None:
    """A block of a reply as Anthropic writes it; ``None`` for kinds that are not sent back."""
    if not isinstance(part, Mapping):
        return None
    if isinstance(text := part.get("text"), str):
        return {"type": "text", "text": text}
    if isinstance(used := part.get("toolUse"), Mapping):
        return {"type": "tool_use", "id": used.get("toolUseId"), "name": used.get("name"), "input": used.get("input")}
    thought = part.get("reasoningContent")
    if not isinstance(thought, Mapping):
        return None
    if isinstance(hidden := thought.get("redactedContent"), str):
        return {"type": "redacted_thinking", "data": hidden}
    said = thought.get("reasoningText")
    return (
        {"type": "thinking", "thinking": said.get("text"), **_find_signature(said)}
        if isinstance(said, Mapping)
        else None
    )


def _find_signature(said: Row) -> Block:
    return {"signature": said["signature"]} if said.get("signature") else {}
