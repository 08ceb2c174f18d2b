"""Lay out what a tool call did: its exit code, its error, its output or its diff, as clean lines. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

from hermes_worker.cli.wording import flatten_text, strip_controls
from hermes_worker.core.invisible_characters import show_invisible

if TYPE_CHECKING:
    from hermes_worker.schemas.runs import CallDetailObject

_FOLDED_LINES = 6
_FOLDED_DIFF_LINES = 24
_OPENED_LINES_MAX = 5_000
_LINE_CHARS_MAX = 2_000
_TEXTS = ("output", "content", "result", "text", "summary", "stdout")
"""Fields of results that hold what people want to read."""
_ITEM_SIGNS = {"completed": "x", "in_progress": ">", "cancelled": "-"}
"""How far items of a list of things to do are."""


class LineMark(StrEnum):
    """The mark of a line, which a painter may show as a colour."""

    PLAIN = "plain"
    ADDED = "added"
    REMOVED = "removed"
    PLACE = "place"
    BAD = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLine:
    text: str
    mark: LineMark = LineMark.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOutput:
    """What a call did, below the line that names it."""

    lines: Sequence[OutputLine]
    kind: Literal["call_output"] = "call_output"


def fold_output(call: CallDetailObject, opens: str, *, lines_max: int | None = None) -> CallOutput:
    """Lay out the first lines of what a call did; a last line says how many more there are, and that ``opens``, a
    command, opens them. ``lines_max`` is for where one call is looked at; ``None`` where it is one of several."""
    lines = _lay_out_result(call)
    usual = _FOLDED_DIFF_LINES if any(each.mark is LineMark.PLACE for each in lines) else _FOLDED_LINES
    return CallOutput(lines=_fold(lines, opens, lines_max or usual))


def fold_arguments(call: CallDetailObject, opens: str, *, lines_max: int) -> Sequence[OutputLine]:
    """Lay out what a call was asked, a line for each argument, as ``fold_output`` does with what it did."""
    return _fold(_lay_out_arguments(call), opens, lines_max)


def _fold(lines: Sequence[OutputLine], opens: str, lines_max: int) -> Sequence[OutputLine]:
    if len(lines) <= lines_max + 1:  # the line that tells of one more would take its room
        return lines
    more = OutputLine(text=f"… {len(lines) - lines_max} more lines, {opens} opens them", mark=LineMark.PLACE)
    return [*lines[:lines_max], more]


def _lay_out_arguments(call: CallDetailObject) -> Sequence[OutputLine]:
    return _split_lines(_format_document(call.changed_arguments or call.arguments), LineMark.PLACE)


def open_output(call: CallDetailObject) -> CallOutput:
    """Lay out a whole call, with its arguments."""
    lines = [*_lay_out_arguments(call), *_lay_out_result(call)]
    cut = [OutputLine(text=f"… {len(lines) - _OPENED_LINES_MAX} more lines", mark=LineMark.PLACE)]
    return CallOutput(lines=[*lines[:_OPENED_LINES_MAX], *(cut if len(lines) > _OPENED_LINES_MAX else [])])


def render_diff(text: str) -> CallOutput:
    """Lay out a unified diff."""
    return CallOutput(lines=[_mark_diff_line(line) for line in text.splitlines()[:_OPENED_LINES_MAX]])


def _lay_out_result(call: CallDetailObject) -> list[OutputLine]:
    if call.result is None:
        return []
    document = _parse_document(call.result)
    if document is None:
        return _split_lines(call.result)
    bad = _describe_failure(document)
    if isinstance(diff := document.get("diff"), str):
        return [*bad, *(_mark_diff_line(line) for line in diff.splitlines())]
    if call.tool == "write_file" and not bad:
        written = (_parse_document(call.changed_arguments or call.arguments) or {}).get("content")
        return [OutputLine(text=f"+{line.text}", mark=LineMark.ADDED) for line in _split_lines(str(written or ""))]
    if isinstance(items := document.get("todos"), list):
        return [*bad, *map(_lay_out_item, items)]
    texts = [text for name in _TEXTS if isinstance(text := document.get(name), str) and text.strip()]
    if texts or bad:
        return [*bad, *(line for text in texts for line in _split_lines(text))]
    rest = {name: value for name, value in document.items() if value not in (None, "", [], {})}
    return [] if rest.get("exit_code") == 0 else _split_lines(_format_document(json.dumps(rest)))


def _lay_out_item(item: object) -> OutputLine:
    """Lay out an item of a list of things to do."""
    its = item if isinstance(item, dict) else {}
    return OutputLine(text=_clean_line(f"[{_ITEM_SIGNS.get(str(its.get('status')), ' ')}] {its.get('content', item)}"))


def _describe_failure(document: Mapping[str, Any]) -> list[OutputLine]:
    """Describe the exit code of a command and the error of a tool; empty where nothing went wrong."""
    found = []
    code = document.get("exit_code")
    if isinstance(code, int) and code != 0:
        meaning = flatten_text(str(document.get("exit_code_meaning") or ""), 200)
        found.append(f"exit code {code}" + (f": {meaning}" if meaning else ""))
    if isinstance(error := document.get("error"), str) and error.strip():
        found.append(flatten_text(error, _LINE_CHARS_MAX))
    return [OutputLine(text=text, mark=LineMark.BAD) for text in found]


def _mark_diff_line(line: str) -> OutputLine:
    mark = LineMark.PLAIN
    if line.startswith(("+++", "---", "@@")):
        mark = LineMark.PLACE
    elif line.startswith(("+", "-")):
        mark = LineMark.ADDED if line[0] == "+" else LineMark.REMOVED
    return OutputLine(text=_clean_line(line), mark=mark)


def _split_lines(text: str, mark: LineMark = LineMark.PLAIN) -> list[OutputLine]:
    return [OutputLine(text=_clean_line(line), mark=mark) for line in text.rstrip().splitlines()]


def _clean_line(line: str) -> str:
    clean = strip_controls(show_invisible(line)).expandtabs(4)
    return clean if len(clean) <= _LINE_CHARS_MAX else f"{clean[:_LINE_CHARS_MAX]}…"


def _format_document(text: str) -> str:
    document = _parse_document(text)
    if document is None:
        return text
    parts = ((name, value if isinstance(value, str) else json.dumps(value)) for name, value in document.items())
    return "\n".join(f"{name}: {value}" for name, value in parts)


def _parse_document(text: str) -> dict[str, Any] | None:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
