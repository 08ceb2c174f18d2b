"""Find values in JSON documents by dotted paths. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MISSING = object()


def find_at_path(value: Any, path: str) -> Any:
    """Find the value at a dotted path of objects and lists; ``is_missing`` tells when there is none."""
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part, _MISSING)
        elif isinstance(value, list) and part.isascii() and part.isdigit() and len(part) < 7 and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
        if value is _MISSING:
            return _MISSING
    return value


def is_missing(value: Any) -> bool:
    return value is _MISSING
