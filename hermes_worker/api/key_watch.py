"""Ends a request whose key was revoked, or whose tenant was disabled, while it is answered.

A stream lasts for minutes or longer, so checking the key when it begins is not enough: the key of every request is
checked again while it lasts. Most requests are over before the first check, which is a timer and costs next to nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from typing import Final

import anyio
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_worker.api.errors import ApiError

LOOK_AGAIN_S = 2.0
"""Seconds between two checks. What was found out about a key is remembered as well, so most checks ask nothing of the
database."""
_ENDED: Final = b": the key of this stream is no longer valid\n\n"
_EVENTS: Final = "text/event-stream"


async def serve_while_valid(
    app: ASGIApp, scope: Scope, receive: Receive, send: Send, look: Callable[[], Awaitable[object]]
) -> None:
    """Let ``app`` answer until ``look`` raises ``ApiError`` with 401 or 403.

    An answer that has not begun by then is replaced by that error; a stream of events ends with a comment; any other
    answer breaks off, so that the client does not take it for complete.
    """
    answer = _Answer(send)
    with anyio.CancelScope() as serving:
        with closing(_KeyWatch(look, serving)) as watch:
            await app(scope, receive, answer.send)
    if watch.refusal is None or answer.has_ended:
        return
    if not answer.has_begun:
        await watch.refusal.response(scope, receive, send)
    elif answer.is_of_events:
        await send({"type": "http.response.body", "body": _ENDED, "more_body": False})


class _Answer:
    """How far the answer to a request is."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.has_begun = self.has_ended = self.is_of_events = False

    async def send(self, message: Message) -> None:
        await self._send(message)  # it may wait for the reader, and be cancelled there
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.is_of_events = Headers(raw=message["headers"]).get("content-type", "").startswith(_EVENTS)
        elif message["type"] == "http.response.body":
            self.has_ended = not message.get("more_body", False)


class _KeyWatch:
    """Checks a key every few seconds, and cancels the request when the key no longer opens."""

    def __init__(self, look: Callable[[], Awaitable[object]], serving: anyio.CancelScope) -> None:
        self._look = look
        self._serving = serving
        self._looking: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._begin)
        self.refusal: ApiError | None = None
        """The reason why the key no longer opens."""

    def _begin(self) -> None:
        self._looking = asyncio.get_running_loop().create_task(self._look_until_refused())

    async def _look_until_refused(self) -> None:
        while self.refusal is None:
            try:
                await self._look()
            except ApiError as error:
                # A database that is away for a moment says nothing about the key.
                if error.status in (401, 403):
                    self.refusal = error
                    self._serving.cancel()
                    return
            await asyncio.sleep(LOOK_AGAIN_S)

    def close(self) -> None:
        self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
