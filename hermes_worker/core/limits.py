"""What a tenant, or one of its keys, may use at most. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from hermes_worker.core.errors import HermesError


class LimitName(StrEnum):
    """What is limited; the words are those of ``limits.name``."""

    RUNS = "runs"
    """Runs at work at once, those that wait for their provider among them."""
    QUEUED = "queued"
    """Runs that wait for a place."""
    SUBMITS_PER_MIN = "submits_per_min"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    USD_PER_DAY = "usd_per_day"
    """In nano-USD, as the next."""
    USD_PER_MONTH = "usd_per_month"

    @property
    def is_money(self) -> bool:
        return self in (LimitName.USD_PER_DAY, LimitName.USD_PER_MONTH)

    @property
    def is_spending(self) -> bool:
        return self.is_money or self in (LimitName.TOKENS_PER_DAY, LimitName.TOKENS_PER_MONTH)

    @property
    def is_of_keys(self) -> bool:
        """Whether a key may have one of its own."""
        return self is LimitName.SUBMITS_PER_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: LimitName
    value: int
    waits: bool = False
    """What is beyond it is accepted and waits."""


class LimitReached(HermesError):
    """A tenant or a key has used what it may; ``retry_after_s`` says when to come again."""

    def __init__(self, limit: Limit, retry_after_s: float, *, key_id: str = "") -> None:
        whose = f"the key {key_id}" if key_id else "this tenant"
        shown = f"{limit.value / 1e9:g} USD" if limit.name.is_money else f"{limit.value}"
        super().__init__(f"{whose} has reached its limit {limit.name.value} ({shown}); come again later")
        self.limit = limit
        self.retry_after_s = max(1.0, retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What was used in a period, or is about to be."""

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(tokens=self.tokens + other.tokens, nano_usd=self.nano_usd + other.nano_usd)


def periods(now: float) -> tuple[str, str]:
    """The day and the month of UTC in which ``now`` (epoch seconds) lies, as ``spending.period`` names them."""
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    return day, day[:7]


def period_left_s(name: LimitName, now: float) -> float:
    """Seconds until a limit of spending begins anew."""
    at = datetime.fromtimestamp(now, UTC)
    begins = at.replace(hour=0, minute=0, second=0, microsecond=0)
    if name in (LimitName.TOKENS_PER_DAY, LimitName.USD_PER_DAY):
        return (begins + timedelta(days=1) - at).total_seconds()
    return ((begins.replace(day=1) + timedelta(days=32)).replace(day=1) - at).total_seconds()


def room(limit: Limit, used: Spending, expected: Spending) -> int:
    """How many more runs may begin, each of which is expected to use ``expected``. ``used`` counts runs at work for
    what they are expected to use."""
    spent, each = (used.nano_usd, expected.nano_usd) if limit.name.is_money else (used.tokens, expected.tokens)
    left = limit.value - spent
    return max(0, left // max(1, each))


def used_in(limit: Limit, by_period: Mapping[str, Spending], now: float) -> Spending:
    """What of ``by_period`` counts against a limit of spending."""
    day, month = periods(now)
    is_daily = limit.name in (LimitName.TOKENS_PER_DAY, LimitName.USD_PER_DAY)
    return by_period.get(day if is_daily else month, Spending())


def taken(level: float, age_s: float, per_min: int) -> tuple[float, float]:
    """Take one from a bucket that held ``level`` so many seconds ago and is filled with ``per_min`` a minute, as much
    as it holds. What it holds then, and how long to wait: with a wait nothing is taken."""
    now = min(float(per_min), level + max(0.0, age_s) * per_min / 60)
    if now >= 1:
        return now - 1, 0.0
    return now, (1 - now) * 60 / per_min if per_min else 60.0
