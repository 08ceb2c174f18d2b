"""Abbreviated ids: people may write the beginning of an id, the name of a job, and the name or title of a session."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal

from hermes_worker.core.errors import HermesError

ShortKind = Literal["run", "delivery", "session", "job"]
PREFIXES: Final[Mapping[str, str]] = MappingProxyType({"run": "run_", "delivery": "dlv_"})
"""The prefix of the ids of a kind, where they have one of their own."""
_DIGITS: Final = 32


class AmbiguousId(HermesError):
    """Several ids begin with the given text."""


def is_whole_id(text: str, kind: ShortKind) -> bool:
    """Whether ``text`` is a whole id of a kind that has a prefix, and no abbreviation."""
    return kind in PREFIXES and len(text) == len(PREFIXES[kind]) + _DIGITS
