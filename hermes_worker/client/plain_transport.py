"""The blocking transport: the standard library's HTTP client, which is imported in a third of the time that httpx2
takes, and reads no certificates for an address without TLS. Most commands send one request.
"""

from __future__ import annotations

import contextlib
import selectors
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies, proxy_bypass

from hermes_worker.client.address import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Address
from hermes_worker.client.wire import ConnectionFailed

_CHUNK_BYTES = 65_536


def needs_proxy(url: str) -> bool:
    """Whether the environment names a proxy for this address. One of this machine needs none."""
    host = urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return False
    proxies = getproxies()
    return bool({"all", urlsplit(url).scheme} & proxies.keys()) and not proxy_bypass(host)


class PlainTransport:
    """Sends requests and sleeps without suspending. Keeps connections for the next request; thread-safe."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._parts = urlsplit(address.url)
        self._headers = address.build_headers()
        self._idle: list[HTTPConnection] = []

    @contextlib.asynccontextmanager
    async def stream(
        self, *, method: str, url: str, params: Any, headers: Mapping[str, str], content: bytes | None
    ) -> AsyncIterator[_PlainReader]:
        target = f"{self._parts.path}{url}{'?' if params else ''}{urlencode(params or ())}"
        connection, was_sent, response = self._take_idle(), True, None
        try:
            if connection is not None:
                try:
                    response = self._ask(connection, method, target, content, headers)
                except ConnectionError:
                    # The server closed it just as we took it. What only reads may be asked again.
                    if method != "GET":
                        raise
                    connection.close()
            if response is None:
                was_sent, connection = False, self._build_connection()
                connection.connect()
                connection.sock.settimeout(READ_TIMEOUT_S)
                was_sent = True
                response = self._ask(connection, method, target, content, headers)
            yield _PlainReader(response)
        except (OSError, HTTPException) as error:
            raise ConnectionFailed(error, was_sent=was_sent) from error
        finally:
            if response is not None and response.isclosed() and connection is not None and connection.sock is not None:
                self._idle.append(connection)
            elif connection is not None:
                connection.close()

    def _ask(
        self, connection: HTTPConnection, method: str, target: str, content: bytes | None, headers: Mapping[str, str]
    ) -> HTTPResponse:
        connection.request(method, target, body=content, headers={**self._headers, **headers})
        return connection.getresponse()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _take_idle(self) -> HTTPConnection | None:
        """Take a kept connection. What can be read of one is its end: the server has closed it."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread was faster
                connection = self._idle.pop()
                with selectors.DefaultSelector() as looking:  # poll is no function of Windows
                    looking.register(connection.sock, selectors.EVENT_READ)
                    if not looking.select(0):
                        return connection
                connection.close()
        return None

    def _build_connection(self) -> HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "http":
            return HTTPConnection(host, self._parts.port, timeout=CONNECT_TIMEOUT_S)
        if self._address.tls is None:
            from httpx2 import create_ssl_context  # the authorities that the asynchronous client trusts

            self._address = replace(self._address, tls=create_ssl_context())
        return HTTPSConnection(host, self._parts.port, timeout=CONNECT_TIMEOUT_S, context=self._address.tls)


class _PlainReader:
    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self.status_code = response.status
        self.headers = {name.lower(): value for name, value in response.getheaders()}

    async def aread(self) -> bytes:
        return self._response.read()

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        # A stream is told as it comes. The end of a connection is that of a body only where no length says otherwise.
        read = self._response.read1 if self._response.length is None else self._response.read
        while chunk := read(_CHUNK_BYTES):
            yield chunk
        if self._response.length:
            raise IncompleteRead(b"", self._response.length)
