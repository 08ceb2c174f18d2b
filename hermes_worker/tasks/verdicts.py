"""What a model says about a dangerous command, before a person is asked (``approvals.mode: smart``)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.approvals import VERDICT_RULES, Ask, Verdict, verdict_of, verdict_question
from hermes_worker.core.errors import ConfigurationError, ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest, Usage, canonical_json, user_body
from hermes_worker.core.pricing import Cost, Price, billed, cost_of
from hermes_worker.governor import Governing, Place
from hermes_worker.observe import count, log
from hermes_worker.providers.chain import Route

_PATIENCE_S = 30.0
_OUTPUT_TOKENS_MAX = 16
"""One word; a model that thinks first says nothing in it, and then a person decides."""
_CHARS_PER_TOKEN = 4


@dataclass(slots=True)
class Bill:
    """What was asked of models on behalf of one tool call. Paid with the call's outcome."""

    usage: Usage = field(default_factory=Usage)
    cost: Cost | None = None

    def add(self, usage: Usage, cost: Cost) -> None:
        """A call has one verdict at most, so nothing is ever summed up here."""
        self.usage, self.cost = usage, cost


class Routes(Protocol):
    """``providers.chain.Chain``."""

    def route(self, model: str, position: int) -> Route: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Asks the model of the run, once and only if that can be done now."""

    chain: Routes
    governor: Governing
    prices: Mapping[tuple[str, str], Price]
    model: str
    """Of the run."""
    call_key: str
    bill: Bill
    abort: AbortSignal

    def verdict(self, command: str, asked: Ask) -> Verdict:
        """Escalate, that is leave it to a person, whenever anything is unclear."""
        try:
            route = self.chain.route(self.model, 0)
            reply = self._reply(route, _request(route, command, asked))
        except (ModelCallError, ConfigurationError) as error:
            log.info("command.not_judged", reason=type(error).__name__)
            return Verdict.ESCALATE
        if reply is None:
            return Verdict.ESCALATE
        found = verdict_of(reply.text)
        count(f"command.judged.{found.value}")
        return found

    def _reply(self, route: Route, request: ModelRequest) -> ModelReply | None:
        """Raises ``ModelCallError``. ``None`` when the model must not be asked now."""
        place = Place(provider=route.name, credential=route.credential)
        tokens = sum(map(len, request.messages)) // _CHARS_PER_TOKEN
        permit = self.governor.acquire(place, ticket=f"verdict:{self.call_key}", tokens=tokens)
        if permit.wait_s > 0:
            return None
        too_late = AbortSignal()
        self.abort.on_abort(lambda: too_late.set("the call was given up"))
        timer = threading.Timer(_PATIENCE_S, too_late.set, ("it took too long",))
        timer.start()
        try:
            reply = route.provider.ask(request, on_delta=lambda delta: None, abort=too_late)
        except ModelCallError as error:
            self.governor.settle(permit, limits=error.limits)
            raise
        finally:
            timer.cancel()
        self.governor.settle(permit, usage=reply.usage, limits=reply.limits)
        self.bill.add(reply.usage, self._cost(route, reply))
        return reply

    def _cost(self, route: Route, reply: ModelReply) -> Cost:
        if reply.cost_usd is not None:
            return billed(reply.cost_usd)
        return cost_of(reply.usage, provider=route.name, model=route.model, own_prices=self.prices)


def _request(route: Route, command: str, asked: Ask) -> ModelRequest:
    return ModelRequest(
        model=route.model,
        messages=(
            canonical_json({"role": "system", "content": VERDICT_RULES}),
            user_body(verdict_question(command, asked.description)),
        ),
        output_tokens_max=_OUTPUT_TOKENS_MAX,
        reasoning_effort="none",
    )
