"""Rest times of provider keys after a refusal."""

from __future__ import annotations

import re
from enum import StrEnum

from hermes_worker.core.errors import Classification, FailureKind

REFUSED_REST_S = 300.0
SPENT_REST_S = 3_600.0
DEAD_REST_S = 86_400.0
"""For a key that its provider called revoked. A key that replaces it is another one, and is used at once."""
_REST_S_MAX = 7 * 86_400.0

_DEAD_WORDS = (
    "token_invalidated",
    "token_revoked",
    "invalid_token",
    "invalid_grant",
    "unauthorized_client",
    "refresh_token_reused",
    "has been revoked",
)
_RESET = re.compile(r"(?:resets?|again|retry)\s+(?:in|after)\s+((?:\d{1,5}\s*(?:d|h|m|s)[a-z]*\s*)+)")
_PART = re.compile(r"(\d{1,5})\s*([dhms])")
_SECONDS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0}


class Strategy(StrEnum):
    """The rule by which a turn takes one of several usable keys."""

    FILL_FIRST = "fill_first"
    """The first, until it is spent."""
    ROUND_ROBIN = "round_robin"
    RANDOM = "random"
    LEAST_USED = "least_used"


def compute_rest_s(classification: Classification) -> float:
    """Seconds for which no process should use a key after this refusal."""
    said = classification.message.lower()
    if classification.kind in (FailureKind.AUTH, FailureKind.AUTH_PERMANENT):
        return DEAD_REST_S if any(word in said for word in _DEAD_WORDS) else REFUSED_REST_S
    told = _parse_reset_s(said)
    if told is not None:
        return told
    is_limit = classification.kind is FailureKind.RATE_LIMIT
    return classification.retry_after_s or SPENT_REST_S if is_limit else SPENT_REST_S


def _parse_reset_s(said: str) -> float | None:
    """Parse a text such as ``resets in 2h 5m``, in seconds; ``None`` when it states no time."""
    match = _RESET.search(said)
    if match is None:
        return None
    return min(sum(float(count) * _SECONDS[unit] for count, unit in _PART.findall(match[1])), _REST_S_MAX)
