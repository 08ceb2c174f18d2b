"""What both kinds of clients do, written once: coroutines over a transport.

The transport of the asynchronous client suspends, that of the blocking client blocks. A coroutine over the latter never
suspends, so its first step is its last, and nobody needs an event loop for it.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from hermes_worker.client import operations
from hermes_worker.client.address import Address
from hermes_worker.client.exchange import (
    ANSWER_BYTES_MAX,
    Exchange,
    LostAnswer,
    Patience,
    RefusedError,
    build_refusal,
    read_status,
    run_exchange,
    run_join,
)
from hermes_worker.client.wire import ConnectionFailed, build_arguments, build_broken_off, judge_failure
from hermes_worker.operation import ApiAnswer, ApiRequest

if TYPE_CHECKING:  # whoever follows nothing needs none of them
    from hermes_worker.client.callbacks import Callbacks
    from hermes_worker.client.events import Event
    from hermes_worker.client.streaming import ToldEvent
    from hermes_worker.schemas.runs import JoinedRuns, TurnResult

T = TypeVar("T")
E = TypeVar("E")


class AnswerReader(Protocol):
    """An answer whose body comes in chunks."""

    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, with names in small letters."""

    async def aread(self) -> bytes: ...

    def aiter_bytes(self) -> AsyncIterator[bytes]: ...


class ClientTransport(Protocol):
    """The HTTP client and the clock of one kind of client."""

    def stream(
        self, *, method: str, url: str, params: Any, headers: Mapping[str, str], content: bytes | None
    ) -> contextlib.AbstractAsyncContextManager[AnswerReader]:
        """Send a request with the arguments of ``wire.build_arguments``, and open its answer. Raises
        ``ConnectionFailed``, also while the answer is read."""

    async def sleep(self, seconds: float) -> None: ...

    async def close(self) -> None: ...


class ClientConversation:
    """Talks with one API server over a transport."""

    def __init__(self, address: Address, patience_s: float, transport: ClientTransport) -> None:
        self._address = address
        self._patience = Patience(for_s=patience_s)
        self._transport = transport

    async def close(self) -> None:
        """Close the connections to the server."""
        await self._transport.close()

    async def send(self, request: ApiRequest[T]) -> T:
        return await self._drive(run_exchange(request, self._patience, time.monotonic, self._address.place))

    async def join(
        self, run_ids: Sequence[str], *, mode: Literal["all", "any"] = "all", timeout_s: float | None = None
    ) -> JoinedRuns:
        """Wait until all of up to a thousand runs have ended, or ``any`` of them, or the time is over: ``done``, and
        ``runs`` with ``status`` of those that have ended. Raises ``RefusedError``, ``UnavailableError``."""
        place = self._address.place
        return await self._drive(run_join(run_ids, mode, timeout_s, self._patience, time.monotonic, place))

    async def wait(self, run_id: str, *, timeout_s: float | None = None) -> str | None:
        """Wait for the end of a run; its status, or ``None`` when the time was over before. Raises ``RefusedError``,
        ``UnavailableError``."""
        return read_status(await self.join([run_id], timeout_s=timeout_s))

    def events(self, run_id: str, *, after: str = "0") -> AsyncGenerator[Event, None]:
        """Iterate over everything that happens to a run, from its beginning (or after the event with that id) to its
        end. A connection that breaks is made again and continues where it was. Raises ``RefusedError``,
        ``UnavailableError``."""
        return self._follow_stream(functools.partial(operations.events, run_id), _read_typed, after)

    def told_events(self, run_id: str, *, after: str = "0") -> AsyncGenerator[ToldEvent, None]:
        """Iterate over the events of a run with their ids, as the server wrote them. Otherwise as ``events``."""
        return self._follow_stream(functools.partial(operations.events, run_id), _read_untyped, after)

    def tree_events(self, run_id: str, *, after: str = "0") -> AsyncGenerator[ToldEvent, None]:
        """Iterate over the events of all runs of the tree that a run is in, until the last of them has ended."""
        return self._follow_stream(functools.partial(operations.tree_events, run_id), _read_untyped, after)

    def changes(self, *, after: str = "", all_tenants: bool = False) -> AsyncGenerator[ToldEvent, None]:
        """Iterate over changes of lists as they happen, beginning with the lists that differ from what the id ``after``
        says. It never ends by itself. Raises ``RefusedError``, ``UnavailableError``."""
        return self._follow_stream(functools.partial(operations.changes, all_tenants=all_tenants), _read_untyped, after)

    async def follow(self, run_id: str, callbacks: Callbacks) -> TurnResult:
        """Follow a run to its end and call back; returns its ``result``. Raises ``RefusedError``,
        ``UnavailableError``."""
        from hermes_worker.client.callbacks import CallbackDispatcher

        following = CallbackDispatcher(run_id, callbacks)
        async for event in self.events(run_id):
            if (answer := following.handle_event(event)) is not None:
                with contextlib.suppress(RefusedError):  # another answer was faster
                    await self.send(answer)
        return await self.send(operations.result(run_id))

    async def export(self, whom: Mapping[str, Any], *, tenant: str | None = None) -> AsyncGenerator[str, None]:
        """Iterate over everything of a subject as JSON Lines: see ``operations.export``. An export that breaks off
        raises, because the lines that came are not all: ask again. Raises ``RefusedError``, ``UnavailableError``."""
        request = operations.export(whom, tenant=tenant)
        rest = b""
        try:
            async with self._transport.stream(**build_arguments(request)) as response:
                if response.status_code != 200:
                    raise build_refusal(await _read_whole(response))
                async for chunk in response.aiter_bytes():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        yield line.decode("utf-8")
        except ConnectionFailed as failure:
            raise build_broken_off(self._address.place, failure) from None

    async def _follow_stream(
        self, request: Callable[[str], ApiRequest[None]], read: Callable[[ToldEvent], E], after: str
    ) -> AsyncGenerator[E, None]:
        from hermes_worker.client.streaming import Resumption

        stream = Resumption(request, read, after=after, patience_s=self._patience.for_s, clock=time.monotonic)
        while not stream.is_over:
            reason: str | None = None
            try:
                async with self._transport.stream(**build_arguments(stream.request)) as response:
                    if response.status_code != 200:
                        reason = stream.judge_refusal(await _read_whole(response))
                    else:
                        async for chunk in response.aiter_bytes():
                            for event in stream.take(chunk):
                                yield event
                            if stream.is_over:
                                return
            except ConnectionFailed as failure:
                reason = str(failure)
            await self._transport.sleep(stream.note_end(reason or "the stream ended"))

    async def _drive(self, asking: Exchange[T]) -> T:
        try:
            step = next(asking)
            while True:
                if step.after_s:
                    await self._transport.sleep(step.after_s)
                step = asking.send(await self._send_once(step.request))
        except StopIteration as end:
            result: T = end.value
            return result

    async def _send_once(self, request: ApiRequest[Any]) -> ApiAnswer | LostAnswer:
        try:
            async with self._transport.stream(**build_arguments(request)) as response:
                body = bytearray()
                async for chunk in response.aiter_bytes():
                    body += chunk
                    if len(body) > ANSWER_BYTES_MAX:
                        return LostAnswer(reason=f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
                return ApiAnswer(status=response.status_code, headers=dict(response.headers), body=bytes(body))
        except ConnectionFailed as failure:
            return judge_failure(failure)


async def _read_whole(response: AnswerReader) -> ApiAnswer:
    return ApiAnswer(status=response.status_code, headers=dict(response.headers), body=await response.aread())


def _read_typed(told: ToldEvent) -> Event:
    from hermes_worker.client.events import parse_event

    return parse_event(told.document)


def _read_untyped(told: ToldEvent) -> ToldEvent:
    return told
