"""Judge the look of a value: a credential, a placeholder, or a piece of a program. All on bytes."""

from __future__ import annotations

import re

__all__ = ["is_harmless_value", "is_placeholder", "looks_random", "looks_secret"]

_HARMLESS_VALUE = re.compile(
    rb"\*+|<[^>]*>|\$[\w{(].*|%[sdr]|%\(\w+\)s|%[A-Z_]+%|\{[^}]*\}|\{\{.*"
    rb"|(?:os\.|System\.)?getenv\(.*|os\.environ.*|process\.env.*|ENV\[.*|env\(.*"
    rb"|none|null|nil|true|false|undefined|str|string|bytes|int|float|bool|any|optional|secretstr"
    rb"|\[?redacted\]?|x{3,}|\.\.\.|.{0,6}\.\.\..{0,4}|\xc2\xabredacted.*",
    re.IGNORECASE | re.DOTALL,
)
"""Look-ups, placeholders, templates, type names and what was masked before."""
_PLACEHOLDER_WORD = re.compile(rb"your|example|placeholder|change.?me|dummy|redacted|x{4,}|\.\.\.|\*\*\*|to.?do", re.I)
_IDENTIFIER = re.compile(rb"[A-Za-z]+(?:[_.:\-][A-Za-z]+)*[_.\-]?\d{0,4}")
"""Words, perhaps with a number behind them: ``self.password``, ``my-token-2``."""
_VERSION = re.compile(rb"v?\d+(?:[.\-:/T+]\w{1,6})+", re.IGNORECASE)
"""Versions, dates and times."""
_PATH = re.compile(rb"(?:[./~]|[a-z]+://|[A-Za-z]:\\).*|(?:[a-z_][a-z_.-]*/)+[a-z_][\w.-]*", re.DOTALL)
_LOWER_RUN = re.compile(rb"[a-z]+")
_DIGITS = re.compile(rb"\d+")
_LONG = 20
_SHORT = 8
_LOWER_RUN_CHARS_MAX = 2


def is_harmless_value(value: bytes) -> bool:
    """Return whether the value is a look-up, a template, a type, or already masked."""
    return _HARMLESS_VALUE.fullmatch(value) is not None


def is_placeholder(value: bytes) -> bool:
    """Return whether the value is a text that documents and tests write in the place of a credential."""
    return _PLACEHOLDER_WORD.search(value) is not None


def looks_random(value: bytes) -> bool:
    """Return whether the value is long, or letters and digits mixed: more than a person would write in a sentence."""
    return len(value) >= _LONG or (
        len(value) >= _SHORT and any(c in b"0123456789" for c in value) and not value.isdigit()
    )


def looks_secret(value: bytes, *, is_bare: bool = False) -> bool:
    """Whether no program calls its parts so: letters and digits mixed beyond ``name2``, or letters without any pattern.

    ``is_bare``: the value stands without quotes, where identifiers stand too, so more is asked of it.
    """
    if len(value) < _SHORT or value.isdigit() or any(c in b" \t\r\n" for c in value):
        return False
    if _IDENTIFIER.fullmatch(value) and not _is_jumble(value):
        return False
    if _VERSION.fullmatch(value) or _PATH.fullmatch(value) or is_placeholder(value):
        return False
    groups = len(_DIGITS.findall(value))
    if not groups:
        return _is_jumble(value)
    is_mixed = value.lower() != value and value.upper() != value
    return not is_bare or groups > 1 or (len(value) >= 12 and is_mixed)


def _is_jumble(value: bytes) -> bool:
    """Whether its letters have no order of a word or of ``camelCase``."""
    runs = _LOWER_RUN.findall(value)
    if len(value) < 12 or len(runs) < 3 or value.lower() == value:
        return False
    return sum(map(len, runs)) <= _LOWER_RUN_CHARS_MAX * len(runs)
