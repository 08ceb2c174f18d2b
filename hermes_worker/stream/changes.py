"""Readers of the stream of changed lists, and one look at the rows for all of them.

A process looks once a second for each tenant that has readers, however many there are, and twice a second at the
questions to people. It makes one look at a time, and never spends more than a twentieth of its time on those of one
tenant: where so much is open that a look takes long, looks are rarer.

The id of an event is the marks of its lists (``store.list_marks``). So a reader that comes back gets what differs from
its id and nothing else, from any process, also from one that has just begun.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.list_kinds import ListKind, Marks
from hermes_worker.observe import database_outage
from hermes_worker.stream.readers import ReadersOf, TooManyReaders

_LOOK_S = 0.5
_QUICK = (ListKind.APPROVALS,)
"""The lists that people wait for: every look reads their marks, every other look all marks."""
_SHARE = 20
"""The pause after a look is at least so many times as long as the look."""
LIFE_S = 300.0
"""Seconds after which a stream ends: its reader comes back with the id that it has, and is let in anew."""
READERS_OF_TENANT_MAX = 500
READERS_MAX = 2_000

_MARK = rf"({'|'.join(ListKind)})-[0-9a-f]{{12}}"
ID_FORM = rf"^{_MARK}(\.{_MARK})*$"
_ID = re.compile(ID_FORM.removesuffix("$"))

ReadMarks = Callable[[str | None, Collection[ListKind]], Marks]
"""Reads marks of a tenant's lists; ``None`` for all tenants. Raises ``UnavailableError``."""


def parse_marks(text: str) -> Marks:
    """Parse the marks in an id. Raises ``ValueError`` for a text that is no id."""
    if not _ID.fullmatch(text):
        raise ValueError(text)
    return {ListKind(kind): mark for kind, _, mark in (part.partition("-") for part in text.split("."))}


def format_id(marks: Marks) -> str:
    return ".".join(f"{kind.value}-{mark}" for kind, mark in marks.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedLists:
    """Lists that differ from what the reader knew before."""

    id: str
    kinds: tuple[ListKind, ...]


@dataclass
class _WatchedLists:
    """The lists of one tenant, while they have readers."""

    look: Callable[[_WatchedLists], Coroutine[None, None, None]]
    """Keeps looking for what changes, until it is cancelled."""
    marks: dict[ListKind, str] = field(default_factory=dict)
    readers: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, when a mark changes."""
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self.look(self))

    @property
    def is_looked_at(self) -> bool:
        """Whether looks go on. Not after a defect has ended them: the readers come back, and the looks begin anew."""
        return not self.task.done()

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class ChangeWatchers:
    """All readers of this process. Belongs to the event loop."""

    def __init__(self, read: ReadMarks) -> None:
        self._read = read
        self._watched: dict[str | None, _WatchedLists] = {}
        self._one = anyio.CapacityLimiter(1)
        self.is_closing = False

    @property
    def count(self) -> int:
        """How many readers there are at this moment."""
        return sum(watched.readers for watched in self._watched.values())

    def start(self) -> None:
        """Begin, or begin anew after ``dismiss``."""
        self.is_closing = False

    def dismiss(self) -> None:
        """End every reader's stream, as the server stops. Idempotent."""
        self.is_closing = True
        for watched in self._watched.values():
            watched.wake()

    @contextmanager
    def count_reader(self, tenant: str | None) -> Iterator[None]:
        """Count a reader of a tenant's lists (``None`` for all tenants) for as long as the block runs. Raises
        ``TooManyReaders``."""
        watched = self._watched.get(tenant)
        if (0 if watched is None else watched.readers) >= READERS_OF_TENANT_MAX:
            raise TooManyReaders(ReadersOf.TENANT)
        if self.count >= READERS_MAX:
            raise TooManyReaders(ReadersOf.SERVER)
        if watched is None:
            watched = self._watched[tenant] = _WatchedLists(partial(self._keep_looking, tenant))
        watched.readers += 1
        try:
            yield
        finally:
            watched.readers -= 1
            if watched.readers == 0:
                del self._watched[tenant]
                watched.task.cancel()

    async def follow_changes(
        self, tenant: str | None, kinds: Collection[ListKind], told: Marks, *, silent_s: float
    ) -> AsyncIterator[ChangedLists | None]:
        """Yield what differs from ``told``, and from then on what changes; ``None`` after ``silent_s`` seconds of
        silence. Ends when the server stops, or after ``LIFE_S``. Call it inside ``count_reader``."""
        watched, known = self._watched[tenant], dict(told)
        ends_at = time.monotonic() + LIFE_S
        while not self.is_closing and time.monotonic() < ends_at and watched.is_looked_at:
            news = watched.news
            marks = {kind: mark for kind, mark in watched.marks.items() if kind in kinds}
            differing = tuple(kind for kind, mark in marks.items() if known.get(kind) != mark)
            if differing:
                known = marks
                yield ChangedLists(id=format_id(marks), kinds=differing)
                continue
            try:
                async with asyncio.timeout(silent_s):
                    await news.wait()
            except TimeoutError:
                yield None

    async def _keep_looking(self, tenant: str | None, watched: _WatchedLists) -> None:
        looks = 0
        while True:
            kinds: Collection[ListKind] = _QUICK if looks % 2 and watched.marks else tuple(ListKind)
            try:
                marks, took_s = await anyio.to_thread.run_sync(self._look, tenant, kinds, limiter=self._one)
            except UnavailableError as error:
                database_outage.note_failure(doing="look for changes", error=str(error))
                took_s = 0.0
            else:
                database_outage.note_success()
                looks += 1
                if any(watched.marks.get(kind) != mark for kind, mark in marks.items()):
                    watched.marks |= marks
                    watched.wake()
            await asyncio.sleep(max(_LOOK_S, _SHARE * took_s))

    def _look(self, tenant: str | None, kinds: Collection[ListKind]) -> tuple[Mapping[ListKind, str], float]:
        began = time.monotonic()
        marks = self._read(tenant, kinds)
        return marks, time.monotonic() - began
