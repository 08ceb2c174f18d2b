"""Parse the input of a response into the form in which we store messages. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.api.bodies import parse_json
from hermes_worker.api.errors import invalid
from hermes_worker.api.messages import ITEMS_MAX, Conversation, require_text_length
from hermes_worker.api.openai.chat_messages import parse_conversation, parse_rows

_OURS = frozenset({"reasoning", "mcp_call", "mcp_list_tools", "item_reference"})
"""Items that a server made and that tell an agent nothing new: it has its own memory of them."""


def parse_input(given: object, history: object) -> list[dict[str, Any]]:
    """Parse messages from the fields ``input`` and ``conversation_history``. Raises ``ApiError``."""
    earlier = _convert_items(history, "conversation_history") if history is not None else []
    if isinstance(given, str):
        if not given.strip():
            raise invalid("input", "Invalid 'input': the message is empty.", "empty_message")
        return parse_rows([*earlier, {"role": "user", "content": require_text_length(given, "input")}], "input")
    return parse_rows([*earlier, *_convert_items(given, "input")], "input")


def parse_items(given: object, where: str) -> list[dict[str, Any]]:
    """Parse messages from a list of items, which may be empty. Raises ``ApiError``."""
    messages = _convert_items(given, where)
    return parse_rows(messages, where) if messages else []


def parse_conversation_rows(rows: Sequence[Mapping[str, Any]]) -> Conversation:
    """Parse a conversation that ends with the user's message. Raises ``ApiError``."""
    return parse_conversation(rows, "input")


_COMPACTED = "hw1."
"""Begins a conversation in short of ours. It holds no secret, and is judged as any history that a client sends."""


def encode_compaction(rows: Sequence[Mapping[str, Any]]) -> str:
    """Encode a conversation in short, which clients keep and bring back without looking into it."""
    return _COMPACTED + base64.urlsafe_b64encode(json.dumps(list(rows)).encode()).decode()


def _decode_compaction(given: object, where: str) -> list[dict[str, Any]]:
    """Decode a conversation in short; nothing for one that another server made. Raises ``ApiError``."""
    if not isinstance(given, str) or not given.startswith(_COMPACTED):
        return []
    try:
        rows = parse_json(base64.b64decode(given.removeprefix(_COMPACTED), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        rows = None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise invalid(f"{where}.encrypted_content", f"Invalid '{where}.encrypted_content': it was changed.")
    return rows


def _convert_items(given: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise invalid(where, f"Invalid '{where}': it must be a string or a list of items.", "invalid_type")
    if len(given) > ITEMS_MAX:
        raise invalid(where, f"Invalid '{where}': it has more than {ITEMS_MAX} items.")
    rows: list[dict[str, Any]] = []
    for number, item in enumerate(given):
        if isinstance(item, str):
            rows.append({"role": "user", "content": item})
        elif not isinstance(item, dict):
            raise invalid(f"{where}[{number}]", f"Invalid '{where}[{number}]': it must be an item.", "invalid_type")
        else:
            rows += _convert_item(item, f"{where}[{number}]")
    return rows


def _convert_item(item: Mapping[str, Any], where: str) -> Sequence[dict[str, Any]]:
    kind = item.get("type", "message")
    if kind == "message":
        return [{"role": item.get("role"), "content": item.get("content")}]
    if kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        return [{"role": "assistant", "content": "", "tool_calls": [call]}]
    if kind == "function_call_output":
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": item.get("output")}]
    if isinstance(kind, str) and kind in _OURS:
        return []
    if kind == "compaction":
        return _decode_compaction(item.get("encrypted_content"), where)
    raise invalid(f"{where}.type", f"Invalid '{where}.type': {str(kind)[:40]!r} is not known.")
