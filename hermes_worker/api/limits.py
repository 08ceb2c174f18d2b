"""How much a request may bring, enforced while it is read."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_worker.api.errors import ApiError

BODY_BYTES_MAX = 10_000_000
"""Reference, around §3.1."""
BODY_PATIENCE_S = 60.0
"""How long a client may take to send a body."""


class BodyLimit:
    """Refuses bodies that are too large: at once when they say so, else at the byte that is one too many."""

    def __init__(self, app: ASGIApp, *, bytes_max: int = BODY_BYTES_MAX) -> None:
        self._app = app
        self._bytes_max = bytes_max

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            await refusal.response(scope, receive, send)
            return
        await self._app(scope, self._counted(receive), send)

    def _refusal(self, headers: Headers) -> ApiError | None:
        lengths = headers.getlist("content-length")
        if not lengths:
            return None
        if len(set(lengths)) > 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            return ApiError(400, "Content-Length is not a number.", code="invalid_content_length")
        # Compared by length first: a number of a million digits would take minutes to parse.
        digits = lengths[0].lstrip("0")
        too_large = len(digits) > len(str(self._bytes_max)) or int(digits or "0") > self._bytes_max
        return self._too_large() if too_large else None

    def _counted(self, receive: Receive) -> Receive:
        """``receive`` that raises ``ApiError`` when the body grows too large."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._bytes_max:
                raise self._too_large()
            return message

        return counted

    def _too_large(self) -> ApiError:
        return ApiError(413, f"The request body is larger than {self._bytes_max} bytes.", code="body_too_large")
