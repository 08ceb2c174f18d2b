"""Receive events on webhook routes. An event is let in by its signature; errors are
flat: ``{"error": ...}``.

The order of the checks is Hermes Agent's: nothing is counted or parsed before the signature is verified.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from fastapi import APIRouter, BackgroundTasks, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from hermes_worker.api.auth import is_for_loopback
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import FlatRefusal
from hermes_worker.api.limits import FORM, JSON, read_media_type, read_whole_body
from hermes_worker.api.schema import EITHER_ERROR, FlatError, declare_errors
from hermes_worker.channels.signature import Scheme, verify
from hermes_worker.core.offered_skills import SkillLibrary
from hermes_worker.core.principals import DEFAULT_TENANT, Principal, find_tenant_home
from hermes_worker.core.sources import RequestKeys, format_webhook_source
from hermes_worker.features.webhooks.rows import RouteRow, Webhooks
from hermes_worker.features.webhooks.rules.events import Accepted, Ignored, UnreadableEvent, read_event
from hermes_worker.features.webhooks.rules.filters import LIST_CHARS_MAX, find_named_lists, read_list
from hermes_worker.features.webhooks.rules.route import BODY_BYTES_MAX, NO_AUTH, Route
from hermes_worker.features.webhooks.rules.sealed import open_secret
from hermes_worker.observe import count, log
from hermes_worker.services.submission import InvalidSubmission, Submission, accept, announce
from hermes_worker.settings.sealing import SealedElsewhere
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict, RequestReplayed
from hermes_worker.store.access.principals import TenantDisabled, TenantNotFound
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.system.plainfiles import read_plain

router = APIRouter(prefix="/webhooks", tags=["webhooks"])


class Taken(BaseModel):
    """The result for an event: ``accepted`` (202), or ``duplicate``, ``replayed`` or ``ignored`` (200)."""

    status: Literal["accepted", "duplicate", "replayed", "ignored"]
    route: str | None = None
    event: str | None = None
    delivery_id: str | None = None
    reason: str | None = None
    run_id: str | None = None
    """The run that the event began."""
    deliveries: list[str] | None = None
    """The ids of the deliveries, for a route that only delivers."""


class Conflict(BaseModel):
    """Another event came under this delivery id."""

    status: Literal["conflict"]
    delivery_id: str
    error: str


_EVENT = {"type": "object", "description": "What happened, as its sender writes it."}
_BODY_SCHEMA = {"requestBody": {"required": True, "content": {JSON: {"schema": _EVENT}, FORM: {"schema": _EVENT}}}}


_TAKES: dict[str, Any] = {
    "status_code": 202,
    "response_model": None,
    "openapi_extra": _BODY_SCHEMA,
    "responses": {
        200: {"model": Taken},
        202: {"model": Taken},
        **declare_errors(401, 404, 429, shape=FlatError),
        **declare_errors(409, shape=Conflict),
        **declare_errors(408),
        **declare_errors(400, 403, 413, 415, 503, shape=EITHER_ERROR),
    },
}


@router.post("/{name}", **_TAKES)
async def receive(context: Context, name: str, request: Request, later: BackgroundTasks) -> JSONResponse:
    """Take an event in."""
    return await _receive(context, DEFAULT_TENANT, name, request, later)


@router.post("/{tenant}/{name}", **_TAKES)
async def receive_for_tenant(
    context: Context, tenant: str, name: str, request: Request, later: BackgroundTasks
) -> JSONResponse:
    """Take an event in for a tenant."""
    return await _receive(context, tenant, name, request, later)


async def _receive(
    context: ApiContext, tenant: str, name: str, request: Request, later: BackgroundTasks
) -> JSONResponse:
    try:
        route, body, proof = await _authenticate(context, tenant, name, request)
        lists = await asyncio.to_thread(
            _load_lists, route, find_tenant_home(context.client.settings.home, tenant) / "webhooks"
        )
        match read_event(route, _read_headers(request), body, lists):
            case UnreadableEvent(reason=reason):
                raise FlatRefusal(400, reason)
            case Ignored(event=event, reason=reason):
                ignored = {"status": "ignored", "event": event}
                return JSONResponse(ignored | ({"reason": reason} if reason else {}))
            case Accepted() as event:
                taken = _AcceptedEvent(tenant=tenant, route=route, event=event, body=body, proof=proof)
                return await _answer(context, taken, later)
    except FlatRefusal as refused:
        return refused.response


@dataclass(frozen=True, slots=True, kw_only=True)
class _AcceptedEvent:
    """An event that its route accepts."""

    tenant: str
    route: Route
    event: Accepted
    body: bytes
    proof: str | None

    @property
    def keys(self) -> RequestKeys:
        """The keys that make it one request: the same body is the same request, even if the route makes something else
        of it now."""
        return RequestKeys(
            tenant=self.tenant,
            source=format_webhook_source(self.route.name),
            key=self.event.event_id,
            fingerprint=hashlib.sha256(self.body).hexdigest(),
            proof=self.proof,
        )


async def _authenticate(
    context: ApiContext, tenant: str, name: str, request: Request
) -> tuple[Route, bytes, str | None]:
    """Find the route and verify the event's signature. Returns the route, the body, and the proof for refusing replays.
    Raises ``FlatRefusal``."""
    webhooks = Webhooks(context.client.database, tenant)
    row = await context.call_store(webhooks.find, name)
    if row is None:
        raise FlatRefusal(404, "Unknown route")
    route = Route.from_json(row.name, _open_row_secret(context, row), row.definition)
    if not route.enabled:
        raise FlatRefusal(403, "Route is disabled")
    try:
        await context.call_store(context.tenants.require_enabled, tenant)
    except TenantDisabled:
        raise FlatRefusal(403, "The tenant of this route is disabled") from None
    except TenantNotFound:
        raise FlatRefusal(404, "Unknown route") from None
    body = await read_whole_body(request, BODY_BYTES_MAX)
    proof = None
    if route.secret == NO_AUTH:
        if not context.client.settings.server.is_loopback or not is_for_loopback(request.headers):
            raise FlatRefusal(403, "Route has no secret, so only this machine may send to it, under its own name")
        if body and read_media_type(request.headers.getlist("content-type")) != JSON:
            raise FlatRefusal(415, f"The Content-Type must be {JSON}: this route has no secret")
    else:
        proof = _require_signed(route, _read_headers(request), body)
    if not await context.call_store(webhooks.admit, route.name, route.rate_per_min):
        count("webhook.limited")
        raise FlatRefusal(429, "Rate limit exceeded")
    return route, body, proof


def _open_row_secret(context: ApiContext, row: RouteRow) -> str:
    try:
        return open_secret(context.keyring, row.full_name, row.secret)
    except SealedElsewhere as error:
        log.error("webhook.locked", route=row.full_name, reason=str(error))
        raise FlatRefusal(503, "Route cannot be used now") from None


def _require_signed(route: Route, headers: Mapping[str, str], body: bytes) -> str | None:
    found = verify(headers, body, route.secret, datetime.now(UTC))
    if not found.is_valid:
        log.warning(
            "webhook.refused", route=route.name, scheme=found.scheme and found.scheme.value, reason=found.reason
        )
        raise FlatRefusal(401, "Invalid signature")
    if found.scheme is Scheme.LEGACY:
        log.warning("webhook.weak", route=route.name)
    return found.proof


def _find_first_skill(shelf: SkillLibrary, route: Route, tenant: str) -> Sequence[str]:
    """Find the first of the route's skills that exists, as a list of its name; empty for none."""
    return next(([name] for name in route.skills if not shelf.load_named(tenant, [name]).missing), [])


def _load_lists(route: Route, directory: Path) -> Mapping[str, Collection[str]]:
    """Read the files that the route's filters name. One that cannot be read has no entries: an event that asks for it
    is ignored."""
    found = {}
    for name in find_named_lists(list(route.filters)):
        path = directory / name
        try:
            if path.resolve(strict=True).is_relative_to(directory.resolve()):
                text = read_plain(path, bytes_max=LIST_CHARS_MAX).decode("utf-8", "replace")
                found[name] = read_list(text)
        except OSError as error:
            log.warning("webhook.list_unreadable", route=route.name, reason=str(error.strerror))
    return found


def _read_headers(request: Request) -> dict[str, str]:
    return {name.lower(): value for name, value in request.headers.items()}


async def _answer(context: ApiContext, taken: _AcceptedEvent, later: BackgroundTasks) -> JSONResponse:
    """Do what the route says, and build the answer. Raises ``FlatRefusal``."""
    event_id = taken.event.event_id or uuid.uuid4().hex
    try:
        made = await (_deliver if taken.route.deliver_only else _begin_run)(context, taken, event_id, later)
    except IdempotencyConflict:
        count("webhook.conflict")
        log.warning("webhook.conflict", route=taken.route.name)
        message = (
            "Another event came under this delivery id, so this one was not taken. Send it under an id of its own."
        )
        return JSONResponse({"status": "conflict", "delivery_id": event_id, "error": message}, status_code=409)
    except RequestReplayed:
        count("webhook.replayed")
        log.warning("webhook.replayed", route=taken.route.name)
        message = "This signed body was taken under another delivery id. Sign a timestamp to send the same again."
        return JSONResponse({"status": "replayed", "delivery_id": event_id, "reason": message})
    if made is None:
        count("webhook.duplicate")
        return JSONResponse({"status": "duplicate", "delivery_id": event_id})
    if taken.event.threats:
        count("untrusted.suspicious")
        log.warning("untrusted.suspicious", route=taken.route.name, threats=list(taken.event.threats))
    count("webhook.accepted")
    name, event = taken.route.name, taken.event.event
    log.info("webhook.accepted", route=name, webhook_event=event)
    document = {"status": "accepted", "route": name, "event": event, "delivery_id": event_id, **made}
    return JSONResponse(document, status_code=202, background=later)


async def _begin_run(
    context: ApiContext, taken: _AcceptedEvent, event_id: str, later: BackgroundTasks
) -> Mapping[str, object] | None:
    """Begin a run in a session of its own; ``None`` for an event that has one already. Raises ``IdempotencyConflict``,
    ``RequestReplayed``, ``FlatRefusal``."""
    route, event, keys = taken.route, taken.event, taken.keys
    named = (
        await context.call_store(_find_first_skill, context.client.skills, route, taken.tenant) if route.skills else []
    )
    submission = Submission(
        input=event.prompt,
        skills=named,
        toolsets=list(route.toolsets) or None,
        model=route.model,
        principal=Principal(tenant=taken.tenant, name=keys.source, scopes=frozenset()),
        source=keys.source,
        metadata={"webhook_route": route.name, "webhook_event": event.event, "webhook_delivery": event_id},
        deliver=list(event.deliver),
        idempotency_key=keys.key,
        request=keys.fingerprint,
        proof=keys.proof,
    )
    try:
        created = await context.call_store(accept, context.client, submission)
    except InvalidSubmission as error:
        raise FlatRefusal(400, f"The event cannot become a run: {error}") from None
    if created.was_replayed:
        return None
    later.add_task(context.tell_broker, announce, context.client, created)
    return {"run_id": created.run_id}


async def _deliver(
    context: ApiContext, taken: _AcceptedEvent, event_id: str, later: BackgroundTasks
) -> Mapping[str, object] | None:
    """Deliver the prompt as it is; ``None`` for an event that was delivered already. Raises ``IdempotencyConflict``,
    ``RequestReplayed``."""
    enqueue = Deliveries(context.client.database).enqueue_once
    hints = await context.call_store(enqueue, taken.keys, taken.event.deliver, taken.event.prompt)
    if hints is None:
        return None
    later.add_task(context.tell_broker, context.client.publisher.send, hints)
    return {"deliveries": [hint.effect.run_id for hint in hints]}
