"""Render a terminal's output as a person would have seen it in the end, as far as lines of text can show it. Linear
time.
"""

from __future__ import annotations

import re
from typing import Final

_ANSI: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[PX^_][^\x1b]*\x1b\\|[ -/]*[0-~])")
"""Colours, cursor movements and titles (ECMA-48); they are noise to a model."""
_CONTROLS: Final = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]")


def strip_ansi(text: str) -> str:
    """``text`` without colours, cursor movements and titles."""
    return _ANSI.sub("", text)


def render_screen(text: str) -> str:
    """The text that a terminal shows in the end: lines that were written over (progress bars) as they were last,
    deleted characters left out.
    """
    lines = strip_ansi(text).replace("\r\n", "\n").split("\n")
    return _CONTROLS.sub("", "\n".join(_render_line(line) for line in lines))


def _render_line(line: str) -> str:
    if "\r" in line:
        line = next((part for part in reversed(line.split("\r")) if part), "")
    if "\b" not in line:
        return line
    kept: list[str] = []
    for char in line:
        if char != "\b":
            kept.append(char)
        elif kept:
            kept.pop()
    return "".join(kept)
