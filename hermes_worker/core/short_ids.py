"""Abbreviated ids: people may write the beginning of an id."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from hermes_worker.core.errors import HermesError

ShortKind = Literal["run", "delivery"]
PREFIXES: Final[Mapping[ShortKind, str]] = MappingProxyType({"run": "run_", "delivery": "dlv_"})
_DIGITS: Final = 32


class AmbiguousId(HermesError):
    """Several ids begin with the given text."""


def is_whole_id(text: str, kind: ShortKind) -> bool:
    """Whether ``text`` is a whole id, and no abbreviation."""
    return len(text) == len(PREFIXES[kind]) + _DIGITS
