"""The calendar of scheduled jobs, and of a schedule that somebody is writing: which slots come next."""

from __future__ import annotations

from itertools import chain, islice, takewhile
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.api.formats import NO_NUL
from hermes_worker.core.principals import KeyScope
from hermes_worker.schemas.jobs import SlotList, SlotObject
from hermes_worker.store.jobs.jobs import Jobs
from scheduler.grammar import TEXT_CHARS_MAX, ScheduleError, ScheduleOptions, parse_schedule, require_future
from scheduler.jobs import to_instant
from scheduler.schedule import iterate_slots
from scheduler.upcoming import ComingSlot, list_coming_slots

router = APIRouter(
    dependencies=[declare_scope(KeyScope.JOBS)],
    prefix="/v1/slots",
    tags=["jobs"],
    route_class=answer_errors({ScheduleError: RouteRefusal(400, "invalid_value", "schedule", "{error}")}),
    responses=schema.declare_errors(503),
)
_DAYS_MAX = 366.0


class ListSlots(BaseModel, extra="forbid"):
    """Which slots to list."""

    days: float = Field(7.0, gt=0, le=_DAYS_MAX, description="How far to look ahead.")
    limit: int = Field(200, ge=1, le=1_000)
    schedule: str | None = Field(
        None,
        min_length=1,
        max_length=TEXT_CHARS_MAX,
        pattern=NO_NUL,
        description="Foretell the slots of this schedule, which no job has, instead; 'job_id' and 'name' are empty.",
    )
    timezone: str = Field("UTC", max_length=100, pattern=NO_NUL, description="IANA name of its clock.")


@router.get("", response_model=SlotList)
async def list_slots(context: Context, caller: Caller, wanted: Annotated[ListSlots, Query()]) -> SlotList:
    """The coming slots of all jobs that are scheduled. A job that is paused has none."""
    jobs = Jobs(context.client.database, caller.tenant)
    found = await context.call_store(_list_coming if wanted.schedule is None else _foretell, jobs, wanted)
    data = [SlotObject(at=slot.at, job_id=slot.job_id, name=slot.name) for slot in found[: wanted.limit]]
    return SlotList(data=data, has_more=len(found) > wanted.limit)


def _list_coming(jobs: Jobs, wanted: ListSlots) -> list[ComingSlot]:
    now = jobs.read_clock()
    coming = list_coming_slots(jobs.list_jobs(include_disabled=False), now=now, until=now + wanted.days * 86_400)
    return list(islice(coming, wanted.limit + 1))


def _foretell(jobs: Jobs, wanted: ListSlots) -> list[ComingSlot]:
    """List the slots of a schedule as a job would have them that is made now. Raises ``ScheduleError``."""
    now = to_instant(jobs.read_clock())
    schedule = parse_schedule(wanted.schedule or "", now=now, options=ScheduleOptions(timezone=wanted.timezone))
    first = require_future(schedule, now)
    coming = chain((first,), iterate_slots(schedule, first))
    until = now.timestamp() + wanted.days * 86_400
    ats = takewhile(lambda at: at <= until, (slot.timestamp() for slot in coming))
    return [ComingSlot(at=at, job_id="", name="") for at in islice(ats, wanted.limit + 1)]
