"""Values out of JSON that somebody else wrote. Each function is total: what has another type reads as empty."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

__all__ = ["epoch_of", "id_of", "list_of", "mapping_of", "number_of", "object_in", "size_of", "stripped_of", "text_of"]


def text_of(value: object) -> str:
    """A string; anything else is ``""``."""
    return value if isinstance(value, str) else ""


def stripped_of(value: object) -> str:
    """A string without white space around it; anything else is ``""``."""
    return text_of(value).strip()


def id_of(value: object) -> str:
    """A string or an integer as text: platforms write ids as either. Anything else is ``""``."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def mapping_of(value: object) -> Mapping[str, Any]:
    """An object; anything else is empty."""
    return value if isinstance(value, Mapping) else {}


def object_in(text: str | bytes) -> Mapping[str, Any]:
    """The JSON object that a text is; anything else is empty, also one that is nested too deeply."""
    try:
        return mapping_of(json.loads(text))
    except (ValueError, RecursionError):
        return {}


def list_of(value: object) -> Sequence[Any]:
    """An array; anything else is empty, a string too."""
    return value if isinstance(value, list) else ()


def number_of(value: object) -> float | None:
    """A number; ``None`` for anything else, ``true`` and ``false`` too, and a whole one that no float is near."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def size_of(value: object) -> int | None:
    """A whole number from 0 on, such as of bytes; ``None`` for anything else."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def epoch_of(value: object) -> float | None:
    """Epoch seconds of a time in ISO 8601 with its zone; ``None`` for anything else."""
    try:
        found = datetime.fromisoformat(text_of(value))
    except ValueError:
        return None
    return found.timestamp() if found.tzinfo is not None else None
