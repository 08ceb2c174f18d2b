"""Tokens that nobody counted (design D17): estimated from the size of what was sent and received, and marked as such.

Two things are not counted by their provider: a reply without usage, or with half of it, and a request whose outcome
nobody knows, because the connection, the call or the worker ended before the reply was written. Both were paid for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from decimal import Decimal

from hermes_worker.core.messages import ModelReply, ModelRequest, Usage
from hermes_worker.core.pricing import MARGIN, Cost, CostStatus

BYTES_PER_TOKEN = 4
"""Of English prose. JSON and code have about three, Chinese about the three bytes of one character."""
IMAGE_TOKENS = 1_600
"""Of an inline image, whatever its size in bytes: what a picture of 1,092 pixels square costs (Anthropic's page on
vision, 2026-05); other providers are near that."""
OUTPUT_TOKENS_ASSUMED = 1_000
"""Of a reply that nobody saw, in a run that has had no reply yet."""

_INLINE_IMAGE = re.compile(r"data:image/[\w.+-]+;base64,[A-Za-z0-9+/=]+")


def tokens_in(texts: Iterable[str]) -> int:
    """An estimate of the tokens in ``texts``, at least one for each that is not empty."""
    return sum(map(_tokens, texts))


def _tokens(text: str) -> int:
    images = 0
    if "data:image/" in text:
        text, images = _INLINE_IMAGE.subn("", text)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return images * IMAGE_TOKENS + -(-size // BYTES_PER_TOKEN)


WEIGHED_TOKENS_MIN = 4_096
"""What a provider counts of a shorter request says little about longer ones."""
_WEIGHT_MIN, _WEIGHT_MAX = 75, 300
"""Per cent. Counts further from the estimate are not believed: some servers leave out what they have cached."""


def weight_of(usage: Usage, estimate: int) -> int:
    """What a provider counted of a request, in per cent of the ``estimate``; 0 where that says nothing. ``usage`` is
    as the provider sent it."""
    if estimate < WEIGHED_TOKENS_MIN:
        return 0
    weight = 100 * (usage.input + usage.cache_read + usage.cache_write) // estimate
    return weight if _WEIGHT_MIN <= weight <= _WEIGHT_MAX else 0


def request_tokens(request: ModelRequest) -> int:
    """An estimate of what a provider reads for ``request``."""
    return tokens_in(request.messages) + tokens_in(request.tools)


def reply_tokens(reply: ModelReply) -> int:
    """An estimate of what a provider wrote for ``reply``, as far as it can be seen."""
    calls = (part for request in reply.tool_requests for part in (request.name, request.arguments))
    return tokens_in((reply.text, reply.reasoning or "", *calls))


def metered(reply: ModelReply, request: ModelRequest) -> ModelReply:
    """``reply`` with the tokens estimated that its provider did not count.

    Nothing read is never true, and nothing written only of a reply that is empty. Of a reply that the network cut off
    the provider had no chance to count the end.
    """
    usage = reply.usage
    has_read = usage.input + usage.cache_read + usage.cache_write > 0
    if has_read and usage.output and not reply.was_cut_by_network:
        return reply
    read = 0 if has_read else request_tokens(request)
    written = max(0, reply_tokens(reply) - usage.output) if not usage.output or reply.was_cut_by_network else 0
    counted = replace(
        usage,
        input=usage.input + read,
        output=usage.output + written,
        estimated=usage.estimated + read + written,
    )
    return replace(reply, usage=counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """What the calls of a run took until now, from which those that nobody knows are estimated."""

    replies: int = 0
    output_tokens: int = 0
    tokens: int = 0
    usd: Decimal = Decimal(0)
    cost_status: CostStatus | None = None
    """How well ``usd`` is known; ``None`` before the first call."""


NOTHING_USUAL = Usual()


def lost_attempt(read: int, usual: Usual, *, heard: int = 0) -> Usage:
    """A request for which the provider may have been paid and of which no reply was written.

    ``read`` is the estimate of what was sent. What was written to it is taken to be as long as the run's replies are on
    average, or as what was ``heard`` of it, if that is more.
    """
    is_known = usual.replies and usual.output_tokens
    written = usual.output_tokens // usual.replies if is_known else OUTPUT_TOKENS_ASSUMED
    return Usage(unknown_attempts=1, unknown_input=read, unknown_output=max(written, heard))


def cost_of_lost(usage: Usage, priced: Cost | None, usual: Usual) -> Cost:
    """The cost of ``lost_attempt``: as ``priced`` by a list, otherwise at the rate of the run's other calls. Without
    any, nothing is known of it."""
    if priced is not None and priced.usd is not None:
        return priced
    status = usual.cost_status
    if not usual.tokens or status is None or (status is CostStatus.UNKNOWN and not usual.usd):
        return Cost(usd=None, status=CostStatus.UNKNOWN)
    doubtful = MARGIN * usual.usd / usual.tokens * (usage.unknown_input + usage.unknown_output)
    return Cost(usd=Decimal(0), status=CostStatus.UNKNOWN if doubtful else status, doubtful_usd=doubtful)
