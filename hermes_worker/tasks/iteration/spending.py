"""The usage and cost of model calls: of answered ones, and of calls whose outcome is unknown (design D17)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import Delta, ModelReply, ModelRequest, Usage
from hermes_worker.core.metering import (
    NOTHING_USUAL,
    UsageSoFar,
    estimate_lost_attempt,
    estimate_lost_cost,
    estimate_request_tokens,
    estimate_tokens,
)
from hermes_worker.core.pricing import NOTHING_SPENT, Cost, Price, Spent, build_billed_cost
from hermes_worker.models.chain import ModelRoute
from hermes_worker.models.prices import compute_cost
from hermes_worker.observe import count

Prices = Mapping[tuple[str, str], Price]


@dataclass(slots=True)
class Bill:
    """The cost of the model calls for one step. It is charged with the step's outcome."""

    spent: Spent = field(default=NOTHING_SPENT)

    def add(self, spent: Spent) -> None:
        self.spent = self.spent + spent

    @property
    def usage(self) -> Usage:
        return self.spent.usage

    @property
    def cost(self) -> Cost | None:
        return self.spent.cost


class DeltaMeter:
    """Passes the pieces of a reply on and keeps count of them."""

    def __init__(self, on_delta: Callable[[Delta], None]) -> None:
        self._on_delta = on_delta
        self._pieces: list[str] = []

    def __call__(self, delta: Delta) -> None:
        self._pieces.append(delta.text or delta.reasoning or delta.tool_name)
        self._on_delta(delta)

    @property
    def tokens(self) -> int:
        """An estimate of the tokens received."""
        return estimate_tokens(("".join(self._pieces),))


def compute_reply_cost(reply: ModelReply, route: ModelRoute, prices: Prices) -> Cost:
    """The cost of a metered ``reply``. What the provider says it billed goes before any price list."""
    if reply.cost_usd is not None:
        return build_billed_cost(reply.cost_usd)
    return compute_cost(reply.usage, provider=route.name, model=route.model, own_prices=prices)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeteredAttempt:
    """One request to one provider."""

    request: ModelRequest
    route: ModelRoute
    heard: DeltaMeter
    usual: UsageSoFar = NOTHING_USUAL

    def estimate_lost_spend(self, error: ModelCallError, prices: Prices) -> Spent:
        """The usage and cost that a failed attempt may have had: none, unless it was sent and no answer refused it, or
        a part of the reply had come.
        """
        heard = self.heard.tokens
        if not heard and not error.may_be_billed:
            return Spent(usage=Usage(refused_attempts=1))
        count("model.outcome_unknown")
        usage = estimate_lost_attempt(estimate_request_tokens(self.request), self.usual, heard=heard)
        priced = compute_cost(usage, provider=self.route.name, model=self.route.model, own_prices=prices)
        return Spent(usage=usage, cost=estimate_lost_cost(usage, priced, self.usual))
