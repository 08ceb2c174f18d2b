"""The settings of this installation, one by one, with the layer that set each; and the overrides of a session."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, READS, WRITES, Caller
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import invalid, tenant_not_found
from hermes_worker.api.formats import NO_NUL, TENANT_FORM
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.core.overrides import OVERRIDABLE
from hermes_worker.safety.redaction import redact
from hermes_worker.schemas.settings import SessionSettingsObject, SettingList, SettingObject
from hermes_worker.services.effective_settings import SettingsScope, find_effective_settings, override_for_session
from hermes_worker.settings import SettingWithSource
from hermes_worker.settings.configuration_id import name_configuration
from hermes_worker.store.access.principals import TenantNotFound
from hermes_worker.store.configurations import Configurations
from hermes_worker.wiring import Client

router = APIRouter(prefix="/v1", tags=["settings"], route_class=JsonRoute, responses=schema.declare_errors(503))


class ListSettings(BaseModel, extra="forbid"):
    """Which settings to list, and for whom."""

    prefix: str | None = Field(None, max_length=100, pattern=NO_NUL, description="Only those whose key begins so.")
    tenant: str | None = Field(None, pattern=TENANT_FORM, description="As a run of this tenant is accepted with now.")
    session_id: str | None = Field(
        None, max_length=256, pattern=NO_NUL, description="As a run of this session is accepted with now."
    )
    run_id: str | None = Field(None, max_length=100, pattern=NO_NUL, description="As this run was accepted with.")


class SessionSettingsBody(RequestBody):
    """Overrides to set for a session; ``null`` removes one, and settings that are not named stay."""

    settings: Annotated[
        dict[
            schema.SettingKey,
            schema.SettingText | None,
        ],
        Field(max_length=64),
    ]


@router.get("/settings", dependencies=[FOR_OPERATORS], responses=schema.declare_errors(400, 404))
async def list_settings(context: Context, question: Annotated[ListSettings, Query()]) -> SettingList:
    """Every setting with its value, where that comes from, and when a change takes effect. Secrets are withheld."""
    about = SettingsScope(tenant=question.tenant, session_id=question.session_id, run_id=question.run_id)
    if about.is_ambiguous:
        raise invalid("run_id", "Name one of 'tenant', 'session_id' and 'run_id'.")
    try:
        return await context.call_store(_list_settings, context.client, about, question.prefix or "")
    except TenantNotFound:
        raise tenant_not_found(about.tenant) from None


@router.get("/sessions/{session_id}/settings", dependencies=[READS], responses=schema.declare_errors(404))
async def show_session_settings(context: Context, caller: Caller, session_id: str) -> SessionSettingsObject:
    """The overrides of a session."""
    rows = Configurations(context.client.database)
    said = await context.call_store(rows.require_overrides, caller.tenant, session_id, caller.source)
    return SessionSettingsObject(session_id=session_id, settings=said)


@router.put("/sessions/{session_id}/settings", dependencies=[WRITES], responses=schema.declare_errors(400, 404))
async def change_session_settings(
    context: Context, caller: Caller, session_id: str, body: SessionSettingsBody
) -> SessionSettingsObject:
    """Override settings for the runs of a session that are accepted from now on. An override may not allow more than
    the levels above it: the process, the fleet and the tenant."""
    try:
        asked = (context.client, caller.tenant, session_id, body.settings, caller.source)
        said = await context.call_store(override_for_session, *asked)
    except ConfigurationError as error:
        raise invalid("settings", str(error)) from None
    return SessionSettingsObject(session_id=session_id, settings=said)


def _list_settings(client: Client, about: SettingsScope, prefix: str) -> SettingList:
    chosen = find_effective_settings(client.live_settings, client.database, about)
    return SettingList(
        configuration=name_configuration(chosen.settings),
        layers=dict(chosen.layers),
        problems=dict(client.live_settings.list_problems()),
        data=[_build_object(each) for each in chosen.list_with_sources() if each.key.startswith(prefix)],
    )


def _build_object(told: SettingWithSource) -> SettingObject:
    which = OVERRIDABLE.get(told.key)
    return SettingObject.from_record(
        told,
        value=None if told.value is None else redact(told.value),
        layer=told.layer.value,
        is_live=which is not None,
        overridable_for=list(which.levels) if which else [],
        description=told.doc,
    )
