"""Tokens that nobody counted: estimated, marked, never zero."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import ModelReply, ModelRequest, ToolRequest, Usage
from hermes_worker.core.metering import (
    IMAGE_TOKENS,
    OUTPUT_TOKENS_ASSUMED,
    UsageSoFar,
    compute_weight_percent,
    estimate_lost_attempt,
    estimate_lost_cost,
    estimate_reply_tokens,
    estimate_request_tokens,
    estimate_tokens,
    fill_missing_usage,
)
from hermes_worker.core.pricing import MARGIN, Cost, CostStatus, Spent, parse_own_price, sum_costs
from hermes_worker.models.prices import compute_cost

REQUEST = ModelRequest(model="m", messages=['{"role":"user","content":"' + "word " * 80 + '"}'], tools=["{}" * 20])
OWN = dict([parse_own_price("custom:m=1/10")])


def usage_of(reply: ModelReply) -> Usage:
    return fill_missing_usage(reply, REQUEST).usage


def test_a_reply_without_usage_counts_its_bytes_and_says_so() -> None:
    calls = (ToolRequest(id="c", name="todo", arguments='{"todos":[]}'),)
    usage = usage_of(ModelReply(text="a" * 400, reasoning="r" * 40, tool_requests=calls))
    assert usage.input == estimate_request_tokens(REQUEST) > 100
    assert usage.output == 100 + 10 + 1 + 3
    assert usage.estimated == usage.total


def test_what_a_provider_counted_is_taken_as_it_is() -> None:
    counted = Usage(input=1, output=1, cache_read=3)
    assert usage_of(ModelReply(text="a" * 4_000, usage=counted)) == counted
    only_cached = Usage(cache_read=9, output=2)
    assert usage_of(ModelReply(text="x", usage=only_cached)) == only_cached


@pytest.mark.parametrize(
    ("counted", "estimated"),
    [
        (Usage(output=7), "input"),
        (Usage(input=7), "output"),
        (Usage(cache_read=7), "output"),
    ],
)
def test_the_half_that_is_missing_is_estimated(counted: Usage, estimated: str) -> None:
    reply = ModelReply(text="a" * 400, usage=counted)
    usage = usage_of(reply)
    assert usage.estimated == (estimate_request_tokens(REQUEST) if estimated == "input" else 100)
    assert usage.total == counted.total + usage.estimated


def test_an_empty_reply_may_have_cost_no_output() -> None:
    counted = Usage(input=7)
    assert usage_of(ModelReply(text="", usage=counted)) == counted


def test_of_a_reply_that_the_network_cut_off_the_end_was_not_counted() -> None:
    reply = ModelReply(text="a" * 400, was_cut_by_network=True, usage=Usage(input=20, output=1))
    usage = usage_of(reply)
    assert (usage.input, usage.output, usage.estimated) == (20, 100, 99)


def test_bytes_are_counted_and_not_characters() -> None:
    assert estimate_tokens(["水" * 400]) == 300
    assert estimate_tokens(["w" * 400]) == 100
    assert estimate_tokens(["", "a"]) == 1
    assert estimate_tokens(["\ud800"]) == 1


def test_an_inline_image_counts_as_an_image_and_not_as_text() -> None:
    image = "data:image/png;base64," + "iVBOR" * 100_000
    row = '{"content":[{"image_url":{"url":"%s"}}]}'
    assert estimate_tokens([row % image]) == IMAGE_TOKENS + estimate_tokens([row % ""])


@given(st.lists(st.text()))
def test_no_text_counts_less_than_nothing_and_more_text_not_less(texts: list[str]) -> None:
    assert estimate_tokens(texts) >= sum(map(bool, texts))
    assert estimate_tokens([*texts, "more"]) > estimate_tokens(texts)
    assert estimate_reply_tokens(ModelReply(text="".join(texts))) >= 0


def test_what_was_estimated_may_cost_so_much_and_is_not_called_known() -> None:
    usage = Usage(input=1_000_000, output=100_000, estimated=1_100_000)
    cost = compute_cost(usage, provider="custom", model="m", own_prices=OWN)
    assert cost == Cost(usd=Decimal(0), status=CostStatus.UNKNOWN, doubtful_usd=2 * MARGIN)


def test_without_a_price_nothing_is_known_of_the_cost() -> None:
    cost = compute_cost(Usage(input=5, estimated=5), provider="custom", model="other", own_prices=OWN)
    assert (cost.usd, cost.status) == (None, CostStatus.UNKNOWN)


def test_a_subscription_and_the_stand_in_cost_nothing_more_whatever_was_counted() -> None:
    unsure = Usage(input=5, estimated=5, unknown_attempts=1, unknown_input=9)
    assert compute_cost(unsure, provider="openai-codex", model="m") == Cost(usd=Decimal(0), status=CostStatus.INCLUDED)
    assert compute_cost(unsure, provider="scripted", model="m") == Cost(usd=Decimal(0), status=CostStatus.KNOWN)


def test_a_lost_attempt_stands_beside_what_is_certain() -> None:
    lost = estimate_lost_attempt(500, UsageSoFar(replies=4, output_tokens=200))
    assert (lost.unknown_attempts, lost.unknown_input, lost.unknown_output) == (1, 500, 50)
    assert (lost.total, lost.chargeable) == (0, 550)


def test_the_output_of_a_lost_attempt_is_assumed_where_nothing_is_known_and_at_least_what_was_heard() -> None:
    assert estimate_lost_attempt(1, UsageSoFar()).unknown_output == OUTPUT_TOKENS_ASSUMED
    assert estimate_lost_attempt(1, UsageSoFar(replies=1, output_tokens=3), heard=70).unknown_output == 70


def test_a_lost_attempt_costs_its_list_price_else_the_rate_of_the_run_else_nobody_knows() -> None:
    lost = estimate_lost_attempt(1_000_000, UsageSoFar(), heard=100_000)
    listed = compute_cost(lost, provider="custom", model="m", own_prices=OWN)
    assert listed == Cost(usd=Decimal(0), status=CostStatus.UNKNOWN, doubtful_usd=2 * MARGIN)
    usual = UsageSoFar(replies=1, tokens=1_000, usd=Decimal("0.002"), cost_status=CostStatus.KNOWN)
    assert estimate_lost_cost(lost, listed, usual) == listed
    unpriced = Cost(usd=None, status=CostStatus.UNKNOWN)
    assert estimate_lost_cost(lost, unpriced, usual).doubtful_usd == MARGIN * Decimal("2.2")
    assert estimate_lost_cost(lost, None, UsageSoFar()) == unpriced
    free = UsageSoFar(replies=1, tokens=5, cost_status=CostStatus.INCLUDED)
    assert estimate_lost_cost(lost, None, free) == Cost(usd=Decimal(0), status=CostStatus.INCLUDED)


def test_sums_keep_what_is_certain_apart_from_what_is_doubtful() -> None:
    certain = Cost(usd=Decimal(1), status=CostStatus.KNOWN)
    doubtful = Cost(usd=Decimal(0), status=CostStatus.UNKNOWN, doubtful_usd=Decimal(3))
    assert sum_costs(certain, doubtful) == Cost(usd=Decimal(1), status=CostStatus.UNKNOWN, doubtful_usd=Decimal(3))
    both = Spent(usage=Usage(input=1), cost=certain) + Spent(usage=Usage(unknown_attempts=1), cost=doubtful)
    assert (both.usage, both.cost) == (Usage(input=1, unknown_attempts=1), sum_costs(certain, doubtful))
    assert Spent() + Spent() == Spent()


@pytest.mark.parametrize(
    ("usage", "estimate", "weight"),
    [
        (Usage(input=12_000), 10_000, 120),
        (Usage(input=100, cache_read=14_000, cache_write=900), 10_000, 150),
        (Usage(input=8_000), 10_000, 80),
        (Usage(input=30), 10_000, 0),
        (Usage(input=10**9), 10_000, 0),
        (Usage(), 10_000, 0),
        (Usage(input=500), 400, 0),
    ],
    ids=["more", "cached as well", "less", "without what is cached", "nonsense", "not counted", "too short to tell"],
)
def test_what_a_provider_counts_weighs_later_estimates(usage: Usage, estimate: int, weight: int) -> None:
    assert compute_weight_percent(usage, estimate) == weight
