"""The blocking client: its transport blocks, so the coroutines of a conversation end with their first step."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, TypeVar

from hermes_worker.client.address import Address
from hermes_worker.client.conversation import ClientConversation, ClientTransport
from hermes_worker.client.methods import BlockingMethods
from hermes_worker.client.plain_transport import PlainTransport, needs_proxy
from hermes_worker.operation import ApiRequest

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

    def _open_transport(self, address: Address) -> ClientTransport:
        if not needs_proxy(address.url):
            return PlainTransport(address)
        from hermes_worker.client.proxied_transport import ProxiedTransport

        return ProxiedTransport(address.build_options())

    def _finish(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return _run_blocking(coroutine)

    def _finish_iteration(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        return _iterate_blocking(items)


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
