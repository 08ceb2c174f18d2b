"""Tenants and keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Path
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import RouteRefusal, answer_errors, invalid
from hermes_worker.api.formats import TENANT_FORM
from hermes_worker.api.idempotency import KEEPS
from hermes_worker.api.owners import ActsFor
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.principals import InvalidName, KeyScope, Principal
from hermes_worker.features.tenants.key_schema import (
    DisabledTenant,
    KeyList,
    NewKeyObject,
    PlacesBody,
    RevokedKey,
    TenantList,
    TenantObject,
)
from hermes_worker.store.access.principals import (
    DefaultTenantStays,
    KeyNotFound,
    NewKey,
    TenantExists,
    TenantNotFound,
)
from hermes_worker.store.runs.limits import TenantLimits

router = APIRouter(
    prefix="/v1",
    tags=["tenants"],
    route_class=answer_errors(
        {
            TenantNotFound: RouteRefusal(404, "tenant_not_found", "tenant", "{error}"),
            TenantExists: RouteRefusal(409, "tenant_exists", "name", "{error}"),
            DefaultTenantStays: RouteRefusal(409, "default_tenant_stays", "tenant", "{error}"),
            KeyNotFound: RouteRefusal(404, "key_not_found", "key_id", "{error}"),
            InvalidName: RouteRefusal(400, "invalid_value", "name"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(503),
)
_ADMIN = declare_scope(KeyScope.ADMIN)
_STOPPED_AT_ONCE = 100
"""Most runs of a tenant that one request stops."""
_EXPIRES_S_MAX = 100 * 366 * 86_400.0
_Tenant = Annotated[str, Path(pattern=TENANT_FORM)]
_KeyId = Annotated[str, Path(pattern=r"^key_[0-9a-f]{12}$")]
_SHOWN_ONCE = {KEEPS: "none"}
"""Marks an answer that holds a key: it is kept nowhere, so a client that loses it makes another key and revokes this
one."""


class NewTenant(RequestBody):
    name: str = Field(pattern=TENANT_FORM)


class DisableTenant(RequestBody):
    stop: bool = Field(False, description="Stop runs that have not ended as well, some with each request.")


class NewKeyBody(RequestBody):
    holder: str = Field(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f/]*[^\s\x00-\x1f\x7f/\x85]$")
    scopes: list[Annotated[KeyScope, Field(strict=False)]] = Field(
        [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE], min_length=1, max_length=20
    )
    expires_in_s: float | None = Field(None, gt=0, le=_EXPIRES_S_MAX, allow_inf_nan=False)


class RotateKey(RequestBody):
    overlap_s: float = Field(
        86_400.0, ge=0, le=_EXPIRES_S_MAX, allow_inf_nan=False, description="How long the old key can still be used."
    )


@router.get("/tenants", dependencies=[FOR_OPERATORS])
async def list_tenants(context: Context) -> TenantList:
    """All tenants, with the number of their runs and of their keys that can be used."""
    found = await context.call_store(context.tenants.list_tenants)
    return TenantList.model_validate({"data": found}, from_attributes=True)


@router.post("/tenants", status_code=201, dependencies=[FOR_OPERATORS], responses=schema.declare_errors(409))
async def create_tenant(context: Context, body: NewTenant) -> TenantObject:
    """Create a tenant. Its commands must be confined from then on, and those of all other tenants as well."""
    await context.call_store(context.tenants.create_tenant, body.name)
    return TenantObject(name=body.name, is_disabled=False)


@router.post("/tenants/{tenant}/disable", dependencies=[FOR_OPERATORS], responses=schema.declare_errors(404, 409))
async def disable_tenant(
    context: Context, caller: Caller, tenant: _Tenant, body: DisableTenant, later: BackgroundTasks
) -> DisabledTenant:
    """Let nothing new begin for a tenant: its keys and routes are refused, and its schedule holds. What was accepted
    before goes on to its end, unless it is stopped. Idempotent."""
    await context.call_store(context.tenants.disable_tenant, tenant)
    stopped, left = await context.call_store(_stop_some, context, caller, tenant, later) if body.stop else (0, 0)
    return DisabledTenant(name=tenant, is_disabled=True, stopped=stopped, open_runs=left)


def _stop_some(context: ApiContext, caller: Principal, tenant: str, later: BackgroundTasks) -> tuple[int, int]:
    stopped: set[str] = set()
    still_open = context.client.views.list_open_run_ids(tenant)
    asked_before = context.client.runs.find_stopping(still_open)
    waiting = [run_id for run_id in still_open if run_id not in asked_before]
    for run_id in waiting[:_STOPPED_AT_ONCE]:
        if run_id not in stopped:  # with one that caused it
            told = context.client.runs.stop_tree(run_id, by=caller.name)
            later.add_task(context.tell_broker, context.client.publisher.publish_stops, told.run_ids, told.hints)
            stopped.update(told.run_ids)
    return len(stopped), len([run_id for run_id in waiting[_STOPPED_AT_ONCE:] if run_id not in stopped])


@router.post("/tenants/{tenant}/enable", dependencies=[FOR_OPERATORS], responses=schema.declare_errors(404))
async def enable_tenant(context: Context, tenant: _Tenant) -> TenantObject:
    """Let a disabled tenant work again. Jobs that became due meanwhile are treated as after an outage. Idempotent."""
    await context.call_store(context.tenants.enable_tenant, tenant)
    return TenantObject(name=tenant, is_disabled=False)


@router.put("/places", dependencies=[FOR_OPERATORS])
async def set_places(context: Context, body: PlacesBody) -> PlacesBody:
    """Set how many runs may be at work at once in the whole fleet, where tenants share it."""
    await context.call_store(TenantLimits(context.client.database).set_places, body.places)
    return body


# --- keys ------------------------------------------------------------------------------------------------------------


@router.get("/keys", dependencies=[_ADMIN], responses=schema.declare_errors(404))
async def list_keys(context: Context, tenant: ActsFor) -> KeyList:
    """The keys of a tenant; those that cannot be used any more as well."""
    found = await context.call_store(context.tenants.list_keys, tenant)
    return KeyList.model_validate({"data": found}, from_attributes=True)


@router.post(
    "/keys", status_code=201, dependencies=[_ADMIN], responses=schema.declare_errors(404), openapi_extra=_SHOWN_ONCE
)
async def create_key(context: Context, tenant: ActsFor, body: NewKeyBody) -> NewKeyObject:
    """Create a key for a person or program that acts for the tenant. The answer is the only place where the key
    stands."""
    scopes = list(dict.fromkeys(body.scopes))
    try:
        made = await context.call_store(
            context.tenants.create_key, tenant, body.holder, scopes, expires_in_s=body.expires_in_s
        )
    except InvalidName as error:
        raise invalid("holder", f"{error}.") from None
    return _build_new_key(made)


@router.post(
    "/keys/{key_id}/rotate", dependencies=[_ADMIN], responses=schema.declare_errors(404), openapi_extra=_SHOWN_ONCE
)
async def rotate_key(context: Context, tenant: ActsFor, key_id: _KeyId, body: RotateKey) -> NewKeyObject:
    """Make a key with the same holder and scopes in the place of another."""
    return _build_new_key(
        await context.call_store(context.tenants.rotate_key, tenant, key_id, overlap_s=body.overlap_s)
    )


@router.delete("/keys/{key_id}", dependencies=[_ADMIN], responses=schema.declare_errors(404))
async def revoke_key(context: Context, tenant: ActsFor, key_id: _KeyId) -> RevokedKey:
    """End a key now. Servers that have just seen it take it for five more seconds. Idempotent."""
    await context.call_store(context.tenants.revoke_key, tenant, key_id)
    return RevokedKey(key_id=key_id)


def _build_new_key(made: NewKey) -> NewKeyObject:
    return NewKeyObject.model_validate({**asdict(made.view), "key": made.token})
