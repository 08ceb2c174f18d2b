"""A run's stream as server-sent events: data only, any number of readers, at any time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send

from hermes_worker.api import schema
from hermes_worker.api.auth import READS
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import invalid
from hermes_worker.api.owners import OwnRun
from hermes_worker.api.run_reader import announce_reader, follow, read_stream_start
from hermes_worker.core.cloud_events import CLOUD_EVENT_SCHEMA, CLOUD_EVENTS
from hermes_worker.stream import sse
from hermes_worker.stream.events import ANY_RUN_EVENT, build_item_schema
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.wire_events import WireEvent

router = APIRouter(prefix="/v1/runs", tags=["runs"])

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


EventId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^$|{sse.CURSOR_FORM}"})]


def declare_stream(name: str, id_form: str, *other_forms: dict[str, Any]) -> schema.Answers:
    """Describe the answers of a route that streams events; ``name`` names the schema of one event in the document, and
    ``other_forms`` are schemas of the forms that a request may ask for instead."""
    item = build_item_schema(name, id_form)
    if other_forms:
        data = item["properties"]["data"]
        data["contentSchema"] = {"anyOf": [data["contentSchema"], *other_forms]}
    described = {"content": {"text/event-stream": {"itemSchema": item}}}
    return {
        200: {**described, "description": "What happened, and then what happens."},
        **schema.declare_errors(404, 410, 429, 503),
    }


class ClosingStream(StreamingResponse):
    """Streams events, and closes their generator when the reader leaves, not when the garbage collector finds it."""

    media_type = "text/event-stream"

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncIterator)
        async with aclosing(self.body_iterator):  # type: ignore[type-var]
            await super().stream_response(send)


class EventStream(ClosingStream):
    """Streams the events of a run, which ``frames`` makes from what its feed brings."""

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


@router.get(
    "/{run_id}/events",
    response_class=EventStream,
    responses=declare_stream(ANY_RUN_EVENT, sse.CURSOR_FORM, CLOUD_EVENT_SCHEMA),
    dependencies=[READS],
)
async def run_events(
    context: Context,
    run_id: OwnRun,
    after: Annotated[EventId | None, Query(description="Id of the last event seen; 0 for all.")] = None,
    form: Annotated[
        Literal["plain", "cloudevents"], Query(alias="format", description="'cloudevents' for CloudEvents 1.0.")
    ] = "plain",
    last_event_id: Annotated[EventId | None, Header()] = None,
) -> EventStream:
    """Everything that happened to a run and, as it happens, everything that will."""
    told = _read_cursor(last_event_id, after)
    start = await context.call_store(read_stream_start, context.client.views, run_id)
    write = sse.format_cloud_event if form == CLOUD_EVENTS else sse.format_frame
    return EventStream(context, run_id, partial(_stream_frames, context, run_id, sse.Merge(told, start), write))


def _read_cursor(last_event_id: str | None, after: str | None) -> sse.Cursor:
    """Read where a reader goes on. A browser that reconnects sends its first address again, so the header is the newer
    of the two."""
    newest = sse.Cursor()
    for param, text in (("after", after), ("Last-Event-ID", last_event_id)):
        try:
            newest = sse.Cursor.parse(text) if text else newest
        except ValueError:
            raise invalid(param, f"Invalid {param!r}: it is not the id of an event.") from None
    return newest


_Write = Callable[[str, WireEvent], bytes]


async def _stream_frames(
    context: ApiContext, run_id: str, merge: sse.Merge, write: _Write, feed: Feed
) -> AsyncIterator[bytes]:
    async with announce_reader(context, run_id, merge):
        async for told in follow(context, run_id, merge, feed):
            yield b"".join(write(run_id, event) for event in told) if told else sse.KEEPALIVE
    yield sse.CLOSED if merge.is_over else sse.GOING_AWAY
