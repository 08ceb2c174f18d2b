"""Read the patterns with which a run declares the files that it leaves. Pure."""

from __future__ import annotations

import unicodedata

PATTERNS_MAX = 32
PATTERN_CHARS_MAX = 200
PATTERN_FORM = r"^(?!~)(?!(?:.*/)?\.{0,2}(?:/|$))[^\x00-\x1f\x7f-\x9f\\]{1,200}$"
"""The rules of ``explain_wrong_pattern`` as a regular expression, for the API's document."""


def explain_wrong_pattern(pattern: str) -> str | None:
    """Why ``pattern`` is invalid, as the end of a sentence; ``None`` when it is valid."""
    if not 0 < len(pattern) <= PATTERN_CHARS_MAX:
        return f"must have 1 to {PATTERN_CHARS_MAX} characters"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in pattern):
        return "holds a control character"
    if pattern.startswith(("/", "~")) or "\\" in pattern:
        return "must be relative to the workspace, with '/' between folders"
    if any(part in ("", ".", "..") for part in pattern.split("/")):
        return "must not hold '.', '..' or an empty part"
    return None
