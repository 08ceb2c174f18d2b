"""Scheduled jobs and their slots, as the API answers them, the client returns them and commands print them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import WithJsonSchema

from hermes_worker.core.job_policies import CatchUp, Overlap
from hermes_worker.resource import ListOf, Resource

Moment = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""A time as ISO 8601 in UTC."""


class Repeat(Resource):
    times: int | None
    completed: int


class FiringObject(Resource):
    """What became of one slot of a job."""

    slot: float
    """The cursor of the next page."""
    slot_at: Moment
    outcome: str
    reason: str | None
    settled_at: Moment
    is_waiting: bool
    """It waits for an earlier run of the job."""
    run_id: str | None
    run_status: str | None
    execution: str | None
    remark: str | None
    ended_at: Moment | None


class JobObject(Resource):
    """A job, under the original's names. Times are ISO 8601 in UTC."""

    id: str
    name: str
    prompt: str
    schedule: dict[str, Any]
    schedule_display: str | None
    repeat: Repeat
    enabled: bool
    state: str
    deliver: str
    origin: dict[str, str | None] | None
    skill: str | None
    skills: list[str]
    model: str | None
    provider: str | None
    base_url: str | None
    model_snapshot: str | None
    provider_snapshot: str | None
    enabled_toolsets: list[str] | None
    workdir: str | None
    script: str | None
    no_agent: bool
    context_from: list[str] | None
    attach_to_session: str | None
    overlap: Overlap
    catch_up: CatchUp
    misfire_grace_s: int | None
    failures_max: int | None
    iterations_max: int | None
    tokens_max: int | None
    wall_s_max: float | None
    idle_s_max: float | None
    iterations_per_day: int | None
    tokens_per_day: int | None
    cost_usd_per_day: str | None
    cost_usd_max: str | None
    approvals: str | None
    approval_s: float | None
    network: str | None
    created_at: Moment
    next_run_at: Moment | None
    last_run_at: Moment | None
    last_status: str | None
    last_error: str | None
    paused_at: Moment | None
    paused_reason: str | None


class JobInFull(JobObject):
    last_delivery_error: str | None
    latest_execution: FiringObject | None


class NewJobObject(JobObject):
    notice: str | None = None
    """What keeps the job from beginning: that no scheduler is running."""


class NewJob(Resource):
    job: NewJobObject


class OneJob(Resource):
    job: JobObject


class OneJobInFull(Resource):
    job: JobInFull


class JobList(Resource):
    jobs: list[JobInFull]


class JobRemoved(Resource):
    ok: Literal[True]


class JobHistory(Resource):
    """Slots of a job, the newest first."""

    firings: list[FiringObject]


class JobSheet(Resource):
    """A job and where it stands. Times are epoch seconds."""

    object: Literal["hermes.job_sheet"] = "hermes.job_sheet"
    job_id: str
    tenant: str
    name: str
    definition: str
    """The job as JSON: prompt, schedule, targets and limits."""
    state: str
    next_slot: float | None
    next_fire_at: float | None
    completed: int
    consecutive_failures: int
    paused_at: float | None
    paused_reason: str | None
    last_run_at: float | None
    last_status: str | None
    last_error: str | None
    created_at: float
    updated_at: float


class JobSheetList(ListOf[JobSheet]):
    """All jobs of the tenant, oldest first."""


class FullJobSheet(JobSheet):
    last_delivery_error: str | None
    slots: Sequence[float]
    """The slots to come, as many as were asked for."""


class SlotObject(Resource):
    """A slot that is not settled yet."""

    object: Literal["hermes.slot"] = "hermes.slot"
    at: float
    """Epoch seconds; one that is overdue lies in the past."""
    job_id: str
    name: str
    """The job's name."""


class SlotList(ListOf[SlotObject]):
    """Slots that come, the next one first."""

    has_more: bool
    """There are further ones in these days."""
