"""The traces of callers (W3C Trace Context): a run that is submitted within a trace is linked to it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_worker.tracing.recording import CallersSpan, get_recorder, link_to_caller

_CHARS_MAX = 512
"""Longest value of each header; the specification asks for at least that many characters of ``tracestate``."""


class TracedCaller:
    """ASGI middleware that reads ``traceparent`` and ``tracestate``, if this process records traces. A request is never
    refused for them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = _caller_of(Headers(scope=scope)) if scope["type"] == "http" and get_recorder() is not None else None
        if caller is None:
            await self._app(scope, receive, send)
            return
        with link_to_caller(caller):
            await self._app(scope, receive, send)


def _caller_of(headers: Headers) -> CallersSpan | None:
    parents = headers.getlist("traceparent")
    state = ",".join(headers.getlist("tracestate"))
    if len(parents) != 1 or len(parents[0]) > _CHARS_MAX:
        return None
    return CallersSpan(traceparent=parents[0].strip(), tracestate=state if len(state) <= _CHARS_MAX else "")
