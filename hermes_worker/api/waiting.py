"""Requests that wait for the end of runs: one query for all of them, twice a second, and no thread for any."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from hermes_worker.api.errors import ApiError
from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.runs.views import LastStatus

WAITERS_MAX = 1_000
"""Most requests that wait in one process."""
_LOOK_EVERY_S = 0.5
_RUNS_AT_ONCE = 1_000


class RunEnds(Protocol):
    """Loads which runs have ended, for requests that wait for one."""

    @property
    def leaving(self) -> threading.Event:
        """Set when this process is to end."""

    async def run_ends(self, run_ids: Sequence[str]) -> Mapping[str, LastStatus]:
        """Load how runs ended; open runs are left out. Raises ``UnavailableError``."""


@dataclass(slots=True, eq=False)
class _Waiter:
    run_ids: frozenset[str]
    is_any: bool
    ended: dict[str, LastStatus] = field(default_factory=dict)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, ends: Mapping[str, LastStatus]) -> None:
        self.ended |= {run_id: ends[run_id] for run_id in self.run_ids & ends.keys()}
        if self.ended if self.is_any else len(self.ended) == len(self.run_ids):
            self.is_over.set()


class WaitingRequests:
    """The waiting requests of one application; used by its event loop only."""

    def __init__(self) -> None:
        self._waiters: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None

    async def wait_until_ended(
        self, rows: RunEnds, run_ids: Collection[str], *, is_any: bool, timeout_s: float
    ) -> Mapping[str, LastStatus]:
        """Wait until all of the runs have ended (or one of them, with ``is_any``) or the time is over, and return how
        those ended that have. Raises ``ApiError`` when too many requests wait, and ``UnavailableError``."""
        waiter = _Waiter(run_ids=frozenset(run_ids), is_any=is_any)
        waiter.take(await _find_ends(rows, waiter.run_ids))
        if timeout_s <= 0 or waiter.is_over.is_set():
            return waiter.ended
        with self._one_more(rows, waiter):
            try:
                await asyncio.wait_for(waiter.is_over.wait(), timeout_s)
            except TimeoutError:
                pass  # the time is over: what has ended until now is the answer
        return waiter.ended

    @contextmanager
    def _one_more(self, rows: RunEnds, waiter: _Waiter) -> Iterator[None]:
        if len(self._waiters) >= WAITERS_MAX:
            message = "Too many requests wait here already. Try again later, or wait for less."
            raise ApiError(503, message, code="too_many_waiters", headers={"Retry-After": "5"})
        self._waiters.add(waiter)
        if self._looking is None or self._looking.done():
            self._looking = asyncio.get_running_loop().create_task(self._look(rows))
        try:
            yield
        finally:
            self._waiters.discard(waiter)

    async def _look(self, rows: RunEnds) -> None:
        """Look at the rows at intervals until no request waits."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            if not self._waiters:
                return
            wanted = frozenset[str]().union(*(waiter.run_ids - waiter.ended.keys() for waiter in self._waiters))
            try:
                ends = await _find_ends(rows, wanted)
            except UnavailableError:
                continue
            for waiter in self._waiters:
                waiter.take(ends)
                if rows.leaving.is_set():
                    waiter.is_over.set()  # this process is to end: its clients ask another


async def _find_ends(rows: RunEnds, run_ids: frozenset[str]) -> dict[str, LastStatus]:
    listed, found = sorted(run_ids), dict[str, LastStatus]()
    for start in range(0, len(listed), _RUNS_AT_ONCE):
        found |= await rows.run_ends(listed[start : start + _RUNS_AT_ONCE])
    return found
