"""Counted tokens: in. Dollars, or the admission that nobody knows: out."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import CostStatus, Price, parse_own_price
from hermes_worker.models.prices import compute_cost, find_price, is_priced


def test_every_kind_of_token_has_its_price() -> None:
    usage = Usage(input=1_000_000, output=100_000, cache_read=2_000_000, cache_write=10_000, reasoning=50_000)
    cost = compute_cost(usage, provider="anthropic", model="claude-opus-4.8")
    # 5 + 2.50 + 1 + 0.0625; reasoning is part of the output.
    assert (cost.usd, cost.status) == (Decimal("8.5625"), CostStatus.ESTIMATED)


@pytest.mark.parametrize(
    ("provider", "model", "input_usd"),
    [
        ("anthropic", "claude-opus-4-8", "5"),
        ("anthropic", "anthropic/claude-opus-4.8", "5"),
        ("", "anthropic/claude-sonnet-4.6", "3"),
        ("anthropic", "claude-opus-4-20250514", "15"),
        ("anthropic", "claude-opus-4-6-20250414", "5"),
        ("anthropic", "claude-3-5-haiku-20241022", "0.80"),
        ("openai-api", "gpt-4o", "2.50"),
        ("openai", "gpt-5.6-sol-pro", "5"),
        ("vertex", "google/gemini-2.5-pro", "1.25"),
        ("bedrock", "us.anthropic.claude-opus-4-7-20250507-v1:0", "5"),
        ("bedrock", "au.anthropic.claude-sonnet-4-5", "3"),
        ("fireworks", "accounts/fireworks/models/kimi-k2p6", "0.95"),
        ("minimax-cn", "MiniMax-M2.7", "0.30"),
    ],
)
def test_a_model_is_found_under_its_names(provider: str, model: str, input_usd: str) -> None:
    price = find_price(provider, model)
    assert price is not None
    assert price.input == Decimal(input_usd)
    assert price.as_of


@pytest.mark.parametrize(
    ("provider", "model"),
    [("anthropic", "claude-opus-4-8-turbo"), ("openai", "gpt-4o-2"), ("custom", "gpt-4o"), ("", "gpt-4o"), ("", "")],
)
def test_a_model_that_is_only_similar_has_no_price(provider: str, model: str) -> None:
    assert find_price(provider, model) is None
    cost = compute_cost(Usage(input=1), provider=provider, model=model)
    assert (cost.usd, cost.status) == (None, CostStatus.UNKNOWN)


def test_a_kind_of_token_without_a_price_makes_the_cost_unknown() -> None:
    assert compute_cost(Usage(input=1, cache_read=1), provider="google", model="gemini-2.5-pro").usd is None
    assert compute_cost(Usage(input=1), provider="google", model="gemini-2.5-pro").usd == Decimal("0.00000125")


def test_a_long_prompt_costs_more_as_a_whole() -> None:
    at_most = compute_cost(Usage(input=100_000, cache_read=100_000), provider="google", model="gemini-3-pro-preview")
    longer = compute_cost(Usage(input=100_001, cache_read=100_000), provider="google", model="gemini-3-pro-preview")
    assert (at_most.usd, longer.usd) == (Decimal("0.22"), Decimal("0.440004"))


def test_a_subscription_is_not_free_but_paid() -> None:
    cost = compute_cost(Usage(input=9), provider="openai-codex", model="gpt-5.6-sol")
    assert (cost.usd, cost.status) == (Decimal(0), CostStatus.INCLUDED)


def test_the_stand_in_costs_nothing() -> None:
    cost = compute_cost(Usage(input=9, cache_read=9), provider="scripted", model="scripted")
    assert (cost.usd, cost.status) == (Decimal(0), CostStatus.KNOWN)


def test_the_user_s_price_wins() -> None:
    own = {("openai", "gpt-4o"): Price(input=Decimal(1), output=Decimal(2))}
    cost = compute_cost(Usage(input=1_000_000), provider="openai", model="gpt-4o", own_prices=own)
    assert cost.usd == Decimal(1)


_usages = st.builds(Usage, input=st.integers(0, 10**9), output=st.integers(0, 10**9), cache_read=st.integers(0, 10**9))


@given(_usages, _usages)
def test_the_cost_of_two_calls_is_the_sum_of_their_costs(first: Usage, second: Usage) -> None:
    costs = [
        compute_cost(usage, provider="anthropic", model="claude-sonnet-4-6").usd
        for usage in (first, second, first + second)
    ]
    one, other, both = costs
    assert one is not None
    assert other is not None
    assert one + other == both


def test_a_price_of_ones_own_is_read_with_or_without_its_cache_parts() -> None:
    place, price = parse_own_price("custom:mine:7b=0.5/1.5/0.05/0.6")
    assert place == ("custom", "mine:7b")
    assert (price.input, price.output, price.cache_read, price.cache_write) == tuple(
        Decimal(usd) for usd in ("0.5", "1.5", "0.05", "0.6")
    )
    _, price = parse_own_price("groq:openai/gpt-oss=1/2")
    assert (price.cache_read, price.cache_write) == (Decimal(1), Decimal(1))


@pytest.mark.parametrize(
    "text", ["", "m=1/2", "custom:m", "custom:m=1", "custom:m=1/-2", "custom:m=1/2/3/4/5", "a:b=c/d"]
)
def test_a_price_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_own_price(text)


def test_it_is_known_beforehand_whether_a_cost_will_be_known() -> None:
    assert is_priced("anthropic", "claude-sonnet-5")
    assert is_priced("openrouter", "whatever")
    assert is_priced("openai-codex", "whatever")
    assert is_priced("scripted", "whatever")
    assert not is_priced("custom", "mine")
    assert is_priced("custom", "mine", dict([parse_own_price("custom:mine=1/2")]))
