"""Recent answers for readers that accept one of some seconds ago: many who ask at once cost what one costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")

_KEPT_MAX = 200


class RecentAnswers(Generic[V]):
    """Keeps the recent answers of one process. Belongs to the event loop."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[float, asyncio.Task[V]]] = {}

    async def get(self, key: Hashable, find: Callable[[], Awaitable[V]], *, max_age_s: float) -> V:
        """Return the answer of a ``find`` that began at most ``max_age_s`` ago for the same key, or of one that begins
        now. A caller that comes while it runs waits for the same answer. Raises what ``find`` raises, and keeps no
        failure."""
        now = time.monotonic()
        began_at, task = self._kept.get(key, (0.0, None))
        if task is None or now - began_at > max_age_s or (task.done() and task.exception() is not None):
            task = asyncio.ensure_future(_call_find(find))
            self._kept.pop(key, None)
            self._kept[key] = now, task
            while len(self._kept) > _KEPT_MAX:
                del self._kept[next(iter(self._kept))]
        return await asyncio.shield(task)


async def _call_find(find: Callable[[], Awaitable[V]]) -> V:
    return await find()
