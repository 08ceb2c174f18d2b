"""Webhook routes, on which others send events. For administrators of a tenant."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.schema import RequestBody
from hermes_worker.channels.signature import sign
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.webhooks.rows import RouteExists, RouteNotFound, RouteRow, Webhooks, format_route_name
from hermes_worker.features.webhooks.rules.route import (
    BODY_BYTES_MAX,
    PROMPT_CHARS_MAX,
    RATE_PER_MIN,
    Route,
    RouteError,
)
from hermes_worker.features.webhooks.rules.route import validate_route as checked_route
from hermes_worker.features.webhooks.rules.sealed import open_secret, seal_secret
from hermes_worker.features.webhooks.schema import EventSignature, RouteList, RouteObject, RouteRemoved
from hermes_worker.settings.sealing import SealedElsewhere
from hermes_worker.settings.server_key import build_keyring

router = APIRouter(
    prefix="/v1/webhook-routes",
    tags=["webhooks"],
    route_class=answer_errors(
        {
            RouteError: RouteRefusal(400, "invalid_value", "body", "{error}"),
            RouteExists: RouteRefusal(409, "route_exists", "name", "{error}"),
            RouteNotFound: RouteRefusal(404, "route_not_found", "name", "{error}"),
            SealedElsewhere: RouteRefusal(409, "route_locked", "name", "{error}"),
        },
        JsonRoute,
    ),
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=schema.declare_errors(503),
)
_NAME = r"^[a-z0-9][a-z0-9_-]{0,63}$"
_Word = Annotated[str, Field(min_length=1, max_length=200, pattern=NO_NUL)]
_Skill = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,99}$")]


class RouteBody(RequestBody):
    """A route to add. The fields are explained in docs/webhooks.md."""

    name: str = Field(pattern=_NAME)
    secret: str | None = Field(
        None,
        pattern=r"^[\x21-\x7e]{16,1000}$",
        description="Signs the events; INSECURE_NO_AUTH for none. It may be left out only where one is replaced.",
    )
    prompt: str = Field("", max_length=PROMPT_CHARS_MAX, pattern=NO_NUL)
    events: list[_Word] = Field(default_factory=list, max_length=100)
    filters: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    deliver: list[_Word] = Field(default_factory=list, max_length=100)
    deliver_only: bool = False
    skills: list[_Skill] = Field(default_factory=list, max_length=50)
    toolsets: list[_Word] = Field(default_factory=list, max_length=50)
    model: str | None = Field(None, pattern=schema.MODEL_FORM)
    rate_per_min: Annotated[int, schema.WHOLE] = Field(RATE_PER_MIN, ge=1, le=10_000)
    description: str = Field("", max_length=2_000, pattern=NO_NUL)
    enabled: bool = True
    replace: bool = Field(False, description="Replace the route of this name; its secret stays if none is given.")


class EventBody(RequestBody):
    payload: str = Field(max_length=BODY_BYTES_MAX // 4, description="The body of the event, as it will be sent.")


@router.get("")
async def list_webhook_routes(context: Context, caller: Caller) -> RouteList:
    """Every route of the tenant."""
    found = await context.call_store(Webhooks(context.client.database, caller.tenant).list_routes)
    return RouteList(data=[_build_route_object(context, row) for row in found])


@router.post("", status_code=201, responses=schema.declare_errors(409))
async def add_webhook_route(context: Context, caller: Caller, body: RouteBody) -> RouteObject:
    """Add a route. Its secret is sealed with the server's key and never shown."""
    return _build_route_object(context, await context.call_store(_add, context, caller.tenant, body))


def _add(context: ApiContext, tenant: str, body: RouteBody) -> RouteRow:
    """Store a route. Raises ``RouteError``, ``RouteExists``."""
    webhooks = Webhooks(context.client.database, tenant)
    before = webhooks.find(body.name) if body.replace else None
    kept = None
    if before is not None and body.secret is None:
        try:
            kept = open_secret(context.keyring, before.full_name, before.secret)
        except SealedElsewhere as error:
            raise RouteError(f"The secret of the route cannot be kept: {error}.") from None
    secret = body.secret or kept
    if secret is None:
        raise RouteError("A new route needs a secret: give one of at least 16 characters.")
    route = checked_route(Route(secret=secret, **body.model_dump(exclude={"secret", "replace"})))
    keyring = build_keyring(context.client.settings, makes=True)  # the first route of a home may need the first key
    sealed = seal_secret(keyring, format_route_name(tenant, route.name), route.secret)
    webhooks.add(route.name, sealed, route.to_json(), replaces=body.replace)
    made = webhooks.find(route.name)
    if made is None:
        raise RouteExists(f"the route {route.name!r} was removed by somebody else at the same time")
    return made


@router.delete("/{name}", responses=schema.declare_errors(404))
async def remove_webhook_route(context: Context, caller: Caller, name: str) -> RouteRemoved:
    """Forget a route; its runs stay."""
    await context.call_store(Webhooks(context.client.database, caller.tenant).remove, name)
    return RouteRemoved(name=name)


@router.post("/{name}/signature", responses=schema.declare_errors(404, 409))
async def sign_webhook_event(context: Context, caller: Caller, name: str, body: EventBody) -> EventSignature:
    """Sign an event as the holder of the route's secret would, to try the route. Changes nothing."""
    row = await context.call_store(Webhooks(context.client.database, caller.tenant).find, name)
    if row is None:
        raise RouteNotFound(f"there is no route {name!r}")
    secret = open_secret(context.keyring, row.full_name, row.secret)
    headers = sign(body.payload.encode("utf-8", "replace"), secret, datetime.now(UTC))
    return EventSignature(path=f"/webhooks/{row.full_name}", headers=dict(headers))


def _build_route_object(context: ApiContext, row: RouteRow) -> RouteObject:
    state: Literal["enabled", "disabled", "locked"] = "enabled"
    try:
        open_secret(context.keyring, row.full_name, row.secret)
        state = "enabled" if json.loads(row.definition).get("enabled", True) else "disabled"
    except SealedElsewhere:
        state = "locked"
    return RouteObject(
        name=row.name,
        path=f"/webhooks/{row.full_name}",
        state=state,
        definition=row.definition,
        created_at=row.created_at,
    )
