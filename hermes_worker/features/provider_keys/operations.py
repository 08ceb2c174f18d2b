"""The operations of the API about provider keys of tenants."""

from __future__ import annotations

from hermes_worker.features.provider_keys.schema import ProviderKeyObject
from hermes_worker.operation import ApiRequest, build_get, build_post, make_reader


def provider_keys(tenant: str) -> ApiRequest[list[ProviderKeyObject]]:
    """The provider keys that a tenant brought, without the keys; for operators."""
    template = "/v1/tenants/{tenant}/provider-keys"
    return build_get(template, make_reader(list[ProviderKeyObject], "data"), {"tenant": tenant})


def add_provider_key(
    tenant: str, provider: str, key: str, *, idempotency_key: str | None = None
) -> ApiRequest[ProviderKeyObject]:
    """Give a tenant a provider key of its own; for operators. Adding the same key again changes nothing."""
    body = {"provider": provider, "key": key}
    template = "/v1/tenants/{tenant}/provider-keys"
    return build_post(template, make_reader(ProviderKeyObject), {"tenant": tenant}, body=body, key=idempotency_key)


def remove_provider_key(tenant: str, provider_key_id: str) -> ApiRequest[ProviderKeyObject]:
    """Delete a provider key of a tenant; for operators."""
    return ApiRequest(
        method="DELETE",
        template="/v1/tenants/{tenant}/provider-keys/{provider_key_id}",
        read=make_reader(ProviderKeyObject),
        names={"tenant": tenant, "provider_key_id": provider_key_id},
    )
