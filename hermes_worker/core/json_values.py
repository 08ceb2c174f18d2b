"""Read values out of JSON of others. Each function is total: a value of another type reads as empty."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

__all__ = ["epoch_of", "id_of", "list_of", "mapping_of", "number_of", "object_in", "size_of", "stripped_of", "text_of"]


def text_of(value: object) -> str:
    """Read a string; anything else is ``""``."""
    return value if isinstance(value, str) else ""


def stripped_of(value: object) -> str:
    """Read a string without surrounding white space; anything else is ``""``."""
    return text_of(value).strip()


def id_of(value: object) -> str:
    """Read a string or an integer as text: platforms write ids as either. Anything else is ``""``."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def mapping_of(value: object) -> Mapping[str, Any]:
    """Read an object; anything else is empty."""
    return value if isinstance(value, Mapping) else {}


def object_in(text: str | bytes) -> Mapping[str, Any]:
    """Parse a text as a JSON object; anything else is empty, including one that is nested too deeply."""
    try:
        return mapping_of(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def list_of(value: object) -> Sequence[Any]:
    """Read an array; anything else is empty, including a string."""
    return value if isinstance(value, list) else ()


def number_of(value: object) -> float | None:
    """Read a number; ``None`` for anything else, including ``true`` and ``false``, and integers beyond the range of
    floats."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def size_of(value: object) -> int | None:
    """Read an integer from 0 on, such as a number of bytes; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def epoch_of(value: object) -> float | None:
    """Read a time in ISO 8601 with its zone as epoch seconds; ``None`` for anything else."""
    try:
        found = datetime.fromisoformat(text_of(value))
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None
