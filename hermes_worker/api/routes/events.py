"""A run's stream as server-sent events (docs/behaviour.md, "Runs over HTTP"): data only, any number of readers, at any
time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import invalid
from hermes_worker.api.owners import OwnRun
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import TERMINAL_EVENTS, StoredEvent
from hermes_worker.observe import took
from hermes_worker.store.runs.views import Views
from hermes_worker.stream import sse
from hermes_worker.stream.events import ANY_RUN_EVENT, item_schema
from hermes_worker.stream.followers import Feed, News

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_PAGE = 500
"""Rows in one read."""
_CALLS_OF_AN_ITERATION = 256
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


EventId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^$|{sse.CURSOR_FORM}"})]


def streamed(name: str, id_form: str) -> schema.Answers:
    """The answers of a route that streams events, each of which ``name`` describes in the document."""
    described = {"content": {"text/event-stream": {"itemSchema": item_schema(name, id_form)}}}
    return {
        200: {**described, "description": "What happened, and then what happens."},
        **schema.errors(404, 410, 429, 503),
    }


class EventStream(StreamingResponse):
    """The events of a run, which ``frames`` makes of what its feed brings. Ends the generator when the reader leaves,
    not when the garbage collector comes by."""

    media_type = "text/event-stream"

    def __init__(
        self,
        context: ApiContext,
        run_id: str,
        frames: Callable[[Feed], AsyncIterator[bytes]],
        status_code: int = 200,  # FastAPI reads the default for the OpenAPI document
    ) -> None:
        super().__init__(iter(()), status_code, headers=HEADERS)
        self._followers = context.followers
        self._run_id = run_id
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The reader takes its place before the answer begins, so that it can still be told that there is none.
        with self._followers.follow(self._run_id) as feed:
            self.body_iterator = self._frames(feed)
            await super().__call__(scope, receive, send)

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncIterator)
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


@router.get(
    "/{run_id}/events",
    response_class=EventStream,
    responses=streamed(ANY_RUN_EVENT, sse.CURSOR_FORM),
    dependencies=[READS],
)
async def run_events(
    context: Context,
    run_id: OwnRun,
    after: Annotated[EventId | None, Query(description="Id of the last event seen; 0 for all.")] = None,
    last_event_id: Annotated[EventId | None, Header()] = None,
) -> EventStream:
    """Everything that happened to a run and, as it happens, everything that will."""
    told = _cursor(last_event_id, after)
    start = await context.store(_start, context.client.views, run_id)
    return EventStream(context, run_id, partial(_frames, context, run_id, sse.Merge(told, start)))


def _cursor(last_event_id: str | None, after: str | None) -> sse.Cursor:
    """A browser that reconnects sends its first address again, so the header is the newer of the two."""
    newest = sse.Cursor()
    for param, text in (("after", after), ("Last-Event-ID", last_event_id)):
        try:
            newest = sse.Cursor.parse(text) if text else newest
        except ValueError:
            raise invalid(param, f"Invalid {param!r}: it is not the id of an event.") from None
    return newest


def _start(views: Views, run_id: str) -> sse.StreamStart:
    """Where the run stands; see ``sse.StreamStart`` for the order of the reads. Raises ``RunNotFound``."""
    view = views.run(run_id)
    calls = views.calls(run_id, limit=_CALLS_OF_AN_ITERATION)
    settled = {call.position for call in calls if call.iteration == view.iteration and call.status.is_settled}
    return sse.StreamStart(
        seq=views.event_seqs([run_id]).get(run_id, 0),
        iteration=view.iteration,
        settled=settled,
        is_ended=view.status.is_terminal,
    )


async def _frames(context: ApiContext, run_id: str, merge: sse.Merge, feed: Feed) -> AsyncIterator[bytes]:
    announcement = None if merge.is_over else asyncio.create_task(_watch(context, run_id))
    try:
        async for chunk in _told(context, run_id, merge, feed):
            yield chunk
    finally:
        if announcement is not None:
            announcement.cancel()


async def _told(context: ApiContext, run_id: str, merge: sse.Merge, feed: Feed) -> AsyncIterator[bytes]:
    feed.look_again()
    loop = asyncio.get_running_loop()
    silent_since = loop.time()
    while not merge.is_over:
        news = await feed.news(silent_since + context.policy.keepalive_s - loop.time())
        if feed.is_closing:
            yield sse.GOING_AWAY
            return
        async for chunk in _pass_on(context, run_id, merge, feed, news):
            yield chunk
            silent_since = loop.time()
        if loop.time() >= silent_since + context.policy.keepalive_s:
            yield sse.KEEPALIVE
            silent_since = loop.time()
    yield sse.CLOSED


async def _pass_on(
    context: ApiContext, run_id: str, merge: sse.Merge, feed: Feed, news: News | None
) -> AsyncIterator[bytes]:
    if news is None:
        return
    if news.are_rows_due:
        # Rows first: a live entry may depend on a row, never the other way round.
        async for chunk in _new_rows(context, run_id, merge, feed):
            yield chunk
    told = [event for heard in news.entries for event in merge.live(heard.entry, heard.at)]
    if told:
        yield _chunk(run_id, told)
    if merge.wants_rows and feed.may_read():
        async for chunk in _new_rows(context, run_id, merge, feed):
            yield chunk


async def _new_rows(context: ApiContext, run_id: str, merge: sse.Merge, feed: Feed) -> AsyncIterator[bytes]:
    while not merge.is_over:
        try:
            rows, usage = await context.store(_read, context.client.views, run_id, merge.cursor.seq)
        except UnavailableError:
            # The thread that looks for rows says so once for all readers, and wakes them when the database is back.
            return
        told = merge.rows(rows, usage)
        if rows:
            feed.found_rows(merge.cursor.seq)
        if told:
            yield _chunk(run_id, told)
        if rows and rows[-1].at > feed.since:
            took("event.lagged", time.time() - rows[-1].at)
        if len(rows) < _PAGE:
            return


def _read(views: Views, run_id: str, seq: int) -> tuple[list[StoredEvent], Usage]:
    rows = views.events_after(run_id, seq, limit=_PAGE)
    is_end = any(row.name in TERMINAL_EVENTS for row in rows)
    return rows, views.run(run_id).usage if is_end else Usage()


def _chunk(run_id: str, events: list[sse.WireEvent]) -> bytes:
    return b"".join(sse.frame(run_id, event) for event in events)


async def _watch(context: ApiContext, run_id: str) -> None:
    """Tell the workers that somebody looks, so that they send what they are writing."""
    try:
        await context.store(context.client.runs.watch, run_id, context.policy.watch_for_s)
    except UnavailableError:
        pass  # renewed with the watches of all readers once the database is back
    await context.tell_broker(context.client.publisher.nudge, "watch", run_id)
