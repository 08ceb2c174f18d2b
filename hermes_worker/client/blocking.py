"""The blocking client: its transport blocks, so the coroutines of a conversation end with their first step."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Iterator
from typing import Any, TypeVar

import httpx2

from hermes_worker.client.conversation import ClientConversation
from hermes_worker.client.exchange import ApiRequest
from hermes_worker.client.methods import BlockingMethods

T = TypeVar("T")


class HermesClient(BlockingMethods):
    """A client of one API server. Thread-safe."""

    _conversation: ClientConversation

    def __enter__(self) -> HermesClient:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def send(self, request: ApiRequest[T]) -> T:
        """Send a request of ``operations``, again where that is safe. Raises ``RefusedError``, ``UnavailableError``."""
        return self._finish(self._conversation.send(request))

    def _open_transport(self, options: dict[str, Any]) -> BlockingTransport:
        return BlockingTransport(options)

    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return _run_blocking(coroutine)

    def _finish_iteration(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        return _iterate_blocking(items)


class BlockingTransport:
    """Sends requests and sleeps without suspending."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._http = httpx2.Client(**options)

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: Any) -> AsyncIterator[_BlockingReader]:
        with self._http.stream(**arguments) as response:
            yield _BlockingReader(response)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()


class _BlockingReader:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status_code = response.status_code
        self.headers = response.headers

    async def aread(self) -> bytes:
        return self._response.read()

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for chunk in self._response.iter_bytes():
            yield chunk


def _run_blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    coroutine.close()
    raise RuntimeError("a coroutine over the blocking transport was suspended")


def _iterate_blocking(items: AsyncGenerator[T, None]) -> Iterator[T]:
    """Iterate over an asynchronous generator that never suspends. It is closed with this iterator."""
    try:
        while True:
            try:
                item = _run_blocking(anext(items))
            except StopAsyncIteration:
                return
            yield item
    finally:
        _run_blocking(items.aclose())
