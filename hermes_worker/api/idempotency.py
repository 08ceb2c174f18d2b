"""``Idempotency-Key`` on any POST: an answer is kept for a day, and given again to a repeated request.

The middleware stands around all routes and reads in the document which of them it is for: those that take POST and do
not take the header themselves. Requests that begin runs take it themselves: the run is found again by the key, however
it is waited for or followed. A stream is never kept, because no single answer is the whole of it; events for webhooks
have ids of their own.

Only successful answers are kept. An error means that nothing was done, so the same key may be used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_worker.api.auth import needs_key, read_principal
from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError, invalid, key_reused, unavailable
from hermes_worker.api.operations import find_operations
from hermes_worker.api.schema import KEY_FORM
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.principals import Principal
from hermes_worker.observe import log
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict
from hermes_worker.store.access.kept_answers import HELD_S, RequestAtWork, RequestIdentity, StoredAnswer, StoredAnswers

HEADER = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"
KEEPS = "x-hermes-idempotency"
"""The key of an operation in the document: ``answer`` where this module keeps it, ``run`` where the key belongs to a
run."""
_BODY_BYTES_MAX = 1_000_000
"""Longest answer that is kept, in bytes. A larger one is no receipt but data, and can be asked for again."""
_LEFT_OUT = frozenset({"content-length", "date", "connection"})
_KEY = re.compile(KEY_FORM)


def describe(path: str, method: str, operation: dict[str, Any]) -> None:
    """Say in the document what the header does. Idempotent."""
    if method != "post" or not needs_key(path) or KEEPS in operation:
        return
    if any(parameter["name"].lower() == HEADER.lower() for parameter in operation.get("parameters", ())):
        operation[KEEPS] = "run"
        return
    operation[KEEPS] = "answer"
    description = "The same key with the same request gives the same answer for a day; docs/api.md says more."
    parameter = {"name": HEADER, "in": "header", "required": False, "schema": {"type": "string", "pattern": KEY_FORM}}
    operation.setdefault("parameters", []).append(parameter | {"description": description})
    operation["responses"]["409"] = _describe_conflict(operation["responses"].get("409"))


def _describe_conflict(declared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe the answer 409, beside what the operation itself answers with 409."""
    shape: dict[str, Any] = {"$ref": "#/components/schemas/ErrorDocument"}
    if declared is not None:
        other = declared["content"]["application/json"]["schema"]
        shape = other if other == shape else {"anyOf": [shape, other]}
    return {
        "description": "Something else is in the way, or the key was used with another request.",
        "content": {"application/json": {"schema": shape}},
    }


@dataclass(slots=True)
class _Captured:
    """An answer on its way out."""

    status: int = 0
    headers: list[tuple[str, str]] = field(default_factory=list)
    body: bytearray = field(default_factory=bytearray)
    is_kept: bool = False

    @property
    def is_keepable(self) -> bool:
        kinds = [value for name, value in self.headers if name == "content-type"]
        is_json = bool(kinds) and kinds[0].startswith("application/json")
        return 200 <= self.status < 300 and is_json and len(self.body) <= _BODY_BYTES_MAX

    @property
    def answer(self) -> StoredAnswer:
        return StoredAnswer(status=self.status, headers=self.headers, body=self.body.decode("utf-8"))


class IdempotencyMiddleware:
    """ASGI middleware that answers a repeated request as it was answered the first time."""

    def __init__(self, app: ASGIApp, *, document: Callable[[], Mapping[str, Any]], state: Any) -> None:
        """``state`` is the application's, with its context."""
        self._app = app
        self._document = document
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_post = scope["type"] == "http" and scope["method"] == "POST"
        principal = read_principal(scope) if is_post and self._is_ours(scope) else None
        if principal is None:
            await self._app(scope, receive, send)
            return
        try:
            name, messages = await _read_request_name(principal, scope, receive)
            begun = await self._begin(name)
        except ApiError as refusal:
            await refusal.response(scope, receive, send)
            return
        if isinstance(begun, StoredAnswer):
            headers = {**dict(begun.headers), REPLAYED: "true"}
            await Response(begun.body, begun.status, headers)(scope, receive, send)
            return
        await self._run_and_keep(name, begun, scope, _replay_body(messages, receive), send)

    def _is_ours(self, scope: Scope) -> bool:
        if HEADER not in Headers(scope=scope):
            return False
        operation = find_operations(self._document(), scope["path"]).get("POST")
        return operation is not None and operation.get(KEEPS) == "answer"

    @property
    def _context(self) -> ApiContext:
        context: ApiContext = self._state.context
        return context

    @property
    def _answers(self) -> StoredAnswers:
        return StoredAnswers(self._context.client.database)

    async def _begin(self, name: RequestIdentity) -> str | StoredAnswer:
        """Claim the key, and return the claim's token; for a repeated request, the kept answer. Raises ``ApiError``."""
        try:
            return await self._context.call_store(self._answers.begin, name)
        except IdempotencyConflict:
            raise key_reused() from None
        except RequestAtWork as error:
            raise ApiError(
                409, f"{error}.", code="idempotency_key_in_progress", param=HEADER, headers={"Retry-After": "1"}
            ) from None
        except UnavailableError as error:
            log.warning("database.unreachable", doing="look up an idempotency key", error=str(error))
            raise unavailable() from None

    async def _run_and_keep(
        self, name: RequestIdentity, token: str, scope: Scope, receive: Receive, send: Send
    ) -> None:
        captured = _Captured()

        async def capture_message(message: Message) -> None:
            if message["type"] == "http.response.start":
                captured.status = message["status"]
                raw = ((key.decode("latin-1"), value.decode("latin-1")) for key, value in message["headers"])
                captured.headers = [(key, value) for key, value in raw if key not in _LEFT_OUT]
            elif len(captured.body) <= _BODY_BYTES_MAX:
                captured.body += message.get("body", b"")
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                await self._settle(name, token, captured)
            await send(message)

        async with self._hold_key(name, token):
            try:
                await self._app(scope, receive, capture_message)
            finally:
                if not captured.is_kept:
                    await self._settle(name, token, captured)

    async def _settle(self, name: RequestIdentity, token: str, captured: _Captured) -> None:
        """Keep the answer before it leaves: a client that has it and repeats the request all the same gets it again.
        When the database is away, the key lapses by itself."""
        captured.is_kept = True
        with contextlib.suppress(UnavailableError):
            if captured.is_keepable:
                await self._context.call_store(self._answers.store_answer, name, token, captured.answer)
            else:
                await self._context.call_store(self._answers.release_key, name, token)

    @asynccontextmanager
    async def _hold_key(self, name: RequestIdentity, token: str) -> AsyncIterator[None]:
        """Renew the claim on the key for as long as the block runs."""

        async def hold() -> None:
            while True:
                await asyncio.sleep(HELD_S / 3)
                with contextlib.suppress(UnavailableError):
                    await self._context.call_store(self._answers.renew_hold, name, token)

        holding = asyncio.create_task(hold())
        try:
            yield
        finally:
            holding.cancel()


async def _read_request_name(
    principal: Principal, scope: Scope, receive: Receive
) -> tuple[RequestIdentity, list[Message]]:
    """Read the name under which the request is known, and its body as it came. Raises ``ApiError``."""
    keys = Headers(scope=scope).getlist(HEADER)
    if len(keys) != 1 or not _KEY.fullmatch(keys[0]):
        raise invalid(HEADER, f"Invalid {HEADER!r}: it must be 1 to 256 printable ASCII characters.")
    messages = [await receive()]
    while messages[-1]["type"] == "http.request" and messages[-1].get("more_body", False):
        messages.append(await receive())
    body = b"".join(message.get("body", b"") for message in messages)
    query = scope["query_string"]
    name = RequestIdentity(
        tenant=principal.tenant,
        principal=principal.display_name,
        key=keys[0],
        operation=f"POST {scope['path']}"[:300],
        fingerprint=hashlib.sha256(b"%d?%b%b" % (len(query), query, body)).hexdigest(),
    )
    return name, messages


def _replay_body(messages: list[Message], receive: Receive) -> Callable[[], Awaitable[Message]]:
    """Wrap ``receive`` for the route behind us, which has not seen the body yet."""
    waiting = list(messages)

    async def receive_again() -> Message:
        return waiting.pop(0) if waiting else await receive()

    return receive_again
