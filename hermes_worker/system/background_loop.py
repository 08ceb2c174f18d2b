"""An asyncio event loop on a thread of its own, for code that blocks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import TypeVar

_T = TypeVar("_T")


class BackgroundLoop:
    """The event loop of a process and its thread, which begins with the first work. Thread-safe. A forked child, which
    has no such thread, begins its own.
    """

    def __init__(self, name: str, forget: Callable[[], None] = lambda: None) -> None:
        """``name`` is that of the thread. ``forget`` is called in a forked child: it drops what belongs to the loop."""
        self._name = name
        self._forget = forget
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_registered = False

    def submit(self, work: Awaitable[_T]) -> Future[_T]:
        """Begin the work on the loop's thread."""
        return asyncio.run_coroutine_threadsafe(_await_work(work), self._ensure_loop())

    def run_work(self, work: Awaitable[_T], timeout_s: float) -> _T:
        """Run the work to its end and return its result. Raises ``TimeoutError``; the work is cancelled then."""
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except FutureTimeout:
            future.cancel()
            raise TimeoutError(f"no answer within {timeout_s:.0f} s") from None

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name=self._name, daemon=True).start()
            if not self._is_registered:
                os.register_at_fork(after_in_child=self._forget_in_child)
                self._is_registered = True
            return self._loop

    def _forget_in_child(self) -> None:
        # Another thread of the parent may have held the lock.
        self._lock = threading.Lock()
        self._loop = None
        self._forget()


async def _await_work(work: Awaitable[_T]) -> _T:
    return await work
