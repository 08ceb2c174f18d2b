"""Money is written in one way, and what is not known is not written as nothing."""

from __future__ import annotations

from decimal import Decimal

import pytest

from hermes_worker.core.pricing import NO_PRICE, CostStatus, format_cost, format_usd


@pytest.mark.parametrize(
    ("usd", "text"),
    [(0, "$0.00"), (Decimal("0.00411"), "$0.0041"), (0.99994, "$0.9999"), (1, "$1.00"), (1234.5, "$1,234.50")],
)
def test_small_amounts_have_four_decimals_and_others_two(usd: Decimal | float, text: str) -> None:
    assert format_usd(usd) == text


@pytest.mark.parametrize(
    ("usd", "status", "text"),
    [
        (None, None, "-"),
        (0, CostStatus.INCLUDED, "$0.00"),
        (0, CostStatus.UNKNOWN, NO_PRICE),
        (None, CostStatus.UNKNOWN, NO_PRICE),
        (0.5, CostStatus.UNKNOWN, "at least $0.5000"),
    ],
)
def test_a_cost_that_is_not_known_is_neither_nothing_nor_exact(
    usd: float | None, status: CostStatus | None, text: str
) -> None:
    assert format_cost(usd, status) == text
