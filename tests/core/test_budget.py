"""What a model call reserves in its tree's budget, what refuses it, and what a run is told on the way there."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.budget import (
    Amounts,
    Budget,
    BudgetLimits,
    Dimension,
    LimitUse,
    decide_reservation,
    format_warning,
    is_refunded,
    is_wall_spent,
    list_uses,
)

law = settings(max_examples=200, deadline=None, derandomize=True)
ROOM = Budget(limits=BudgetLimits(iterations=10, tokens=1_000, tool_calls=10, nano_usd=1_000))


def test_the_first_call_of_a_tree_reserves_an_iteration_and_nothing_it_cannot_know() -> None:
    assert decide_reservation(ROOM, Amounts(), depth=0) == Amounts(iterations=1)


def test_a_call_reserves_what_the_runs_own_calls_used_or_else_those_of_the_tree() -> None:
    tree = replace(ROOM, spent=Amounts(iterations=2, tokens=100, nano_usd=20))
    assert decide_reservation(tree, Amounts(), depth=0) == Amounts(iterations=1, tokens=50, nano_usd=10)
    own = Amounts(iterations=1, tokens=90, nano_usd=1)
    assert decide_reservation(tree, own, depth=0) == Amounts(iterations=1, tokens=90, nano_usd=1)


@pytest.mark.parametrize(
    ("taken", "dimension"),
    [
        (Amounts(tokens=1_000), Dimension.TOKENS),
        (Amounts(iterations=1, tokens=600), Dimension.TOKENS),
        (Amounts(tool_calls=10), Dimension.TOOL_CALLS),
        (Amounts(nano_usd=1_000), Dimension.COST),
        (Amounts(iterations=10), Dimension.ITERATIONS),
    ],
)
def test_what_does_not_fit_is_refused_by_its_dimension(taken: Amounts, dimension: Dimension) -> None:
    assert decide_reservation(replace(ROOM, spent=taken), Amounts(), depth=0) is dimension


def test_what_others_reserved_is_not_there_to_be_had() -> None:
    assert (
        decide_reservation(replace(ROOM, reserved=Amounts(iterations=10)), Amounts(), depth=0) is Dimension.ITERATIONS
    )
    assert decide_reservation(replace(ROOM, reserved=Amounts(tokens=1_000)), Amounts(), depth=0) is Dimension.TOKENS


def test_every_level_leaves_something_to_those_above_it() -> None:
    assert decide_reservation(replace(ROOM, spent=Amounts(iterations=9)), Amounts(), depth=1) is Dimension.ITERATIONS
    assert decide_reservation(replace(ROOM, spent=Amounts(tokens=950)), Amounts(), depth=1) is Dimension.TOKENS
    assert decide_reservation(replace(ROOM, spent=Amounts(nano_usd=900)), Amounts(), depth=2) is Dimension.COST
    assert isinstance(decide_reservation(replace(ROOM, spent=Amounts(tokens=950)), Amounts(), depth=0), Amounts)


def test_a_cost_that_is_not_known_is_no_gift() -> None:
    assert decide_reservation(replace(ROOM, has_unknown_cost=True), Amounts(), depth=0) is Dimension.COST
    unlimited = Budget(limits=BudgetLimits(iterations=10), has_unknown_cost=True)
    assert isinstance(decide_reservation(unlimited, Amounts(), depth=0), Amounts)


@st.composite
def calls(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Depth, tokens and nano dollars of model calls, one after the other."""
    return draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 300), st.integers(0, 300)), max_size=60))


@law
@given(calls(), st.integers(1, 30), st.integers(1, 20))
def test_iterations_never_exceed_their_limit_and_the_top_always_gets_the_last_ones(
    asked: list[tuple[int, int, int]], limit: int, in_flight_max: int
) -> None:
    budget = Budget(limits=BudgetLimits(iterations=limit))
    in_flight: list[Amounts] = []
    for depth, tokens, _ in asked:
        granted = decide_reservation(budget, Amounts(), depth=depth)
        if isinstance(granted, Amounts):
            in_flight.append(granted)
            budget = replace(budget, reserved=Amounts(iterations=len(in_flight)))
            assert budget.spent.iterations + len(in_flight) + depth <= limit
        if in_flight and (len(in_flight) >= in_flight_max or tokens % 2):
            in_flight.pop()
            spent = Amounts(iterations=budget.spent.iterations + 1)
            budget = replace(budget, reserved=Amounts(iterations=len(in_flight)), spent=spent)
        assert budget.spent.iterations + budget.reserved.iterations <= limit


@law
@given(calls())
def test_calls_that_use_what_they_reserved_never_exceed_a_limit(asked: list[tuple[int, int, int]]) -> None:
    budget = Budget(
        limits=BudgetLimits(iterations=1_000, tokens=500, nano_usd=500), spent=Amounts(iterations=1, tokens=50)
    )
    for depth, _, _ in asked:
        granted = decide_reservation(budget, Amounts(), depth=depth)
        if isinstance(granted, Dimension):
            continue
        spent = budget.spent
        used = Amounts(
            iterations=spent.iterations + 1,
            tokens=spent.tokens + granted.tokens,
            nano_usd=spent.nano_usd + granted.nano_usd,
        )
        budget = replace(budget, spent=used)
        assert used.tokens <= 500
        assert used.nano_usd <= 500


@pytest.mark.parametrize(
    ("left_s", "wall_s", "is_spent"),
    [(61, 86_400, False), (60, 86_400, True), (-5, 86_400, True), (6, 100, False), (5, 100, True)],
)
def test_the_last_minute_or_twentieth_of_the_time_is_for_a_summary(
    left_s: float, wall_s: float, is_spent: bool
) -> None:
    assert is_wall_spent(left_s, wall_s) is is_spent


@pytest.mark.parametrize(
    ("names", "expected"),
    [([], False), (["execute_code"], True), (["execute_code"] * 2, True), (["execute_code", "terminal"], False)],
)
def test_only_replies_that_ask_for_scripts_alone_are_given_back(names: list[str], expected: bool) -> None:
    assert is_refunded(names) is expected


@pytest.mark.parametrize(
    ("dimension", "used", "limit", "text"),
    [
        (Dimension.ITERATIONS, 69, 100, None),
        (
            Dimension.ITERATIONS,
            70,
            100,
            "[BUDGET: 70 of 100 model calls are used. Begin to bring this task to its end.]",
        ),
        (
            Dimension.COST,
            900_000_000,
            1_000_000_000,
            "[BUDGET WARNING: 0.9000 of 1.0000 US dollars are used. Write your final answer now; call tools only for "
            "what it cannot do without.]",
        ),
        (Dimension.TOKENS, 80, 100, "[BUDGET: 80 of 100 tokens are used. Begin to bring this task to its end.]"),
        (Dimension.WALL_CLOCK, 75, 100, "[BUDGET: 75 of 100 seconds are used. Begin to bring this task to its end.]"),
    ],
)
def test_the_warning_has_one_text_for_one_use(dimension: Dimension, used: int, limit: int, text: str | None) -> None:
    assert format_warning([LimitUse(dimension=dimension, used=used, limit=limit)]) == text


def test_the_warning_is_about_the_nearest_limit() -> None:
    budget = replace(ROOM, spent=Amounts(iterations=7, tokens=800, tool_calls=9, nano_usd=1))
    assert (format_warning(list(list_uses(budget))) or "").startswith("[BUDGET WARNING: 9 of 10 tool calls are used.")
    assert format_warning([]) is None
