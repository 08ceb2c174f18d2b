"""What rate-limit headers say, and what of it is believed."""

from __future__ import annotations

import pytest

from hermes_worker.core.rate_limits import RateLimits, parse_duration_s, parse_rate_limits


def limits(**headers: str) -> RateLimits | None:
    return parse_rate_limits([(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()])


def test_openais_headers_give_both_limits() -> None:
    told = limits(
        x_ratelimit_limit_requests="60",
        x_ratelimit_reset_requests="1s",
        X_RateLimit_Limit_Tokens="150000",
        x_ratelimit_reset_tokens="6m0s",
        content_type="application/json",
    )

    assert told == RateLimits(requests_per_min=60)


def test_a_limit_per_day_is_not_taken_for_one_per_minute() -> None:
    """Groq: 14,400 requests a day, 6,000 tokens a minute."""
    told = limits(
        x_ratelimit_limit_requests="14400",
        x_ratelimit_reset_requests="2m59.56s",
        x_ratelimit_limit_tokens="6000",
        x_ratelimit_reset_tokens="7.66s",
    )

    assert told == RateLimits(tokens_per_min=6000)


def test_anthropics_limits_are_per_minute_and_input_counts_before_the_sum() -> None:
    told = limits(
        anthropic_ratelimit_requests_limit="50",
        anthropic_ratelimit_requests_reset="2026-07-01T00:00:00Z",
        anthropic_ratelimit_input_tokens_limit="30000",
        anthropic_ratelimit_tokens_limit="38000",
    )

    assert told == RateLimits(requests_per_min=50, tokens_per_min=30_000)


@pytest.mark.parametrize("value", ["", "-1", "0", "1e9", "many", "9" * 40, "٣"])
def test_nonsense_is_no_limit(value: str) -> None:
    raw = [(b"x-ratelimit-limit-requests", value.encode()), (b"x-ratelimit-reset-requests", b"1s")]

    assert parse_rate_limits(raw) is None


def test_a_response_without_such_headers_says_nothing() -> None:
    assert limits(retry_after="3") is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1s", 1.0), ("6m0s", 360.0), ("120ms", 0.12), ("1h2m3s", 3723.0), ("7", 7.0), ("2m59.56s", 179.56)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "s", "1x", "1s tomorrow", "-1s", "1s 2", "9" * 20 + "s"])
def test_what_is_no_duration(text: str) -> None:
    assert parse_duration_s(text) is None
