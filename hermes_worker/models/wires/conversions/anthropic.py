"""Convert between chat-completions rows, which is what transcripts hold, and Anthropic's messages. Pure: dictionaries
in, dictionaries out.

Anthropic is strict about pairs: what follows a message with ``tool_use`` blocks must begin with their results. And it
signs the thinking of a message against everything before it, so a message that had to be changed cannot keep its
thinking.

What becomes of a row does not depend on how many rows follow it. So each request begins with the one before it, which
is what the prompt cache goes by, and what newer models demand before they accept their own thinking again
(https://platform.claude.com/docs/en/build-with-claude/preserved-thinking, 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from hermes_worker.core.call_ids import make_ids_distinct
from hermes_worker.core.json_values import parse_json, read_mapping
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage, dump_canonical_json
from hermes_worker.core.model_capabilities import ThinkingPolicy, ThinkingRequest
from hermes_worker.core.model_families import find_traits
from hermes_worker.core.recovery.repair import dump_arguments
from hermes_worker.core.tool_schemas import fit_schema, remove_keywords

Row = Mapping[str, Any]
Block = dict[str, Any]

IMAGES_KEPT_MAX = 3
"""Tool results with images that are sent; older ones cost about 1,500 tokens each and are rarely looked at again."""

EMPTY_REPLY = "(empty)"
EMPTY_MESSAGE = "(empty message)"
NO_OUTPUT = "(no output)"
CALL_REMOVED = "(tool call removed)"
RESULT_REMOVED = "(tool result removed)"
THINKING_LEFT_OUT = "(thinking left out)"
IMAGE_REMOVED = "[an older image was left out]"

_THINKING = frozenset({"thinking", "redacted_thinking"})


ISSUER = "anthropic"
"""The issuer of the signatures of Anthropic's own API. Bedrock and Vertex, whose signatures it accepts, have other
wires.
"""


# ------------------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True, slots=True, kw_only=True)
class AnthropicPrompt:
    """The parts of a request that come from the transcript."""

    system: str | list[Block] | None
    """Blocks when any of it carries a cache mark."""
    messages: list[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class _RoleBlocks:
    """A message under construction; ``is_changed`` when a block that its thinking was signed with is gone."""

    role: str
    blocks: tuple[Block, ...]
    is_changed: bool = False


def to_messages(rows: Iterable[Row], policy: ThinkingPolicy = ThinkingPolicy.NATIVE) -> AnthropicPrompt:
    """The rows as Anthropic takes them. Rows keep their order; neighbours of one role become one message."""
    system_rows: list[Row] = []
    turns: list[_RoleBlocks] = []
    for row in make_ids_distinct(rows):
        if row.get("role") in ("system", "developer"):
            system_rows.append(row)
        else:
            turns.append(_convert_row(row, policy))
    merged = _merge_turns(_keep_pairs(_merge_results(turns)))
    thought = _apply_thinking_policy(merged, policy)
    return AnthropicPrompt(
        system=_convert_system(system_rows), messages=[_render_message(turn) for turn in _limit_images(thought)]
    )


def begin_with_user(messages: list[Block]) -> list[Block]:
    """The messages, with an empty user message in front where a conversation begins with the assistant's greeting,
    which Anthropic refuses.
    """
    is_greeting = bool(messages) and messages[0]["role"] == "assistant"
    return [{"role": "user", "content": EMPTY_MESSAGE}, *messages] if is_greeting else messages


def _convert_row(row: Row, policy: ThinkingPolicy) -> _RoleBlocks:
    if row.get("role") == "assistant":
        blocks = _build_assistant_blocks(row)
        if policy is ThinkingPolicy.NATIVE and row.get("anthropic_issuer") not in (None, ISSUER):
            blocks = [block for block in blocks if not _is_signed(block)]
        return _RoleBlocks(role="assistant", blocks=tuple(blocks))
    if row.get("role") == "tool":
        return _RoleBlocks(role="user", blocks=(_build_result_block(row),))
    return _RoleBlocks(role="user", blocks=tuple(_move_mark_last(_build_user_blocks(row.get("content")), row)))


def _render_message(turn: _RoleBlocks) -> Block:
    """A lone text is sent as a plain string, as a person would write it."""
    is_plain = turn.role == "user" and len(turn.blocks) == 1 and turn.blocks[0].keys() == {"type", "text"}
    return {"role": turn.role, "content": turn.blocks[0]["text"] if is_plain else list(turn.blocks)}


def _convert_system(rows: Sequence[Row]) -> str | list[Block] | None:
    blocks = [block for row in rows for block in _convert_content(row.get("content")) if block.get("type") == "text"]
    if any("cache_control" in block for block in blocks):
        return blocks
    return "\n\n".join(block["text"] for block in blocks) or None


def _build_user_blocks(content: object) -> list[Block]:
    return _convert_content(content) or [_build_text_block(EMPTY_MESSAGE)]


def _build_result_block(row: Row) -> Block:
    content = row.get("content")
    blocks = _convert_content(content) if isinstance(content, list) else None
    said: object = blocks if blocks else content if isinstance(content, str) and content else NO_OUTPUT
    result: Block = {"type": "tool_result", "tool_use_id": make_tool_use_id(row.get("tool_call_id")), "content": said}
    if isinstance(row.get("cache_control"), Mapping):
        result["cache_control"] = row["cache_control"]
    return result


def _build_assistant_blocks(row: Row) -> list[Block]:
    stored = row.get("anthropic_content_blocks")
    blocks = list(_replay_blocks(stored, row)) if isinstance(stored, list) else []
    if not blocks:
        blocks = [
            *_build_stored_thinking(row),
            *_convert_content(row.get("content")),
            *map(_build_tool_use, _list_calls(row)),
        ]
    return _move_mark_last(blocks or [_build_text_block(EMPTY_REPLY)], row)


def _build_stored_thinking(row: Row) -> list[Block]:
    details = row.get("reasoning_details")
    signed = [_build_input_block(detail) for detail in details] if isinstance(details, list) else []
    thinking = [block for block in signed if block and block["type"] in _THINKING]
    echoed = row.get("reasoning_content")
    return thinking or ([{"type": "thinking", "thinking": echoed}] if isinstance(echoed, str) else [])


def _replay_blocks(stored: Sequence[object], row: Row) -> Iterator[Block]:
    """Stored blocks in the order in which they were signed. Inputs come from the row's calls, which were redacted.
    Blank text between them is refused, so it is left out.
    """
    inputs = {make_tool_use_id(call.get("id")): _parse_input(call) for call in _list_calls(row)}
    for item in stored:
        block = _build_input_block(item)
        if block is not None and not _is_blank(block):
            yield {**block, "input": inputs.get(block["id"], block["input"])} if block["type"] == "tool_use" else block


def _build_tool_use(call: Row) -> Block:
    function = call.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    return {
        "type": "tool_use",
        "id": make_tool_use_id(call.get("id")),
        "name": name if isinstance(name, str) else "",
        "input": _parse_input(call),
    }


def _parse_input(call: Row) -> object:
    function = call.get("function")
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    return read_mapping(parse_json(arguments) if isinstance(arguments, str) else arguments)


def _list_calls(row: Row) -> list[Row]:
    calls = row.get("tool_calls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else []


def make_tool_use_id(call_id: object) -> str:
    """The id as Anthropic allows it: letters, digits, ``_`` and ``-``."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", call_id) if isinstance(call_id, str) and call_id else "tool_0"


# -------------------------------------------------------------------------------------------------------------- blocks


def _build_text_block(words: str) -> Block:
    return {"type": "text", "text": words}


def _convert_content(content: object) -> list[Block]:
    """Content as blocks. Blank text is left out, since it is refused."""
    if isinstance(content, str):
        return [_build_text_block(content)] if content.strip() else []
    if not isinstance(content, list):
        return [] if content is None else [_build_text_block(dump_canonical_json(content))]
    return [block for part in content if (block := _convert_block(part)) is not None and not _is_blank(block)]


def _is_blank(block: Block) -> bool:
    return block["type"] == "text" and not block["text"].strip()


def _convert_block(part: object) -> Block | None:
    if not isinstance(part, Mapping):
        return (
            _build_text_block(part if isinstance(part, str) else dump_canonical_json(part))
            if part is not None
            else None
        )
    block = _convert_part(part)
    if block is not None and isinstance(part.get("cache_control"), Mapping):
        block["cache_control"] = part["cache_control"]
    return block


def _convert_part(part: Row) -> Block | None:
    if part.get("type") in ("text", "input_text", "output_text"):
        return _build_input_block({**part, "type": "text"})
    if part.get("type") in ("image_url", "input_image"):
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        return {"type": "image", "source": _build_image_source(url if isinstance(url, str) else "")}
    return _build_input_block(part)


def _build_image_source(url: str) -> Block:
    url = url.strip()
    if not url.startswith("data:"):
        return {"type": "url", "url": url}
    header, _, data = url.removeprefix("data:").partition(",")
    media_type = header.partition(";")[0].strip()
    return {
        "type": "base64",
        "media_type": media_type if media_type.startswith("image/") else "image/jpeg",
        "data": data,
    }


def _build_input_block(part: object) -> Block | None:
    """A block with only those fields that a request may have; ``None`` for kinds that are not sent. Replies have more
    fields, and every other one is refused.
    """
    if not isinstance(part, Mapping):
        return None
    match part.get("type"):
        case "text":
            text = part.get("text")
            cited = {"citations": part["citations"]} if isinstance(part.get("citations"), list) else {}
            return {
                **_build_text_block(text if isinstance(text, str) else ""),
                **(cited if cited.get("citations") else {}),
            }
        case "thinking":
            signed = {"signature": part["signature"]} if part.get("signature") else {}
            return {"type": "thinking", "thinking": part.get("thinking") or "", **signed}
        case "redacted_thinking" if part.get("data"):
            return {"type": "redacted_thinking", "data": part["data"]}
        case "tool_use":
            used = part.get("input")
            return {
                "type": "tool_use",
                "id": make_tool_use_id(part.get("id")),
                "name": part.get("name") or "",
                "input": used if isinstance(used, Mapping) else {},
            }
        case "image" if isinstance(part.get("source"), Mapping):
            return {"type": "image", "source": part["source"]}
        case _:
            return None


def _move_mark_last(blocks: Sequence[Block], row: Row) -> list[Block]:
    """Move a row's cache mark to its last block that may carry one; thinking may not."""
    marked = list(blocks)
    if isinstance(row.get("cache_control"), Mapping):
        for position in range(len(marked) - 1, -1, -1):
            if marked[position]["type"] not in _THINKING:
                marked[position] = {"cache_control": row["cache_control"], **marked[position]}
                break
    return marked


# --------------------------------------------------------------------------------------------------- pairs and merging


def _merge_results(turns: Iterable[_RoleBlocks]) -> list[_RoleBlocks]:
    """Merge results that follow one another into one message."""
    together: list[_RoleBlocks] = []
    for turn in turns:
        if together and _is_results(together[-1]) and _is_results(turn):
            together[-1] = replace(together[-1], blocks=together[-1].blocks + turn.blocks)
        else:
            together.append(turn)
    return together


def _is_results(turn: _RoleBlocks) -> bool:
    return all(block["type"] == "tool_result" for block in turn.blocks)


def _keep_pairs(turns: Sequence[_RoleBlocks]) -> list[_RoleBlocks]:
    """Keep only calls that are answered in the very next message, and only results of calls in the message before."""
    answered = [_block_ids(turn, "tool_result", "tool_use_id") for turn in turns]
    asked = [_block_ids(turn, "tool_use", "id") for turn in turns]
    return [
        _drop_unpaired(
            turn,
            calls=answered[position + 1] if position + 1 < len(turns) else frozenset(),
            results=asked[position - 1] if position else frozenset(),
        )
        for position, turn in enumerate(turns)
    ]


def _block_ids(turn: _RoleBlocks, kind: str, key: str) -> frozenset[str]:
    return frozenset(block[key] for block in turn.blocks if block["type"] == kind)


def _drop_unpaired(turn: _RoleBlocks, *, calls: frozenset[str], results: frozenset[str]) -> _RoleBlocks:
    kept = tuple(
        block
        for block in turn.blocks
        if (block["type"] != "tool_use" or block["id"] in calls)
        and (block["type"] != "tool_result" or block["tool_use_id"] in results)
    )
    if len(kept) == len(turn.blocks):
        return turn
    if not any(block["type"] not in _THINKING for block in kept):
        kept = (*kept, _build_text_block(CALL_REMOVED if turn.role == "assistant" else RESULT_REMOVED))
    return replace(turn, blocks=kept, is_changed=True)


def _merge_turns(turns: Iterable[_RoleBlocks]) -> list[_RoleBlocks]:
    merged: list[_RoleBlocks] = []
    for turn in turns:
        if not merged or merged[-1].role != turn.role:
            merged.append(turn)
            continue
        # The second message's thinking was signed at a boundary that no longer exists.
        added = tuple(block for block in turn.blocks if block["type"] not in _THINKING)
        is_changed = merged[-1].is_changed or turn.is_changed
        merged[-1] = replace(merged[-1], blocks=merged[-1].blocks + added, is_changed=is_changed)
    return merged


# ------------------------------------------------------------------------------------------------ thinking and images


def _apply_thinking_policy(turns: Sequence[_RoleBlocks], policy: ThinkingPolicy) -> list[_RoleBlocks]:
    return [_apply_policy_to_turn(turn, policy) if turn.role == "assistant" else turn for turn in turns]


def _apply_policy_to_turn(turn: _RoleBlocks, policy: ThinkingPolicy) -> _RoleBlocks:
    match policy:
        case ThinkingPolicy.KEEP:
            return turn
        case ThinkingPolicy.UNSIGNED:
            return _replace_blocks(turn, (b for b in turn.blocks if not _is_signed(b)), EMPTY_REPLY)
        case ThinkingPolicy.NATIVE:
            spoken = (b for block in turn.blocks for b in _convert_unsigned_thinking(block, is_dead=turn.is_changed))
            return _replace_blocks(turn, spoken, EMPTY_REPLY)
        case ThinkingPolicy.STRIP:
            return _replace_blocks(turn, (b for b in turn.blocks if b["type"] not in _THINKING), THINKING_LEFT_OUT)
        case _:
            assert_never(policy)


def _replace_blocks(turn: _RoleBlocks, blocks: Iterable[Block], stand_in: str) -> _RoleBlocks:
    return replace(turn, blocks=tuple(blocks) or (_build_text_block(stand_in),))


def _is_signed(block: Block) -> bool:
    return block["type"] in _THINKING and bool(block.get("signature") or block.get("data"))


def _convert_unsigned_thinking(block: Block, *, is_dead: bool) -> Iterator[Block]:
    """The block, or its thinking as text where it has no valid signature: it would be refused as thinking; as text it
    is not lost.
    """
    if block["type"] not in _THINKING or (_is_signed(block) and not is_dead):
        yield block
    elif _says_something(block.get("thinking")):
        yield _build_text_block(block["thinking"])


def _says_something(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _limit_images(turns: Sequence[_RoleBlocks]) -> list[_RoleBlocks]:
    seen = 0
    lean: list[_RoleBlocks] = []
    for turn in reversed(turns):
        blocks: list[Block] = []
        for block in reversed(turn.blocks):
            if block["type"] == "tool_result" and _has_image(block["content"]):
                seen += 1
                block = block if seen <= IMAGES_KEPT_MAX else {**block, "content": _replace_images(block["content"])}
            blocks.append(block)
        lean.append(replace(turn, blocks=tuple(reversed(blocks))))
    return lean[::-1]


def _has_image(content: object) -> bool:
    return isinstance(content, list) and any(block["type"] == "image" for block in content)


def _replace_images(content: Sequence[Block]) -> list[Block]:
    return [_build_text_block(IMAGE_REMOVED) if block["type"] == "image" else block for block in content]


# --------------------------------------------------------------------------------------------------- tools and options


def to_tools(tools: Iterable[Row]) -> list[Block]:
    """Chat-completions tool definitions as Anthropic takes them. Of two with one name the first stays."""
    converted: dict[str, Block] = {}
    for tool in tools:
        function = tool.get("function")
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            continue
        entry: Block = {
            "name": function["name"],
            "description": function.get("description") or "",
            "input_schema": convert_schema(function.get("parameters")),
        }
        if isinstance(tool.get("cache_control"), Mapping):
            entry["cache_control"] = tool["cache_control"]
        converted.setdefault(function["name"], entry)
    return list(converted.values())


def convert_schema(schema: object) -> Block:
    """A JSON Schema without what Anthropic refuses. Unions with ``null`` leave no trace: ``required`` says what is
    optional."""
    return remove_keywords(fit_schema(schema), frozenset({"nullable"}))


_NEW_FAMILY_OUTPUT_LIMIT = 128_000


def choose_output_tokens_max(model: str, *, requested: int | None = None, window: int | None = None) -> int:
    """The output limit to send, which this wire demands: the requested one, else what the model can write, and in
    either case less than the window.
    """
    usual = find_traits(model).messages_output_max or _NEW_FAMILY_OUTPUT_LIMIT
    limit = requested if requested is not None and requested > 0 else usual
    return max(1, window - 1) if window and limit > window else limit


_EFFORTS = {"ultra": "max", "max": "max", "xhigh": "xhigh", "high": "high", "low": "low", "minimal": "low"}
_BUDGETS = {"max": 32_000, "xhigh": 32_000, "high": 16_000, "low": 4_000}
_ANSWER_ROOM = 4_096
"""Output tokens that thinking must leave for the answer."""


def build_thinking_fields(model: str, effort: str | None, *, output_tokens: int) -> Block:
    """The request fields that ask for thinking; ``None`` asks for none.

    How a model is asked is a field of its family's row.
    """
    known = find_traits(model)
    if effort is None or known.thinking_request is ThinkingRequest.NEVER:
        return {}
    level = _EFFORTS.get(effort.lower(), "medium")
    if known.thinking_request is ThinkingRequest.ADAPTIVE:
        accepted = (known.efforts or {}).get(level, level)
        return {"thinking": {"type": "adaptive", "display": "summarized"}, "output_config": {"effort": accepted}}
    budget = _BUDGETS.get(level, 8_000)
    return {
        "thinking": {"type": "enabled", "budget_tokens": budget},
        "temperature": 1,
        "max_tokens": max(output_tokens, budget + _ANSWER_ROOM),
    }


def spell_model_name(model: str) -> str:
    """The name as Anthropic itself spells it: no vendor in front, hyphens in versions."""
    name = model[len("anthropic/") :] if model.lower().startswith("anthropic/") else model
    return name.replace(".", "-") if find_traits(model).hyphenates_versions else name


# --------------------------------------------------------------------------------------------------------------- reply

_FINISH_REASONS: Mapping[str, str] = {
    "end_turn": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "stop_sequence": "stop",
    "refusal": "content_filter",
    "model_context_window_exceeded": "length",
}


def from_message(message: Row, *, issuer: str = ISSUER) -> ModelReply:
    """Convert a complete reply of the Messages API. Blocks that only a replay needs go into ``row_fields``, with the
    ``issuer`` whose signatures they carry.
    """
    content = message.get("content")
    blocks = [b for b in map(_build_input_block, content if isinstance(content, list) else []) if b is not None]
    thinking = [block for block in blocks if block["type"] in _THINKING]
    requests = tuple(
        ToolRequest(id=block["id"], name=block["name"], arguments=dump_arguments(block["input"]))
        for block in blocks
        if block["type"] == "tool_use"
    )
    return ModelReply(
        text="\n".join(block["text"] for block in blocks if block["type"] == "text"),
        tool_requests=requests,
        reasoning="\n\n".join(block["thinking"] for block in thinking if block.get("thinking")) or None,
        finish_reason=_FINISH_REASONS.get(str(message.get("stop_reason")), "stop"),
        usage=parse_usage(message.get("usage")),
        model=model if isinstance(model := message.get("model"), str) else "",
        row_fields=_build_row_fields(blocks, thinking, issuer),
    )


def parse_usage(usage: object) -> Usage:
    """Anthropic counts uncached input by itself, so nothing has to be subtracted."""
    counts = usage if isinstance(usage, Mapping) else {}

    def count(name: str) -> int:
        value = counts.get(name)
        return value if isinstance(value, int) and value > 0 else 0

    return Usage(
        input=count("input_tokens"),
        output=count("output_tokens"),
        cache_read=count("cache_read_input_tokens"),
        cache_write=count("cache_creation_input_tokens"),
    )


def _build_row_fields(blocks: list[Block], thinking: list[Block], issuer: str) -> dict[str, object]:
    """The blocks to keep with the row. Signed thinking is only valid in its place, so a reply is kept block by block
    unless it is thinking and then one text, which the row can express by itself.
    """
    fields: dict[str, object] = {"reasoning_details": thinking} if thinking else {}
    if any(map(_is_signed, thinking)):
        said = [block["type"] for block in blocks[len(thinking) :]]
        if blocks[: len(thinking)] != thinking or said not in ([], ["text"]):
            fields["anthropic_content_blocks"] = blocks
        if issuer != ISSUER:
            fields["anthropic_issuer"] = issuer
    return fields
