"""Limit how many threads of a process compute at once.

A model worker has a thread for each call in flight, and nearly all of them wait for a model. But the threads whose
reply has come share one interpreter: when a dozen compute at once each is a dozen times slower, hands the lock over a
dozen times more often and holds its database connection all the while. Let in a few at a time, in the order in which
they came, all but the last are done sooner and none is overtaken.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class FairSemaphore:
    """Lets ``at_once`` threads into its ``with`` block; the others wait in line. Not reentrant."""

    def __init__(self, at_once: int) -> None:
        self._lock = threading.Lock()
        self._free = at_once
        self._line: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._line.append(turn)
        turn.acquire()  # released by the thread that leaves, which passes its place on: no other can slip in between

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._line:
                self._line.popleft().release()
            else:
                self._free += 1
