"""The audit log of the caller's tenant."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.context import Context
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.owners import choose_tenant_or_all
from hermes_worker.core.principals import KeyScope
from hermes_worker.features.audit.schema import DeedList
from hermes_worker.store.access.audit import SETTLED_S, Act, AuditLog

router = APIRouter(prefix="/v1/audit", tags=["audit"], responses=schema.declare_errors(503))


class ListAudit(BaseModel, extra="forbid"):
    """Which deeds to list."""

    limit: int = Field(100, ge=1, le=1000)
    after: int = Field(0, ge=0, le=2**53, description="A deed's number: list what was done behind it.")
    before: int | None = Field(None, ge=1, le=2**53, description="A deed's number: list what was done before it.")
    newest_first: bool = Field(False, description="Begin with the newest; go on with 'before'.")
    act: Act | None = None
    subject: str | None = Field(None, max_length=200, pattern=NO_NUL)
    actor: str | None = Field(None, max_length=200, pattern=NO_NUL)
    since: float | None = Field(None, ge=0, le=1e11, description="Epoch seconds.")
    until: float | None = Field(None, ge=0, le=1e11, description="Epoch seconds, exclusive.")
    settled: bool = Field(
        False, description="Only deeds so old that none can appear before them any more: for an export that goes on."
    )
    all_tenants: bool = Field(False, description="Those of all tenants; for operators.")


@router.get("", response_model=DeedList, response_model_exclude_none=True, dependencies=[declare_scope(KeyScope.ADMIN)])
async def list_deeds(context: Context, caller: Caller, wanted: Annotated[ListAudit, Query()]) -> DeedList:
    """The audit log of the caller's tenant, oldest first unless asked otherwise. Numbers grow with time; a deed of the
    last seconds may appear late, behind a greater number."""
    tenant = choose_tenant_or_all(caller, all_tenants=wanted.all_tenants)
    until = wanted.until
    if wanted.settled:
        settled = await context.call_store(context.client.database.read_clock) - SETTLED_S
        until = settled if until is None else min(until, settled)
    found = await context.call_store(
        AuditLog(context.client.database).list_actions,
        tenant,
        after=wanted.after,
        before=wanted.before,
        newest_first=wanted.newest_first,
        limit=wanted.limit + 1,
        act=wanted.act.value if wanted.act else None,
        subject=wanted.subject,
        actor=wanted.actor,
        since=wanted.since,
        until=until,
    )
    document = {"data": found[: wanted.limit], "has_more": len(found) > wanted.limit}
    return DeedList.model_validate(document, from_attributes=True)
