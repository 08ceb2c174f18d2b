"""Replay classes: what may happen to a tool call whose worker vanished (invariant I5)."""

from __future__ import annotations

from enum import StrEnum


class Replay(StrEnum):
    """A tool's replay class."""

    PURE = "pure"
    """Reads only, or writes only through the settling transaction: may run again."""
    KEYED = "keyed"
    """Running again under the same idempotency key has no further effect."""
    ONCE = "once"
    """Must never run again: a lost call settles as *outcome unknown* and the model is told."""
