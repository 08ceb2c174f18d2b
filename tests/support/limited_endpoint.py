"""A model server that counts: so many requests in any span of a minute, and 429 for the rest."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from support.fault_server import Handler, Received, Reply


class LimitedEndpoint:
    """Answers as ``answer`` does, or refuses. ``minute_s`` is how long a minute takes here."""

    def __init__(
        self, per_min: int, answer: Handler, *, minute_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_min = per_min
        self._answer = answer
        self._minute_s = minute_s
        self._clock = clock
        self._recent: deque[float] = deque()
        self._lock = threading.Lock()
        self.accepted: list[float] = []
        """When, by ``clock``."""
        self.refused: list[float] = []

    def answer(self, request: Received, reply: Reply) -> None:
        if self._is_full():
            reply.document(429, {"error": {"message": "Too Many Requests"}}, f"Retry-After: {self._minute_s / 12:.1f}")
        else:
            self._answer(request, reply)

    def _is_full(self) -> bool:
        now = self._clock()
        with self._lock:
            while self._recent and self._recent[0] <= now - self._minute_s:
                self._recent.popleft()
            is_full = len(self._recent) >= self._per_min
            (self.refused if is_full else self.accepted).append(now)
            if not is_full:
                self._recent.append(now)
            return is_full
