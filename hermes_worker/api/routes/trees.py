"""Everything that happens in a delegation tree, in one order, as server-sent events."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from pydantic import WithJsonSchema

from hermes_worker.api.auth import READS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import invalid
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.routes.events import EventStream, declare_stream
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import TERMINAL_EVENTS
from hermes_worker.store.runs.trees import TreeEvent
from hermes_worker.stream import sse
from hermes_worker.stream.events import ANY_TREE_EVENT
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.wire_events import WireEvent
from hermes_worker.wiring import Client

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_PAGE = 500
_ID_FORM = "^[0-9]{1,9}$"
_ID = re.compile("[0-9]{1,9}")
_EventId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^$|{_ID_FORM}"})]


def _read_seq(
    after: Annotated[_EventId | None, Query(description="Id of the last event seen; 0 for all.")] = None,
    last_event_id: Annotated[_EventId | None, Header()] = None,
) -> int:
    """Read where the reader goes on. Checked before the run is looked for, as every other parameter is."""
    for param, text in (("after", after), ("Last-Event-ID", last_event_id)):
        if text and not _ID.fullmatch(text):
            raise invalid(param, f"Invalid {param!r}: it is not the id of an event of this stream.")
    return int(last_event_id or after or 0)


@router.get(
    "/{run_id}/tree/events",
    response_class=EventStream,
    responses=declare_stream(ANY_TREE_EVENT, _ID_FORM),
    dependencies=[READS],
)
async def tree_events(
    context: Context,
    seq: Annotated[int, Depends(_read_seq)],
    run_id: OwnRun,
) -> EventStream:
    """The events of all runs of the tree that ``run_id`` is in. Their ids count from 1 without gaps, and every reader
    gets the same. The stream ends when every run of the tree has ended."""
    page = await context.call_store(_read, context.client, run_id, seq)
    return EventStream(context, run_id, partial(_stream_frames, context, run_id, seq, page))


_Page = tuple[list[tuple[TreeEvent, Usage]], bool]


def _read(client: Client, run_id: str, seq: int) -> _Page:
    """Read the next events, and whether they are the last. Raises ``RunNotFound``, ``UnavailableError``."""
    # Read before the events are: what a run's end writes is there once it has ended.
    is_over = client.trees.is_over(run_id)
    found = client.trees.list_events_after(run_id, seq, limit=_PAGE)
    return [(event, _load_usage(client, event)) for event in found], is_over and len(found) < _PAGE


def _load_usage(client: Client, event: TreeEvent) -> Usage:
    is_end = event.event.name in TERMINAL_EVENTS
    return client.views.load_run(event.run_id).usage if is_end else Usage()


async def _stream_frames(context: ApiContext, run_id: str, seq: int, page: _Page, feed: Feed) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    silent_since = loop.time()
    while not feed.is_closing:
        found, is_last = page
        if found:
            yield b"".join(_render_frame(event, usage) for event, usage in found)
            seq, silent_since = found[-1][0].seq, loop.time()
            feed.confirm_rows(feed.rows_read)
        if is_last:
            yield sse.CLOSED
            return
        if len(found) < _PAGE:
            # The feed has news of the requested run only; rows of the others are looked for when the time is over.
            await _wait_for_rows(feed, context.policy.rows_every_without_broker_s)
        if loop.time() >= silent_since + context.policy.keepalive_s:
            yield sse.KEEPALIVE
            silent_since = loop.time()
        page = await _read_next(context, run_id, seq)
    yield sse.GOING_AWAY


async def _wait_for_rows(feed: Feed, timeout_s: float) -> None:
    """Wait until there may be new rows, or the time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + timeout_s
    while not feed.is_closing and until > loop.time():
        news = await feed.wait_for_news(until - loop.time())
        if news is None or news.are_rows_due:
            return


async def _read_next(context: ApiContext, run_id: str, seq: int) -> _Page:
    try:
        return await context.call_store(_read, context.client, run_id, seq)
    except UnavailableError:
        return [], False  # the stream goes on when the database is back


def _render_frame(event: TreeEvent, usage: Usage) -> bytes:
    where = {"depth": event.depth, "parent_run_id": event.parent_run_id}
    fields = {**where, **sse.build_row_fields(event.event, usage)}
    return sse.format_frame(
        event.run_id, WireEvent(id=str(event.seq), name=event.event.name, at=event.event.at, fields=fields)
    )
