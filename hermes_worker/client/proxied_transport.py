"""The blocking transport through a proxy of the environment: httpx2 knows the kinds of proxies and their passwords."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2

from hermes_worker.client.httpx_errors import translate_errors


class ProxiedTransport:
    """Sends requests and sleeps without suspending."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._http = httpx2.Client(**options)

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: Any) -> AsyncIterator[_ProxiedReader]:
        with translate_errors(), self._http.stream(**arguments) as response:
            yield _ProxiedReader(response)

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        self._http.close()


class _ProxiedReader:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status_code = response.status_code
        self.headers = response.headers

    async def aread(self) -> bytes:
        return self._response.read()

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        for chunk in self._response.iter_bytes():
            yield chunk
