"""Scheduled jobs. Errors have that API's flat shape: ``{"error": "..."}``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from hermes_worker.api.auth import Caller, declare_scope
from hermes_worker.api.bodies import read_json
from hermes_worker.api.context import Context
from hermes_worker.api.errors import ApiError
from hermes_worker.api.formats import NO_NUL
from hermes_worker.api.job_schema import CHANGED_JOB, NEW_JOB, JobBody
from hermes_worker.api.schema import EITHER_ERROR, FlatError, declare_answer, declare_errors
from hermes_worker.channels.readiness import explain_undeliverable
from hermes_worker.core.errors import HermesError, UnavailableError
from hermes_worker.core.principals import USER_HEADER, KeyScope, Principal
from hermes_worker.resource import Resource
from hermes_worker.schemas.jobs import (
    FiringObject,
    JobHistory,
    JobInFull,
    JobList,
    JobObject,
    JobRemoved,
    NewJob,
    NewJobObject,
    OneJob,
    OneJobInFull,
)
from hermes_worker.store.jobs.job_rows import JobRow
from hermes_worker.store.jobs.jobs import FiringView, JobNotFound, Jobs
from scheduler import jobs as work

router = APIRouter(
    dependencies=[declare_scope(KeyScope.JOBS)],
    prefix="/api/jobs",
    tags=["jobs"],
    responses={**declare_errors(400, 403, shape=EITHER_ERROR), **declare_errors(503, shape=FlatError)},
)
_OF_ONE_JOB = declare_errors(404, shape=FlatError)
_JOB_ID = re.compile(r"[0-9a-f]{12}")
_HISTORY_MAX = 500


_Limit = Annotated[int, Query(json_schema_extra={"minimum": 1, "maximum": _HISTORY_MAX})]
_Reason = Annotated[str | None, Query(max_length=500, pattern=NO_NUL, description="Why, for whoever looks at it.")]
_Id = Annotated[str, Path(json_schema_extra={"pattern": f"^{_JOB_ID.pattern}$"})]


def _build_error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status_code=status)


async def _answer(context: Context, caller: Principal, call: Callable[[Jobs], Resource]) -> JSONResponse:
    jobs = Jobs(context.client.database, caller.tenant)
    try:
        answer = await context.call_store(call, jobs)
        return JSONResponse(answer.model_dump(mode="json", exclude_unset=True))
    except JobNotFound:
        return _build_error(404, "Job not found")
    except UnavailableError:
        return _build_error(503, "The state database does not answer; try again.")
    except HermesError as error:
        return _build_error(400, str(error))


_NOT_THEIRS = f"Only the person at the machine names a directory of it: with {USER_HEADER!r}."


async def _read_body(request: Request) -> JobBody | JSONResponse:
    try:
        return JobBody.model_validate(await read_json(request))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part)[:80] for part in first["loc"]) or "body"
        return _build_error(400, f"Invalid {where}: {first['msg']}")
    except ApiError as error:
        if error.status != 400:
            raise
        return _build_error(400, error.message)


async def _on_job(context: Context, caller: Principal, job_id: str, call: Callable[[Jobs], Resource]) -> JSONResponse:
    if not _JOB_ID.fullmatch(job_id):
        return _build_error(400, "Invalid job ID format")
    return await _answer(context, caller, call)


@router.get("", responses=declare_answer(JobList))
async def list_jobs(context: Context, caller: Caller, include_disabled: bool = False) -> JSONResponse:
    """Every job that is scheduled, or every job."""

    def load(jobs: Jobs) -> Resource:
        return JobList(jobs=[_with_latest(jobs, row) for row in jobs.list_jobs(include_disabled=include_disabled)])

    return await _answer(context, caller, load)


@router.post("", openapi_extra=NEW_JOB, responses=declare_answer(NewJob) | declare_errors(408))
async def create_job(context: Context, caller: Caller, request: Request) -> JSONResponse:
    """Keep a job."""
    body = await _read_body(request)
    if isinstance(body, JSONResponse):
        return body
    if body.workspace and not caller.operates:
        return _build_error(403, _NOT_THEIRS)
    if not body.name or not body.name.strip() or not body.schedule:
        return _build_error(400, "Name and schedule are required")
    asked, seen = body.as_request, _describe_caller(request)

    def create(jobs: Jobs) -> Resource:
        document = work.build_job_document(work.create(jobs, asked, seen, source=caller.source))
        senders = context.client.workers.list_senders()
        notices = (work.find_scheduler_notice(jobs), explain_undeliverable(senders, asked.deliver or "local"))
        if found := "; ".join(notice for notice in notices if notice):
            document["notice"] = found
        return NewJob(job=NewJobObject(**document))

    return await _answer(context, caller, create)


def _describe_caller(request: Request) -> dict[str, str]:
    """Describe the caller that creates a job, as Hermes Agent notes it. Nothing is sent to this origin."""
    headers = (("forwarded_for", "x-forwarded-for"), ("real_ip", "x-real-ip"), ("user_agent", "user-agent"))
    peer = request.client.host if request.client else ""
    facts = {"source_ip": peer, "peer_ip": peer, **{name: request.headers.get(header, "") for name, header in headers}}
    kept = {name: "".join(c for c in value if c.isprintable())[:200] for name, value in facts.items() if value}
    return {"platform": "api_server", "chat_id": "api", **kept}


@router.get("/{job_id}", responses=declare_answer(OneJobInFull) | _OF_ONE_JOB)
async def get_job(context: Context, caller: Caller, job_id: _Id) -> JSONResponse:
    """One job."""
    return await _on_job(context, caller, job_id, lambda jobs: OneJobInFull(job=_with_latest(jobs, jobs.get(job_id))))


@router.patch(
    "/{job_id}", openapi_extra=CHANGED_JOB, responses=declare_answer(OneJob) | _OF_ONE_JOB | declare_errors(408)
)
async def edit_job(context: Context, caller: Caller, job_id: _Id, request: Request) -> JSONResponse:
    """Change what the body names."""
    body = await _read_body(request)
    if isinstance(body, JSONResponse):
        return body
    if body.workspace and not caller.operates:
        return _build_error(403, _NOT_THEIRS)
    if not body.model_fields_set:
        return _build_error(400, "No valid fields to update")
    asked, enabled = body.as_request, body.enabled

    def change(jobs: Jobs) -> Resource:
        row = work.edit(jobs, job_id, asked, source=caller.source)
        if enabled is not None:
            row = work.resume(jobs, job_id) if enabled else work.pause(jobs, job_id)
        return _build_one(row)

    return await _on_job(context, caller, job_id, change)


@router.delete("/{job_id}", responses=declare_answer(JobRemoved) | _OF_ONE_JOB)
async def remove_job(context: Context, caller: Caller, job_id: _Id) -> JSONResponse:
    """Forget a job; its history is kept."""

    def remove(jobs: Jobs) -> Resource:
        jobs.remove(job_id)
        return JobRemoved(ok=True)

    return await _on_job(context, caller, job_id, remove)


@router.post("/{job_id}/pause", responses=declare_answer(OneJob) | _OF_ONE_JOB)
async def pause_job(context: Context, caller: Caller, job_id: _Id, reason: _Reason = None) -> JSONResponse:
    """Nothing comes due until the job is resumed."""
    return await _on_job(context, caller, job_id, lambda jobs: _build_one(work.pause(jobs, job_id, reason)))


@router.post("/{job_id}/resume", responses=declare_answer(OneJob) | _OF_ONE_JOB)
async def resume_job(context: Context, caller: Caller, job_id: _Id) -> JSONResponse:
    """Go on with the next slot."""
    return await _on_job(context, caller, job_id, lambda jobs: _build_one(work.resume(jobs, job_id)))


@router.post("/{job_id}/run", responses=declare_answer(OneJob) | _OF_ONE_JOB)
async def run_job(context: Context, caller: Caller, job_id: _Id) -> JSONResponse:
    """Due at the next tick."""
    return await _on_job(context, caller, job_id, lambda jobs: _build_one(work.run_now(jobs, job_id)))


@router.get("/{job_id}/history", responses=declare_answer(JobHistory) | _OF_ONE_JOB)
async def job_history(
    context: Context, caller: Caller, job_id: _Id, limit: _Limit = 50, before: float | None = None
) -> JSONResponse:
    """The settled slots of a job, newest first; ``before`` is the slot that ended the page before."""
    if not 1 <= limit <= _HISTORY_MAX:
        return _build_error(400, f"limit must be from 1 to {_HISTORY_MAX}")

    def load(jobs: Jobs) -> Resource:
        views = jobs.list_firings(jobs.get(job_id).pk, limit=limit, before=before)
        return JobHistory(firings=[_build_firing(view) for view in views])

    return await _on_job(context, caller, job_id, load)


def _with_latest(jobs: Jobs, row: JobRow) -> JobInFull:
    latest = jobs.list_firings(row.pk, limit=1)
    return JobInFull(
        **work.build_job_document(row),
        last_delivery_error=jobs.find_delivery_error(row.pk),
        latest_execution=_build_firing(latest[0]) if latest else None,
    )


def _build_one(row: JobRow) -> OneJob:
    return OneJob(job=JobObject(**work.build_job_document(row)))


def _build_firing(view: FiringView) -> FiringObject:
    return FiringObject(**work.build_firing_object(view))
