"""An id for each request, on its answer, in every log line about it and on the span of the run that it submits; and the
trace of its caller (W3C Trace Context): a run that is submitted within a trace is linked to it."""

from __future__ import annotations

import re
import secrets

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from hermes_worker.api.middleware import Middleware, change_headers
from hermes_worker.observe import bind_facts
from hermes_worker.tracing.recording import CallersSpan, get_recorder, link_to_caller

HEADER = "X-Request-Id"
_CHARS_MAX = 512
"""Longest value of each header; the specification asks for at least that many characters of ``tracestate``."""
_FORM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")


class RequestIds(Middleware):
    """ASGI middleware that names each request: as its sender or a proxy does, where that fits into a header."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        given = Headers(scope=scope).getlist(HEADER)
        request_id = given[0] if len(given) == 1 and _FORM.fullmatch(given[0]) else make_request_id()
        with bind_facts(request_id=request_id):
            await self.app(scope, receive, change_headers(send, lambda headers: headers.update({HEADER: request_id})))


def make_request_id() -> str:
    return f"req_{secrets.token_hex(16)}"


class TracedCaller(Middleware):
    """ASGI middleware that reads ``traceparent`` and ``tracestate``, if this process records traces. A request is never
    refused for them."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = _read_caller(Headers(scope=scope)) if scope["type"] == "http" and get_recorder() is not None else None
        if caller is None:
            await self.app(scope, receive, send)
            return
        with link_to_caller(caller):
            await self.app(scope, receive, send)


def _read_caller(headers: Headers) -> CallersSpan | None:
    parents = headers.getlist("traceparent")
    state = ",".join(headers.getlist("tracestate"))
    if len(parents) != 1 or len(parents[0]) > _CHARS_MAX:
        return None
    return CallersSpan(traceparent=parents[0].strip(), tracestate=state if len(state) <= _CHARS_MAX else "")
