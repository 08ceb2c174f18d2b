"""Jobs with all that their rows say, for ``hermes-worker --server``, which has no database."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query

from hermes_worker.api import schema
from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.context import Context
from hermes_worker.api.errors import RouteRefusal, answer_errors
from hermes_worker.core.principals import KeyScope
from hermes_worker.schemas.jobs import FullJobSheet, JobSheet, JobSheetList
from hermes_worker.store.jobs.jobs import JobNotFound, Jobs
from scheduler import jobs as work
from scheduler.schedule import iterate_slots

router = APIRouter(
    prefix="/v1/job-sheets",
    tags=["jobs"],
    dependencies=[declare_scope(KeyScope.JOBS)],
    route_class=answer_errors({JobNotFound: RouteRefusal(404, "job_not_found", text="Job not found.")}),
    responses=schema.declare_errors(503),
)


@router.get("", response_model=JobSheetList)
async def list_job_sheets(context: Context, caller: Caller) -> JobSheetList:
    """All jobs, with all that their rows say."""
    found = await context.call_store(Jobs(context.client.database, caller.tenant).list_jobs)
    return JobSheetList(data=[JobSheet.from_record(row) for row in found])


@router.get("/{job_id}", response_model=FullJobSheet, responses=schema.declare_errors(404))
async def get_job_sheet(
    context: Context, caller: Caller, job_id: str, slots: Annotated[int, Query(ge=0, le=100), schema.WHOLE] = 0
) -> FullJobSheet:
    """One job, with the reason why its last delivery failed, and its next slots."""
    return await context.call_store(_build_sheet, Jobs(context.client.database, caller.tenant), job_id, slots)


def _build_sheet(jobs: Jobs, job_id: str, slots: int) -> FullJobSheet:
    """Build the sheet of a job by its id. Raises ``JobNotFound``, also for the name of a job."""
    row = jobs.get(job_id)
    if row.job_id != job_id:
        raise JobNotFound(f"there is no job {job_id!r}")
    now = jobs.read_clock()
    schedule = work.JobSpec.from_json(row.definition).parse_schedule_at(now)
    coming = [slot.timestamp() for slot in islice(iterate_slots(schedule, datetime.fromtimestamp(now, UTC)), slots)]
    return FullJobSheet.from_record(row, last_delivery_error=jobs.find_delivery_error(row.pk), slots=coming)
