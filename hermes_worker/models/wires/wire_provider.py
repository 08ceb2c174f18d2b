"""What providers of all wires have in common: how one is asked, whatever its requests and replies look like."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelReply, ModelRequest
from hermes_worker.models.base import Abort, OnDelta
from hermes_worker.models.connections import Line
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.exchange import DialectLearner, Exchange, carry_out, compute_patience_s
from hermes_worker.models.wires.definitions import fit_tools

_Dialect = TypeVar("_Dialect")


class AdaptDialect(Protocol[_Dialect]):
    def __call__(self, tried: _Dialect, error: ModelCallError, *, request: ModelRequest) -> _Dialect | None:
        """Return the dialect to ask in after a refusal; ``None`` when it was not about the way of asking."""


class WireProvider(ABC, Generic[_Dialect]):
    """A ``Provider`` that speaks one wire with one endpoint."""

    def __init__(
        self, endpoint: Endpoint, first: _Dialect, adapt: AdaptDialect[_Dialect], close: Callable[[], None]
    ) -> None:
        """``first`` is the dialect to begin with. ``close`` closes idle connections."""
        self.endpoint = endpoint
        self._adapt = adapt
        self._learner = DialectLearner(first)
        self._close = close

    @abstractmethod
    def build_exchange(self, request: ModelRequest, dialect: _Dialect, on_delta: OnDelta) -> Exchange:
        """Write a request in a dialect, and choose what reads its reply."""

    def close(self) -> None:
        """Close idle connections. Calls in flight are not touched."""
        self._close()

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """Ask the model (``Provider.ask``). A refusal that only concerns how we ask makes it ask differently."""
        fitted = fit_tools(tuple(request.tools))

        def attempt(dialect: _Dialect, line: Line) -> ModelReply:
            exchange = self.build_exchange(request, dialect, fitted.wrap_on_delta(on_delta))
            return carry_out(exchange, line, read_timeout_s=compute_patience_s(self.endpoint, request))

        return fitted.restore(self._learner.ask(attempt, partial(self._adapt, request=request), abort))
