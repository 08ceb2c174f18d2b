"""Limits of tenants and their keys."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, tenant_not_found
from hermes_worker.api.formats import TENANT_FORM
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.budget import NANO
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.tenants.schema import LimitSet, LimitsObject, TenantLimitsObject
from hermes_worker.store.access.principals import KeyNotFound, TenantNotFound
from hermes_worker.store.runs.limits import LimitView, TenantLimits

router = APIRouter(prefix="/v1", tags=["tenants"], route_class=JsonRoute, responses=schema.declare_errors(503))


class LimitsBody(RequestBody):
    """All limits there should be."""

    limits: LimitSet


class TenantLimitsBody(LimitsBody):
    weight: float | None = Field(
        None, ge=0.001, le=1000, description="The tenant's part of the fleet beside those of others; unchanged if none."
    )


_KEY_ID = r"^key_[0-9a-f]{12}$"
_Tenant = Annotated[str, Path(pattern=TENANT_FORM)]
_KeyId = Annotated[str, Path(pattern=_KEY_ID)]
_OfKey = Annotated[str | None, Query(pattern=_KEY_ID, description="A key of the tenant, whose limits are meant.")]
_NO_TENANT = schema.declare_errors(400, 404)


@router.get("/limits", response_model_exclude_none=True, dependencies=[declare_scope(KeyScope.ADMIN)])
async def show_own_limits(context: Context, caller: Caller) -> TenantLimitsObject:
    """The limits of the caller's tenant, and of each of its keys that has limits of its own."""
    return await context.call_store(_load, _open_limits(context), caller.tenant)


@router.put(
    "/limits/keys/{key_id}",
    response_model_exclude_none=True,
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=_NO_TENANT,
)
async def set_own_key_limits(context: Context, caller: Caller, key_id: _KeyId, body: LimitsBody) -> LimitsObject:
    """Set the limits of a key of the caller's tenant, beside those of the tenant. Every process knows within a
    second."""
    await _require_key(context, caller.tenant, key_id)
    return await context.call_store(_set, _open_limits(context), caller.tenant, key_id, _read(body), None)


@router.get(
    "/limits/keys/{key_id}",
    response_model_exclude_none=True,
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=_NO_TENANT,
)
async def show_own_key_limits(context: Context, caller: Caller, key_id: _KeyId) -> LimitsObject:
    """The limits of a key of the caller's tenant."""
    await _require_key(context, caller.tenant, key_id)
    return await context.call_store(_load_key, _open_limits(context), caller.tenant, key_id)


@router.get(
    "/tenants/{tenant}/limits",
    response_model_exclude_none=True,
    dependencies=[FOR_OPERATORS],
    responses=_NO_TENANT,
)
async def show_limits(context: Context, tenant: _Tenant) -> TenantLimitsObject:
    """The limits of a tenant, and of each of its keys that has limits of its own."""
    await _require_tenant(context, tenant)
    return await context.call_store(_load, _open_limits(context), tenant)


@router.put(
    "/tenants/{tenant}/limits",
    response_model_exclude_none=True,
    dependencies=[FOR_OPERATORS],
    responses=_NO_TENANT,
)
async def set_limits(context: Context, tenant: _Tenant, body: TenantLimitsBody, key_id: _OfKey = None) -> LimitsObject:
    """Set the limits of a tenant and its weight, or the limits of one of its keys. Every process knows within a
    second."""
    await _require_tenant(context, tenant)
    if key_id is not None:
        await _require_key(context, tenant, key_id)
    return await context.call_store(_set, _open_limits(context), tenant, key_id or "", _read(body), body.weight)


@router.patch(
    "/tenants/{tenant}/limits",
    response_model_exclude_none=True,
    dependencies=[FOR_OPERATORS],
    responses=_NO_TENANT,
)
async def change_limits(
    context: Context, tenant: _Tenant, body: TenantLimitsBody, key_id: _OfKey = None
) -> TenantLimitsObject:
    """Change the limits that are named, and no others; null takes one away. Every process knows within a second."""
    await _require_tenant(context, tenant)
    if key_id is not None:
        await _require_key(context, tenant, key_id)
    gone = [name for name in LimitName if name.value in body.limits.model_fields_set]
    return await context.call_store(
        _change, _open_limits(context), tenant, key_id or "", _read(body), gone, body.weight
    )


async def _require_tenant(context: Context, tenant: str) -> None:
    try:
        await context.call_store(context.tenants.require_tenant, tenant)
    except TenantNotFound:
        raise tenant_not_found(tenant) from None


async def _require_key(context: Context, tenant: str, key_id: str) -> None:
    try:
        await context.call_store(context.tenants.require_key, tenant, key_id)
    except KeyNotFound:
        raise ApiError(404, f"Key not found: {key_id}", code="key_not_found", param="key_id") from None


def _open_limits(context: Context) -> TenantLimits:
    return TenantLimits(context.client.database)


def _read(body: LimitsBody) -> list[Limit]:
    given = {name: getattr(body.limits, name.value) for name in LimitName}
    return [
        Limit(name=name, value=_to_stored_value(name, wanted.at_most), waits=wanted.waits)
        for name, wanted in given.items()
        if wanted is not None
    ]


def _to_stored_value(name: LimitName, at_most: float) -> int:
    return int(Decimal(str(at_most)) * NANO) if name.is_money else int(at_most)


def _set(limits: TenantLimits, tenant: str, key_id: str, wanted: Sequence[Limit], weight: float | None) -> LimitsObject:
    limits.replace_limits(tenant, wanted, key_id=key_id)
    if weight is not None:
        limits.set_weight(tenant, weight)
    return _load_key(limits, tenant, key_id) if key_id else _load_own_limits(limits, tenant)


def _change(
    limits: TenantLimits,
    tenant: str,
    key_id: str,
    wanted: Sequence[Limit],
    named: Sequence[LimitName],
    weight: float | None,
) -> TenantLimitsObject:
    for limit in wanted:
        limits.set_limit(tenant, limit, key_id=key_id)
    for name in set(named) - {limit.name for limit in wanted}:
        limits.unset_limit(tenant, name, key_id=key_id)
    if weight is not None:
        limits.set_weight(tenant, weight)
    return _load(limits, tenant)


def _load_own_limits(limits: TenantLimits, tenant: str) -> LimitsObject:
    return _build_object(limits.list_limits(tenant), tenant, "", limits.load_weight(tenant))


def _load(limits: TenantLimits, tenant: str) -> TenantLimitsObject:
    found = limits.list_limits(tenant)
    keys = [_build_object(found, tenant, key_id) for key_id in dict.fromkeys(view.key_id for view in found) if key_id]
    own = _build_object(found, tenant, "")
    return TenantLimitsObject(tenant=tenant, limits=own.limits, weight=limits.load_weight(tenant), keys=keys)


def _load_key(limits: TenantLimits, tenant: str, key_id: str) -> LimitsObject:
    return _build_object(limits.list_limits(tenant), tenant, key_id)


def _build_object(found: Sequence[LimitView], tenant: str, key_id: str, weight: float | None = None) -> LimitsObject:
    shown = {view.name: _dump_value(view) for view in found if view.key_id == key_id}
    return LimitsObject(tenant=tenant, key_id=key_id or None, limits=LimitSet.model_validate(shown), weight=weight)


def _dump_value(view: LimitView) -> dict[str, object]:
    is_money = LimitName(view.name).is_money
    return {"at_most": view.value / NANO if is_money else view.value, "waits": bool(view.waits)}
