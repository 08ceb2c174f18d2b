"""Create, edit and show jobs. ``scheduler.ticking`` settles their slots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from hermes_worker.store.jobs.job_rows import JobProgress, JobRow
from hermes_worker.store.jobs.jobs import FiringView, JobEdit, JobNotFound, Jobs
from scheduler import policy
from scheduler.definition import (
    InvalidJob,
    JobRequest,
    JobSpec,
    check_fields,
    check_job,
    check_name,
    check_prompt,
    check_targets,
    format_origin,
)
from scheduler.grammar import ScheduleOptions, parse_schedule, parse_timestamp, read_record, write_record
from scheduler.jobtext import choose_default_name
from scheduler.schedule import Schedule

__all__ = ["InvalidJob", "JobRequest", "JobSpec", "create", "edit", "pause", "resume", "run_now"]

_LIMITS = (
    "misfire_grace_s",
    "failures_max",
    "iterations_max",
    "tokens_max",
    "wall_s_max",
    "idle_s_max",
    "iterations_per_day",
    "tokens_per_day",
    "cost_usd_per_day",
    "cost_usd_max",
    "network",
)
"""Fields that only a person may set: what the job may use or reach, and when it stops by itself."""
_SHOWN_OTHERWISE = {
    "schedule",
    "deliver",
    "origin",
    "times",
    "skills",
    "toolsets",
    "directory",
    "context_from",
    "attach_to",
    "is_agents",
    "wraps",
}
_SHOWN_AS_STORED = tuple(name for name in JobSpec.__slots__ if name not in _SHOWN_OTHERWISE)
_PINS = frozenset({"model", "provider", "base_url", "no_agent"})


def find_scheduler_notice(jobs: Jobs) -> str | None:
    """Write the notice for the creator of a job while no scheduler is running; ``None`` while one is."""
    if jobs.has_scheduler():
        return None
    return "No scheduler is at work, so no job begins. 'hermes-worker up' or 'hermes-worker start beat' starts one."


def create(
    jobs: Jobs,
    request: JobRequest,
    seen: Mapping[str, str] | None = None,
    *,
    source: str | None = None,
    bounded: Callable[[JobSpec], JobSpec] = lambda spec: spec,
) -> JobRow:
    """Store a new job. ``seen`` is its origin when the request names none, ``source`` the name space of the session
    that it is attached to; ``None`` for a session's id. ``bounded`` lowers its limits to the caller's.

    Raises ``InvalidJob``, ``ScheduleError``.
    """
    request = _resolve_session(jobs, request, source)
    if request.schedule is None:
        raise InvalidJob("A job needs a schedule.")
    now = jobs.read_clock()
    schedule = _parse_schedule(request, None, now)
    fields = check_fields(request.more)
    fields.setdefault("origin", seen)
    usual = "origin" if format_origin(fields.get("origin")) else "local"
    asked = JobSpec(
        prompt=check_prompt(request.prompt or ""),
        schedule=write_record(schedule),
        deliver=check_targets(request.deliver or usual),
        times=policy.compute_repeat_times(schedule, request.repeat),
        **fields,
    )
    spec = check_job(bounded(asked))
    _require_known(jobs, spec)
    name = check_name(request.name or choose_default_name(spec.prompt, tuple(spec.skills), spec.script))

    def start_place(job_id: str, now: float) -> JobProgress:
        state = policy.JobState(id=job_id, schedule=schedule, next_slot=None, next_fire_at=None, times=spec.times)
        return build_place(policy.start_job(state, to_instant(now)))

    return jobs.create(name, spec.to_json(), start_place)


def edit(
    jobs: Jobs,
    reference: str,
    request: JobRequest,
    *,
    source: str | None = None,
    may_change: Callable[[JobSpec], None] = lambda spec: None,
    bounded: Callable[[JobSpec], JobSpec] = lambda spec: spec,
) -> JobRow:
    """Change what ``request`` names, unless ``may_change`` raises. ``bounded`` lowers the job's limits to the caller's.
    A new schedule begins now. Raises ``InvalidJob``, ``ScheduleError``, ``JobNotFound``."""
    request = _resolve_session(jobs, request, source)

    def change(row: JobRow, now: float) -> JobEdit:
        before = JobSpec.from_json(row.definition)
        may_change(before)
        spec = bounded(_apply_request(before, request))
        place = replace(build_place(build_state(row, spec, now)), paused_reason=row.paused_reason)
        if _is_rescheduled(request):
            schedule = _parse_schedule(request, spec, now)
            spec = replace(
                spec, schedule=write_record(schedule), times=policy.compute_repeat_times(schedule, spec.times)
            )
            if row.state != policy.JobStatus.PAUSED:
                place = build_place(policy.start_job(build_state(row, spec, now), to_instant(now)))
        if request.repeat is not None:
            spec = replace(spec, times=policy.compute_repeat_times(spec.parse_schedule_at(now), request.repeat))
        name = check_name(request.name) if request.name is not None else None
        return JobEdit(place=place, name=name, definition=spec.to_json())

    if request.more.get("context_from"):
        _require_known(jobs, JobSpec(prompt="", schedule={}, **check_fields(request.more)))
    return jobs.change(reference, change)


def _resolve_session(jobs: Jobs, request: JobRequest, source: str | None) -> JobRequest:
    """Replace the session's name by its id: a name has a meaning only in its name space. Raises ``InvalidJob``."""
    named = request.more.get("attach_to")
    if source is None or not named:
        return request
    check_fields({"attach_to": named})
    session_id = jobs.find_session_id(source, str(named))
    if session_id is None:
        raise InvalidJob(f"There is no session {named!r} to attach the job to; name one that exists, or give its id.")
    return replace(request, more={**request.more, "attach_to": session_id})


def _apply_request(spec: JobSpec, request: JobRequest) -> JobSpec:
    spec = replace(spec, **check_fields(request.more))
    if request.prompt is not None:
        spec = replace(spec, prompt=check_prompt(request.prompt))
    if request.deliver is not None:
        spec = replace(spec, deliver=check_targets(request.deliver or "local"))
    if _PINS & request.more.keys():
        # The owner accepts what the job runs with from now on.
        spec = replace(spec, model_snapshot=None, provider_snapshot=None)
    return check_job(spec)


def _is_rescheduled(request: JobRequest) -> bool:
    asked = (request.schedule, request.timezone, request.starts_at, request.ends_at, request.jitter_s)
    return any(part is not None for part in asked)


def _require_known(jobs: Jobs, spec: JobSpec) -> None:
    """Raise ``InvalidJob`` where an earlier job that is named does not exist."""
    for job_id in spec.context_from:
        try:
            jobs.get(job_id)
        except JobNotFound:
            raise InvalidJob(f"context_from: there is no job {job_id!r}.") from None


def has_limits(spec: JobSpec) -> bool:
    """Whether a person set what the job may use or reach, or when it stops by itself."""
    return not spec.is_agents and any(getattr(spec, name) is not None for name in _LIMITS)


def pause(jobs: Jobs, reference: str, reason: str | None = None) -> JobRow:
    """Pause a job: nothing comes due until it is resumed. Raises ``JobNotFound``."""
    return _change_place(jobs, reference, lambda state, now: policy.pause_job(state, reason))


def resume(jobs: Jobs, reference: str) -> JobRow:
    """Resume a job. Raises ``JobNotFound``, ``ScheduleError`` when it has no slot left."""
    return _change_place(jobs, reference, policy.resume_job)


def run_now(jobs: Jobs, reference: str) -> JobRow:
    """Make a job due at the next tick, whatever its schedule says. Raises ``JobNotFound``, ``ScheduleError``."""
    return _change_place(jobs, reference, policy.trigger_job)


def _change_place(
    jobs: Jobs, reference: str, change: Callable[[policy.JobState, datetime], policy.JobChanges]
) -> JobRow:
    def edit_place(row: JobRow, now: float) -> JobEdit:
        return JobEdit(
            place=build_place(change(build_state(row, JobSpec.from_json(row.definition), now), to_instant(now)))
        )

    return jobs.change(reference, edit_place)


def build_state(row: JobRow, spec: JobSpec, now: float) -> policy.JobState:
    """Build the state of a stored job for ``policy``."""
    return policy.JobState(
        id=row.job_id,
        schedule=spec.parse_schedule_at(now),
        state=policy.JobStatus(row.state),
        next_slot=to_instant(row.next_slot) if row.next_slot is not None else None,
        next_fire_at=to_instant(row.next_fire_at) if row.next_fire_at is not None else None,
        times=spec.times,
        completed=row.completed,
        consecutive_failures=row.consecutive_failures,
        policy=spec.rules,
    )


def build_place(changes: policy.JobChanges | policy.JobState) -> JobProgress:
    return JobProgress(
        state=changes.state.value,
        next_slot=changes.next_slot.timestamp() if changes.next_slot else None,
        next_fire_at=changes.next_fire_at.timestamp() if changes.next_fire_at else None,
        completed=changes.completed,
        consecutive_failures=changes.consecutive_failures,
        paused_reason=getattr(changes, "paused_reason", None),
    )


def _parse_schedule(request: JobRequest, spec: JobSpec | None, now: float) -> Schedule:
    """Parse the schedule of a request; what it does not name stays as it is in ``spec``."""
    kept = spec.parse_schedule_at(now) if spec is not None else None
    zone = request.timezone or (spec.timezone if spec is not None else "UTC")
    options = ScheduleOptions(
        timezone=zone,
        starts_at=_parse_bound(request.starts_at, zone, kept.starts_at if kept else None),
        ends_at=_parse_bound(request.ends_at, zone, kept.ends_at if kept else None),
        jitter_s=request.jitter_s if request.jitter_s is not None else (kept.jitter_s if kept else 0),
    )
    if kept is None or request.schedule is not None:
        return parse_schedule(request.schedule or "", now=to_instant(now), options=options)
    changed = replace(
        kept, timezone=zone, starts_at=options.starts_at, ends_at=options.ends_at, jitter_s=options.jitter_s
    )
    return read_record(write_record(changed), now=to_instant(now))  # which checks what was changed


def _parse_bound(asked: str | None, zone: str, kept: datetime | None) -> datetime | None:
    """Parse a start or an end; an empty text removes it."""
    if asked is None:
        return kept
    return parse_timestamp(asked, zone) if asked else None


def to_instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def build_job_document(row: JobRow) -> dict[str, Any]:
    """Write a job as JSON, under Hermes Agent's names. Times are ISO 8601 in UTC."""
    spec = JobSpec.from_json(row.definition)
    return {
        **{name: getattr(spec, name) for name in _SHOWN_AS_STORED},
        **{name: getattr(row, name) for name in ("name", "state", "last_status", "last_error", "paused_reason")},
        "id": row.job_id,
        "schedule": dict(spec.schedule),
        "schedule_display": spec.schedule.get("display"),
        "repeat": {"times": spec.times, "completed": row.completed},
        "enabled": row.state == policy.JobStatus.SCHEDULED.value,
        "deliver": ",".join(spec.deliver),
        "origin": dict(spec.origin) if spec.origin is not None else None,
        "skill": spec.skills[0] if spec.skills else None,
        "skills": list(spec.skills),
        "enabled_toolsets": list(spec.toolsets) if spec.toolsets else None,
        "workdir": spec.directory,
        "context_from": list(spec.context_from) or None,
        "attach_to_session": spec.attach_to,
        "created_at": _format_iso(row.created_at),
        "next_run_at": _format_iso(row.next_slot),
        "last_run_at": _format_iso(row.last_run_at),
        "paused_at": _format_iso(row.paused_at),
    }


def build_firing_object(view: FiringView) -> dict[str, Any]:
    """Write a row of the slot ledger as JSON; ``slot`` is the cursor of the next page."""
    return {
        "slot": view.slot,
        "slot_at": _format_iso(view.slot),
        "outcome": view.outcome,
        "reason": view.reason,
        "settled_at": _format_iso(view.settled_at),
        "is_waiting": view.is_waiting,
        "run_id": view.run_id,
        "run_status": view.run_status,
        "execution": view.execution,
        "remark": view.remark,
        "ended_at": _format_iso(view.ended_at),
    }


def _format_iso(at: float | None) -> str | None:
    return to_instant(at).isoformat() if at is not None else None
