"""Describe the arguments of a tool call in words, on one line: what the API, the terminal and the page show. Pure.

Each tool of ours has a row that says which arguments matter, or a function of its own. Other tools get ``name=value``
pairs. The text is not redacted and may hold invisible characters; the caller that shows it cleans it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from hermes_worker.core.delegation import DELEGATE_TOOL

ABOUT_CHARS_MAX: Final = 200
"""Longest description that is kept; a reader cuts it again at the width of what it shows."""
_VALUE_CHARS_MAX: Final = 1_000
"""What is taken of one value. It is longer than a description, so that a secret in it is whole when it is looked
for."""
_ITEMS_MAX: Final = 20
_PAIR: Final = re.compile(r'"(\w+)":\s*"((?:[^"\\]|\\.)*)')
"""A name and the beginning of its text, in a document that was cut short."""
_CHANGED_FILE: Final = re.compile(r"^\*\*\* (?:Add|Update|Delete) File: *(.+)$", re.MULTILINE)

_Arguments = Mapping[str, Any]


def describe_call(tool: str, arguments: str) -> str:
    """Describe a call by its arguments, which are JSON as a model wrote it and may be cut short."""
    try:
        document = json.loads(arguments)
    except (ValueError, RecursionError):
        pairs = {name: _unescape(text) for name, text in islice(_PAIR.findall(arguments), _ITEMS_MAX)}
        return _join(_format_pairs(pairs)) if pairs else _flatten(arguments)
    if not isinstance(document, dict):
        return _flatten(arguments)
    describe = _DESCRIBERS.get(tool)
    return (describe(document) if describe else "") or _join(_format_pairs(document))


def _unescape(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def _flatten(value: object) -> str:
    """Write a value on one line, without the quotation marks of a string, and without what no row can hold."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    storable = text[:_VALUE_CHARS_MAX].encode(errors="replace").decode().replace("\0", "")
    return " ".join(storable.split())


def _format_pairs(pairs: _Arguments) -> list[str]:
    return [f"{_flatten(name)}={_flatten(value)}" for name, value in islice(pairs.items(), _ITEMS_MAX)]


def _join(parts: Sequence[str], between: str = " ") -> str:
    return between.join(part for part in parts if part)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _count_lines(value: object) -> int:
    return len(value.splitlines()) if isinstance(value, str) else 0


def _list_objects(value: object) -> list[_Arguments]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _name_values(*names: str) -> Callable[[_Arguments], str]:
    """Describe a call by the values of these arguments, as far as it has them."""
    return lambda given: _join([_flatten(given[name]) for name in names if given.get(name) not in (None, "", [])])


def _describe_command(given: _Arguments) -> str:
    command = given.get("command")
    return _join([_flatten(command), "in the background" if given.get("background") else ""], ", ") if command else ""


def _describe_program(given: _Arguments) -> str:
    code = given.get("code")
    lines = [line for line in code.splitlines() if line.strip()] if isinstance(code, str) else []
    return f"{_count(len(lines), 'line')}: {_flatten(lines[0])}" if lines else ""


def _describe_reading(given: _Arguments) -> str:
    begin = given.get("offset")
    return _join([_name_values("path")(given), f"from line {_flatten(begin)}" if begin else ""], ", ")


def _describe_writing(given: _Arguments) -> str:
    path = _name_values("path")(given)
    return f"{path}, {_count(_count_lines(given.get('content')), 'line')}" if path else ""


def _describe_patch(given: _Arguments) -> str:
    patch = given.get("patch")
    if not isinstance(patch, str) or not patch:
        path, new, old = _name_values("path")(given), given.get("new_string"), given.get("old_string")
        return f"{path} +{_count_lines(new)} -{_count_lines(old)}" if path else ""
    files = [_flatten(name) for name in _CHANGED_FILE.findall(patch)]
    lines = patch.splitlines()
    added = sum(line.startswith("+") for line in lines)
    removed = sum(line.startswith("-") for line in lines)
    return f"{', '.join(files[:_ITEMS_MAX])} +{added} -{removed}" if files else ""


def _describe_todo(given: _Arguments) -> str:
    if given.get("todos") is None:
        return "read the list"
    items = _list_objects(given["todos"])
    counts = [
        f"{sum(each.get('status') == status for each in items)} {status.replace('_', ' ')}"
        for status in ("in_progress", "completed")
        if any(each.get("status") == status for each in items)
    ]
    return _join([_count(len(items), "item"), *counts], ", ")


def _describe_delegation(given: _Arguments) -> str:
    goals = [_flatten(each["goal"]) for each in _list_objects(given.get("tasks")) if each.get("goal")]
    if not goals:
        return _name_values("goal")(given)
    return f"{_count(len(goals), 'goal')}: {'; '.join(goals[:_ITEMS_MAX])}"


def _describe_message(given: _Arguments) -> str:
    return _join([_name_values("target")(given), _name_values("message")(given)], ": ")


_DESCRIBERS: Final[Mapping[str, Callable[[_Arguments], str]]] = MappingProxyType(
    {
        "clarify": _name_values("question"),
        "cronjob": _name_values("action", "name", "job_id", "schedule"),
        DELEGATE_TOOL: _describe_delegation,
        "execute_code": _describe_program,
        "patch": _describe_patch,
        "process": _name_values("action", "session_id", "data"),
        "read_file": _describe_reading,
        "search_files": _name_values("pattern", "path", "file_glob"),
        "send_message": _describe_message,
        "session_search": _name_values("query", "session_id"),
        "terminal": _describe_command,
        "todo": _describe_todo,
        "web_extract": _name_values("urls"),
        "write_file": _describe_writing,
    }
)
"""How calls of the kernel's tools are described."""
