"""The backlog: how much work waits, by queue. Scalers read it."""

from __future__ import annotations

from fastapi import APIRouter

from hermes_worker.api import schema
from hermes_worker.api.auth import FOR_SCALERS
from hermes_worker.api.context import Context
from hermes_worker.schemas.fleet import BacklogObject
from hermes_worker.store.backlog import read_backlog

router = APIRouter(prefix="/v1/backlog", tags=["health"], responses=schema.declare_errors(503))


@router.get("", response_model=BacklogObject, dependencies=[FOR_SCALERS])
async def show_backlog(context: Context) -> BacklogObject:
    """The steps that wait and the steps at work in the whole installation, as in the view ``hermes_backlog``."""
    found = await context.call_store(read_backlog, context.client.database)
    return BacklogObject.model_validate({"queues": {each.queue: each for each in found}}, from_attributes=True)
