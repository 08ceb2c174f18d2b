"""Limits of what a request may bring, enforced while it is read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_worker.api.errors import ApiError, FlatRefusal
from hermes_worker.api.middleware import Middleware

BODY_BYTES_MAX = 10_000_000
"""Longest body of a request in bytes."""
BODY_PATIENCE_S = 60.0
"""Seconds that a client may take to send a body, counted from when the route begins to read it."""
HEAD_PATIENCE_S = 20.0
"""Seconds that a client may take to send the head of a request. Without a limit, one that sends a byte a minute holds a
connection for as long as it likes. Slow networks need a few seconds."""
_OF_PLATFORMS = "/inbound/"
_FILES = "/v1/files"
_OF_OTHERS = ("/webhooks/", _OF_PLATFORMS)
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
"""Slack and Twilio send events as such, and GitHub when it is told to. A page of a foreign site can make a browser do
so, too: it lacks the signature, and a route that wants none takes only JSON."""
MULTIPART = "multipart/form-data"
"""Files are uploaded as such. A foreign page can send it, too, but not with a key, and not with our page's cookie."""
XML = ("text/xml", "application/xml")
"""WeCom sends messages as such. The platform's signature is checked before anything of the body is read."""


class OneLength(Middleware):
    """Refuses a request that says in two ways where its body ends, and closes its connection: parsers in front of us
    may believe the other one and take the rest for another request (RFC 9112, section 6.1)."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if "content-length" in headers and "transfer-encoding" in headers:
                message = "Content-Length and Transfer-Encoding exclude each other."
                error = ApiError(400, message, code="invalid_http_request", headers={"Connection": "close"})
                await error.response(scope, receive, send)
                return
        await self.app(scope, receive, send)


class BodyLimit:
    """Refuses bodies that are not JSON, bodies that are too large (at once when they declare it, else at the byte that
    is one too many), and bodies that take too long to arrive."""

    patience_s = BODY_PATIENCE_S

    def __init__(self, app: ASGIApp, *, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._find_refusal(headers) or _wrong_type(scope["path"], headers)
        if refusal is not None:
            await refusal.response(scope, receive, send)
            return
        await self._app(scope, self._limit_body(receive), send)

    def _find_refusal(self, headers: Headers) -> ApiError | None:
        lengths = headers.getlist("content-length")
        if not lengths:
            return None
        if len(set(lengths)) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            return ApiError(400, "Content-Length is not a number.", code="invalid_content_length")
        # Compared by length first: a number of a million digits would take minutes to parse.
        digits = lengths[0].lstrip("0")
        too_large = len(digits) > len(str(self._bytes_max)) or int(digits or "0") > self._bytes_max
        return self._too_large() if too_large else None

    def _limit_body(self, receive: Receive) -> Receive:
        """Wrap ``receive`` so that it raises ``ApiError`` when the body grows too large or does not end in time."""
        received = 0
        give_up_at: float | None = None
        is_whole = False

        async def receive_bounded() -> Message:
            nonlocal received, give_up_at, is_whole
            if is_whole:
                return await receive()  # what comes now is that the client has left, at any time
            give_up_at = give_up_at or asyncio.get_running_loop().time() + self.patience_s
            try:
                async with asyncio.timeout_at(give_up_at):
                    message = await receive()
            except TimeoutError:
                raise ApiError(408, "The request body did not arrive in time.", code="request_timeout") from None
            is_whole = not message.get("more_body", False)
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                raise self._too_large()
            return message

        return receive_bounded

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The request body is larger than {self._bytes_max} bytes.", code="body_too_large")


def _wrong_type(path: str, headers: Headers) -> ApiError | None:
    """Refuse every type but JSON, and JSON under another name: a page of a foreign site can make a browser send any
    other type here."""
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0").strip("0")
    taken = (JSON, FORM) if path.startswith(_OF_OTHERS) else (JSON,)
    if path.startswith(_OF_PLATFORMS):
        taken = (*taken, *XML)
    if path == _FILES:
        taken = (MULTIPART,)
    if not has_body or read_media_type(headers.getlist("content-type")) in taken:
        return None
    message = f"The Content-Type of a request body must be {' or '.join(taken)}."
    return ApiError(415, message, code="unsupported_media_type")


def read_media_type(given: Sequence[str]) -> str | None:
    """Read the name in a request's ``Content-Type``, without parameters; ``None`` where it has none, or several."""
    return given[0].partition(";")[0].strip().lower() if len(given) == 1 else None


async def read_whole_body(request: Request, bytes_max: int) -> bytes:
    """Read the body that a platform or a service sends. Raises ``FlatRefusal`` for a longer one: at once when it
    declares its length, else at the byte that is one too many."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:  # BodyLimit has seen that the number is a small one
        raise FlatRefusal(413, "Payload too large")
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise FlatRefusal(413, "Payload too large")
    except ClientDisconnect:
        raise FlatRefusal(400, "The connection was closed before the body was complete") from None
    return bytes(body)
