"""What operators were told is wrong."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.store.outbox.alerts import list_alerts

router = APIRouter(prefix="/v1/alerts", tags=["health"], responses=schema.errors(503))


@router.get("", response_model=schema.AlertList, dependencies=[FOR_SCALERS])
async def list_newest_alerts(context: Context, limit: Annotated[int, Query(ge=1, le=500)] = 100) -> schema.AlertList:
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
