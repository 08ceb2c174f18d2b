"""The cost of a model call at a provider: the price list of ``core.pricing``, on the terms of the provider's row."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_worker.core import pricing
from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import BY_TOKENS, Cost, Price, PriceTerms
from hermes_worker.models.catalog import find_provider

OwnPrices = Mapping[tuple[str, str], Price]
"""The user's own prices, by provider and model as configured."""


def compute_cost(usage: Usage, *, provider: str, model: str, own_prices: OwnPrices | None = None) -> Cost:
    """The cost of ``usage``; ``own_prices`` win over the list."""
    return pricing.compute_cost(
        usage, provider=provider, model=model, own_prices=own_prices, terms=_find_price_terms(provider)
    )


def is_priced(provider: str, model: str, own_prices: OwnPrices | None = None) -> bool:
    """Whether the cost of a call is known."""
    return pricing.is_priced(provider, model, own_prices, _find_price_terms(provider))


def find_price(provider: str, model: str) -> Price | None:
    """The list price of a model at a provider; ``None`` when we have none."""
    return pricing.find_price(_find_price_terms(provider).price_list or provider, model)


def _find_price_terms(provider: str) -> PriceTerms:
    row = find_provider(provider)
    return PriceTerms(billing=row.billing, price_list=row.price_list or row.name) if row is not None else BY_TOKENS
