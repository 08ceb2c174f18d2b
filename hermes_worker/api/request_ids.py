"""An id for each request, on its answer, in every log line about it and on the span of the run that it submits."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_worker.observe import bind_facts

HEADER = "X-Request-Id"
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class RequestIds:
    """ASGI middleware that names each request: as its sender or a proxy does, where that fits into a header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist(HEADER)
        request_id = given[0] if len(given) == 1 and _FORM.fullmatch(given[0]) else make_request_id()

        async def with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        with bind_facts(request_id=request_id):
            await self._app(scope, receive, with_id)


def make_request_id() -> str:
    return f"req_{secrets.token_hex(16)}"
