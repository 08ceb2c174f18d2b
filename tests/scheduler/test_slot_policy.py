from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core.job_policies import CatchUp, Overlap
from scheduler.grammar import ScheduleError, ScheduleOptions, parse_schedule
from scheduler.policy import (
    SLOTS_SETTLED_MAX,
    DailyBudget,
    DailyUse,
    Decision,
    JobChanges,
    JobPolicy,
    JobState,
    JobStatus,
    RunVerdict,
    SlotFacts,
    SlotOutcome,
    compute_repeat_times,
    count_run,
    decide,
    fail_start,
    find_local_day,
    format_repeat,
    pause_job,
    resume_job,
    start_job,
    trigger_job,
)
from scheduler.schedule import compute_fire_time, list_slots_between

NOW = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
IDLE = SlotFacts()


def job(text: str = "every 30m", **changes: object) -> JobState:
    """A job that was created at ``NOW``."""
    options = changes.pop("options", None)
    schedule = parse_schedule(text, now=NOW, options=options)
    new = JobState(id="job", schedule=schedule, next_slot=None, next_fire_at=None, **changes)
    return with_changes(new, start_job(new, NOW))


def with_changes(state: JobState, changes: JobChanges) -> JobState:
    return replace(
        state,
        state=changes.state,
        next_slot=changes.next_slot,
        next_fire_at=changes.next_fire_at,
        completed=changes.completed,
        consecutive_failures=changes.consecutive_failures,
    )


def outcomes(decision: Decision) -> list[SlotOutcome]:
    return [row.outcome for row in decision.settled]


def at(minutes: float) -> datetime:
    return NOW + timedelta(minutes=minutes)


# Due and not due.


def test_nothing_is_decided_before_the_slot():
    assert decide(job(), IDLE, at(29.9)) is None


def test_a_slot_fires_when_it_is_due():
    decision = decide(job(), IDLE, at(30))
    assert outcomes(decision) == [SlotOutcome.FIRED]
    assert decision.start.slot == at(30)
    assert not decision.start.waits
    assert decision.job.next_slot == at(60)
    assert decision.job.completed == 1


def test_deciding_twice_settles_a_slot_once():
    first = decide(job(), IDLE, at(30))
    assert decide(with_changes(job(), first.job), IDLE, at(30)) is None


@pytest.mark.parametrize("state", [JobStatus.PAUSED, JobStatus.COMPLETED, JobStatus.ERROR])
def test_a_job_that_is_not_scheduled_has_nothing_due(state):
    assert decide(replace(job(), state=state), IDLE, at(30)) is None


def test_a_job_without_a_slot_has_nothing_due():
    assert decide(replace(job(), next_slot=None), IDLE, at(30)) is None


# Misfires.


def test_a_slot_late_within_the_grace_is_an_ordinary_run():
    decision = decide(job(), IDLE, at(45))
    assert outcomes(decision) == [SlotOutcome.FIRED]


def test_a_slot_later_than_the_grace_is_caught_up_once():
    decision = decide(job(), IDLE, at(46))
    assert outcomes(decision) == [SlotOutcome.CAUGHT_UP]
    assert decision.settled[0].reason == "one run for 1 due slot(s): the slot of 2026-01-31 12:30:00Z is 960 s late"
    assert decision.job.completed == 1


def test_many_slots_that_passed_become_one_run():
    decision = decide(job(), IDLE, at(30 * 10 + 5))
    assert outcomes(decision) == [SlotOutcome.MISSED] * 9 + [SlotOutcome.CAUGHT_UP]
    assert decision.settled[0].reason == "superseded by the slot of 2026-01-31 17:00:00Z"
    assert decision.start.slot == at(300)
    assert decision.job.next_slot == at(330)
    assert decision.job.completed == 1


def test_slots_that_passed_within_the_grace_still_become_one_run():
    decision = decide(job("every 1m"), IDLE, at(2.5))
    assert outcomes(decision) == [SlotOutcome.MISSED, SlotOutcome.FIRED]


def test_a_job_that_does_not_catch_up_misses_its_late_slot():
    decision = decide(job("0 9 * * *", policy=JobPolicy(catch_up=CatchUp.NONE)), IDLE, at(60 * 24))
    assert outcomes(decision) == [SlotOutcome.MISSED]
    assert "the job does not catch up" in decision.settled[0].reason
    assert decision.start is None
    assert decision.job.next_slot == datetime(2026, 2, 2, 9, 0, tzinfo=UTC)


def test_a_job_that_does_not_catch_up_still_runs_a_slot_within_its_grace():
    decision = decide(job(policy=JobPolicy(catch_up=CatchUp.NONE)), IDLE, at(30 * 10 + 5))
    assert outcomes(decision)[-1] is SlotOutcome.CAUGHT_UP
    assert decision.start is not None


def test_the_grace_can_be_set():
    policy = JobPolicy(misfire_grace_s=10)
    assert outcomes(decide(job(policy=policy), IDLE, at(30) + timedelta(seconds=10))) == [SlotOutcome.FIRED]
    assert outcomes(decide(job(policy=policy), IDLE, at(30) + timedelta(seconds=11))) == [SlotOutcome.CAUGHT_UP]


def test_a_one_shot_that_was_missed_is_caught_up():
    decision = decide(job("30m", times=1), IDLE, at(600))
    assert outcomes(decision) == [SlotOutcome.CAUGHT_UP]
    assert decision.job.state is JobStatus.COMPLETED


def test_a_one_shot_that_may_not_catch_up_ends_in_error_and_somebody_is_told():
    decision = decide(job("30m", times=1, policy=JobPolicy(catch_up=CatchUp.NONE)), IDLE, at(600))
    assert outcomes(decision) == [SlotOutcome.MISSED]
    assert decision.job.state is JobStatus.ERROR
    assert decision.notice.startswith("The job did not run: the slot of 2026-01-31 12:30:00Z is ")


def test_a_long_backlog_is_settled_in_pieces_with_one_run_at_the_end():
    state, rows, starts = job("every 1m"), [], []
    now = at(2 * SLOTS_SETTLED_MAX + 77)
    while (decision := decide(state, IDLE, now)) is not None:
        assert len(decision.settled) <= SLOTS_SETTLED_MAX + 1
        rows += [row.slot for row in decision.settled]
        starts += [decision.start] if decision.start else []
        state = with_changes(state, decision.job)
    assert rows == list(list_slots_between(state.schedule, NOW, now, 10_000))
    assert [start.slot for start in starts] == [now]


# Overlap.


def test_a_slot_is_skipped_while_a_run_is_going():
    decision = decide(job(), SlotFacts(running=1), at(30))
    assert outcomes(decision) == [SlotOutcome.SKIPPED_OVERLAP]
    assert decision.settled[0].reason == "1 run(s) of the job still going and 0 waiting"
    assert decision.start is None
    assert decision.job.completed == 0
    assert decision.job.next_slot == at(60)


@pytest.mark.parametrize(
    ("overlap", "facts", "outcome", "waits", "cancels"),
    [
        (Overlap.QUEUE_ONE, SlotFacts(running=1), SlotOutcome.FIRED, True, False),
        (Overlap.QUEUE_ONE, SlotFacts(running=1, waiting=1), SlotOutcome.SKIPPED_OVERLAP, None, None),
        (Overlap.QUEUE_ONE, SlotFacts(waiting=1), SlotOutcome.SKIPPED_OVERLAP, None, None),
        (Overlap.QUEUE_ALL, SlotFacts(running=1, waiting=5), SlotOutcome.FIRED, True, False),
        (Overlap.QUEUE_ALL, SlotFacts(running=1, waiting=100), SlotOutcome.SKIPPED_OVERLAP, None, None),
        (Overlap.CANCEL_OTHER, SlotFacts(running=1), SlotOutcome.FIRED, False, True),
        (Overlap.ALLOW, SlotFacts(running=3), SlotOutcome.FIRED, False, False),
        (Overlap.SKIP, SlotFacts(waiting=1), SlotOutcome.SKIPPED_OVERLAP, None, None),
        (Overlap.QUEUE_ONE, SlotFacts(), SlotOutcome.FIRED, False, False),
        (Overlap.CANCEL_OTHER, SlotFacts(), SlotOutcome.FIRED, False, False),
    ],
)
def test_the_overlap_policy_decides(overlap, facts, outcome, waits, cancels):
    decision = decide(job(policy=JobPolicy(overlap=overlap)), facts, at(30))
    assert outcomes(decision) == [outcome]
    assert (decision.start.waits if decision.start else None) == waits
    assert (decision.start.cancels_running if decision.start else None) == cancels


# Repeat.


def test_a_one_shot_completes_when_it_fires():
    decision = decide(job("30m", times=1), IDLE, at(30))
    assert decision.job.state is JobStatus.COMPLETED
    assert decision.job.next_slot is None
    assert decision.job.next_fire_at is None


def test_a_finite_job_completes_with_its_last_run():
    decision = decide(job(times=3, completed=2), IDLE, at(30))
    assert (decision.job.state, decision.job.completed) == (JobStatus.COMPLETED, 3)


def test_a_skipped_slot_takes_nothing_off_a_finite_job():
    decision = decide(job(times=3, completed=2), SlotFacts(running=1), at(30))
    assert (decision.job.state, decision.job.completed) == (JobStatus.SCHEDULED, 2)


def test_a_catch_up_run_counts_once():
    assert decide(job(times=3), IDLE, at(3000)).job.completed == 1


def test_a_job_whose_runs_are_made_never_runs_again():
    decision = decide(job(times=3, completed=3), IDLE, at(30))
    assert outcomes(decision) == [SlotOutcome.MISSED]
    assert decision.start is None
    assert decision.job.state is JobStatus.COMPLETED


def test_a_job_completes_when_its_end_date_leaves_no_slot():
    decision = decide(job(options=ScheduleOptions(ends_at=at(59))), IDLE, at(30))
    assert decision.job.state is JobStatus.COMPLETED


@pytest.mark.parametrize(
    ("requested", "text", "times"),
    [
        (None, "every 1h", None),
        (0, "every 1h", None),
        (-2, "every 1h", None),
        (5, "every 1h", 5),
        (None, "1h", 1),
        (0, "1h", 1),
    ],
)
def test_the_number_of_runs_is_normalised(requested, text, times):
    assert compute_repeat_times(parse_schedule(text, now=NOW), requested) == times


@pytest.mark.parametrize(
    ("times", "completed", "display"),
    [(None, 7, "forever"), (1, 0, "once"), (1, 1, "1/1"), (5, 0, "5 times"), (5, 2, "2/5")],
)
def test_the_number_of_runs_is_shown(times, completed, display):
    assert format_repeat(times, completed) == display


# Budgets.


@pytest.mark.parametrize(
    ("budget", "used", "limit"),
    [
        (DailyBudget(iterations=90), DailyUse(iterations=90), "90 iterations"),
        (DailyBudget(tokens=1000), DailyUse(tokens=1001), "1000 tokens"),
        (DailyBudget(cost_usd=Decimal("1.50")), DailyUse(cost_usd=Decimal("1.50")), "1.50 USD"),
        (DailyBudget(tokens=0), DailyUse(), "0 tokens"),
    ],
)
def test_a_used_up_budget_blocks_the_slot(budget, used, limit):
    decision = decide(job(policy=JobPolicy(daily_budget=budget)), SlotFacts(used_today=used), at(30))
    assert outcomes(decision) == [SlotOutcome.BLOCKED_BUDGET]
    assert decision.settled[0].reason == f"the job's daily budget of {limit} is used up"
    assert decision.start is None
    assert decision.job.next_slot == at(60)
    assert decision.notice == f"A run was not started: the job's daily budget of {limit} is used up."


def test_a_budget_with_something_left_does_not_block():
    policy = JobPolicy(daily_budget=DailyBudget(iterations=90, tokens=10, cost_usd=Decimal(1)))
    used = DailyUse(iterations=89, tokens=9, cost_usd=Decimal("0.999"))
    assert outcomes(decide(job(policy=policy), SlotFacts(used_today=used), at(30))) == [SlotOutcome.FIRED]


def test_the_owner_of_a_blocked_job_is_told_once_a_day():
    policy = JobPolicy(daily_budget=DailyBudget(tokens=0))
    assert decide(job(policy=policy), SlotFacts(was_blocked_today=True), at(30)).notice is None


@pytest.mark.parametrize(
    ("now", "hours"), [("2026-03-29T12:00+00:00", 23), ("2026-10-25T00:10+00:00", 25), ("2026-07-01T22:30+00:00", 24)]
)
def test_a_day_is_that_of_the_job(now, hours):
    instant = datetime.fromisoformat(now)
    start, end = find_local_day("Europe/Berlin", instant)
    assert start <= instant < end
    assert end - start == timedelta(hours=hours)


# Failures.


def test_a_run_that_could_not_start_is_a_failed_slot():
    state = job(consecutive_failures=1)
    decision = fail_start(state, decide(state, IDLE, at(65)), "the model changed")
    assert outcomes(decision) == [SlotOutcome.MISSED, SlotOutcome.FAILED_TO_START]
    assert decision.start is None
    assert decision.job.consecutive_failures == 2
    assert decision.job.completed == 1
    assert decision.job.next_slot == at(90)
    assert decision.notice == "The job could not start: the model changed"


def test_failures_in_a_row_pause_the_job_and_somebody_is_told():
    state = job(consecutive_failures=2, policy=JobPolicy(failures_max=3))
    changes, notice = count_run(state, RunVerdict.ERROR)
    assert changes.state is JobStatus.PAUSED
    assert changes.next_slot is None
    assert changes.paused_reason == "3 runs failed in a row"
    assert notice == "The job is paused: 3 runs failed in a row. Resume it when the cause is gone."


def test_failing_to_start_pauses_the_job_too():
    state = job(consecutive_failures=2, policy=JobPolicy(failures_max=3))
    decision = fail_start(state, decide(state, IDLE, at(30)), "no key")
    assert decision.job.state is JobStatus.PAUSED
    assert decision.notice.startswith("The job is paused")


def test_a_failure_below_the_limit_only_counts():
    changes, notice = count_run(job(policy=JobPolicy(failures_max=3)), RunVerdict.ERROR)
    assert (changes.state, changes.consecutive_failures, notice) == (JobStatus.SCHEDULED, 1, None)
    assert changes.next_slot == at(30)


def test_without_a_limit_a_job_fails_as_often_as_it_likes():
    changes, notice = count_run(job(consecutive_failures=1000), RunVerdict.ERROR)
    assert (changes.state, notice) == (JobStatus.SCHEDULED, None)


def test_a_success_ends_the_row():
    assert count_run(job(consecutive_failures=2), RunVerdict.OK)[0].consecutive_failures == 0


def test_an_unknown_end_neither_counts_nor_clears():
    assert count_run(job(consecutive_failures=2), RunVerdict.UNKNOWN)[0].consecutive_failures == 2


def test_a_completed_job_is_not_paused_by_its_last_failure():
    state = replace(job(times=1, policy=JobPolicy(failures_max=1)), state=JobStatus.COMPLETED)
    assert count_run(state, RunVerdict.ERROR)[0].state is JobStatus.COMPLETED


# Pause, resume, run by hand.


def test_a_paused_job_waits_for_nothing():
    changes = pause_job(job(), "holiday")
    assert (changes.state, changes.next_slot, changes.paused_reason) == (JobStatus.PAUSED, None, "holiday")


def test_a_resumed_job_does_not_make_up_for_its_pause():
    state = with_changes(job(), pause_job(job(), None))
    assert resume_job(state, at(95)).next_slot == at(120)


def test_resuming_forgets_the_failures():
    state = replace(job(consecutive_failures=3), state=JobStatus.PAUSED, next_slot=None)
    assert resume_job(state, at(95)).consecutive_failures == 0


def test_a_one_shot_in_the_past_cannot_be_resumed():
    with pytest.raises(ScheduleError, match="is in the past"):
        resume_job(job("30m"), at(33))


def test_a_job_that_made_its_runs_cannot_be_resumed_or_run():
    for action in (resume_job, trigger_job):
        with pytest.raises(ScheduleError, match="has made all of its 2 runs"):
            action(job(times=2, completed=2), at(5))


def test_a_run_by_hand_is_due_at_once_and_the_schedule_goes_on():
    state = with_changes(job(), trigger_job(job(), at(7)))
    decision = decide(state, IDLE, at(7))
    assert decision.start.slot == at(7)
    assert decision.job.next_slot == at(30)


def test_a_run_by_hand_does_not_wait_for_the_jitter():
    state = job(options=ScheduleOptions(jitter_s=3600))
    assert outcomes(decide(with_changes(state, trigger_job(state, at(7))), IDLE, at(7))) == [SlotOutcome.FIRED]


# Jitter.


def test_a_jittered_slot_waits_for_its_own_time():
    state = job("every 2h", options=ScheduleOptions(jitter_s=1800))
    fire_at = compute_fire_time(state.schedule, state.next_slot, state.id)
    assert state.next_fire_at == fire_at
    assert decide(state, IDLE, fire_at - timedelta(seconds=1)) is None
    decision = decide(state, IDLE, fire_at)
    assert (decision.start.slot, outcomes(decision)) == (state.next_slot, [SlotOutcome.FIRED])


def test_lateness_is_counted_from_the_jittered_time():
    state = job("every 1h", options=ScheduleOptions(jitter_s=1800), policy=JobPolicy(misfire_grace_s=5))
    assert outcomes(decide(state, IDLE, state.next_fire_at + timedelta(seconds=5))) == [SlotOutcome.FIRED]


# The law.


texts = st.sampled_from(["every 1m", "every 7m", "every 1h", "*/5 * * * *", "0 9 * * *", "30 2 * * *", "0 * * * *"])
steps = st.lists(st.integers(0, 300), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(texts, steps, st.sampled_from(list(Overlap)), st.integers(0, 600), st.integers(0, 2))
def test_every_slot_gets_exactly_one_row_whatever_the_ticks(text, minutes, overlap, jitter_s, running):
    """A scheduler that looks at irregular times, sometimes with runs going: no slot without a row, none with two, and
    never two starts for one look."""
    options = ScheduleOptions(timezone="Europe/Berlin", jitter_s=jitter_s)
    state = job(text, options=options, policy=JobPolicy(overlap=overlap))
    now, rows = NOW, []
    for number, step in enumerate(minutes):
        now += timedelta(minutes=step)
        while (decision := decide(state, SlotFacts(running=running if number % 2 else 0), now)) is not None:
            rows += [row.slot for row in decision.settled]
            state = with_changes(state, decision.job)
    assert state.next_fire_at > now
    assert rows == list(list_slots_between(state.schedule, NOW, rows[-1], 100_000)) if rows else True
    assert rows == sorted(set(rows))
    unsettled = list_slots_between(state.schedule, rows[-1] if rows else NOW, now, 100_000)
    assert all(compute_fire_time(state.schedule, slot, state.id) > now for slot in unsettled)
