"""Values out of JSON that somebody else wrote. Each function is total: what has another type reads as empty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["id_of", "list_of", "mapping_of", "number_of", "stripped_of", "text_of"]


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


def list_of(value: object) -> Sequence[Any]:
    """An array; anything else is empty, a string too."""
    return value if isinstance(value, list) else ()


def number_of(value: object) -> float | None:
    """A number; ``None`` for anything else, ``true`` and ``false`` too."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
