"""As much of HTTP/1.1 (RFC 9112) as a server on loopback needs: requests in, replies out, nothing guessed.

What is ambiguous is refused, because two readers of one connection must not disagree on where a request ends.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

HEAD_BYTES_MAX = 65_536
BODY_BYTES_MAX = 64 * 1024 * 1024

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) ([!-~]{1,8192}) HTTP/1\.([01])")
_FIELD = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):[ \t]*(.*?)[ \t]*")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?")


class BadRequest(Exception):
    """The request cannot be read; the connection is closed after saying so."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedRequest:
    method: str
    path: str
    """Without the query."""
    body: bytes
    keeps_alive: bool
    """The connection may carry another request after this one."""


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> ScriptedRequest | None:
    """The next request, or ``None`` when the client has no more. Raises ``BadRequest``."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial.strip():
            raise BadRequest(HTTPStatus.BAD_REQUEST, "the request ends in the middle") from error
        return None
    except asyncio.LimitOverrunError as error:
        raise BadRequest(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is too long") from error
    first, *lines = head[:-4].split(b"\r\n")
    start = _REQUEST_LINE.fullmatch(first)
    if start is None:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the request line is not HTTP/1.1")
    fields = _fields(lines)
    if fields.get(b"expect", b"").lower() == b"100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    closes = fields.get(b"connection", b"").lower() == b"close" or start[3] == b"0"
    return ScriptedRequest(
        method=start[1].decode(),
        path=start[2].decode().partition("?")[0],
        body=await _read_body(reader, fields),
        keeps_alive=not closes,
    )


def _fields(lines: list[bytes]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for line in lines:
        match = _FIELD.fullmatch(line)
        if match is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a header line is malformed")
        name, value = match[1].lower(), match[2]
        if name in (b"content-length", b"transfer-encoding") and fields.get(name, value) != value:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "two header lines disagree on the length of the body")
        fields[name] = value
    return fields


async def _read_body(reader: asyncio.StreamReader, fields: Mapping[bytes, bytes]) -> bytes:
    encoding, length = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if encoding is not None and (length is not None or encoding.lower() != b"chunked"):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the length of the body is not clear")
    if length is not None and not (length.isdigit() and len(length) < 12):
        raise BadRequest(HTTPStatus.BAD_REQUEST, "Content-Length is not a number")
    try:
        if encoding is not None:
            return await _read_chunks(reader)
        _require_room(int(length or 0))
        return await reader.readexactly(int(length or 0))
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise BadRequest(HTTPStatus.BAD_REQUEST, "the body is not whole") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    chunks: list[bytes] = []
    received = 0
    while True:
        match = _CHUNK_SIZE.fullmatch((await reader.readuntil(b"\r\n"))[:-2])
        if match is None:
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a chunk has no size")
        size = int(match[1], 16)
        if size == 0:
            while await reader.readuntil(b"\r\n") != b"\r\n":  # trailers
                pass
            return b"".join(chunks)
        received += size
        _require_room(received)
        chunks.append(await reader.readexactly(size))
        if await reader.readexactly(2) != b"\r\n":
            raise BadRequest(HTTPStatus.BAD_REQUEST, "a chunk is longer than its size")


def _require_room(size: int) -> None:
    if size > BODY_BYTES_MAX:
        raise BadRequest(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body exceeds {BODY_BYTES_MAX} bytes")


STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
STREAM_END = b"0\r\n\r\n"


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def json_response(
    status: int, document: object, *, headers: Mapping[str, str] | None = None, keeps_alive: bool = True
) -> bytes:
    """A whole response. Header values are the server's own and never a client's."""
    body = json.dumps(document, ensure_ascii=False).encode("utf-8", "replace")
    lines = [
        f"HTTP/1.1 {status} {_reason(status)}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
        f"Connection: {'keep-alive' if keeps_alive else 'close'}",
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def _reason(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
