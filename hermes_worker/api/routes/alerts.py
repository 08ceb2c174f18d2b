"""What operators were told is wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Query
from pydantic import BaseModel

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_OPERATORS, FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.store.outbox.alerts import list_alerts, try_alerts
from hermes_worker.wiring import alert_policy

router = APIRouter(prefix="/v1/alerts", tags=["health"], responses=schema.errors(503))


@router.get("", response_model=schema.AlertList, dependencies=[FOR_SCALERS])
async def list_newest_alerts(context: Context, limit: Annotated[int, Query(ge=1, le=1_000)] = 100) -> schema.AlertList:
    """The newest alerts of the whole installation, newest first. Without targets for alerts there are none."""
    found = await context.store(list_alerts, context.client.database, limit=limit)
    return schema.AlertList(
        data=[
            schema.AlertObject(
                kind=alert.kind,
                subject=alert.subject,
                text=alert.text,
                raised_at=alert.raised_at,
                recovered_at=alert.recovered_at,
            )
            for alert in found
        ]
    )


class TriedAlerts(BaseModel):
    """Deliveries that are owed to the targets of alerts."""

    owed: int


@router.post("/test", status_code=202, responses=schema.errors(409), dependencies=[FOR_OPERATORS])
async def try_alert_targets(context: Context, later: BackgroundTasks) -> TriedAlerts:
    """Send a text to every target of alerts, as a delivery."""
    owed = await context.store(try_alerts, context.client.database, alert_policy(context.client.settings))
    if not owed:
        message = (
            "alerts.targets (HERMES_ALERT_TARGETS) is not set there, so nobody is told; set it to targets of yours."
        )
        raise ApiError(409, message, code="no_alert_targets")
    later.add_task(context.tell_broker, context.client.publisher.send, owed)
    return TriedAlerts(owed=len(owed))
