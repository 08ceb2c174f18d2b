"""Alerts that operators got, and the targets of a tenant's alerts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import Field

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, FOR_SCALERS, declare_scope
from hermes_worker.api.bodies import JsonRoute
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError, RouteRefusal, answer_errors
from hermes_worker.api.formats import TextFormat, text
from hermes_worker.api.owners import ActsFor
from hermes_worker.api.schema import RequestBody
from hermes_worker.channels.targets import TARGETS_MAX
from hermes_worker.core.principals import DEFAULT_TENANT, KeyScope
from hermes_worker.features.alerts.schema import AlertList, AlertTargetsObject, TriedAlerts
from hermes_worker.services.submission import InvalidSubmission, list_targets
from hermes_worker.store.build import build_alert_policy
from hermes_worker.store.outbox.alerts import list_alerts, load_alert_targets, send_test_alert, set_alert_targets

router = APIRouter(
    prefix="/v1/alerts",
    tags=["health"],
    route_class=answer_errors({InvalidSubmission: RouteRefusal(400, "invalid_value", "targets", "{error}")}, JsonRoute),
    responses=schema.declare_errors(503),
)
_ADMIN = declare_scope(KeyScope.ADMIN)


@router.get("", response_model=AlertList, dependencies=[FOR_SCALERS])
async def list_newest_alerts(context: Context, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> AlertList:
    """The newest alerts of the whole installation, newest first. Without targets for alerts there are none."""
    found = await context.call_store(list_alerts, context.client.database, limit=limit)
    return AlertList.model_validate({"data": found}, from_attributes=True)


@router.post("/test", status_code=202, responses=schema.declare_errors(409), dependencies=[FOR_OPERATORS])
async def try_alert_targets(context: Context, later: BackgroundTasks) -> TriedAlerts:
    """Send a text to every target of alerts, as a delivery."""
    owed = await context.call_store(
        send_test_alert, context.client.database, build_alert_policy(context.client.settings)
    )
    if not owed:
        message = (
            "alerts.targets (HERMES_ALERT_TARGETS) is not set there, so nobody is told; set it to targets of yours."
        )
        raise ApiError(409, message, code="no_alert_targets")
    later.add_task(context.tell_broker, context.client.publisher.send, owed)
    return TriedAlerts(owed=len(owed))


class AlertTargetsBody(RequestBody):
    """All targets there are to be."""

    targets: list[Annotated[str, text(TextFormat.TARGETS)]] = Field(
        max_length=TARGETS_MAX, description="Where the tenant may send: 'local', 'webhook:...', 'apprise:...'."
    )


@router.get("/targets", dependencies=[_ADMIN], responses=schema.declare_errors(404, 409))
async def show_alert_targets(context: Context, tenant: ActsFor) -> AlertTargetsObject:
    """The targets of a tenant's alerts about its limits of spending and the budgets of its runs."""
    _require_own(tenant)
    return AlertTargetsObject(
        tenant=tenant, targets=await context.call_store(load_alert_targets, context.client.database, tenant)
    )


@router.put("/targets", dependencies=[_ADMIN], responses=schema.declare_errors(404, 409))
async def replace_alert_targets(context: Context, tenant: ActsFor, body: AlertTargetsBody) -> AlertTargetsObject:
    """Let these be all targets of a tenant for alerts about itself; none for no alerts. Idempotent."""
    _require_own(tenant)
    targets = list_targets(body.targets, tenant)
    await context.call_store(set_alert_targets, context.client.database, tenant, targets)
    return AlertTargetsObject(tenant=tenant, targets=sorted(set(targets)))


def _require_own(tenant: str) -> None:
    """Raise ``ApiError`` for the default tenant, whose targets are those of the installation."""
    if tenant == DEFAULT_TENANT:
        message = "The targets of the installation are alerts.targets (HERMES_ALERT_TARGETS); name another tenant."
        raise ApiError(409, message, code="targets_in_settings", param="tenant")
