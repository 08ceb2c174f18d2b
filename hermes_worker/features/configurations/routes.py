"""The configuration of the fleet and of its tenants: read, written and looked up again, by operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL, TENANT_FORM
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.principals import Principal
from hermes_worker.features.configurations.schema import ConfigurationList, ConfigurationObject
from hermes_worker.features.configurations.service import write_configuration
from hermes_worker.settings.overriding import TEXT_CHARS_MAX
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.configurations import (
    VERSIONS_KEPT,
    ConfigurationMoved,
    Configurations,
    ConfigurationVersion,
)

router = APIRouter(
    prefix="/v1",
    tags=["settings"],
    route_class=answer_errors(
        {
            ConfigurationError: RouteRefusal(400, "invalid_value", "text", "{error}"),
            ConfigurationMoved: RouteRefusal(409, "configuration_moved", "version"),
            TenantNotFound: RouteRefusal(404, "tenant_not_found", "tenant", "Tenant not found: {tenant}"),
        },
        JsonRoute,
    ),
    dependencies=[FOR_OPERATORS],
    responses=schema.declare_errors(503),
)
_VERSION_MAX = 10**9


class ConfigurationBody(RequestBody):
    """The configuration that there is to be."""

    text: str = Field(
        max_length=TEXT_CHARS_MAX, pattern=NO_NUL, description="As config.yaml is written; no secrets, no variables."
    )
    version: Annotated[int, schema.WHOLE] = Field(
        ge=0,
        le=_VERSION_MAX,
        description="The version that was read; 0 when there was none. Another one is not replaced.",
    )


_Tenant = Annotated[str, Path(pattern=TENANT_FORM)]
_Limit = Annotated[int, Query(ge=1, le=VERSIONS_KEPT)]


@router.get("/configuration")
async def show_configuration(context: Context) -> ConfigurationObject:
    """The configuration of the fleet."""
    return await _load(context, None)


@router.put("/configuration", responses=schema.declare_errors(400, 409))
async def write_fleet_configuration(context: Context, caller: Caller, body: ConfigurationBody) -> ConfigurationObject:
    """Write the configuration of the fleet. What a run reads when it is accepted counts for all that are accepted a
    second later; the rest when processes are started again. A text that cannot be used is not written."""
    return await _write(context, caller, None, body)


@router.get("/configuration/versions")
async def list_configuration_versions(context: Context, limit: _Limit = 20) -> ConfigurationList:
    """The versions of the configuration of the fleet."""
    return await _list_versions(context, None, limit)


@router.get("/tenants/{tenant}/configuration", responses=schema.declare_errors(400, 404))
async def show_tenant_configuration(context: Context, tenant: _Tenant) -> ConfigurationObject:
    """The settings that are overridden for a tenant."""
    return await _load(context, tenant)


@router.put("/tenants/{tenant}/configuration", responses=schema.declare_errors(400, 404, 409))
async def write_tenant_configuration(
    context: Context, caller: Caller, tenant: _Tenant, body: ConfigurationBody
) -> ConfigurationObject:
    """Override settings for the runs of a tenant that are accepted a second later. Its sessions and runs may say less
    of each limit, and never more."""
    return await _write(context, caller, tenant, body)


@router.get("/tenants/{tenant}/configuration/versions", responses=schema.declare_errors(400, 404))
async def list_tenant_configuration_versions(
    context: Context, tenant: _Tenant, limit: _Limit = 20
) -> ConfigurationList:
    """The versions of what was overridden for a tenant."""
    return await _list_versions(context, tenant, limit)


async def _load(context: Context, tenant: str | None) -> ConfigurationObject:
    await _require(context, tenant)
    found = await context.call_store(Configurations(context.client.database).find, tenant)
    if found is None:
        return ConfigurationObject(tenant=tenant, version=0, text="", written_by=None, created_at=None)
    return _build_object(found)


async def _list_versions(context: Context, tenant: str | None, limit: int) -> ConfigurationList:
    await _require(context, tenant)
    found = await context.call_store(Configurations(context.client.database).list_versions, tenant, limit)
    return ConfigurationList(data=[_build_object(each) for each in found])


async def _write(
    context: Context, caller: Principal, tenant: str | None, body: ConfigurationBody
) -> ConfigurationObject:
    await _require(context, tenant)
    made = await context.call_store(
        write_configuration,
        context.client.database,
        tenant,
        body.text,
        expected=body.version,
        written_by=caller.name or caller.tenant,
    )
    return _build_object(made)


async def _require(context: Context, tenant: str | None) -> None:
    if tenant is not None:
        await context.call_store(context.tenants.require_tenant, tenant)


def _build_object(row: ConfigurationVersion) -> ConfigurationObject:
    return ConfigurationObject(
        tenant=row.of_tenant or None,
        version=row.version,
        text=row.text,
        written_by=row.written_by,
        created_at=row.created_at,
    )
