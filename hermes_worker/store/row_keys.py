"""Parameters by which statements name rows, and short rows that several statements return."""

from __future__ import annotations

from typing import NamedTuple, TypedDict


class RunKey(TypedDict):
    run: int


class SessionKey(TypedDict):
    session: int


class CallKey(TypedDict):
    """The key of a tool call."""

    run: int
    iter: int
    pos: int


class HeldCallKey(CallKey):
    """The key of a claimed tool call; without a token, of one that is not claimed."""

    token: str | None


class AtMost(TypedDict):
    """The most rows that a statement returns."""

    most: int


class LostHintsBounds(TypedDict):
    """When a hint counts as lost."""

    grace: float
    """Seconds after its sending before which no hint counts as lost."""
    before: float
    """Epoch seconds: only hints that were sent before count as lost."""


class LeaseTokenRow(NamedTuple):
    lease_token: str | None
