"""Lay out facts for people: tables that fit the terminal, local times with their zone, values in words."""

from __future__ import annotations

import difflib
import json
import re
import shutil
import sys
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import click

from hermes_worker.core.pricing import format_usd

_GAP = "  "
_ID_DIGITS = 12
"""Characters of an id in a table that is too wide; commands accept the beginning of an id."""
_LONG_ID = re.compile(r"(?P<prefix>(?:[a-z]+_)?)(?P<digits>[0-9a-f]{32})")
_CELL_MIN = 8
"""The least width of a column."""
_READABLE = 24
"""The width below which a text says too little: before one becomes narrower, columns that can be spared go."""


def format_clock(at: float) -> str:
    """Format the local time of day and its zone."""
    return time.strftime("%H:%M:%S %Z", time.localtime(at))


def format_moment(at: float | None) -> str:
    """Format the local date, time and zone; ``-`` for never."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(at)) if at is not None else "-"


def parse_moment(moment: str | None) -> float | None:
    """Parse a time of the API in ISO 8601, which is mostly in UTC; ``None`` for none."""
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def format_age(at: float | None) -> str:
    """Format a time as people say it, in two units at most: ``5 min 00 s ago``, ``in 2 h 10 min``; ``-`` for never. The
    exact time is ``format_moment``."""
    if at is None:
        return "-"
    ago = time.time() - at
    if abs(ago) < 1:
        return "now"
    length = format_duration(float(int(abs(ago))))
    return f"{length} ago" if ago > 0 else f"in {length}"


def format_duration(seconds: float) -> str:
    """Format a length of time in two units at most: ``1.2 s``, ``3 min 05 s``, ``2 h 10 min``, ``3 d 04 h``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 and seconds % 1 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def format_count(number: int, noun: str) -> str:
    """Format a number of things: ``1 file``, ``2,000 files``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_tokens(fresh: int, cached: int, output: int) -> str:
    """Format the tokens of model calls: what was sent, those read from and written to a cache among it, and what came
    back."""
    return f"{fresh + cached:,} tokens in, {output:,} out"


def format_field(name: str, value: Any) -> str:
    """Format a field of a document for people. A number named ``..._at``, ``not_before`` or ``slot`` is a time."""
    match value:
        case None | "" | () | []:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float() | int() if name.endswith(("_at", "not_before", "slot")):
            return format_moment(float(value))
        case float() | int() if name.endswith("_usd"):
            return format_usd(float(value))
        case float():
            return f"{value:g}"
        case Mapping():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return ", ".join(format_field("", entry) for entry in value)
        case _:
            return str(value)


def find_terminal_width() -> int | None:
    """Find the columns of the terminal, or of COLUMNS; ``None`` for a pipe or a file, where nothing is cut."""
    return shutil.get_terminal_size(fallback=(0, 0)).columns or None


def is_dumb() -> bool:
    """Whether this is a terminal that cannot move its cursor, as ``TERM`` says."""
    from hermes_worker.settings.loading import is_dumb_terminal  # what only formats tables starts without settings

    return sys.stdout.isatty() and is_dumb_terminal()


def iterate_tree(parents: Mapping[str, str | None]) -> Iterator[tuple[str, int]]:
    """Yield each id behind its parent, with its depth below the first; siblings keep their order.

    A parent that is no key counts as none. Ids in a circle come last, as if they had no parent.
    """
    below: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        below.setdefault(parent if parent in parents else None, []).append(name)
    told: set[str] = set()
    left = [(name, 0) for name in reversed(below.get(None, []))]
    while left:
        name, level = left.pop()
        told.add(name)
        yield name, level
        left.extend((child, level + 1) for child in reversed(below.get(name, [])))
    yield from ((name, 0) for name in parents if name not in told)


def find_ancestors(parents: Mapping[str, str | None], names: Iterable[str]) -> set[str]:
    """Find these names and all that stand above them."""
    found: set[str] = set()
    for name in names:
        at: str | None = name
        while at is not None and at in parents and at not in found:
            found.add(at)
            at = parents[at]
    return found


def show_difference(before: str, after: str, before_name: str = "now", after_name: str = "then") -> None:
    """Print what changes between two texts, without secrets."""
    names = before_name, after_name
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), *names, lineterm="", n=1)
    click.echo(hide_secrets("\n".join(lines)) or "nothing changes")


def hide_secrets(text: str) -> str:
    """Hide the credentials in a text."""
    from hermes_worker.safety.redaction import redact  # which compiles 60 patterns

    return redact(text)


def render_table(
    rows: Iterable[tuple[str, ...]],
    header: tuple[str, ...],
    *,
    ids: Sequence[int] = (),
    whole: Sequence[int] = (),
    spared: Sequence[int] = (),
) -> str:
    """Columns as wide as their widest cell; the last one is not padded.

    On a terminal that is too narrow the columns ``ids`` show the beginnings of their ids; then those in ``spared`` are
    left out, in that order, while there is no room for readable texts; then the widest columns give way until a row
    fits on a line. Those in ``whole`` are never cut.
    """
    cells = [header, *rows]
    width = find_terminal_width()
    if width is not None and sum(_measure_widths(cells)) + len(_GAP) * (len(header) - 1) > width:
        cells = [_shorten_ids(row, ids) for row in cells]
        shown = _choose_columns(_measure_widths(cells), width, {*ids, *whole}, spared)
        cells = [tuple(row[n] for n in shown) for row in cells]
        kept = {at for at, n in enumerate(shown) if n in (*ids, *whole)}
        cells = _fit_columns(cells, width - len(_GAP) * (len(shown) - 1), kept)
    widths = _measure_widths(cells)
    return "\n".join(_GAP.join(map(_pad, row, widths)).rstrip() for row in cells)


def _choose_columns(widths: Sequence[int], room: int, kept: set[int], spared: Sequence[int]) -> list[int]:
    """Choose the columns for which there is room, with texts that can be read."""
    shown = list(range(len(widths)))
    for n in spared:
        least = sum(widths[at] if at in kept else min(widths[at], _READABLE) for at in shown)
        if least + len(_GAP) * (len(shown) - 1) <= room:
            break
        shown.remove(n)
    return shown


def _measure_widths(cells: Sequence[tuple[str, ...]]) -> list[int]:
    return [max(map(count_columns, column)) for column in zip(*cells, strict=True)]


def _shorten_ids(row: tuple[str, ...], ids: Sequence[int]) -> tuple[str, ...]:
    return tuple(_shorten_id(cell) if n in ids else cell for n, cell in enumerate(row))


def _shorten_id(cell: str) -> str:
    """Shorten an id of ours; a name, which somebody chose, stays whole, because commands take no beginning of it."""
    found = _LONG_ID.fullmatch(cell)
    return cell if found is None else f"{found['prefix']}{found['digits'][:_ID_DIGITS]}"


def _fit_columns(cells: list[tuple[str, ...]], room: int, kept: set[int]) -> list[tuple[str, ...]]:
    """Cut the widest columns until all cells fit into ``room``, as far as possible."""
    widths = _measure_widths(cells)
    while sum(widths) > room:
        widest = max((n for n in range(len(widths)) if n not in kept), key=widths.__getitem__, default=None)
        if widest is None or widths[widest] <= _CELL_MIN:
            break
        widths[widest] -= 1
    return [tuple(map(_cut, row, widths)) for row in cells]


def _cut(cell: str, width: int) -> str:
    """Cut ``cell`` to at most ``width`` columns, between words where that loses less than half; a coloured one loses
    its colour with its end."""
    if count_columns(cell) <= width:
        return cell
    text, kept = click.unstyle(cell), ""
    for character in text:
        if count_columns(kept + character) > width - 1:
            break
        kept += character
    words, blank, _ = kept.rpartition(" ")
    if blank and not text[len(kept)].isspace() and 2 * count_columns(words.strip()) >= width:
        kept = words
    return f"{kept.rstrip()}…"


def _pad(text: str, width: int) -> str:
    return text + " " * (width - count_columns(text))


def count_columns(text: str) -> int:
    """Count the columns of a terminal that a text takes: Chinese, Japanese and most emoji take two, combining marks
    none."""
    return sum(_count_character_columns(character) for character in click.unstyle(text))


def fold_text(text: str, columns: int) -> list[str]:
    """Fold ``text`` into pieces of at most ``columns``, between words where that is possible; at least one."""
    pieces, used = [""], 0
    for character in text:
        wide = _count_character_columns(character)
        if used + wide > columns and pieces[-1]:
            kept, blank, begun = pieces[-1].rpartition(" ")
            pieces[-1:] = [f"{kept} ", begun] if blank and kept.strip() else [pieces[-1], ""]
            used = count_columns(pieces[-1])
        pieces[-1] += character
        used += wide
    return pieces


def _count_character_columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
