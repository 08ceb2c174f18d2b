"""Wait for the end of a run, for as long as the client waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError
from hermes_worker.api.routes.events import EventStream
from hermes_worker.api.run_reader import announce_reader, follow
from hermes_worker.api.stopping import stop_abandoned
from hermes_worker.core.client_tools import HandoverWatch
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.messages import Usage
from hermes_worker.core.run_events import TERMINAL_EVENTS, StoredEvent
from hermes_worker.core.run_views import RunView
from hermes_worker.stream.followers import Feed
from hermes_worker.stream.live import LiveEntry
from hermes_worker.stream.readers import ReadersOf, TooManyReaders

_ASK_AGAIN_S = 0.5
_ASK_FOR_S = 30.0


class EndTeller:
    """A reader of a run's events that only looks for the end of the run."""

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        self.is_over = False
        self.wants_rows = False

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[None]:
        for row in rows:
            self.seq = row.seq
            self.is_over = self.is_over or row.name in TERMINAL_EVENTS
        return ()

    def translate_live(self, entry: LiveEntry, at: float) -> Sequence[None]:
        return ()


class AnswerTeller(EndTeller):
    """A reader that also ends when the run is handed over to its client."""

    def __init__(self, seq: int = 0) -> None:
        super().__init__(seq)
        self.handover = HandoverWatch()

    def translate_rows(self, rows: Iterable[StoredEvent], usage: Usage) -> Sequence[None]:
        for row in rows:
            if not self.is_over:
                super().translate_rows([row], usage)
                self.handover.add_event(row)
                self.is_over = self.is_over or self.handover.is_handed_over
        return ()


class ClientLeft(Exception):
    """The client closed its connection before the answer was ready."""


async def wait_for_end(context: ApiContext, request: Request, run_id: str, teller: EndTeller | None = None) -> RunView:
    """Wait until ``teller`` has seen the end of the run, and load the run. Raises ``ClientLeft``, ``TooManyReaders``,
    and ``ApiError`` when the server stops."""
    teller = teller or EndTeller()
    with context.followers.follow(run_id) as feed:
        waiting = asyncio.ensure_future(_end(context, run_id, teller, feed))
        # The body was read: all that can come now is that the client has left.
        leaving = asyncio.ensure_future(request.receive())
        try:
            await asyncio.wait((waiting, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise ClientLeft
            waiting.result()
        finally:
            waiting.cancel()
            leaving.cancel()
    if not teller.is_over:
        raise server_stops()
    return await load_ended_run(context, run_id)


async def _end(context: ApiContext, run_id: str, teller: EndTeller, feed: Feed) -> None:
    async with announce_reader(context, run_id, teller):
        async for _ in follow(context, run_id, teller, feed):
            pass


async def load_ended_run(context: ApiContext, run_id: str) -> RunView:
    """Load a run whose last event was read, trying again while the database is away for a moment. Raises
    ``UnavailableError``."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + _ASK_FOR_S
    while True:
        try:
            return await context.call_store(context.client.views.load_run, run_id)
        except UnavailableError:
            if loop.time() >= give_up_at:
                raise
        await asyncio.sleep(_ASK_AGAIN_S)


def server_stops() -> ApiError:
    """Make the error for a server that stops before the run has ended."""
    message = "The server is going away before the run has ended. Send the request again."
    return ApiError(503, message, code="gateway_draining", headers={"Retry-After": "1"})


class AnswerStream(EventStream):
    """Streams a run as the answer to the request that made it. A run that cannot be asked for again is stopped when its
    reader leaves."""

    def __init__(
        self,
        context: ApiContext,
        run_id: str,
        frames: Callable[[Feed], AsyncIterator[bytes]],
        *,
        headers: dict[str, str],
        stops_for: str | None,
        is_over: Callable[[], bool],
    ) -> None:
        """``stops_for`` is the principal's name to stop the run with when the reader leaves; ``None`` lets the run go
        on."""
        super().__init__(context, run_id, frames)
        self.headers.update(headers)
        self._context = context
        self._followed = run_id
        self._stops_for = stops_for
        self._is_over = is_over

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if self._stops_for is not None and not self._is_over():
                self._context.spawn(stop_abandoned(self._context, self._followed, by=self._stops_for))


def require_reader_room(context: ApiContext) -> None:
    """Raise ``TooManyReaders`` before a run is made for a client that wants to follow it."""
    if context.followers.count >= context.policy.readers_max:
        raise TooManyReaders(ReadersOf.SERVER)
