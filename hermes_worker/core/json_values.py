"""Read values out of JSON of others. Each function is total: a value of another type reads as empty."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

__all__ = [
    "parse_json",
    "parse_object",
    "read_count",
    "read_epoch",
    "read_id",
    "read_list",
    "read_mapping",
    "read_number",
    "read_size",
    "read_stripped_text",
    "read_text",
    "require_count",
]


def read_text(value: object) -> str:
    """Read a string; anything else is ``""``."""
    return value if isinstance(value, str) else ""


def read_stripped_text(value: object) -> str:
    """Read a string without surrounding white space; anything else is ``""``."""
    return read_text(value).strip()


def read_id(value: object) -> str:
    """Read a string or an integer as text: platforms write ids as either. Anything else is ``""``."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def read_mapping(value: object) -> Mapping[str, Any]:
    """Read an object; anything else is empty."""
    return value if isinstance(value, Mapping) else {}


def parse_json(text: str | bytes, otherwise: object = None) -> Any:
    """Parse a text as JSON. Returns ``otherwise`` for anything else, including what is nested too deeply."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return otherwise


def parse_object(text: str | bytes) -> Mapping[str, Any]:
    """Parse a text as a JSON object; anything else is empty, including one that is nested too deeply."""
    return read_mapping(parse_json(text))


def read_list(value: object) -> Sequence[Any]:
    """Read an array; anything else is empty, including a string."""
    return value if isinstance(value, list) else ()


def read_number(value: object) -> float | None:
    """Read a number; ``None`` for anything else, including ``true`` and ``false``, and integers beyond the range of
    floats."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def read_size(value: object) -> int | None:
    """Read an integer from 0 on, such as a number of bytes; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_epoch(value: object) -> float | None:
    """Read a time in ISO 8601 with its zone as epoch seconds; ``None`` for anything else."""
    try:
        found = datetime.fromisoformat(read_text(value))
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None


def read_count(value: object) -> int:
    """Return a whole number above 0, and 0 for everything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def require_count(document: Mapping[str, object], name: str) -> int:
    """Return a whole number of a document, 0 where it is not there. Raises ``ValueError`` for everything else."""
    value = document.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name!r} must be a number of 0 or more, not {value!r}")
    return value
