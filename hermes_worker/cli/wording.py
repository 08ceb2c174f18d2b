"""Words for the events of a run on a terminal, as plain text. Pure.

Text of a model or a tool may hold anything. Nothing but printable characters, line breaks and tabs leaves here, so no
reply can move the cursor, repaint a line, turn its direction or set the clipboard.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from hermes_worker.cli.layout import clock
from hermes_worker.core.consent import render_lines
from hermes_worker.core.unseen import show_marks

_PREVIEW_CHARS = 100


def clean(text: str) -> str:
    """Remove from ``text``, which a person reads as prose, what a terminal would obey."""
    return text if text.isprintable() else "".join(c for c in text if c.isprintable() or c in "\n\t")


def one_line(text: str, width: int) -> str:
    """Write ``text`` on one line of at most ``width`` characters. It may be a name or a title, so invisible marks are
    shown."""
    flat = " ".join(clean(show_marks(text)).split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"


def render_question(said: str, text: str) -> list[str]:
    """Render a question whole: ``said`` and the text behind it, or below it and indented, so that no line of it can
    look like one of ours."""
    first, *more = (clean(line) for line in render_lines(text))
    return [said, *(f"    {line}" for line in (first, *more))] if more else [f"{said} {first}"]


def arguments_line(arguments: str) -> str:
    """Write the arguments of a call, which may be cut short, as ``name=value`` pairs on one line."""
    try:
        document = json.loads(arguments)
    except (ValueError, RecursionError):
        pairs = {name: _unescaped(text) for name, text in _ARGUMENT.findall(arguments)}
    else:
        pairs = document if isinstance(document, dict) else {}
    shown = (f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in pairs.items())
    return one_line(" ".join(shown) if pairs else arguments, _PREVIEW_CHARS)


_ARGUMENT = re.compile(r'"(\w+)":\s*"((?:[^"\\]|\\.)*)')
"""A name and the beginning of its text."""


def _unescaped(text: str) -> str:
    try:
        return str(json.loads(f'"{text}"'))
    except ValueError:
        return text


def call_name(fields: Mapping[str, Any]) -> str:
    """Name a tool; a later call of the same reply gets its number, because they run side by side."""
    name, position = one_line(str(fields.get("tool", "")), 64), fields.get("position")
    return f"{name} #{position + 1}" if isinstance(position, int) and position > 0 else name


def retry_line(fields: Mapping[str, Any]) -> str:
    """Write that a worker vanished and its step is tried again."""
    step, attempt = one_line(str(fields.get("step")), 64), one_line(str(fields.get("attempt")), 20)
    again = f"a worker was lost; trying its {step} again, attempt {attempt}"
    deaths = fields.get("deaths")
    if deaths is None:
        return again
    alone = f" (it took down {deaths} alone)" if isinstance(deaths, int) and deaths else ""
    return f"{again}, apart from all other work{alone}"


def refusal(fields: Mapping[str, Any]) -> str:
    """Write who refused a call and why. ``fields`` are those of the event that ended it."""
    who = _REFUSED_BY.get(str(fields.get("refused_by")), "refused")
    reason = one_line(str(fields.get("reason") or ""), 200)
    return f"{who}: {reason}" if reason else who


_REFUSED_BY = {
    "rules": "refused by the rules of this installation",
    "person": "refused by a person",
    "timeout": "refused, because nobody answered in time",
}


def waiting_line(fields: Mapping[str, Any]) -> str:
    """Write what a parked run waits for."""
    what = one_line(str(fields.get("status", "")), 64).replace("_", " ")
    reason = fields.get("reason")
    why = f": {one_line(str(reason), 300)}" if reason else ""
    return f"{what}{until_words(fields.get('until'))}{why}"


def until_words(at: object) -> str:
    """Write `` until`` a time of day; empty for what is no time."""
    if not isinstance(at, int | float):
        return ""
    try:
        return f" until {clock(at)}"
    except (ValueError, OverflowError, OSError):
        return ""


def budget_line(fields: Mapping[str, Any]) -> str:
    """Write that a limit is reached."""
    limit = one_line(str(fields.get("dimension", "")), 64).replace("_", " ")
    return f"the limit of {limit} is reached; it sums up"


def unknown_outcome(fields: Mapping[str, Any]) -> str:
    """Write why it is unknown what a call did: its worker is gone, or came back without a usable answer."""
    why = "no usable answer" if fields.get("is_answered") else "its worker was lost"
    return f"{why}, outcome unknown; it is not run again"
