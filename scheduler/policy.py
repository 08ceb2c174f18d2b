"""Decide what a due slot leads to. Pure: a job, the facts about its runs and the time go in; rows to write come out.

Every slot that comes due is settled by exactly one outcome with a reason, and a job never makes up for lost time with a
burst: however many slots passed while no scheduler ran, at most one run starts. The caller
writes the settled slots (unique per job and slot), the new run and the job's changes in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import assert_never

from hermes_worker.core.job_policies import CatchUp, Overlap
from scheduler.grammar import ScheduleError, load_zone, require_future
from scheduler.schedule import (
    Schedule,
    compute_fire_time,
    compute_grace,
    find_local_instant,
    find_next_slot,
    list_slots_between,
)

SLOTS_SETTLED_MAX = 500
"""Most slots that one decision settles. After a long outage of a frequent job the rest follows in the next
decisions."""


class JobStatus(StrEnum):
    """The ``state`` of a job record."""

    SCHEDULED = "scheduled"
    PAUSED = "paused"
    COMPLETED = "completed"
    ERROR = "error"


class SlotOutcome(StrEnum):
    """How a slot ended. Terminal: a settled slot is never changed."""

    FIRED = "fired"
    CAUGHT_UP = "caught_up"
    SKIPPED_OVERLAP = "skipped_overlap"
    MISSED = "missed"
    BLOCKED_BUDGET = "blocked_budget"
    FAILED_TO_START = "failed_to_start"


class RunVerdict(StrEnum):
    """How a run of a job ended, for the failure count."""

    OK = "ok"
    ERROR = "error"
    UNKNOWN = "unknown"
    """Its worker vanished: neither a success nor a failure, and never run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyBudget:
    """What all runs of a job may use in one day of the job's time zone; ``None`` is no limit."""

    iterations: int | None = None
    tokens: int | None = None
    cost_usd: Decimal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DailyUse:
    """What the runs of a job used since the job's local midnight."""

    iterations: int = 0
    tokens: int = 0
    cost_usd: Decimal = Decimal(0)
    is_cost_known: bool = True
    """False when the price of something the runs used is not known; ``cost_usd`` is then too low."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPolicy:
    """The choices of a job's owner."""

    overlap: Overlap = Overlap.SKIP
    waiting_max: int = 100
    """Runs that may wait under ``queue_all``."""
    catch_up: CatchUp = CatchUp.ONE
    misfire_grace_s: int | None = None
    """How late a slot may start and still be an ordinary run; ``None`` for Hermes Agent's rule,
    ``schedule.compute_grace``."""
    daily_budget: DailyBudget = field(default_factory=DailyBudget)
    failures_max: int | None = None
    """Consecutive failures after which the job is paused; ``None`` for never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The part of a job that decides about its slots."""

    id: str
    schedule: Schedule
    state: JobStatus = JobStatus.SCHEDULED
    next_slot: datetime | None
    """The slot the job waits for; ``None`` when there is none."""
    next_fire_at: datetime | None
    """When it fires: later than the slot by the jitter, or the slot itself for a run by hand."""
    times: int | None = None
    """Runs the job makes altogether; ``None`` for no limit."""
    completed: int = 0
    """Runs it has started."""
    consecutive_failures: int = 0
    policy: JobPolicy = field(default_factory=JobPolicy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """What the store knows about the job's runs at the time of the decision."""

    running: int = 0
    waiting: int = 0
    """Runs that wait for a running one to end (``queue_one``, ``queue_all``)."""
    used_today: DailyUse = field(default_factory=DailyUse)
    was_blocked_today: bool = False
    """Whether a slot of this local day was blocked by the budget already: then its owner knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledSlot:
    """A row of the slot ledger."""

    slot: datetime
    outcome: SlotOutcome
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A run to create."""

    slot: datetime
    waits: bool = False
    """Whether it starts only when the runs before it have ended."""
    cancels_running: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """The job's columns after the decision."""

    state: JobStatus
    next_slot: datetime | None
    next_fire_at: datetime | None
    """The due query reads this column."""
    completed: int
    consecutive_failures: int
    paused_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything one transaction writes for a due job."""

    settled: tuple[SettledSlot, ...]
    """Oldest first; the last one is the slot the decision is about."""
    start: Start | None
    job: JobChanges
    notice: str | None = None
    """A notice that the job's owner must get."""


def decide(job: JobState, facts: SlotFacts, now: datetime) -> Decision | None:
    """Settle what is due at ``now``; ``None`` when nothing is (a stale hint, a job just paused)."""
    due = _list_due_slots(job, now)
    if not due:
        return None
    if len(due) > SLOTS_SETTLED_MAX:
        return _settle_backlog(job, due)
    missed = tuple(_settle_as_missed(slot, f"superseded by the slot of {_format_slot(due[-1])}") for slot in due[:-1])
    verdict = _judge(job, facts, due, now)
    return _build_decision(job, missed, verdict)


def compute_remaining_budget(budget: DailyBudget, used: DailyUse) -> DailyBudget:
    """Compute what a run that starts now may use at most."""
    return DailyBudget(
        iterations=budget.iterations - used.iterations if budget.iterations is not None else None,
        tokens=budget.tokens - used.tokens if budget.tokens is not None else None,
        cost_usd=budget.cost_usd - used.cost_usd if budget.cost_usd is not None else None,
    )


def fail_start(job: JobState, decision: Decision, reason: str) -> Decision:
    """Change ``decision`` after its run could not be created (model drift, a blocked prompt, a missing workspace). The
    slot counts as a run and as a failure, so that a finite job ends and a broken one is paused."""
    attempt = decision.settled[-1]
    settled = SettledSlot(slot=attempt.slot, outcome=SlotOutcome.FAILED_TO_START, reason=reason)
    changes, pause_notice = _count_failure(
        job.policy, replace(decision.job, consecutive_failures=job.consecutive_failures)
    )
    notice = pause_notice or f"The job could not start: {reason}"
    return Decision(settled=(*decision.settled[:-1], settled), start=None, job=changes, notice=notice)


def count_run(job: JobState, verdict: RunVerdict) -> tuple[JobChanges, str | None]:
    """Count the end of a run for its job. Returns the job's changes, and a notice for its owner. Not idempotent: call
    it in the transaction that ends the run."""
    changes = _copy_columns(job)
    match verdict:
        case RunVerdict.OK:
            return replace(changes, consecutive_failures=0), None
        case RunVerdict.UNKNOWN:
            return changes, None
        case RunVerdict.ERROR:
            return _count_failure(job.policy, changes)
        case _:
            assert_never(verdict)


# --- what people do to a job -----------------------------------------------------------------------------------------


def start_job(job: JobState, now: datetime) -> JobChanges:
    """Start a new job, or one whose schedule was changed. Raises ``ScheduleError`` when it would never run."""
    return _wait_for_slot(job, require_future(job.schedule, now))


def pause_job(job: JobState, reason: str | None) -> JobChanges:
    """Pause a job: nothing comes due."""
    return replace(_copy_columns(job), state=JobStatus.PAUSED, next_slot=None, next_fire_at=None, paused_reason=reason)


def resume_job(job: JobState, now: datetime) -> JobChanges:
    """Resume a job from ``now`` on: slots of the pause are not made up for. Raises ``ScheduleError``."""
    _check_runs_left(job)
    return replace(_wait_for_slot(job, require_future(job.schedule, now)), consecutive_failures=0)


def trigger_job(job: JobState, now: datetime) -> JobChanges:
    """Make a job due now, whatever its schedule says; the schedule continues afterwards. Raises ``ScheduleError``."""
    _check_runs_left(job)
    return replace(_wait_for_slot(job, now), next_fire_at=now)


def compute_repeat_times(schedule: Schedule, requested: int | None) -> int | None:
    """Compute the number of runs to make: ``None`` (no limit) where none or less than one is requested, and 1 for a
    one-shot."""
    if requested is not None and requested > 0:
        return requested
    return None if schedule.is_recurring else 1


def format_repeat(times: int | None, completed: int) -> str:
    """Format the count of runs: ``forever``, ``once``, ``1/1``, ``5 times`` or ``2/5``."""
    if times is None:
        return "forever"
    if completed > 0:
        return f"{completed}/{times}"
    return "once" if times == 1 else f"{times} times"


def find_local_day(timezone: str, now: datetime) -> tuple[datetime, datetime]:
    """Find the day of ``now`` on the clock of ``timezone``, as [start, end) in UTC: 23 to 25 hours."""
    zone = load_zone(timezone)
    midnight = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None, fold=0)
    return find_local_instant(midnight, zone), find_local_instant(midnight + timedelta(days=1), zone)


def _check_runs_left(job: JobState) -> None:
    if _is_spent(job.times, job.completed):
        raise ScheduleError(f"The job has made all of its {job.times} runs; raise 'repeat' to run it again.")


# --- the decision ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    settled: SettledSlot
    start: Start | None = None
    notice: str | None = None


def _list_due_slots(job: JobState, now: datetime) -> tuple[datetime, ...]:
    """List the slot that the job waits for and those after it, as far as their firing times have come."""
    if job.state is not JobStatus.SCHEDULED or job.next_slot is None or _compute_fire_time(job, job.next_slot) > now:
        return ()
    slots = (job.next_slot, *list_slots_between(job.schedule, job.next_slot, now, SLOTS_SETTLED_MAX))
    return tuple(slot for slot in slots if _compute_fire_time(job, slot) <= now)


def _settle_backlog(job: JobState, due: tuple[datetime, ...]) -> Decision:
    """Settle the oldest slots where more passed than one transaction should write, and leave the last one to be decided
    on."""
    missed = tuple(
        _settle_as_missed(slot, "the scheduler was away and only the latest slot is made up for") for slot in due[:-1]
    )
    return Decision(settled=missed, start=None, job=_wait_for_slot(job, due[-1]))


def _judge(job: JobState, facts: SlotFacts, due: tuple[datetime, ...], now: datetime) -> _Verdict:
    slot = due[-1]
    if _is_spent(job.times, job.completed):
        return _Verdict(settled=_settle_as_missed(slot, f"the job has made all of its {job.times} runs"))
    if job.policy.catch_up is CatchUp.NONE and _compute_lateness(job, slot, now) > _choose_grace(job, slot):
        return _Verdict(
            settled=_settle_as_missed(slot, f"{_describe_lateness(job, slot, now)} and the job does not catch up")
        )
    if (reason := _find_used_up_limit(job.policy.daily_budget, facts.used_today)) is not None:
        notice = None if facts.was_blocked_today else f"A run was not started: {reason}."
        return _Verdict(settled=_settle_slot(slot, SlotOutcome.BLOCKED_BUDGET, reason), notice=notice)
    return _admit(job, facts, due, now)


def _admit(job: JobState, facts: SlotFacts, due: tuple[datetime, ...], now: datetime) -> _Verdict:
    """Start or skip, by what is running."""
    slot = due[-1]
    if (refusal := _find_overlap_refusal(job.policy, facts)) is not None:
        return _Verdict(settled=_settle_slot(slot, SlotOutcome.SKIPPED_OVERLAP, refusal))
    settled = _settle_slot(slot, SlotOutcome.FIRED, "due")
    if _compute_lateness(job, due[0], now) > _choose_grace(job, due[0]):
        reason = f"one run for {len(due)} due slot(s): {_describe_lateness(job, due[0], now)}"
        settled = _settle_slot(slot, SlotOutcome.CAUGHT_UP, reason)
    is_busy = facts.running + facts.waiting > 0
    start = Start(
        slot=slot,
        waits=is_busy and job.policy.overlap in (Overlap.QUEUE_ONE, Overlap.QUEUE_ALL),
        cancels_running=is_busy and job.policy.overlap is Overlap.CANCEL_OTHER,
    )
    return _Verdict(settled=settled, start=start)


def _find_overlap_refusal(policy: JobPolicy, facts: SlotFacts) -> str | None:
    """Say why the slot must not start beside or behind the runs there are; ``None`` when it may."""
    if facts.running + facts.waiting == 0:
        return None
    there_are = f"{facts.running} run(s) of the job still going and {facts.waiting} waiting"
    match policy.overlap:
        case Overlap.SKIP:
            return there_are
        case Overlap.QUEUE_ONE:
            return there_are if facts.waiting >= 1 else None
        case Overlap.QUEUE_ALL:
            return there_are if facts.waiting >= policy.waiting_max else None
        case Overlap.CANCEL_OTHER | Overlap.ALLOW:
            return None
        case _:
            assert_never(policy.overlap)


def _build_decision(job: JobState, missed: tuple[SettledSlot, ...], verdict: _Verdict) -> Decision:
    changes = _advance(job, verdict)
    notice = verdict.notice
    if changes.state is JobStatus.ERROR:
        notice = notice or f"The job did not run: {verdict.settled.reason}."
    return Decision(settled=(*missed, verdict.settled), start=verdict.start, job=changes, notice=notice)


def _advance(job: JobState, verdict: _Verdict) -> JobChanges:
    """Move the job to its next slot. A job whose last slot passes without its ever having run ends in error, not
    silently."""
    completed = job.completed + (1 if verdict.start else 0)
    following = None if _is_spent(job.times, completed) else find_next_slot(job.schedule, verdict.settled.slot)
    if following is not None:
        return replace(_wait_for_slot(job, following), completed=completed)
    state = JobStatus.COMPLETED if completed > 0 else JobStatus.ERROR
    return replace(_copy_columns(job), state=state, next_slot=None, next_fire_at=None, completed=completed)


def _count_failure(policy: JobPolicy, changes: JobChanges) -> tuple[JobChanges, str | None]:
    failures = changes.consecutive_failures + 1
    counted = replace(changes, consecutive_failures=failures)
    if policy.failures_max is None or failures < policy.failures_max or changes.state is not JobStatus.SCHEDULED:
        return counted, None
    reason = f"{failures} runs failed in a row"
    pause = replace(counted, state=JobStatus.PAUSED, next_slot=None, next_fire_at=None, paused_reason=reason)
    return pause, f"The job is paused: {reason}. Resume it when the cause is gone."


def _find_used_up_limit(budget: DailyBudget, used: DailyUse) -> str | None:
    """Say why the budget has nothing left for another run, by the first limit that is used up; ``None`` while there is
    some."""
    limit = None
    if budget.iterations is not None and used.iterations >= budget.iterations:
        limit = f"{budget.iterations} iterations"
    elif budget.tokens is not None and used.tokens >= budget.tokens:
        limit = f"{budget.tokens} tokens"
    elif budget.cost_usd is not None and used.cost_usd >= budget.cost_usd:
        limit = f"{budget.cost_usd} USD"
    elif budget.cost_usd is not None and not used.is_cost_known:
        return f"what today's runs cost is not known, so a daily budget of {budget.cost_usd} USD cannot be kept"
    return None if limit is None else f"the job's daily budget of {limit} is used up"


def _choose_grace(job: JobState, slot: datetime) -> timedelta:
    if job.policy.misfire_grace_s is not None:
        return timedelta(seconds=job.policy.misfire_grace_s)
    return compute_grace(job.schedule, slot)


def _compute_fire_time(job: JobState, slot: datetime) -> datetime:
    if slot == job.next_slot and job.next_fire_at is not None:
        return job.next_fire_at
    return compute_fire_time(job.schedule, slot, job.id)


def _compute_lateness(job: JobState, slot: datetime, now: datetime) -> timedelta:
    return now - _compute_fire_time(job, slot)


def _describe_lateness(job: JobState, slot: datetime, now: datetime) -> str:
    return f"the slot of {_format_slot(slot)} is {int(_compute_lateness(job, slot, now).total_seconds())} s late"


def _is_spent(times: int | None, completed: int) -> bool:
    return times is not None and completed >= times


def _copy_columns(job: JobState) -> JobChanges:
    return JobChanges(
        state=job.state,
        next_slot=job.next_slot,
        next_fire_at=job.next_fire_at,
        completed=job.completed,
        consecutive_failures=job.consecutive_failures,
    )


def _wait_for_slot(job: JobState, slot: datetime) -> JobChanges:
    fire_at = compute_fire_time(job.schedule, slot, job.id)
    return replace(_copy_columns(job), state=JobStatus.SCHEDULED, next_slot=slot, next_fire_at=fire_at)


def _settle_slot(slot: datetime, outcome: SlotOutcome, reason: str) -> SettledSlot:
    return SettledSlot(slot=slot, outcome=outcome, reason=reason)


def _settle_as_missed(slot: datetime, reason: str) -> SettledSlot:
    return _settle_slot(slot, SlotOutcome.MISSED, reason)


def _format_slot(slot: datetime) -> str:
    return f"{slot.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
