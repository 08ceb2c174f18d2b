"""CORS: web pages of the origins that the operator lists may use the API, with a key like every other client."""

from __future__ import annotations

import re
from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.api.middleware import change_headers

_METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_HEADERS = (
    "Authorization",
    "Content-Type",
    "Idempotency-Key",
    "Last-Event-ID",
    "X-Hermes-Session-Id",
    "X-Hermes-Session-Key",
)
_EXPOSED = (
    "Idempotent-Replayed",
    "RateLimit",
    "RateLimit-Policy",
    "Retry-After",
    "X-Hermes-Completed",
    "X-Hermes-Error",
    "X-Hermes-Partial",
    "X-Hermes-Run-Id",
    "X-Hermes-Session-Id",
    "X-Hermes-Session-Key",
    "X-Request-Id",
)
_OF_SDKS = re.compile(r"(x-stainless|openai)-[a-z0-9-]{1,40}")
"""Headers that SDKs add to every request; they have no meaning here."""
_ASKED_MAX = 50
MAX_AGE_S = 600
"""Seconds for which a browser may keep a preflight's answer."""


class Cors:
    """ASGI middleware that answers preflights, and says on every answer that the page may read it."""

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        if not is_listed(headers, self._origins):
            await self._app(scope, receive, send)
            return
        allowed = {"Access-Control-Allow-Origin": headers["origin"], "Vary": "Origin"}
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204, headers={**allowed, **_answer_preflight(headers)})(scope, receive, send)
            return

        told = {**allowed, "Access-Control-Expose-Headers": ", ".join(_EXPOSED)}
        await self._app(scope, receive, change_headers(send, lambda headers: headers.update(told)))


def is_listed(headers: Headers, origins: Collection[str]) -> bool:
    """Whether a page of one of these origins sent the request."""
    given = headers.getlist("origin")
    return len(given) == 1 and given[0] in origins


def _answer_preflight(headers: Headers) -> dict[str, str]:
    asked = headers.get("access-control-request-headers", "").lower().split(",")[:_ASKED_MAX]
    of_sdks = [name.strip() for name in asked if _OF_SDKS.fullmatch(name.strip())]
    return {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": ", ".join((*_HEADERS, *of_sdks)),
        "Access-Control-Max-Age": str(MAX_AGE_S),
    }
