"""Shorten old tool results, as a view: no stored row changes. Pure.

Theory of operation. A compaction row may say up to which row tool results are shown shortened (``core.compactions``).
How an old row is shown depends on the rows up to that one and on nothing else, so it is equal to the byte on every
worker and in every later request, until a newer row says otherwise (invariant I7). Every call keeps its result, and
every result its call: only their texts get shorter.

The rules are those of Hermes Agent 0.19: of equal results the newest stays, a long one becomes one line,
and long texts in the arguments of a call are cut, in JSON that stays JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hermes_worker.core.json_values import parse_object
from hermes_worker.core.messages import Message, Role, dump_canonical_json

RESULT_CHARS = 200
"""A longer result is shown as one line."""
ARGUMENTS_CHARS = 500
"""In longer arguments, long texts are cut."""
_TEXT_CHARS = 200
_CALL_CHARS = 120
_BEGINNING_CHARS = 100
_SIGNED_CALL = frozenset({"id", "type", "function"})
_PLAIN_ROW = frozenset({"role", "content", "tool_calls"})


def shorten_results(rows: Sequence[Message], through: int) -> Sequence[Message]:
    """Shorten the tool results of the rows up to number ``through``."""
    if through <= 0 or not any(row.seq <= through and _may_shrink(row) for row in rows):
        return rows
    calls = list_calls(rows)
    newest = _find_newest_of_equals(rows, through)
    return [row if row.seq > through else _shorten_row(row, calls, newest) for row in rows]


def drop_repeated_results(rows: Sequence[Message]) -> Sequence[Message]:
    """Keep only the newest of equal tool results."""
    newest = _find_newest_of_equals(rows, rows[-1].seq if rows else 0)
    return [_mark_repeated(row) if _is_repeated(row, newest) else row for row in rows]


def _may_shrink(row: Message) -> bool:
    return len(row.body) > RESULT_CHARS and row.role is not Role.USER


def _shorten_row(row: Message, calls: Mapping[str, tuple[str, str]], newest: Mapping[str, int]) -> Message:
    if not _may_shrink(row):
        return row
    if row.role is Role.TOOL:
        if _is_repeated(row, newest):
            return _mark_repeated(row)
        name, arguments = calls.get(_read_call_id(row), ("", ""))
        return replace(row, body=_shorten_result(row.body, name, arguments))
    return replace(row, body=_shorten_arguments(row.body)) if row.role is Role.ASSISTANT else row


# --- results ---------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _shorten_result(body: str, name: str, arguments: str) -> str:
    row = json.loads(body)
    text = _read_text(row.get("content"))
    if len(text) <= RESULT_CHARS and not isinstance(row.get("content"), list):
        return body
    line = f"[{name or 'tool'}{_shorten(' ' + arguments, _CALL_CHARS) if arguments else ''}] {_describe_result(text)}"
    short = dump_canonical_json({**row, "content": line})
    return short if len(short) < len(body) else body


def _describe_result(text: str) -> str:
    """The line that replaces a result: how the tool ended, how long the result was and how it began."""
    document = parse_object(text) if text.startswith("{") else {}
    code = document.get("exit_code")
    ended = f"exit {code}, " if isinstance(code, int) and not isinstance(code, bool) else ""
    said = next((document[key] for key in ("output", "content", "error") if isinstance(document.get(key), str)), text)
    first = next((line.strip() for line in said.splitlines() if line.strip()), "")
    size = f"{len(text):,} characters, {said.count(chr(10)) + 1} lines"
    return f"{ended}{size}, no longer shown; it began: {_shorten(first, _BEGINNING_CHARS)}"


def _mark_repeated(row: Message) -> Message:
    return replace(row, body=_build_repeated_body(row.body))


@lru_cache(maxsize=1024)
def _build_repeated_body(body: str) -> str:
    return dump_canonical_json({**json.loads(body), "content": "[the same result as that of a later call]"})


def _find_newest_of_equals(rows: Sequence[Message], through: int) -> Mapping[str, int]:
    """Map the content of long results to the number of the newest row with it. Only rows up to ``through`` count: later
    rows must not change what was shown."""
    found: dict[str, int] = {}
    for row in rows:
        if row.seq <= through and row.role is Role.TOOL and len(row.body) > RESULT_CHARS:
            found[_extract_result_content(row.body)] = row.seq
    return found


def _is_repeated(row: Message, newest: Mapping[str, int]) -> bool:
    is_long = row.role is Role.TOOL and len(row.body) > RESULT_CHARS
    return (
        is_long
        and newest.get(_extract_result_content(row.body), row.seq) != row.seq
        and len(_extract_result_content(row.body)) > RESULT_CHARS
    )


def _extract_result_content(body: str) -> str:
    """The content of a tool's row: its body up to the id of the call, which canonical JSON has after the content."""
    return body.rpartition('"role":"tool"')[0]


def _read_call_id(row: Message) -> str:
    return str(json.loads(row.body).get("tool_call_id"))


# --- calls -----------------------------------------------------------------------------------------------------------


def list_calls(rows: Sequence[Message]) -> Mapping[str, tuple[str, str]]:
    """The name and the arguments of every call, by id."""
    found: dict[str, tuple[str, str]] = {}
    for row in rows:
        if row.role is Role.ASSISTANT and '"tool_calls":[' in row.body:
            for call in json.loads(row.body).get("tool_calls") or ():
                function = call.get("function", {})
                found[str(call.get("id"))] = (str(function.get("name", "")), str(function.get("arguments", "")))
    return found


@lru_cache(maxsize=1024)
def _shorten_arguments(body: str) -> str:
    """Cut long texts in the arguments of a reply. A reply that a provider signed stays as it is, because it would be
    rejected."""
    row = json.loads(body)
    calls = row.get("tool_calls")
    if not isinstance(calls, list) or row.keys() - _PLAIN_ROW or any(call.keys() - _SIGNED_CALL for call in calls):
        return body
    shown = [{**call, "function": _shorten_function(call["function"])} for call in calls]
    return body if shown == calls else dump_canonical_json({**row, "tool_calls": shown})


def _shorten_function(function: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = function.get("arguments")
    if not isinstance(arguments, str) or len(arguments) <= ARGUMENTS_CHARS:
        return function
    try:
        read = json.loads(arguments)
        short = dump_canonical_json(_shorten_texts(read))
    except (ValueError, RecursionError):
        return function
    return {**function, "arguments": short} if isinstance(read, dict) else function


def _shorten_texts(value: Any) -> Any:
    if isinstance(value, str):
        return _shorten(value, _TEXT_CHARS)
    if isinstance(value, list):
        return [_shorten_texts(item) for item in value]
    if isinstance(value, dict):
        return {key: _shorten_texts(item) for key, item in value.items()}
    return value


# --- texts -----------------------------------------------------------------------------------------------------------


def _shorten(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[:chars_max]}…"


def _read_text(content: object) -> str:
    """The texts of a content; a picture becomes ``[an image]``."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(str(part.get("text", "[an image]")) for part in parts if isinstance(part, Mapping))
