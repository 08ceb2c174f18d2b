"""A job: what its owner wrote, how people change it, and what becomes of its due slots.

The rules are ``scheduler.policy``'s; here they meet the rows (``store.jobs``) and the one way runs come into being
(``hermes_worker.submission``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hermes_worker.core.errors import ConfigurationError, HermesError
from hermes_worker.core.threats import scan_assembled_prompt, scan_job_prompt
from hermes_worker.observe import log
from hermes_worker.settings import Settings
from hermes_worker.store.jobs import (
    DueJob,
    EndedRun,
    FiringView,
    JobAfter,
    JobEdit,
    JobPlace,
    JobRow,
    Jobs,
    JobTurn,
    Slot,
)
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs import NewRun
from hermes_worker.submission import InvalidSubmission, Submission, deliver_list, new_run
from hermes_worker.tasks.reports import JOB_ID, JOB_NAME, JOB_SCHEDULE, JOB_WRAP
from scheduler import policy
from scheduler.grammar import ScheduleOptions, from_record, parse_schedule, to_record
from scheduler.jobtext import PromptParts, assemble_prompt, default_name, session_id
from scheduler.lifecycle import stops_this_service
from scheduler.schedule import Schedule
from scheduler.silence import JobLabel, wrap

NAME_CHARS_MAX = 200
PROMPT_CHARS_MAX = 5_000


class InvalidJob(HermesError):
    """A job cannot be kept as it is described; the message is one sentence for its owner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What the owner of a job wrote. Stored as JSON."""

    prompt: str
    schedule: Mapping[str, Any]
    """As ``grammar.to_record`` writes it."""
    deliver: Sequence[str] = ("local",)
    times: int | None = None
    overlap: policy.Overlap = policy.Overlap.SKIP
    catch_up: policy.CatchUp = policy.CatchUp.ONE
    misfire_grace_s: int | None = None
    failures_max: int | None = None
    iterations_per_day: int | None = None
    tokens_per_day: int | None = None
    model: str | None = None
    toolsets: Sequence[str] | None = None
    directory: str | None = None
    iterations_max: int | None = None
    wall_s_max: float | None = None
    approvals: str | None = None
    """What becomes of its dangerous commands; ``None`` for what the installation says of scheduled runs."""
    approval_s: float | None = None
    """Seconds that somebody has to allow one, where they are asked about."""
    wraps: bool = True
    """Put the job's name above and the way to stop it below what is delivered."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> JobSpec:
        stored = json.loads(text)
        stored["overlap"] = policy.Overlap(stored["overlap"])
        stored["catch_up"] = policy.CatchUp(stored["catch_up"])
        return cls(**stored)

    @property
    def rules(self) -> policy.JobPolicy:
        return policy.JobPolicy(
            overlap=self.overlap,
            catch_up=self.catch_up,
            misfire_grace_s=self.misfire_grace_s,
            failures_max=self.failures_max,
            daily_budget=policy.DailyBudget(iterations=self.iterations_per_day, tokens=self.tokens_per_day),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """A job that somebody asks for, or changes to one: ``None`` is not said."""

    prompt: str | None = None
    schedule: str | None = None
    name: str | None = None
    deliver: str | Sequence[str] | None = None
    repeat: int | None = None
    timezone: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of ``JobSpec``."""


def create(jobs: Jobs, request: JobRequest) -> JobRow:
    """Keep a new job. Raises ``InvalidJob``, ``ScheduleError``, ``InvalidSubmission``."""
    if request.schedule is None or request.prompt is None:
        raise InvalidJob("A job needs a prompt and a schedule.")
    prompt = checked_prompt(request.prompt)
    schedule = _read(request.schedule, request.timezone or "UTC", jobs.now())
    spec = JobSpec(
        prompt=prompt,
        schedule=to_record(schedule),
        deliver=deliver_list(request.deliver or "local"),
        times=policy.repeat_times(schedule, request.repeat),
        **request.more,
    )
    name = checked_name(request.name or default_name(prompt, (), None))

    def place(job_id: str, now: float) -> JobPlace:
        state = policy.JobState(id=job_id, schedule=schedule, next_slot=None, next_fire_at=None, times=spec.times)
        return place_of(policy.created(state, _instant(now)))

    return jobs.create(name, spec.to_json(), place)


def edit(jobs: Jobs, reference: str, request: JobRequest) -> JobRow:
    """Change what ``request`` names. A new schedule begins now. Raises as ``create``, and ``JobNotFound``."""

    def change(row: JobRow, now: float) -> JobEdit:
        spec = replace(JobSpec.from_json(row.definition), **request.more)
        if request.prompt is not None:
            spec = replace(spec, prompt=checked_prompt(request.prompt))
        if request.deliver is not None:
            spec = replace(spec, deliver=deliver_list(request.deliver or "local"))
        place = replace(place_of(state_of(row, spec, now)), paused_reason=row.paused_reason)
        if request.schedule is not None:
            zone = request.timezone or str(spec.schedule.get("timezone") or "UTC")
            schedule = _read(request.schedule, zone, now)
            spec = replace(spec, schedule=to_record(schedule), times=policy.repeat_times(schedule, spec.times))
            if row.state != policy.JobStatus.PAUSED:
                place = place_of(policy.created(state_of(row, spec, now), _instant(now)))
        if request.repeat is not None:
            spec = replace(spec, times=policy.repeat_times(schedule_of(spec, now), request.repeat))
        name = checked_name(request.name) if request.name is not None else None
        return JobEdit(place=place, name=name, definition=spec.to_json())

    return jobs.change(reference, change)


def pause(jobs: Jobs, reference: str, reason: str | None = None) -> JobRow:
    """Nothing comes due until the job is resumed. Raises ``JobNotFound``."""
    return _place(jobs, reference, lambda state, now: policy.paused(state, reason))


def resume(jobs: Jobs, reference: str) -> JobRow:
    """Raises ``JobNotFound``, ``ScheduleError`` when the job has no slot left."""
    return _place(jobs, reference, policy.resumed)


def run_now(jobs: Jobs, reference: str) -> JobRow:
    """Due at the next tick, whatever the schedule says. Raises ``JobNotFound``, ``ScheduleError``."""
    return _place(jobs, reference, policy.triggered)


def _place(jobs: Jobs, reference: str, change: Callable[[policy.JobState, datetime], policy.JobChanges]) -> JobRow:
    def made(row: JobRow, now: float) -> JobEdit:
        return JobEdit(place=place_of(change(state_of(row, JobSpec.from_json(row.definition), now), _instant(now))))

    return jobs.change(reference, made)


def checked_prompt(prompt: str) -> str:
    """Raises ``InvalidJob`` for a prompt that is empty, too long, or tries to take over the agent."""
    if not prompt.strip():
        raise InvalidJob("The prompt is empty; say what is to be done.")
    if len(prompt) > PROMPT_CHARS_MAX:
        raise InvalidJob(f"A job's prompt has at most {PROMPT_CHARS_MAX} characters, not {len(prompt)}.")
    if (finding := scan_job_prompt(prompt)) is not None:
        raise InvalidJob(finding.message)
    if stops_this_service(prompt):
        raise InvalidJob("Blocked: the prompt contains a command that stops or restarts this service.")
    return prompt


def checked_name(name: str) -> str:
    """Raises ``InvalidJob``."""
    words = " ".join(name.split())
    if not words or len(words) > NAME_CHARS_MAX:
        raise InvalidJob(f"A job's name has 1 to {NAME_CHARS_MAX} characters.")
    return words


def schedule_of(spec: JobSpec, now: float) -> Schedule:
    return from_record(spec.schedule, now=_instant(now))


def state_of(row: JobRow, spec: JobSpec, now: float) -> policy.JobState:
    """A stored job as the rules see it."""
    return policy.JobState(
        id=row.job_id,
        schedule=schedule_of(spec, now),
        state=policy.JobStatus(row.state),
        next_slot=_instant(row.next_slot) if row.next_slot is not None else None,
        next_fire_at=_instant(row.next_fire_at) if row.next_fire_at is not None else None,
        times=spec.times,
        completed=row.completed,
        consecutive_failures=row.consecutive_failures,
        policy=spec.rules,
    )


def place_of(changes: policy.JobChanges | policy.JobState) -> JobPlace:
    return JobPlace(
        state=changes.state.value,
        next_slot=changes.next_slot.timestamp() if changes.next_slot else None,
        next_fire_at=changes.next_fire_at.timestamp() if changes.next_fire_at else None,
        completed=changes.completed,
        consecutive_failures=changes.consecutive_failures,
        paused_reason=getattr(changes, "paused_reason", None),
    )


def _read(text: str, timezone: str, now: float) -> Schedule:
    return parse_schedule(text, now=_instant(now), options=ScheduleOptions(timezone=timezone))


def _instant(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)


def job_document(row: JobRow) -> dict[str, Any]:
    """A job as JSON, under the names of the reference (§1.4). Times are ISO 8601 in UTC."""
    spec = JobSpec.from_json(row.definition)
    return {
        "id": row.job_id,
        "name": row.name,
        "prompt": spec.prompt,
        "schedule": dict(spec.schedule),
        "schedule_display": spec.schedule.get("display"),
        "repeat": {"times": spec.times, "completed": row.completed},
        "enabled": row.state == policy.JobStatus.SCHEDULED.value,
        "state": row.state,
        "deliver": ",".join(spec.deliver),
        "model": spec.model,
        "created_at": _iso(row.created_at),
        "next_run_at": _iso(row.next_slot),
        "last_run_at": _iso(row.last_run_at),
        "last_status": row.last_status,
        "last_error": row.last_error,
        "paused_at": _iso(row.paused_at),
        "paused_reason": row.paused_reason,
    }


def firing_object(view: FiringView) -> dict[str, Any]:
    """A row of the ledger as JSON; ``slot`` is the cursor of the next page."""
    return {
        "slot": view.slot,
        "slot_at": _iso(view.slot),
        "outcome": view.outcome,
        "reason": view.reason,
        "run_id": view.run_id,
        "run_status": view.run_status,
    }


def _iso(at: float | None) -> str | None:
    return _instant(at).isoformat() if at is not None else None


# --- what a scheduler does -------------------------------------------------------------------------------------------


def tick(jobs: Jobs, settings: Settings) -> list[Hint]:
    """Count the runs that ended and settle the slots that are due; returns what to send. Any number of schedulers may
    do it at once. A job that cannot be read holds up no other. Raises ``UnavailableError``."""
    hints: list[Hint] = []
    for pk in jobs.ended():
        hints += jobs.count_end(pk, after_run)
    for pk in jobs.due():
        hints += jobs.settle(pk, lambda due: turn_of(due, settings))
    return hints


def turn_of(due: DueJob, settings: Settings) -> JobTurn | None:
    """What becomes of a due job."""
    try:
        spec = JobSpec.from_json(due.row.definition)
        state = state_of(due.row, spec, due.now)
    except (HermesError, ValueError, TypeError, KeyError) as error:
        return _broken(due, error)
    now = _instant(due.now)
    decision = policy.decide(state, _facts(due, spec, now), now)
    if decision is None:
        return None
    run: NewRun | None = None
    if decision.start is not None:
        try:
            run = _run_of(due.row, spec, settings, decision.start, now)
        except (HermesError, ConfigurationError) as error:
            decision = policy.failed_to_start(state, decision, str(error))
    return JobTurn(
        slots=[Slot(at=s.slot.timestamp(), outcome=s.outcome.value, reason=s.reason) for s in decision.settled],
        place=place_of(decision.job),
        run=run,
        waits=bool(run and decision.start and decision.start.waits),
        notice=_notice(due.row, decision.notice),
        targets=spec.deliver,
    )


def _facts(due: DueJob, spec: JobSpec, now: datetime) -> policy.SlotFacts:
    if spec.iterations_per_day is None and spec.tokens_per_day is None:
        return policy.SlotFacts(running=due.running, waiting=due.waiting)
    midnight = policy.local_day(str(spec.schedule.get("timezone") or "UTC"), now)[0].timestamp()
    iterations, tokens = due.used_since(midnight)
    return policy.SlotFacts(
        running=due.running,
        waiting=due.waiting,
        used_today=policy.DailyUse(iterations=iterations, tokens=tokens),
        was_blocked_today=due.was_blocked_since(midnight),
    )


def _run_of(row: JobRow, spec: JobSpec, settings: Settings, start: policy.Start, now: datetime) -> NewRun:
    """Raises ``InvalidJob`` or ``InvalidSubmission`` for a job that must not or cannot run."""
    checked_prompt(spec.prompt)
    scanned = scan_assembled_prompt(assemble_prompt(PromptParts(prompt=spec.prompt)))
    if scanned.finding is not None:
        raise InvalidJob(scanned.finding.message)
    submission = Submission(
        input=scanned.text,
        # The microseconds keep two runs of one second apart: by hand, or after a catch-up.
        session_id=f"{session_id(row.job_id, now)}_{now.microsecond:06d}",
        model=spec.model,
        toolsets=spec.toolsets,
        iterations_max=spec.iterations_max,
        wall_s_max=spec.wall_s_max,
        directory=spec.directory,
        approvals=spec.approvals,
        approval_s=spec.approval_s,
        source="cron",
        metadata={
            JOB_ID: row.job_id,
            JOB_NAME: row.name,
            JOB_SCHEDULE: str(spec.schedule.get("display", "")),
            JOB_WRAP: "yes" if spec.wraps else "no",
        },
        deliver=spec.deliver,
    )
    return replace(new_run(settings, submission), is_held=start.waits)


def _broken(due: DueJob, error: Exception) -> JobTurn:
    """A stored job that cannot be read: it stops, visibly."""
    log.error("job.broken", job_id=due.row.job_id, error=f"{type(error).__name__}: {error}")
    reason = f"the stored job cannot be read: {type(error).__name__}"
    at = due.row.next_slot if due.row.next_slot is not None else due.now
    place = JobPlace(
        state=policy.JobStatus.ERROR.value,
        next_slot=None,
        next_fire_at=None,
        completed=due.row.completed,
        consecutive_failures=due.row.consecutive_failures + 1,
    )
    slot = Slot(at=at, outcome=policy.SlotOutcome.FAILED_TO_START.value, reason=reason)
    return JobTurn(slots=[slot], place=place, notice=_notice(due.row, reason), targets=("local",))


def after_run(row: JobRow, ended: EndedRun) -> JobAfter:
    """What the end of a run means for its job."""
    spec = JobSpec.from_json(row.definition)
    changes, notice = policy.after_run(state_of(row, spec, ended.now), _VERDICTS[ended.status])
    place = replace(place_of(changes), paused_reason=changes.paused_reason or row.paused_reason)
    status = _VERDICTS[ended.status].value
    return JobAfter(place=place, status=status, error=ended.error, notice=_notice(row, notice), targets=spec.deliver)


_VERDICTS = {
    "completed": policy.RunVerdict.OK,
    "failed": policy.RunVerdict.ERROR,
    "expired": policy.RunVerdict.ERROR,
    "cancelled": policy.RunVerdict.UNKNOWN,
}


def _notice(row: JobRow, notice: str | None) -> str | None:
    return wrap(JobLabel(id=row.job_id, name=row.name), f"⚠️ {notice}") if notice else None


__all__ = [
    "InvalidJob",
    "InvalidSubmission",
    "JobRequest",
    "JobSpec",
    "create",
    "edit",
    "pause",
    "resume",
    "run_now",
    "tick",
]
