"""Budgets of a delegation tree (design D4): who counts against what.

A tree has one budget as soon as it has children. It is reserved before a model call, by the claim, and settled after
it, by the commit; both are part of the transaction that claims or gives up the call (invariant I6).
"""

from __future__ import annotations

from enum import StrEnum


class BudgetMode(StrEnum):
    SHARED = "shared"
    """The whole tree draws from the root's model calls; a child has no other cap."""
    INDEPENDENT = "independent"
    """Every run has a cap of its own and the tree has none, as in the reference (loop §8.4)."""
    MIXED = "mixed"
    """A child has its own cap and draws from the root's as well."""

    @property
    def is_shared(self) -> bool:
        return self is not BudgetMode.INDEPENDENT


class Dimension(StrEnum):
    """What a budget limits beside the wall clock, which is the root's deadline."""

    ITERATIONS = "iterations"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"


def reserve_of(depth: int) -> int:
    """Model calls that a run at ``depth`` leaves to those above it: one each, so that they can still answer."""
    return depth
