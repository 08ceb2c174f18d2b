"""The interface of a model provider for the rest of the worker: one call in, one reply out, errors already
translated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from hermes_worker.core.messages import Delta, ModelReply, ModelRequest

OnDelta = Callable[[Delta], None]


class Abort(Protocol):
    """Tells a call in flight to give up. Implemented by ``core.abort.AbortSignal``."""

    def is_set(self) -> bool: ...

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` (from another thread) when the abort comes; at once if it already came."""


class Provider(Protocol):
    """One wire to one endpoint with one credential. Thread-safe: one object serves every call of a process."""

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """Make one attempt; never retries. ``on_delta`` is called on the calling thread, in order.

        Raises ``ModelCallError``; with kind ``interrupted`` when ``abort`` was set.
        """
