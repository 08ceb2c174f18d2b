"""Parameters by which statements name rows, and short rows that several of them return."""

from __future__ import annotations

from typing import NamedTuple, TypedDict


class RunKey(TypedDict):
    run: int


class SessionKey(TypedDict):
    session: int


class CallKey(TypedDict):
    """A tool call."""

    run: int
    iter: int
    pos: int


class HeldCallKey(CallKey):
    """A tool call that somebody holds; without a token one that nobody does."""

    token: str | None


class AtMost(TypedDict):
    """How many rows."""

    most: int


class LostHintsBounds(TypedDict):
    """Which hints count as lost."""

    grace: float
    """Seconds that every hint gets."""
    before: float
    """Epoch seconds: those sent before."""


class LeaseTokenRow(NamedTuple):
    lease_token: str | None
