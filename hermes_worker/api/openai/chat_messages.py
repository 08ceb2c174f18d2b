"""Parse the messages of a chat completion into the form that we store. Pure.

Clients send back what they were given, with whatever fields their SDK adds; fields that mean nothing here are ignored.
A message that cannot be taken is refused with its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.api.errors import invalid
from hermes_worker.api.messages import ITEMS_MAX, Content, Conversation, parse_content, require_text_length
from hermes_worker.api.openai.client_tools import BroughtResult

_INSTRUCTING = frozenset({"system", "developer"})
_ROLES = frozenset({"user", "assistant", "tool"}) | _INSTRUCTING


def parse_rows(given: object, field: str = "messages") -> list[dict[str, Any]]:
    """Parse the messages in a field of a request. Raises ``ApiError``."""
    if not isinstance(given, list):
        raise invalid(field, f"Invalid '{field}': it must be a list of messages.", "invalid_type")
    if not given:
        raise invalid(field, f"Invalid '{field}': the list has no message.")
    if len(given) > ITEMS_MAX:
        raise invalid(field, f"Invalid '{field}': it has more than {ITEMS_MAX} messages.")
    return [_parse_row(item, f"{field}[{number}]") for number, item in enumerate(given)]


def read_results(rows: Sequence[Mapping[str, Any]], field: str = "messages") -> list[BroughtResult]:
    """Read the results of the client's tools at the end of the messages; empty where the user has the last word."""
    said = [row for row in rows if row["role"] not in _INSTRUCTING]
    if not said or said[-1]["role"] != "tool":
        return []
    return [
        BroughtResult(call_id=row["tool_call_id"], text=row["content"], where=f"{field}[{number}]")
        for number, row in enumerate(rows)
        if row["role"] == "tool"
    ]


def parse_conversation(rows: Sequence[Mapping[str, Any]], field: str = "messages") -> Conversation:
    """Parse a conversation that ends with the user's message. Raises ``ApiError``."""
    said = [(row, number) for number, row in enumerate(rows) if row["role"] not in _INSTRUCTING]
    last, number = said[-1] if said else ({}, 0)
    if last.get("role") != "user":
        where = f"{field}[{number}].role"
        raise invalid(where, f"Invalid '{field}': the last message must be the user's.")
    if isinstance(last["content"], str) and not last["content"].strip():
        raise invalid(f"{field}[{number}].content", f"Invalid '{field}': the last message is empty.", "empty_message")
    return Conversation(
        input=last["content"],
        history=[row for row, _ in said[:-1]],
        instructions=[str(row["content"]) for row in rows if row["role"] in _INSTRUCTING],
    )


def _parse_row(item: object, where: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise invalid(where, f"Invalid '{where}': it must be a message object.", "invalid_type")
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        words = ", ".join(sorted(_ROLES))
        raise invalid(f"{where}.role", f"Invalid '{where}.role': it must be one of {words}.")
    calls = _parse_calls(item.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else []
    content = _parse_content(item, role, where, may_be_missing=bool(calls))
    row: dict[str, Any] = {"role": role, "content": content}
    if calls:
        row["tool_calls"] = calls
    if role == "tool":
        row["tool_call_id"] = _require_text(item.get("tool_call_id"), f"{where}.tool_call_id")
    return row


def _parse_content(item: Mapping[str, Any], role: str, where: str, *, may_be_missing: bool) -> Content:
    place = f"{where}.content"
    given = item.get("content")
    if given is None:
        if role != "assistant" or not (may_be_missing or "content" in item):
            raise invalid(place, f"Missing required parameter: '{place}'.", "missing_required_parameter")
        given = item.get("refusal") or ""
    content = parse_content(_convert_refusals(given) if role == "assistant" else given, place)
    if role != "user" and not isinstance(content, str):
        raise invalid(place, f"Invalid '{place}': only the user's messages may have images.")
    return content


def _convert_refusals(given: object) -> object:
    """Read a refusal as text that the assistant said."""
    if not isinstance(given, list):
        return given
    return [
        {"type": "text", "text": part.get("refusal")}
        if isinstance(part, dict) and part.get("type") == "refusal"
        else part
        for part in given
    ]


def _parse_calls(given: object, where: str) -> list[dict[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > ITEMS_MAX:
        raise invalid(where, f"Invalid '{where}': it must be a list of at most {ITEMS_MAX} calls.", "invalid_type")
    return [_call(call, f"{where}[{number}]") for number, call in enumerate(given)]


def _call(given: object, where: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict):
        raise invalid(where, f"Invalid '{where}': it must be a call of a function.", "invalid_type")
    return {
        "id": _require_text(given.get("id"), f"{where}.id"),
        "type": "function",
        "function": {
            "name": _require_text(function.get("name"), f"{where}.function.name"),
            "arguments": require_text_length(
                _require_text(function.get("arguments"), f"{where}.function.arguments"), where
            ),
        },
    }


def _require_text(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise invalid(where, f"Invalid '{where}': it must be a string.", "invalid_type")
    return given


# --- is it the same conversation? ------------------------------------------------------------------------------------


def is_same_conversation(history: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a client that sends this history means the conversation of these stored rows. Of an answer it may know
    only the last text, or all that was said on the way to it."""
    given, stored = _group_turns(history), _group_turns(rows)
    if len(given) != len(stored):
        return False
    return all(_is_same_turn(mine, theirs) for mine, theirs in zip(given, stored, strict=True))


_Turn = tuple[list[Content], list[str]]
"""One turn: what the user said, and the texts that answered it."""


def _group_turns(rows: Sequence[Mapping[str, Any]]) -> list[_Turn]:
    turns: list[_Turn] = []
    for row in rows:
        if row.get("role") == "user":
            if not turns or turns[-1][1]:
                turns.append(([], []))
            turns[-1][0].append(row["content"].strip() if isinstance(row["content"], str) else row["content"])
        elif row.get("role") == "assistant" and turns:
            turns[-1][1].append(str(row.get("content") or "").strip())
    return turns


def _is_same_turn(given: _Turn, stored: _Turn) -> bool:
    said = [text for text in given[1] if text]
    told = [text for text in stored[1] if text]
    return given[0] == stored[0] and (said in (told, told[-1:]) or said == ["\n\n".join(told)])
