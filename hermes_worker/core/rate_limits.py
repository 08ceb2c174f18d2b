"""Read the rate-limit headers of a response.

Only limits *per minute* are read. Some providers put a limit per day under the same name (Groq, OpenAI's free tier); it
is recognised by a reset that is farther away than a minute's limit can be, and is left to the server to enforce.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_RESET_S_MAX = 90.0
"""A limit per minute is whole again after a minute; the rest is for clocks that differ and for rounding."""
_LIMITS = range(1, 1_000_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """Limits per minute of a credential; ``None`` where the headers name none."""

    requests_per_min: int | None = None
    tokens_per_min: int | None = None


def parse_rate_limits(headers: Iterable[tuple[bytes, bytes]]) -> RateLimits | None:
    """Parse the limits in a response's raw headers; ``None`` when there are none.

    Names are OpenAI's (https://platform.openai.com/docs/guides/rate-limits, July 2026), which most others copy, and
    Anthropic's (https://docs.anthropic.com/en/api/rate-limits, July 2026), whose limits all are per minute.
    """
    told: dict[str, str] = {}
    for raw_name, raw_value in headers:
        name = raw_name.lower()
        if name.startswith((b"x-ratelimit-", b"anthropic-ratelimit-")):
            told[name.decode("ascii", "replace")] = raw_value.decode("ascii", "replace")
    if not told:
        return None
    requests = _parse_anthropic(told, "requests") or _parse_per_minute(told, "requests")
    tokens = _parse_anthropic(told, "input-tokens", "tokens") or _parse_per_minute(told, "tokens")
    if requests is None and tokens is None:
        return None
    return RateLimits(requests_per_min=requests, tokens_per_min=tokens)


def _parse_anthropic(told: dict[str, str], *kinds: str) -> int | None:
    return next(filter(None, (_parse_limit(told.get(f"anthropic-ratelimit-{kind}-limit")) for kind in kinds)), None)


def _parse_per_minute(told: dict[str, str], kind: str) -> int | None:
    reset_s = parse_duration_s(told.get(f"x-ratelimit-reset-{kind}", ""))
    if reset_s is None or reset_s > _RESET_S_MAX:
        return None
    return _parse_limit(told.get(f"x-ratelimit-limit-{kind}"))


def _parse_limit(text: str | None) -> int | None:
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 9:
        return None
    return int(text) if int(text) in _LIMITS else None


_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration_s(text: str) -> float | None:
    """Parse a duration in the form of these headers (``6m0s``, ``1.2s``, ``120ms``, ``7``), in seconds; ``None`` for
    any other text."""
    text = text.strip()
    if re.fullmatch(r"\d{1,9}(?:\.\d{1,9})?", text, re.ASCII):
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)
