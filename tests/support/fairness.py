"""How equal shares are, as one figure."""

from __future__ import annotations

from collections.abc import Sequence


def compute_fairness(shares: Sequence[float]) -> float:
    """The equality of ``shares``: 1 when they are all equal, 1/n when one has everything (Jain, Chiu, Hawe 1984)."""
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0
