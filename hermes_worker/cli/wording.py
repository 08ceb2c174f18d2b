"""Words for the events of a run on a terminal, as plain text. Pure.

Text of a model or a tool may hold anything. Nothing but printable characters, line breaks and tabs leaves here, so no
reply can move the cursor, repaint a line, turn its direction or set the clipboard.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hermes_worker.cli.layout import format_clock
from hermes_worker.core.call_descriptions import describe_call
from hermes_worker.core.consent import render_lines
from hermes_worker.core.invisible_characters import show_invisible

_ABOUT_CHARS = 100


def strip_controls(text: str) -> str:
    """Remove from ``text``, which a person reads as prose, what a terminal would obey."""
    return text if text.isprintable() else "".join(c for c in text if c.isprintable() or c in "\n\t")


def show_unprintable(text: str) -> str:
    """Replace what is neither printable nor a tab nor a line end by its code, as ``<U+00A0>``. For what a person is
    asked to allow: nothing of it may be left out."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"<U+{ord(c):04X}>" for c in show_invisible(text))


def flatten_text(text: str, width: int) -> str:
    """Write ``text`` on one line of at most ``width`` characters. It may be a name or a title, so invisible marks are
    shown."""
    flat = " ".join(strip_controls(show_invisible(text)).split())
    return flat if len(flat) <= width else f"{flat[: width - 1]}…"


def render_question(said: str, text: str) -> list[str]:
    """Render a question whole: ``said`` and the text behind it, or below it and indented, so that no line of it can
    look like one of ours."""
    first, *more = (show_unprintable(line) for line in render_lines(text))
    return [said, *(f"    {line}" for line in (first, *more))] if more else [f"{said} {first}"]


def format_about(fields: Mapping[str, Any]) -> str:
    """Write the arguments of a call on one line, in the words of the server; an older one sends their beginning
    alone."""
    return flatten_text(str(fields.get("about") or describe_call("", str(fields.get("preview") or ""))), _ABOUT_CHARS)


def format_call_name(fields: Mapping[str, Any]) -> str:
    """Name a tool; a later call of the same reply gets its number, because they run side by side."""
    name, position = flatten_text(str(fields.get("tool", "")), 64), fields.get("position")
    return f"{name} #{position + 1}" if isinstance(position, int) and position > 0 else name


def format_retry(fields: Mapping[str, Any]) -> str:
    """Write that a worker vanished and its step is tried again."""
    step, attempt = flatten_text(str(fields.get("step")), 64), flatten_text(str(fields.get("attempt")), 20)
    again = f"a worker was lost; trying its {step} again, attempt {attempt}"
    deaths = fields.get("deaths")
    if deaths is None:
        return again
    alone = f" (it took down {deaths} alone)" if isinstance(deaths, int) and deaths else ""
    return f"{again}, apart from all other work{alone}"


def format_refusal(fields: Mapping[str, Any]) -> str:
    """Write who refused a call and why. ``fields`` are those of the event that ended it."""
    who = _REFUSED_BY.get(str(fields.get("refused_by")), "refused")
    reason = flatten_text(str(fields.get("reason") or ""), 200)
    return f"{who}: {reason}" if reason else who


_REFUSED_BY = {
    "rules": "refused by the rules of this installation",
    "person": "refused by a person",
    "timeout": "refused, because nobody answered in time",
}


def format_waiting(fields: Mapping[str, Any]) -> str:
    """Write what a parked run waits for."""
    what = flatten_text(str(fields.get("status", "")), 64).replace("_", " ")
    reason = fields.get("reason")
    why = f": {flatten_text(str(reason), 300)}" if reason else ""
    return f"{what}{format_until(fields.get('until'))}{why}"


def format_until(at: object) -> str:
    """Write `` until`` a time of day; empty for what is no time."""
    if not isinstance(at, int | float):
        return ""
    try:
        return f" until {format_clock(at)}"
    except (ValueError, OverflowError, OSError):
        return ""


def format_budget(fields: Mapping[str, Any]) -> str:
    """Write that a limit is reached."""
    limit = flatten_text(str(fields.get("dimension", "")), 64).replace("_", " ")
    return f"the limit of {limit} is reached; it sums up"


def format_unknown_outcome(fields: Mapping[str, Any]) -> str:
    """Write why it is unknown what a call did: its worker is gone, or came back without a usable answer."""
    why = "no usable answer" if fields.get("is_answered") else "its worker was lost"
    return f"{why}, outcome unknown; it is not run again"
