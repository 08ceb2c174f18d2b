"""Writes a secret into ``HOME/.env``, for commands that were given one."""

from __future__ import annotations

import re
from pathlib import Path

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.system.plainfiles import replace_text


def write_secret(home: Path, variable: str, value: str) -> Path:
    """Set one variable; the other lines stay. The file is replaced in one step, and readable by its owner only. Raises
    ``ConfigurationError``."""
    path = home / ".env"
    try:
        text = set_variable(path.read_text(encoding="utf-8") if path.exists() else "", variable, value)
        replace_text(path, text, mode=0o600)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} cannot be written: {type(error).__name__}") from None
    return path


def set_variable(before: str, variable: str, value: str) -> str:
    """The text of a ``.env`` with one variable set. Raises ``ConfigurationError`` for what cannot stand there."""
    if "'" in value or not value.isprintable():
        raise ConfigurationError(f"{variable} cannot stand in a .env file")
    own = re.compile(rf"[ \t]*(?:export[ \t]+)?{re.escape(variable)}[ \t]*=")
    lines = [line for line in before.splitlines() if not own.match(line)]
    return "\n".join([*lines, f"{variable}='{value}'"]) + "\n"
