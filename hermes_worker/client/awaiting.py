"""The client for asyncio: its methods are coroutines, and streams are asynchronous iterators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Any, TypeVar

import httpx2

from hermes_worker.client.address import Address
from hermes_worker.client.conversation import ClientConversation
from hermes_worker.client.httpx_errors import translate_errors
from hermes_worker.client.methods import AwaitingMethods
from hermes_worker.operation import ApiRequest

T = TypeVar("T")


class AsyncHermesClient(AwaitingMethods):
    """A client of one API server, for one event loop."""

    _conversation: ClientConversation

    async def __aenter__(self) -> AsyncHermesClient:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def send(self, request: ApiRequest[T]) -> T:
        """Send a request of ``operations``, again where that is safe. Raises ``RefusedError``, ``UnavailableError``."""
        return await self._conversation.send(request)

    def _open_transport(self, address: Address) -> AwaitingTransport:
        return AwaitingTransport(address.build_options())

    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return coroutine

    def _finish_iteration(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        return items


class AwaitingTransport:
    """Sends requests and sleeps in an event loop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._http = httpx2.AsyncClient(**options)

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: Any) -> AsyncIterator[httpx2.Response]:
        with translate_errors():
            async with self._http.stream(**arguments) as response:
                yield response

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()
