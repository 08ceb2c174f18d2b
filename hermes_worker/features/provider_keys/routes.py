"""Keys of providers that tenants bring: added, listed and removed by operators, and never shown."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path
from pydantic import BaseModel, Field, SecretStr, WithJsonSchema

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.features.provider_keys.rows import (
    KEY_CHARS_MAX,
    ProviderKeyInvalid,
    ProviderKeyNotFound,
    ProviderKeys,
    ProviderKeysFull,
)
from hermes_worker.features.provider_keys.schema import ProviderKeyList, ProviderKeyObject
from hermes_worker.features.provider_keys.service import ProviderUnknown, add_provider_key
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.engine.database import TextsInClear

router = APIRouter(
    prefix="/v1/tenants",
    tags=["tenants"],
    route_class=answer_errors(
        {
            TenantNotFound: RouteRefusal(404, "tenant_not_found", "tenant", "Tenant not found: {tenant}"),
            ProviderUnknown: RouteRefusal(404, "provider_unknown", "provider"),
            ProviderKeyInvalid: RouteRefusal(400, "key_invalid", "key"),
            ProviderKeyNotFound: RouteRefusal(
                404, "key_not_found", "provider_key_id", "Provider key not found: {provider_key_id}"
            ),
            TextsInClear: RouteRefusal(409, "texts_in_clear"),
            ProviderKeysFull: RouteRefusal(409, "too_many_keys"),
        },
        JsonRoute,
    ),
    responses=schema.declare_errors(503),
)


_KEY = {"type": "string", "pattern": f"^[!-~]{{8,{KEY_CHARS_MAX}}}$", "writeOnly": True}


class ProviderKeyBody(BaseModel, extra="forbid", hide_input_in_errors=True):
    """A key that a tenant brings."""

    provider: str = Field(min_length=1, max_length=100, description="A name of the catalogue, or an alias in it.")
    key: Annotated[SecretStr, WithJsonSchema(_KEY)] = Field(min_length=8, max_length=KEY_CHARS_MAX)


_Tenant = Annotated[str, Path(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
_KeyId = Annotated[str, Path(pattern=r"^pkey_[0-9a-f]{12}$")]


@router.get("/{tenant}/provider-keys", dependencies=[FOR_OPERATORS], responses=schema.declare_errors(400, 404))
async def list_provider_keys(context: Context, tenant: _Tenant) -> ProviderKeyList:
    """The provider keys that a tenant brought, without the keys."""
    await context.call_store(context.tenants.require_tenant, tenant)
    found = await context.call_store(ProviderKeys(context.client.database).list_of_tenant, tenant)
    return ProviderKeyList.model_validate({"data": found}, from_attributes=True)


@router.post(
    "/{tenant}/provider-keys",
    status_code=201,
    dependencies=[FOR_OPERATORS],
    responses=schema.declare_errors(400, 404, 409),
)
async def create_provider_key(context: Context, tenant: _Tenant, body: ProviderKeyBody) -> ProviderKeyObject:
    """Have a tenant be asked for with a key of its own at a provider, and with no key of the installation from then on.
    Workers know within two seconds. A key that is there already stays as it is. Texts in the database have to be
    encrypted, so that the key is."""
    database = context.client.database
    made = await context.call_store(add_provider_key, database, tenant, body.provider, body.key.get_secret_value())
    return ProviderKeyObject.model_validate(made, from_attributes=True)


@router.delete(
    "/{tenant}/provider-keys/{provider_key_id}", dependencies=[FOR_OPERATORS], responses=schema.declare_errors(400, 404)
)
async def delete_provider_key(context: Context, tenant: _Tenant, provider_key_id: _KeyId) -> ProviderKeyObject:
    """Delete a provider key of a tenant; it is answered once more, without the key. When it was the last, the tenant's
    runs are asked for with keys of the installation."""
    gone = await context.call_store(ProviderKeys(context.client.database).remove, tenant, provider_key_id)
    return ProviderKeyObject.model_validate(gone, from_attributes=True)
