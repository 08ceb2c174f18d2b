"""What a piece of work costs the processor."""

from __future__ import annotations

import time
from collections.abc import Callable

_TRIES = 3


def processor_s(work: Callable[[], object]) -> float:
    """Processor seconds of this thread for ``work``: the least of a few tries. A neighbour on the same core can make
    one try several times as dear as the next, and never makes one cheaper."""
    return min(_once(work) for _ in range(_TRIES))


def _once(work: Callable[[], object]) -> float:
    started = time.thread_time()
    work()
    return time.thread_time() - started
