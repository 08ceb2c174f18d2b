"""The client for asyncio: its methods are coroutines, and streams are asynchronous iterators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

import httpx2

from hermes_worker.client.conversation import ClientConversation
from hermes_worker.client.exchange import ApiRequest
from hermes_worker.client.methods import AwaitingMethods

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

    def _open_transport(self, options: dict[str, Any]) -> AwaitingTransport:
        return AwaitingTransport(options)

    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> Coroutine[Any, Any, T]:
        return coroutine

    def _finish_iteration(self, items: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        return items


class AwaitingTransport:
    """Sends requests and sleeps in an event loop."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._http = httpx2.AsyncClient(**options)

    def stream(self, **arguments: Any) -> contextlib.AbstractAsyncContextManager[httpx2.Response]:
        return self._http.stream(**arguments)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def close(self) -> None:
        await self._http.aclose()
