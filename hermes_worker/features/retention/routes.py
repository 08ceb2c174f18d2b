"""Retention: the rules, the holds that override them, and the deletion of what the rules let go."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Literal

from fastapi import APIRouter, Path
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import ApiContext, Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors, invalid
from hermes_worker.api.formats import NO_NUL, NOT_BLANK
from hermes_worker.api.schema import RequestBody
from hermes_worker.core.principals import DEFAULT_TENANT, KeyScope
from hermes_worker.core.retention_rules import InvalidRule, RetentionKind, RetentionRule, parse_rule
from hermes_worker.features.retention.build import build_pruner, build_retention_rules, prune_files_here
from hermes_worker.features.retention.hold_rows import HoldNotFound, LegalHold, Retention
from hermes_worker.features.retention.rows import Pruned, record_prune
from hermes_worker.features.retention.schema import (
    HoldList,
    HoldReleased,
    HoldView,
    PrunedPlace,
    PruneObject,
    RulesObject,
)
from hermes_worker.store.runs.runs import RunNotFound, SessionNotFound

router = APIRouter(
    prefix="/v1",
    tags=["retention"],
    route_class=answer_errors(
        {
            HoldNotFound: RouteRefusal(404, "hold_not_found", "number", "There is no such hold."),
            InvalidRule: RouteRefusal(400, "invalid_value", "rules"),
        },
        JsonRoute,
    ),
    dependencies=[declare_scope(KeyScope.ADMIN)],
    responses=schema.declare_errors(503),
)
_AT_IT_S = 5.0
"""Seconds for which one request deletes; the next one goes on."""
_Number = Annotated[int, Path(ge=1, le=2**53)]


class ChangedRules(RequestBody):
    rules: dict[
        Literal[
            "idempotency_keys",
            "webhook_events",
            "inbound",
            "tombstones",
            "deliveries",
            "firings",
            "artifacts",
            "memory",
            "events",
            "runs",
            "transcripts",
            "audit",
            "outputs",
            "workspaces",
        ],
        Annotated[str, Field(max_length=40)] | None,
    ] = Field(description="By kind; null lets the installation's rule hold again.")


class NewHold(RequestBody):
    reason: str = Field(
        min_length=1, max_length=2_000, pattern=NOT_BLANK, description="Why, for whoever wants to release it."
    )
    run_id: str | None = Field(None, max_length=200, pattern=NO_NUL, description="Hold the chain of this run.")
    session_id: str | None = Field(
        None, max_length=300, pattern=NO_NUL, description="Hold this session. Without both, everything is held."
    )


class PruneBody(RequestBody):
    dry_run: bool = Field(True, description="Only count what would be deleted.")
    all_tenants: bool = Field(False, description="Those of every tenant; for operators.")
    after: PrunedPlace | None = Field(None, description="The 'next' of the answer before.")


@router.get("/retention")
async def show_rules(context: Context, caller: Caller) -> RulesObject:
    """The rules that hold for the tenant."""
    return await context.call_store(_load_rules, _open_retention(context), caller.tenant)


@router.patch("/retention")
async def change_rules(context: Context, caller: Caller, body: ChangedRules) -> RulesObject:
    """Give the tenant rules of its own, and take them back."""
    wanted = {
        RetentionKind(kind): None if text is None else parse_rule(RetentionKind(kind), text)
        for kind, text in body.rules.items()
    }
    return await context.call_store(_change, _open_retention(context), caller.tenant, wanted)


def _change(retention: Retention, tenant: str, wanted: Mapping[RetentionKind, RetentionRule | None]) -> RulesObject:
    for kind, rule in wanted.items():
        if rule is None:
            retention.unset_rule(tenant, kind)
        else:
            retention.set_rule(tenant, kind, rule)
    return _load_rules(retention, tenant)


def _load_rules(retention: Retention, tenant: str) -> RulesObject:
    return RulesObject(rules={kind.value: str(rule) for kind, rule in retention.load_rules(tenant).items()})


def _open_retention(context: ApiContext) -> Retention:
    return Retention(context.client.database, build_retention_rules(context.client.settings))


# --- holds -----------------------------------------------------------------------------------------------------------


@router.get("/holds")
async def list_holds(context: Context, caller: Caller) -> HoldList:
    """What is held of the tenant."""
    found = await context.call_store(_open_retention(context).list_holds, caller.tenant)
    return HoldList(data=[_describe_hold(hold) for hold in found])


def _describe_hold(hold: LegalHold) -> HoldView:
    return HoldView.model_validate(hold, from_attributes=True)


@router.post("/holds", status_code=201, responses=schema.declare_errors(404))
async def place_hold(context: Context, caller: Caller, body: NewHold) -> HoldView:
    """Hold a run, a session or everything of the tenant: it is kept until the hold is released, even where the rules
    let it go."""
    if body.run_id is not None and body.session_id is not None:
        raise invalid("session_id", "Invalid 'session_id': name a run or a session, not both.")
    try:
        placed = await context.call_store(
            _open_retention(context).place_hold,
            caller.tenant,
            reason=body.reason,
            by=caller.display_name,
            run_id=body.run_id,
            session_id=body.session_id,
            source=caller.source,
        )
    except RunNotFound:
        message = f"Run not found: {body.run_id}. Nothing is held; 'hermes-worker runs list' shows the runs there are."
        raise ApiError(404, message, code="run_not_found", param="run_id") from None
    except SessionNotFound as error:
        message = f"Session not found: {error}. Nothing is held."
        raise ApiError(404, message, code="session_not_found", param="session_id") from None
    return _describe_hold(placed)


@router.delete("/holds/{number}", responses=schema.declare_errors(404))
async def release_hold(context: Context, caller: Caller, number: _Number) -> HoldReleased:
    """End a hold."""
    await context.call_store(_open_retention(context).release, caller.tenant, number)
    return HoldReleased(number=number)


# --- deletion --------------------------------------------------------------------------------------------------------


@router.post("/prunes")
async def prune(context: Context, caller: Caller, body: PruneBody) -> PruneObject:
    """Delete for some seconds what the rules let go, or count it. Workers do the same by themselves."""
    if body.all_tenants and not caller.is_of_operators:
        message = f"'all_tenants' is about the whole installation: it needs a key of the tenant {DEFAULT_TENANT!r}."
        raise ApiError(403, message, code="missing_scope", param="all_tenants")
    return await context.call_store(_prune_some, context, None if body.all_tenants else caller.tenant, body)


def _prune_some(context: ApiContext, tenant: str | None, body: PruneBody) -> PruneObject:
    database, settings = context.client.database, context.client.settings
    if not body.dry_run and body.after is None:
        record_prune(database, tenant)
    counts: Counter[str] = Counter()
    ends_at = time.monotonic() + _AT_IT_S
    after = Pruned(what="", count=0, **body.after.model_dump()) if body.after else None
    for batch in build_pruner(database, settings).prune_stepwise(tenant=tenant, acts=not body.dry_run, after=after):
        counts[batch.what] += batch.count
        # The texts to which nothing refers come last, and belong to no tenant.
        may_stop = batch.within if batch.tenant else batch.count
        if may_stop and time.monotonic() > ends_at:
            place = PrunedPlace(within=batch.within, is_through=batch.is_through, tenant=batch.tenant)
            goes_on = None if body.dry_run else place
            return PruneObject(dry_run=body.dry_run, counts=counts, done=False, next=goes_on)
    if not body.dry_run and tenant in (None, DEFAULT_TENANT):
        counts.update({kind.value: count for kind, count in prune_files_here(database, settings).items()})
    return PruneObject(dry_run=body.dry_run, counts=counts, done=True, next=None)
