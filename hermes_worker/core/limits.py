"""Limits of tenants and API keys: what each of them bounds, and when one is reached. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from hermes_worker.core.errors import HermesError


class LimitName(StrEnum):
    """The kinds of limits; the values stand in ``limits.name``."""

    RUNS = "runs"
    """Runs at work at once, including those that wait for their provider."""
    QUEUED = "queued"
    """Runs that wait for a place."""
    MODEL_CALLS = "model_calls"
    """Model calls in flight at once. A call beyond it waits as a row; none is refused."""
    SUBMITS_PER_MIN = "submits_per_min"
    TOKENS_PER_DAY = "tokens_per_day"
    TOKENS_PER_MONTH = "tokens_per_month"
    USD_PER_DAY = "usd_per_day"
    """In nano-USD."""
    USD_PER_MONTH = "usd_per_month"
    """In nano-USD."""

    @property
    def is_money(self) -> bool:
        return self in (LimitName.USD_PER_DAY, LimitName.USD_PER_MONTH)

    @property
    def is_spending(self) -> bool:
        return self.is_money or self in (LimitName.TOKENS_PER_DAY, LimitName.TOKENS_PER_MONTH)

    @property
    def is_of_calls(self) -> bool:
        """Whether each model call needs a permit because of it."""
        return self is LimitName.MODEL_CALLS or self.is_spending


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    name: LimitName
    value: int
    waits: bool = False
    """Submissions beyond it are accepted and wait."""

    @property
    def value_text(self) -> str:
        """The value of the limit, for people."""
        return f"{self.value / 1e9:g} USD" if self.name.is_money else f"{self.value}"


class LimitReached(HermesError):
    """A tenant or a key has reached a limit; ``retry_after_s`` says when to try again."""

    def __init__(self, limit: Limit, retry_after_s: float, *, key_id: str = "") -> None:
        whose = f"the key {key_id}" if key_id else "this tenant"
        super().__init__(f"{whose} has reached its limit {limit.name.value} ({limit.value_text}); come again later")
        self.limit = limit
        self.retry_after_s = max(1.0, retry_after_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Tokens and money that were used in a period, or are about to be."""

    tokens: int = 0
    nano_usd: int = 0

    def __add__(self, other: Spending) -> Spending:
        return Spending(tokens=self.tokens + other.tokens, nano_usd=self.nano_usd + other.nano_usd)


def parse_key_id(principal: str | None) -> str:
    """The id of the key with which a run was submitted (``core.principals``); empty when it was submitted without
    one."""
    return principal.rpartition("/")[2] if principal is not None and principal.startswith("api:") else ""


def compute_periods(now: float) -> tuple[str, str]:
    """The day and the month of UTC in which ``now`` (epoch seconds) lies, as ``spending.period`` names them."""
    day = datetime.fromtimestamp(now, UTC).date().isoformat()
    return day, day[:7]


def compute_period_end(name: LimitName, now: float) -> float:
    """When a limit of spending starts again: a midnight of UTC, in whole epoch seconds."""
    today = datetime.fromtimestamp(now, UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    if name in (LimitName.TOKENS_PER_DAY, LimitName.USD_PER_DAY):
        return (today + timedelta(days=1)).timestamp()
    return (today.replace(day=1) + timedelta(days=32)).replace(day=1).timestamp()


def compute_period_left_s(name: LimitName, now: float) -> float:
    """Seconds until a limit of spending starts again."""
    return compute_period_end(name, now) - now


def compute_room(limit: Limit, used: Spending, expected: Spending) -> int:
    """Compute how many more runs may begin, each of which is expected to use ``expected``. ``used`` includes what runs
    at work are expected to use."""
    spent, each = (used.nano_usd, expected.nano_usd) if limit.name.is_money else (used.tokens, expected.tokens)
    left = limit.value - spent
    return max(0, left // max(1, each))


def explain_refusal(limit: Limit, whose: str, used: Spending, expected: Spending) -> str:
    """A sentence about why a call is refused that is expected to use ``expected``, where ``used`` counts against a
    limit of ``whose``. While something is left, the sentence says that the call needs more."""
    spent, each = (used.nano_usd, expected.nano_usd) if limit.name.is_money else (used.tokens, expected.tokens)
    left = limit.value - spent
    if not limit.name.is_spending or left <= 0:
        return f"the limit {limit.name.value} of {whose} ({limit.value_text}) is reached"
    of_it = (
        f"of the limit {limit.name.value} of {whose} ({limit.value_text}) "
        f"{replace(limit, value=left).value_text} is left"
    )
    return (
        f"{of_it} and the next call is expected to take {replace(limit, value=each).value_text}; "
        "it waits for a new period"
    )


def select_period_use(limit: Limit, by_period: Mapping[str, Spending], now: float) -> Spending:
    """The part of ``by_period`` that counts against a limit of spending."""
    day, month = compute_periods(now)
    is_daily = limit.name in (LimitName.TOKENS_PER_DAY, LimitName.USD_PER_DAY)
    return by_period.get(day if is_daily else month, Spending())


@dataclass(frozen=True, slots=True, kw_only=True)
class CallsNow:
    """The use that counts against the limits of a tenant or a key before one more model call."""

    in_flight: int
    used: Spending
    """Use by runs that have not ended, with what the calls in flight are expected to use."""
    by_period: Mapping[str, Spending]
    """Use by runs that have ended, by period."""


def find_refusing_limit(
    limits: Mapping[LimitName, Limit], now_used: CallsNow, expected: Spending, now: float
) -> Limit | None:
    """Find the limit that refuses one more model call, which is expected to use ``expected``; ``None`` when it is
    allowed."""
    for name, limit in limits.items():
        if name is LimitName.MODEL_CALLS and now_used.in_flight >= limit.value:
            return limit
        if (
            name.is_spending
            and compute_room(limit, select_period_use(limit, now_used.by_period, now) + now_used.used, expected) == 0
        ):
            return limit
    return None


def take_token(level: float, age_s: float, per_min: int) -> tuple[float, float]:
    """Take one token from a bucket that held ``level`` tokens ``age_s`` seconds ago, holds at most ``per_min`` and is
    refilled with ``per_min`` a minute. Returns the new level, and how many seconds to wait; when that is not 0, nothing
    was taken."""
    now = min(float(per_min), level + max(0.0, age_s) * per_min / 60)
    if now >= 1:
        return now - 1, 0.0
    return now, (1 - now) * 60 / per_min if per_min else 60.0
