"""Reading a request: what the user asked, and which calls of this turn were answered how.

Rows come from a client, so every field may be missing or of another type; what cannot be read counts as absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

Row = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnsweredCall:
    """A tool call of the transcript."""

    id: str
    name: str
    arguments: Mapping[str, object]
    """Empty when they are not a JSON object."""
    result: str | None = None
    """The text of its result; ``None`` when there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedTurn:
    """All that happened since the user last asked for something."""

    request: str
    """The user's words."""
    calls: tuple[AnsweredCall, ...]
    rows_total: int
    """Rows of the whole conversation: a number that grows with it."""


def read_current_turn(rows: Sequence[Row]) -> ScriptedTurn:
    """Return the turn under way. It begins with the first user row behind the last answer that asked for no tools: rows
    that the loop itself adds in the middle, such as a request for a summary, begin no turn.
    """
    start = _find_turn_start(rows)
    results = {
        str(row.get("tool_call_id")): read_content_text(row) for row in rows[start:] if row.get("role") == "tool"
    }
    calls = tuple(replace(call, result=results.get(call.id)) for row in rows[start:] for call in list_tool_calls(row))
    request = read_content_text(rows[start]) if start < len(rows) else ""
    return ScriptedTurn(request=request, calls=calls, rows_total=len(rows))


def _find_turn_start(rows: Sequence[Row]) -> int:
    start = len(rows)
    is_open = False
    for index, row in enumerate(rows):
        if row.get("role") == "user" and not is_open:
            start, is_open = index, True
        elif row.get("role") == "assistant" and not list_tool_calls(row):
            is_open = False
    return start


def list_tool_calls(row: Row) -> list[AnsweredCall]:
    """The calls that an assistant row asks for, as yet without results."""
    calls = row.get("tool_calls")
    if row.get("role") != "assistant" or not isinstance(calls, list):
        return []
    return [_call(call) for call in calls if isinstance(call, dict)]


def _call(call: Row) -> AnsweredCall:
    function = call.get("function")
    function = function if isinstance(function, dict) else {}
    return AnsweredCall(
        id=str(call.get("id")),
        name=str(function.get("name")),
        arguments=parse_first_object(str(function.get("arguments"))) or {},
    )


def read_content_text(row: Row) -> str:
    """A row's content as text: a string, or the text parts of a list."""
    content = row.get("content")
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(
            part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)
        )
    return ""


def read_tool_schemas(tools: object) -> dict[str, frozenset[str]]:
    """The parameters of each tool offered, by the tool's name."""
    offered: dict[str, frozenset[str]] = {}
    for tool in tools if isinstance(tools, list) else ():
        function = tool.get("function") if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            parameters = function.get("parameters")
            properties = parameters.get("properties") if isinstance(parameters, dict) else None
            offered[function["name"]] = frozenset(properties if isinstance(properties, dict) else ())
    return offered


def parse_first_object(text: str) -> Mapping[str, object] | None:
    """The JSON object that a text begins with; text behind it, such as a warning appended by the loop, is ignored.
    ``None`` when there is none.
    """
    try:
        value, _ = json.JSONDecoder().raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
