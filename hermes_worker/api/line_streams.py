"""Answers that are read from the database line by line while they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from fastapi.responses import StreamingResponse

from hermes_worker.api.context import ApiContext
from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log

JSON_LINES = "application/x-ndjson"
_CHUNK_BYTES = 65_536
_WAITING_MAX = 4
"""Most chunks that wait for the reader."""
_READER_PATIENCE_S = 30.0
"""Seconds after which a reader that takes nothing is given up: it holds a connection of the database."""


DECLARED: dict[str, Any] = {"description": "JSON Lines.", "content": {JSON_LINES: {"schema": {"type": "string"}}}}
"""How the document describes such an answer."""


def stream_lines(context: ApiContext, make: Callable[[], Iterator[str]]) -> StreamingResponse:
    """Stream the lines that ``make`` yields. It is called and read in a thread."""
    send, receive = anyio.create_memory_object_stream[bytes](_WAITING_MAX)
    reading = asyncio.ensure_future(context.run_long_read(partial(_produce, make, send)))
    return StreamingResponse(_stream_chunks(receive, reading), media_type=JSON_LINES)


def _produce(make: Callable[[], Iterator[str]], send: MemoryObjectSendStream[bytes]) -> None:
    chunk = bytearray()
    try:
        for line in make():
            chunk += line.encode("utf-8", "replace") + b"\n"
            if len(chunk) >= _CHUNK_BYTES:
                anyio.from_thread.run(_send_chunk, send, bytes(chunk))
                chunk.clear()
        anyio.from_thread.run(_send_chunk, send, bytes(chunk))
    finally:
        anyio.from_thread.run_sync(send.close)


async def _send_chunk(send: MemoryObjectSendStream[bytes], chunk: bytes) -> None:
    with anyio.fail_after(_READER_PATIENCE_S):
        await send.send(chunk)


async def _stream_chunks(
    receive: MemoryObjectReceiveStream[bytes], reading: asyncio.Future[None]
) -> AsyncIterator[bytes]:
    try:
        async for chunk in receive:
            yield chunk
        try:
            await reading  # what went wrong there breaks the answer off
        except UnavailableError as error:
            log.warning("database.unreachable", doing="export", error=str(error))
            raise
    finally:
        receive.close()
        reading.add_done_callback(_retrieve_exception)


def _retrieve_exception(reading: asyncio.Future[None]) -> None:
    """Fetch the exception of a reading whose reader has left, so that asyncio does not log it as never retrieved."""
    if not reading.cancelled():
        reading.exception()
