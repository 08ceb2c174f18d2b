"""The operations of the API about tenants, their keys and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hermes_worker.features.tenants.key_schema import (
    DisabledTenant,
    KeyView,
    NewKeyObject,
    PlacesBody,
    TenantObject,
    TenantView,
)
from hermes_worker.features.tenants.schema import LimitsObject, TenantLimitsObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader, read_nothing


def limits() -> ApiRequest[TenantLimitsObject]:
    """What the key's tenant may use, and each of its keys that has limits of its own."""
    return build_get("/v1/limits", make_reader(TenantLimitsObject))


def key_limits(key_id: str) -> ApiRequest[LimitsObject]:
    """The limits of a key of the tenant."""
    return build_get("/v1/limits/keys/{key_id}", make_reader(LimitsObject), {"key_id": key_id})


def set_key_limits(key_id: str, limits: Mapping[str, Any]) -> ApiRequest[LimitsObject]:
    """Set the limits of a key of the tenant: ``{"runs": {"at_most": 5}}``. Those that are not named there are none."""
    return ApiRequest(
        method="PUT",
        template="/v1/limits/keys/{key_id}",
        read=make_reader(LimitsObject),
        names={"key_id": key_id},
        body={"limits": dict(limits)},
    )


def tenant_limits(tenant: str) -> ApiRequest[TenantLimitsObject]:
    """What a tenant may use; for operators."""
    return build_get("/v1/tenants/{tenant}/limits", make_reader(TenantLimitsObject), {"tenant": tenant})


def set_tenant_limits(
    tenant: str, limits: Mapping[str, Any], *, weight: float | None = None, key_id: str | None = None
) -> ApiRequest[LimitsObject]:
    """Set the limits of a tenant, or of one of its keys; for operators."""
    return ApiRequest(
        method="PUT",
        template="/v1/tenants/{tenant}/limits",
        read=make_reader(LimitsObject),
        names={"tenant": tenant},
        params={"key_id": key_id},
        body={"limits": dict(limits), "weight": weight},
    )


def change_tenant_limits(
    tenant: str, limits: Mapping[str, Any], *, weight: float | None = None, key_id: str | None = None
) -> ApiRequest[TenantLimitsObject]:
    """Change the limits that are named, and no others; ``None`` takes one away. For operators."""
    return ApiRequest(
        method="PATCH",
        template="/v1/tenants/{tenant}/limits",
        read=make_reader(TenantLimitsObject),
        names={"tenant": tenant},
        params={"key_id": key_id},
        body={"limits": dict(limits), "weight": weight},
    )


def tenants() -> ApiRequest[list[TenantView]]:
    """All tenants, with the number of their runs and keys; for operators."""
    return build_get("/v1/tenants", make_reader(list[TenantView], "data"))


def create_tenant(name: str) -> ApiRequest[TenantObject]:
    """Make a tenant; for operators."""
    return build_post("/v1/tenants", make_reader(TenantObject), body={"name": name})


def disable_tenant(tenant: str, *, stop: bool = False) -> ApiRequest[DisabledTenant]:
    """Let nothing new begin for a tenant; for operators. With ``stop``, ask some of its runs to stop as well, and tell
    how many ``open_runs`` are left for the next request."""
    read = make_reader(DisabledTenant)
    return build_post("/v1/tenants/{tenant}/disable", read, {"tenant": tenant}, body={"stop": stop})


def enable_tenant(tenant: str) -> ApiRequest[TenantObject]:
    """Let a disabled tenant work again; for operators. Idempotent."""
    return build_post("/v1/tenants/{tenant}/enable", make_reader(TenantObject), {"tenant": tenant})


def set_places(places: int | None) -> ApiRequest[PlacesBody]:
    """How many runs may be at work at once in the whole fleet; ``None`` for as many as its workers say. For
    operators."""
    body = {"places": places}
    return ApiRequest(method="PUT", template="/v1/places", read=make_reader(PlacesBody), body=body)


def keys(*, tenant: str | None = None) -> ApiRequest[list[KeyView]]:
    """The keys of the tenant, without what makes them keys; operators may name another ``tenant``."""
    return build_get("/v1/keys", make_reader(list[KeyView], "data"), tenant=tenant)


def create_key(
    holder: str, *, scopes: Sequence[str] | None = None, expires_in_s: float | None = None, tenant: str | None = None
) -> ApiRequest[NewKeyObject]:
    """Make a key: ``key`` of the answer is shown this once. Sent once: when the answer is lost, so is the key."""
    body = {"holder": holder, "expires_in_s": expires_in_s, **({"scopes": list(scopes)} if scopes else {})}
    made = build_post("/v1/keys", make_reader(NewKeyObject), body=body)
    return replace(made, params={"tenant": tenant}, is_sent_once=True)


def rotate_key(key_id: str, *, overlap_s: float = 86_400.0, tenant: str | None = None) -> ApiRequest[NewKeyObject]:
    """Make a key in the place of another, which ends in ``overlap_s`` seconds. Sent once, as ``create_key``."""
    made = build_post(
        "/v1/keys/{key_id}/rotate", make_reader(NewKeyObject), {"key_id": key_id}, body={"overlap_s": overlap_s}
    )
    return replace(made, params={"tenant": tenant}, is_sent_once=True)


def revoke_key(key_id: str, *, tenant: str | None = None) -> ApiRequest[None]:
    """Revoke a key now. Idempotent."""
    names = {"key_id": key_id}
    return ApiRequest(
        method="DELETE", template="/v1/keys/{key_id}", read=read_nothing, names=names, params={"tenant": tenant}
    )
