"""Which lists change, as it happens, as server-sent events: a client that shows a list reads it again when an event
says so, and need not poll."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Collection
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from pydantic import WithJsonSchema
from starlette.types import Receive, Scope, Send

from hermes_worker.api import schema
from hermes_worker.api.auth import READS, Caller
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import invalid
from hermes_worker.api.owners import choose_tenant_or_all
from hermes_worker.api.routes.events import HEADERS, ClosingStream
from hermes_worker.core.list_kinds import ListKind, Marks
from hermes_worker.core.principals import KeyScope, Principal
from hermes_worker.stream import sse
from hermes_worker.stream.changes import ID_FORM, ChangedLists, parse_marks
from hermes_worker.stream.events import LISTS_CHANGED, build_item_schema

router = APIRouter(prefix="/v1/changes", tags=["runs"])

_AGAIN = b"retry: 500\n\n"
"""The field that says after how many milliseconds a browser connects again."""
_ChangesId = Annotated[str, WithJsonSchema({"type": "string", "pattern": f"^$|{ID_FORM}"})]
_STREAMED: schema.Answers = {
    200: {
        "content": {"text/event-stream": {"itemSchema": build_item_schema(LISTS_CHANGED, ID_FORM)}},
        "description": "Which lists differ from what the id says, and then which change.",
    },
    **schema.declare_errors(429, 503),
}


def _read_last_event(
    after: Annotated[_ChangesId | None, Query(description="Id of the last event seen.")] = None,
    last_event_id: Annotated[_ChangesId | None, Header()] = None,
) -> Marks:
    """Read the last event that the client has seen. A browser that reconnects sends its first address again, so the
    header is the newer of the two."""
    told: Marks = {}
    for param, text in (("after", after), ("Last-Event-ID", last_event_id)):
        try:
            told = parse_marks(text) if text else told
        except ValueError:
            raise invalid(param, f"Invalid {param!r}: it is not the id of an event of this stream.") from None
    return told


class ChangeStream(ClosingStream):
    """The stream of changes of one reader's lists."""

    def __init__(
        self,
        context: ApiContext,
        tenant: str | None,
        frames: AsyncIterator[bytes],
        status_code: int = 200,  # FastAPI reads the default for the OpenAPI document
    ) -> None:
        super().__init__(frames, status_code, headers=HEADERS)
        self._changes = context.changes
        self._tenant = tenant

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The reader takes its place before the answer begins, so that it can still be told that there is none.
        with self._changes.count_reader(self._tenant):
            await super().__call__(scope, receive, send)


@router.get("", response_class=ChangeStream, responses=_STREAMED, dependencies=[READS])
async def watch_changes(
    context: Context,
    caller: Caller,
    told: Annotated[Marks, Depends(_read_last_event)],
    all_tenants: Annotated[bool, Query(description="Those of all tenants; for operators.")] = False,
) -> ChangeStream:
    """Which of the caller's lists changed: runs, approvals, sessions, deliveries, and jobs, fleet, audit and gateway
    where the key allows to read these. The first event names the lists that differ from what ``after`` says, all of
    them without it. Then an event comes when a list changes, at most once a second, and twice for approvals. Its id
    says how all lists stood, so a reader that comes back with it, to whichever server, gets what changed
    meanwhile. The server ends a stream after five minutes."""
    tenant = choose_tenant_or_all(caller, all_tenants=all_tenants)
    # 503 while the database is away, instead of a silent stream.
    await context.call_store(context.client.database.read_clock)
    return ChangeStream(context, tenant, _stream_frames(context, tenant, _list_readable_kinds(caller), told))


def _list_readable_kinds(caller: Principal) -> Collection[ListKind]:
    """List the kinds of lists that a key may read."""
    kinds = {ListKind.RUNS, ListKind.APPROVALS, ListKind.SESSIONS, ListKind.DELIVERIES}
    if caller.has_scope(KeyScope.JOBS):
        kinds.add(ListKind.JOBS)
    if caller.has_scope(KeyScope.OPS_READ) and caller.is_of_operators:
        kinds.add(ListKind.FLEET)
    if caller.has_scope(KeyScope.ADMIN):
        kinds.add(ListKind.AUDIT)
        if caller.is_of_operators:
            kinds.add(ListKind.GATEWAY)
    return kinds


async def _stream_frames(
    context: ApiContext, tenant: str | None, kinds: Collection[ListKind], told: Marks
) -> AsyncIterator[bytes]:
    yield _AGAIN
    news = context.changes.follow_changes(tenant, kinds, told, silent_s=context.policy.keepalive_s)
    async with aclosing(news):  # type: ignore[type-var]
        async for changed in news:
            yield sse.KEEPALIVE if changed is None else _render_frame(changed)
    yield sse.GOING_AWAY


def _render_frame(changed: ChangedLists) -> bytes:
    event = {"event": LISTS_CHANGED, "timestamp": time.time(), "lists": [kind.value for kind in changed.kinds]}
    return f"id: {changed.id}\ndata: {json.dumps(event)}\n\n".encode("ascii")
