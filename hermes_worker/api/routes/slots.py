"""The calendar of scheduled jobs: which of their slots come next."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, needs
from hermes_worker.api.context import Context
from hermes_worker.core.principals import KeyScope
from hermes_worker.schemas.jobs import SlotList, SlotObject
from hermes_worker.store.jobs.jobs import Jobs
from scheduler.upcoming import ComingSlot, list_coming_slots

router = APIRouter(
    dependencies=[needs(KeyScope.JOBS)], prefix="/v1/slots", tags=["jobs"], responses=schema.declare_errors(503)
)
_DAYS_MAX = 366.0


class ListSlots(BaseModel):
    """Which slots to list."""

    model_config = ConfigDict(extra="forbid")

    days: float = Field(7.0, gt=0, le=_DAYS_MAX, description="How far to look ahead.")
    limit: int = Field(200, ge=1, le=1_000)


@router.get("", response_model=SlotList)
async def list_slots(context: Context, caller: Caller, wanted: Annotated[ListSlots, Query()]) -> SlotList:
    """The coming slots of all jobs that are scheduled. A job that is paused has none."""
    jobs = Jobs(context.client.database, caller.tenant)
    found = await context.call_store(_list_coming, jobs, wanted)
    data = [SlotObject(at=slot.at, job_id=slot.job_id, name=slot.name) for slot in found[: wanted.limit]]
    return SlotList(data=data, has_more=len(found) > wanted.limit)


def _list_coming(jobs: Jobs, wanted: ListSlots) -> list[ComingSlot]:
    now = jobs.read_clock()
    coming = list_coming_slots(jobs.list_jobs(include_disabled=False), now=now, until=now + wanted.days * 86_400)
    return list(islice(coming, wanted.limit + 1))
