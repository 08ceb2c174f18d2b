"""Errors as problem details (RFC 9457), for requests that name that media type in ``Accept``."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import Message, Receive, Scope, Send

from hermes_worker.api.middleware import Middleware
from hermes_worker.core.json_values import parse_json

MEDIA_TYPE = "application/problem+json"


class ProblemDetails(Middleware):
    """ASGI middleware that writes the errors of all routes and guards anew, from either of their shapes."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or MEDIA_TYPE not in Headers(scope=scope).get("accept", "").lower():
            await self.app(scope, receive, send)
            return
        held: Message | None = None
        body = b""

        async def send_problem(message: Message) -> None:
            nonlocal held, body
            if message["type"] == "http.response.start" and _is_error(message):
                held = message
                return
            if held is None:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                problem = build_problem(held["status"], body)
                headers = MutableHeaders(scope=held)
                headers["Content-Length"], headers["Content-Type"] = str(len(problem)), MEDIA_TYPE
                headers.add_vary_header("Accept")
                await send(held)
                await send({"type": "http.response.body", "body": problem})

        await self.app(scope, receive, send_problem)


def _is_error(start: Message) -> bool:
    return start["status"] >= 400 and Headers(raw=start["headers"]).get("content-type") == "application/json"


def build_problem(status: int, body: bytes) -> bytes:
    """Build the problem for an error's body: ``{"error": {"message", "code", "param", ...}}`` or ``{"error":
    message}``. What else the error says becomes members of the problem."""
    document: Any = parse_json(body.decode())
    document = document if isinstance(document, dict) else {}
    error = document.pop("error", None)
    facts = error if isinstance(error, dict) else {"message": error}
    members = {name: value for name, value in {**document, **facts}.items() if value is not None and name != "type"}
    problem = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": members.pop("message", None),
        **members,
    }
    return json.dumps(problem, ensure_ascii=False).encode("utf-8", "replace")
