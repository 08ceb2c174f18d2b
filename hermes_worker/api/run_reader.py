"""The loop that serves one reader of a run: what its feed brings goes through a teller, and what the teller makes of it
goes out.

A teller is ``sse.Merge``, or a dialect's translation of one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeVar

from hermes_worker.api.context import ApiContext
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import TERMINAL_EVENTS, StoredEvent
from hermes_worker.observe import record_duration
from hermes_worker.store.runs.views import Views
from hermes_worker.stream import sse
from hermes_worker.stream.followers import Feed, News
from hermes_worker.stream.live import LiveEntry

_PAGE = 500
"""Most rows in one read."""
_CALLS_OF_AN_ITERATION = 256
_CLAIM_S = 1.0
"""Seconds in which a worker begins to hold what it has claimed."""

T_co = TypeVar("T_co", covariant=True)


class Teller(Protocol[T_co]):
    """One reader's view of a run: it takes rows and live entries, and gives what is to be sent."""

    @property
    def seq(self) -> int:
        """The number of the last row that it was given."""

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to tell."""

    @property
    def wants_rows(self) -> bool:
        """Whether there are rows that must be sent before live entries that already came."""

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[T_co]: ...

    def translate_live(self, entry: LiveEntry, at: float) -> Sequence[T_co]: ...


def read_stream_start(views: Views, run_id: str) -> sse.StreamStart:
    """Read where the run stands; see ``sse.StreamStart`` for the order of the reads. Raises ``RunNotFound``."""
    view = views.load_run(run_id)
    calls = views.list_calls(run_id, limit=_CALLS_OF_AN_ITERATION)
    settled = {call.position for call in calls if call.iteration == view.iteration and call.status.is_settled}
    return sse.StreamStart(
        seq=views.load_event_seqs([run_id]).get(run_id, 0),
        iteration=view.iteration,
        settled=settled,
        is_ended=view.status.is_terminal,
    )


@asynccontextmanager
async def announce_reader(context: ApiContext, run_id: str, teller: Teller[object]) -> AsyncIterator[None]:
    """Tell the workers, while the context lasts, that the run has a reader, so that they send what they are writing."""
    announcement = None if teller.is_over else asyncio.create_task(_watch(context, run_id))
    try:
        yield
    finally:
        if announcement is not None:
            announcement.cancel()


async def follow(context: ApiContext, run_id: str, teller: Teller[T_co], feed: Feed) -> AsyncIterator[Sequence[T_co]]:
    """Yield what the teller makes of the news, as it comes; an empty sequence after a silence so long that the stream
    needs a sign of life. Ends when the teller is done, or earlier when the server stops."""
    feed.look_again()
    loop = asyncio.get_running_loop()
    silent_since = loop.time()
    while not teller.is_over:
        news = await feed.wait_for_news(silent_since + context.policy.keepalive_s - loop.time())
        if feed.is_closing:
            return
        async for told in _pass_on(context, run_id, teller, feed, news):
            yield told
            silent_since = loop.time()
        if loop.time() >= silent_since + context.policy.keepalive_s:
            yield ()
            silent_since = loop.time()


async def _pass_on(
    context: ApiContext, run_id: str, teller: Teller[T_co], feed: Feed, news: News | None
) -> AsyncIterator[Sequence[T_co]]:
    if news is None:
        return
    if news.are_rows_due:
        # Rows first: a live entry may depend on a row, never the other way round.
        async for told in _iterate_new_rows(context, run_id, teller, feed):
            yield told
    if said := [one for heard in news.entries for one in teller.translate_live(heard.entry, heard.at)]:
        yield said
    if teller.wants_rows and feed.may_read():
        async for told in _iterate_new_rows(context, run_id, teller, feed):
            yield told


async def _iterate_new_rows(
    context: ApiContext, run_id: str, teller: Teller[T_co], feed: Feed
) -> AsyncIterator[Sequence[T_co]]:
    while not teller.is_over:
        try:
            rows, usage = await context.call_store(_read, context.client.views, run_id, teller.seq)
        except UnavailableError:
            # The thread that looks for rows says so once for all readers, and wakes them when the database is back.
            return
        told = teller.translate_rows(rows, usage)
        if rows:
            feed.confirm_rows(teller.seq)
        if told:
            yield told
        if rows and rows[-1].at > feed.since:
            record_duration("event.lagged", time.time() - rows[-1].at)
        if len(rows) < _PAGE:
            return


def _read(views: Views, run_id: str, seq: int) -> tuple[list[StoredEvent], Usage]:
    rows = views.list_events_after(run_id, seq, limit=_PAGE)
    is_end = any(row.name in TERMINAL_EVENTS for row in rows)
    return rows, views.load_run(run_id).usage if is_end else Usage()


async def _watch(context: ApiContext, run_id: str) -> None:
    try:
        await context.call_store(context.client.runs.mark_watched, run_id, context.policy.watch_for_s)
    except UnavailableError:
        pass  # renewed with the watches of all readers once the database is back
    await context.tell_broker(context.client.publisher.nudge, "watch", run_id)
    # A claim that read the row just before it was marked may not have been held yet when the first nudge came.
    await asyncio.sleep(_CLAIM_S)
    await context.tell_broker(context.client.publisher.nudge, "watch", run_id)
