"""The variables that a session's shell exported, as they are kept with the session."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hermes_worker.safety.redaction import is_secret_name
from hermes_worker.workspaces.base import TerminalSize

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIDE_MAX: Final = 1_000


def read_session_env(document: object) -> dict[str, str]:
    """The session's variables, without anything a shell could not have exported."""
    if not isinstance(document, Mapping):
        return {}
    return {
        name: value
        for name, value in document.items()
        if isinstance(name, str) and isinstance(value, str) and _VARIABLE.fullmatch(name) and "\0" not in value
    }


def find_secrets(variables: object) -> frozenset[str]:
    """The secrets among a shell's variables: ``echo $TOKEN`` prints one without its name."""
    return frozenset(value for name, value in read_session_env(variables).items() if is_secret_name(name))


def read_terminal_size(variables: object) -> TerminalSize:
    """The size of a terminal in this session: what its shell exported as ``LINES`` and ``COLUMNS``, or the usual."""
    env, usual = read_session_env(variables), TerminalSize()
    return TerminalSize(
        rows=_parse_side(env.get("LINES"), usual.rows), columns=_parse_side(env.get("COLUMNS"), usual.columns)
    )


def _parse_side(text: str | None, usual: int) -> int:
    value = int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 5 else usual
    return value if 1 <= value <= _SIDE_MAX else usual
