"""The abort flag of a piece of work in flight: set once, and polled, waited for or followed by callbacks.

``AbortSignal`` satisfies both ``models.base.Abort`` and ``agent.tools.base.Cancellation``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class AbortSignal:
    """A one-way flag. Thread-safe; the first ``set`` wins and later ones change nothing."""

    __slots__ = ("_callbacks", "_event", "_lock", "_reason")

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._reason: str | None = None

    @property
    def reason(self) -> str | None:
        """The reason given by the first ``set``; ``None`` until then."""
        return self._reason

    def set(self, reason: str) -> None:
        """Raise the flag and run every callback on this thread, in the order they were added. Idempotent."""
        with self._lock:
            if self._event.is_set():
                return
            self._reason = reason
            self._event.set()
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            _run_callback(callback)

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is raised or ``timeout`` seconds have passed. Returns whether it is raised."""
        return self._event.wait(timeout)

    def on_abort(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once when the flag is raised; at once, on this thread, if it already is."""
        with self._lock:
            if not self._event.is_set():
                self._callbacks.append(callback)
                return
        _run_callback(callback)


def _run_callback(callback: Callable[[], None]) -> None:
    """Run a callback. Its failure is logged and does not keep the other callbacks from running."""
    try:
        callback()
    except Exception:
        _log.exception("abort.callback_failed")
