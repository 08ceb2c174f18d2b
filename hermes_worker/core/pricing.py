"""The cost of model calls. Pure.

A price is data: US dollars for a million tokens of each kind, as the provider's own page gave it on a day. When a price
or a part of it is not known the cost is *unknown*, never zero, so that a budget does not treat it as free.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import StrEnum

from hermes_worker.core.budget import NANO
from hermes_worker.core.messages import NO_USAGE, Usage
from hermes_worker.core.model_capabilities import Billing

_MILLION = Decimal(1_000_000)
MARGIN = Decimal("1.5")
"""Factor from the price of estimated tokens to an upper bound of their cost: texts of less than 2.7 bytes a token are
rare."""


class CostStatus(StrEnum):
    """The reliability of a cost. Ordered: a sum is no more reliable than the worst of its parts."""

    ESTIMATED = "estimated"
    """Computed from counted tokens and a list price; what is billed may differ."""
    INCLUDED = "included"
    """Paid for by a subscription."""
    KNOWN = "known"
    """The amount that the provider says it billed."""
    UNKNOWN = "unknown"


NO_PRICE = "no price known"


def format_usd(usd: Decimal | float) -> str:
    """Write an amount for people as every surface does: a small one with four decimals, others with two."""
    is_small = usd != 0 and -1 < usd < 1
    return f"${usd:,.{4 if is_small else 2}f}"


def format_cost(usd: Decimal | float | None, status: CostStatus | None = None) -> str:
    """Write a cost for people. ``usd`` is ``None`` where nothing was billed yet; with the status ``unknown`` it is a
    lower bound, and 0 where no part of the cost is known."""
    if status is CostStatus.UNKNOWN:
        return f"at least {format_usd(usd)}" if usd else NO_PRICE
    return "-" if usd is None else format_usd(usd)


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """US dollars for a million tokens; ``None`` where no price is published."""

    input: Decimal
    output: Decimal
    cache_read: Decimal | None = None
    cache_write: Decimal | None = None
    as_of: str = ""
    """Month of the price list, as ``YYYY-MM``; empty for a price that the user gave."""
    long_from: int = 0
    """A prompt with more tokens than this is charged by the prices in ``long``; 0 for no such limit."""
    long: Price | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of calls. The status is ``unknown`` when there may be more."""

    usd: Decimal | None
    """The certain part, as far as list prices are; ``None`` when not even a bound of the cost is known."""
    status: CostStatus
    doubtful_usd: Decimal = Decimal(0)
    """What may have been billed beside ``usd``, at most: for replies whose tokens were not counted, and for attempts of
    unknown outcome. It counts against limits like ``usd``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The usage and the cost of model calls."""

    usage: Usage = NO_USAGE
    cost: Cost | None = None
    """The price of ``usage``; ``None`` when there was no call."""

    def __add__(self, other: Spent) -> Spent:
        cost = self.cost if other.cost is None else sum_costs(self.cost, other.cost)
        return Spent(usage=self.usage + other.usage, cost=cost)


NOTHING_SPENT = Spent()


_WORSE_AND_WORSE = (CostStatus.INCLUDED, CostStatus.KNOWN, CostStatus.ESTIMATED, CostStatus.UNKNOWN)


def choose_worst(first: CostStatus | None, second: CostStatus) -> CostStatus:
    """The reliability of the sum of two costs; ``None`` stands for a sum without parts yet."""
    return second if first is None else max(first, second, key=_WORSE_AND_WORSE.index)


def sum_costs(first: Cost | None, second: Cost) -> Cost:
    """Add two costs; ``None`` stands for a sum without parts yet."""
    if first is None:
        return second
    if first.usd is None or second.usd is None:
        return Cost(usd=None, status=CostStatus.UNKNOWN)
    doubtful = first.doubtful_usd + second.doubtful_usd
    return Cost(usd=first.usd + second.usd, status=choose_worst(first.status, second.status), doubtful_usd=doubtful)


def to_nano_usd(cost: Cost | None) -> int:
    """The certain part in nano-dollars. Money is stored as an integer, so that a sum of many small amounts is exact."""
    return 0 if cost is None or cost.usd is None else int((cost.usd * NANO).to_integral_value())


def to_doubtful_nano_usd(cost: Cost | None) -> int:
    """The doubtful part in nano-dollars: what may have been billed beside the certain part, at most."""
    return 0 if cost is None else int((cost.doubtful_usd * NANO).to_integral_value())


def count_unpriced_calls(cost: Cost | None) -> int:
    """1 when not even a bound of the cost is known, else 0."""
    return int(cost is not None and cost.usd is None)


def build_billed_cost(usd: Decimal) -> Cost:
    """The cost that a provider says it billed."""
    return Cost(usd=usd, status=CostStatus.KNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceTerms:
    """The billing of a provider, as its row says."""

    billing: Billing = Billing.TOKENS
    price_list: str = ""
    """The provider whose price list counts; empty for its own."""


BY_TOKENS = PriceTerms()


def compute_cost(
    usage: Usage,
    *,
    provider: str,
    model: str,
    own_prices: Mapping[tuple[str, str], Price] | None = None,
    terms: PriceTerms = BY_TOKENS,
) -> Cost:
    """Compute the cost of ``usage``. ``own_prices`` are the user's, by provider and model as configured, and win. The
    price of estimated tokens and of attempts of unknown outcome is doubtful: at most that was billed for them."""
    if terms.billing is Billing.SUBSCRIPTION:
        return Cost(usd=Decimal(0), status=CostStatus.INCLUDED)
    if terms.billing is Billing.FREE:
        return build_billed_cost(Decimal(0))
    price = (own_prices or {}).get((provider, model)) or find_price(terms.price_list or provider, model)
    if price is None:
        return Cost(usd=None, status=CostStatus.UNKNOWN)
    usd = _compute_total(usage, price)
    doubtful = MARGIN * (usage.unknown_input * price.input + usage.unknown_output * price.output) / _MILLION
    if usd is not None and usage.estimated:
        usd, doubtful = Decimal(0), doubtful + MARGIN * usd
    is_known = usd is not None and not doubtful
    return Cost(usd=usd, status=CostStatus.ESTIMATED if is_known else CostStatus.UNKNOWN, doubtful_usd=doubtful)


Pricing = Callable[[str, int, Usage], Cost]
"""A function of the run's model, the position in the chain of providers, and a usage, to its cost."""


def is_priced(
    provider: str,
    model: str,
    own_prices: Mapping[tuple[str, str], Price] | None = None,
    terms: PriceTerms = BY_TOKENS,
) -> bool:
    """Whether the cost of a call will be known."""
    if terms.billing is not Billing.TOKENS:
        return True
    return (provider, model) in (own_prices or {}) or find_price(terms.price_list or provider, model) is not None


_OWN_PRICE = re.compile(
    r"(?P<provider>[a-z][\w.-]{0,63}):(?P<model>[\w.:/@+-]{1,200})=(?P<usd>\d+(?:\.\d+)?(?:/\d+(?:\.\d+)?){1,3})"
)


def parse_own_price(text: str) -> tuple[tuple[str, str], Price]:
    """Parse a user's price, ``provider:model=input/output[/cache read[/cache write]]``, in US dollars for a million
    tokens. Raises ``ValueError``."""
    found = _OWN_PRICE.fullmatch(text)
    if found is None:
        raise ValueError("a price must be provider:model=input/output, in US dollars for a million tokens")
    usd = [Decimal(part) for part in found["usd"].split("/")]
    price = Price(
        input=usd[0],
        output=usd[1],
        cache_read=usd[2] if len(usd) > 2 else usd[0],
        cache_write=usd[3] if len(usd) > 3 else usd[0],
    )
    return (found["provider"], found["model"]), price


def find_price(provider: str, model: str) -> Price | None:
    """Find the list price of a model at a provider; ``None`` when there is none. Names are matched whole: a variant may
    cost ten times as much as the model it is named after."""
    vendor, _, bare = model.strip().lower().rpartition("/")
    name = provider.strip().lower() or (vendor if vendor in ("anthropic", "openai", "google") else "")
    rows = _PRICES.get(name, {})
    return rows.get(bare) or rows.get(_normalize_model(bare))


def list_prices() -> Iterator[tuple[str, str, Price]]:
    """Iterate over the price list: a provider, a model, and its price."""
    for provider, rows in _PRICES.items():
        for model, price in rows.items():
            yield provider, model, price


def _normalize_model(model: str) -> str:
    """Normalise a model's name: no region before, no date or revision after, and hyphens in versions."""
    name = _REGION.sub("", model)
    name = re.sub(r"(\d)\.(\d)", r"\1-\2", name)
    return _REVISION.sub("", name)


_REGION = re.compile(r"^(?:global|us|eu|apac|ap|au|jp|ca|sa|me|af)\.")
_REVISION = re.compile(r"(?:-\d{8})?(?:-v\d+)?(?::\d+)?$")


def _compute_total(usage: Usage, price: Price) -> Decimal | None:
    if price.long is not None and usage.input + usage.cache_read + usage.cache_write > price.long_from:
        price = price.long
    bill = (
        (usage.input, price.input),
        (usage.output, price.output),
        (usage.cache_read, price.cache_read),
        (usage.cache_write, price.cache_write),
    )
    total = Decimal(0)
    for tokens, usd in bill:
        if not tokens:
            continue
        if usd is None:
            return None
        total += tokens * usd / _MILLION
    return total


# -------------------------------------------------------------------------------------------------------------- prices


def _build_price(as_of: str, input: str, output: str, cache_read: str = "", cache_write: str = "") -> Price:
    return Price(
        input=Decimal(input),
        output=Decimal(output),
        cache_read=Decimal(cache_read) if cache_read else None,
        cache_write=Decimal(cache_write) if cache_write else None,
        as_of=as_of,
    )


_OPUS = _build_price("2026-05", "5", "25", "0.50", "6.25")
_SONNET = _build_price("2026-05", "3", "15", "0.30", "3.75")
_HAIKU = _build_price("2026-05", "1", "5", "0.10", "1.25")
_FIRST_OPUS = _build_price("2026-05", "15", "75", "1.50", "18.75")
_SOL = _build_price("2026-07", "5", "30", "0.50", "6.25")
_TERRA = _build_price("2026-07", "2.50", "15", "0.25", "3.125")
_LUNA = _build_price("2026-07", "1", "6", "0.10", "1.25")
_GEMINI_PRO = replace(
    _build_price("2026-07", "2", "12", "0.20"), long_from=200_000, long=_build_price("2026-07", "4", "18", "0.40")
)
_GEMINI_FLASH = _build_price("2026-09", "0.75", "3.75", "0.075")
_DEEPSEEK_FLASH = _build_price("2026-07", "0.14", "0.28", "0.0028")

_PRICES: Mapping[str, Mapping[str, Price]] = {
    "anthropic": {
        "claude-opus-4-8": _OPUS,
        "claude-opus-4-8-fast": _build_price("2026-05", "10", "50", "1", "12.50"),
        "claude-opus-4-7": _OPUS,
        "claude-opus-4-6": _OPUS,
        "claude-opus-4-5": _OPUS,
        "claude-opus-4": _FIRST_OPUS,
        "claude-sonnet-5": _build_price("2026-06", "2", "10", "0.20", "2.50"),
        "claude-sonnet-4-6": _SONNET,
        "claude-sonnet-4-5": _SONNET,
        "claude-sonnet-4": _SONNET,
        "claude-haiku-4-5": _HAIKU,
        "claude-3-5-sonnet": _SONNET,
        "claude-3-5-haiku": _build_price("2026-05", "0.80", "4", "0.08", "1"),
        "claude-3-opus": _FIRST_OPUS,
        "claude-3-haiku": _build_price("2026-05", "0.25", "1.25", "0.03", "0.30"),
    },
    "openai": {
        "gpt-5.6-sol": _SOL,
        "gpt-5.6-sol-pro": _SOL,
        "gpt-5.6-terra": _TERRA,
        "gpt-5.6-terra-pro": _TERRA,
        "gpt-5.6-luna": _LUNA,
        "gpt-5.6-luna-pro": _LUNA,
        "gpt-4o": _build_price("2026-03", "2.50", "10", "1.25"),
        "gpt-4o-mini": _build_price("2026-03", "0.15", "0.60", "0.075"),
        "gpt-4.1": _build_price("2026-03", "2", "8", "0.50"),
        "gpt-4.1-mini": _build_price("2026-03", "0.40", "1.60", "0.10"),
        "gpt-4.1-nano": _build_price("2026-03", "0.10", "0.40", "0.025"),
        "o3": _build_price("2026-03", "10", "40", "2.50"),
        "o3-mini": _build_price("2026-03", "1.10", "4.40", "0.55"),
    },
    "google": {
        "gemini-3.8-flash": _GEMINI_FLASH,
        "gemini-3.7-flash": _GEMINI_FLASH,
        "gemini-3.6-flash": _build_price("2026-07", "1.50", "7.50", "0.15"),
        "gemini-3.5-flash": _build_price("2026-07", "1.50", "9", "0.15"),
        "gemini-3.5-flash-lite": _build_price("2026-07", "0.30", "2.50", "0.03"),
        "gemini-3.1-flash-lite": _build_price("2026-07", "0.25", "1.50", "0.025"),
        "gemini-3.1-flash-lite-preview": _build_price("2026-07", "0.25", "1.50", "0.025"),
        "gemini-3-flash-preview": _build_price("2026-07", "0.50", "3", "0.05"),
        "gemini-3.1-pro": _GEMINI_PRO,
        "gemini-3.1-pro-preview": _GEMINI_PRO,
        "gemini-3-pro-preview": _GEMINI_PRO,
        "gemini-2.5-pro": replace(
            _build_price("2026-03", "1.25", "10"), long_from=200_000, long=_build_price("2026-07", "2.50", "15")
        ),
        "gemini-2.5-flash": _build_price("2026-03", "0.15", "0.60"),
        "gemini-2.0-flash": _build_price("2026-03", "0.10", "0.40"),
    },
    "deepseek": {
        "deepseek-chat": _DEEPSEEK_FLASH,
        "deepseek-reasoner": _DEEPSEEK_FLASH,
        "deepseek-v4-flash": _DEEPSEEK_FLASH,
        "deepseek-v4-pro": _build_price("2026-07", "0.435", "0.87", "0.003625"),
    },
    "minimax": {"minimax-m2.7": _build_price("2026-04", "0.30", "1.20")},
    "bedrock": {
        "anthropic.claude-opus-4-8": _OPUS,
        "anthropic.claude-opus-4-7": _OPUS,
        "anthropic.claude-opus-4-6": _OPUS,
        "anthropic.claude-sonnet-5": _build_price("2026-06", "3", "15", "0.30", "3.75"),
        "anthropic.claude-sonnet-4-6": _SONNET,
        "anthropic.claude-sonnet-4-5": _SONNET,
        "anthropic.claude-haiku-4-5": _build_price("2026-04", "0.80", "4", "0.08", "1"),
        "amazon.nova-pro": _build_price("2026-04", "0.80", "3.20"),
        "amazon.nova-lite": _build_price("2026-04", "0.06", "0.24"),
        "amazon.nova-micro": _build_price("2026-04", "0.035", "0.14"),
    },
    "fireworks": {
        "kimi-k2p6": _build_price("2026-07", "0.95", "4", "0.16"),
        "kimi-k2p6-fast": _build_price("2026-07", "2", "8", "0.30"),
        "kimi-k2p6-turbo": _build_price("2026-07", "2", "8", "0.30"),
        "kimi-k2p7-code": _build_price("2026-07", "0.95", "4", "0.19"),
        "kimi-k2p7-code-fast": _build_price("2026-07", "1.90", "8", "0.38"),
        "glm-5p2": _build_price("2026-07", "1.40", "4.40", "0.14"),
        "glm-5p2-fast": _build_price("2026-07", "2.10", "6.60", "0.21"),
        "glm-5p1": _build_price("2026-07", "1.40", "4.40", "0.26"),
        "glm-5p1-fast": _build_price("2026-07", "2.80", "8.80", "0.52"),
        "deepseek-v4-pro": _build_price("2026-07", "1.74", "3.48", "0.145"),
        "deepseek-v4-flash": _build_price("2026-07", "0.14", "0.28", "0.028"),
        "qwen3p7-plus": _build_price("2026-07", "0.40", "1.60", "0.08"),
        "minimax-m3": _build_price("2026-07", "0.30", "1.20", "0.06"),
        "minimax-m2p7": _build_price("2026-07", "0.30", "1.20", "0.06"),
        "gpt-oss-120b": _build_price("2026-07", "0.15", "0.60", "0.015"),
        "gpt-oss-20b": _build_price("2026-07", "0.07", "0.30", "0.035"),
    },
}
"""List prices by provider, then by model without vendor, date and revision."""
