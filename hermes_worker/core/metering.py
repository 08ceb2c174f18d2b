"""Estimate tokens that were not counted (design D17), from the size of what was sent and received, and mark them as
estimates.

A provider's count is missing in two cases: a reply without usage, or with half of it, and a request of unknown outcome,
because the connection, the call or the worker ended before the reply was written. Both were paid for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from hermes_worker.core.messages import ModelReply, ModelRequest, Usage
from hermes_worker.core.pricing import MARGIN, Cost, CostStatus

BYTES_PER_TOKEN = 4
"""The average of English prose. JSON and code have about three, Chinese about the three bytes of one character."""
IMAGE_TOKENS = 1_600
"""Tokens of an inline image, whatever its size in bytes: the price of a picture of 1,092 pixels square (Anthropic's
page on vision, 2026-05); other providers are near that."""
OUTPUT_TOKENS_ASSUMED = 1_000
"""Tokens assumed for a lost reply, in a run that has had no reply yet."""

_INLINE_IMAGE = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=]+")


def estimate_tokens(texts: Iterable[str]) -> int:
    """Estimate the tokens in ``texts``, at least one for each that is not empty."""
    return sum(map(_estimate_text_tokens, texts))


def _estimate_text_tokens(text: str) -> int:
    images = 0
    if "data:image/" in text:
        text, images = _INLINE_IMAGE.subn("", text)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return images * IMAGE_TOKENS + -(-size // BYTES_PER_TOKEN)


WEIGHED_TOKENS_MIN = 4_096
"""A provider's count of a shorter request says little about longer ones."""
_WEIGHT_MIN, _WEIGHT_MAX = 75, 300
"""Per cent. Counts further from the estimate are not believed: some servers leave out what they have cached."""


def compute_weight_percent(usage: Usage, estimate: int) -> int:
    """A provider's count of a request, in per cent of the ``estimate``; 0 when it says nothing. ``usage`` is as the
    provider sent it."""
    if estimate < WEIGHED_TOKENS_MIN:
        return 0
    weight = 100 * (usage.input + usage.cache_read + usage.cache_write) // estimate
    return weight if _WEIGHT_MIN <= weight <= _WEIGHT_MAX else 0


def estimate_request_tokens(request: ModelRequest) -> int:
    """Estimate the tokens that a provider reads for ``request``."""
    return estimate_tokens(request.messages) + estimate_tokens(request.tools)


def estimate_reply_tokens(reply: ModelReply) -> int:
    """Estimate the tokens that a provider wrote for ``reply``, as far as they are visible."""
    calls = (part for request in reply.tool_requests for part in (request.name, request.arguments))
    return estimate_tokens((reply.text, reply.reasoning or "", *calls))


def fill_missing_usage(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """Add estimates to ``reply`` for the tokens that its provider did not count. An input count of zero is never true,
    and an output count of zero only for an empty reply. A reply that the network cut off is never counted to its
    end."""
    usage = reply.usage
    has_read = usage.input + usage.cache_read + usage.cache_write > 0
    if has_read and usage.output and not reply.was_cut_by_network:
        return reply
    read = 0 if has_read else estimate_request_tokens(request)
    written = max(0, estimate_reply_tokens(reply) - usage.output) if not usage.output or reply.was_cut_by_network else 0
    counted = replace(
        usage,
        input=usage.input + read,
        output=usage.output + written,
        estimated=usage.estimated + read + written,
    )
    return replace(reply, usage=counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageSoFar:
    """The average use of a run's calls until now, from which unknown calls are estimated."""

    replies: int = 0
    output_tokens: int = 0
    tokens: int = 0
    usd: Decimal = Decimal(0)
    cost_status: CostStatus | None = None
    """How reliable ``usd`` is; ``None`` before the first call."""


NOTHING_USUAL = UsageSoFar()


def estimate_lost_attempt(read: int, usual: UsageSoFar, *, heard: int = 0) -> Usage:
    """Estimate a request that may have been billed and whose reply was not written. ``read`` is the estimate of what
    was sent. The reply is taken to be as long as the run's replies on average, or as what was ``heard`` of it, if that
    is more."""
    is_known = usual.replies and usual.output_tokens
    written = usual.output_tokens // usual.replies if is_known else OUTPUT_TOKENS_ASSUMED
    return Usage(unknown_attempts=1, unknown_input=read, unknown_output=max(written, heard))


def estimate_lost_cost(usage: Usage, priced: Cost | None, usual: UsageSoFar) -> Cost:
    """The cost of ``estimate_lost_attempt``: as ``priced`` by a list, otherwise at the rate of the run's other calls.
    Unknown when there are none."""
    if priced is not None and priced.usd is not None:
        return priced
    status = usual.cost_status
    if not usual.tokens or status is None or (status is CostStatus.UNKNOWN and not usual.usd):
        return Cost(usd=None, status=CostStatus.UNKNOWN)
    doubtful = MARGIN * usual.usd / usual.tokens * (usage.unknown_input + usage.unknown_output)
    return Cost(usd=Decimal(0), status=CostStatus.UNKNOWN if doubtful else status, doubtful_usd=doubtful)
