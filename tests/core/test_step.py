"""What becomes of a run: every event in every kind of state, as tables of cases."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Effect, Iterate, RunTool, list_outstanding
from hermes_worker.core.errors import Failure, InvalidTransition
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import (
    CALL_TRANSITIONS,
    PARKED,
    RUN_TRANSITIONS,
    SETTLED,
    TERMINAL,
    Call,
    CallStatus,
    ExitReason,
    Run,
    RunStatus,
)
from hermes_worker.core.step import apply_event, compute_retry_delay_s, step_run

FAILURE = Failure(kind="timeout", message="the model did not answer")
FAILED = ev.ModelFailed(failure=FAILURE, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED)
AGAIN = ev.AskedAgain(memory='{"version":1}', is_counted=True)
AGAIN_FREE = ev.AskedAgain(memory=None, is_counted=False)
AWAITED = ev.CapacityAwaited(resume_at=1_000.0, recovery='{"tries":2}')
EXPIRED = ev.DeadlinePassed(reason=ExitReason.WALL_CLOCK_EXCEEDED, failure=FAILURE)
BROKEN = ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=FAILURE)
PLANNED = ev.PlannedCall(name="read_file", replay=Replay.PURE, segment=0)
REPLIED_WITH_CALL = ev.ModelReplied(calls=(PLANNED,))
ANSWERED = ev.ModelReplied()

EVERY_EVENT: tuple[ev.Event, ...] = (
    ev.IterationClaimed(),
    ev.IterationReleased(),
    ev.IterationLost(),
    ANSWERED,
    REPLIED_WITH_CALL,
    AGAIN,
    AGAIN_FREE,
    FAILED,
    AWAITED,
    ev.WaitEnded(),
    ev.CallClaimed(position=0),
    ev.CallReleased(position=0),
    ev.CallLost(position=0),
    ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
    ev.StopRequested(),
    EXPIRED,
    BROKEN,
)


def call(position: int = 0, **more: Any) -> Call:
    facts: dict[str, Any] = {"name": f"tool{position}", "replay": Replay.PURE, "segment": 0, "timeout_s": 60.0}
    return Call(position=position, **{**facts, **more})


def run(**more: Any) -> Run:
    return Run(run_id="r", **more)


def running(*calls: Call, **more: Any) -> Run:
    return run(**{"status": RunStatus.RUNNING, "iteration": 1 if calls else 0, "calls": calls, **more})


def asking(**more: Any) -> Run:
    return running(is_asking=True, **more)


def claimed(**more: Any) -> Call:
    return call(status=CallStatus.RUNNING, **more)


def statuses(after: Run) -> list[str]:
    return [each.status.value for each in after.calls]


ASK = Iterate(run_id="r", iteration=1, attempt=1)


def tool(position: int = 0, attempt: int = 1, iteration: int = 1, is_suspect: bool = False) -> RunTool:
    return RunTool(run_id="r", iteration=iteration, position=position, attempt=attempt, is_suspect=is_suspect)


# --- the tables themselves -------------------------------------------------------------------------------------------


def test_every_status_has_its_row_in_the_table() -> None:
    assert set(RUN_TRANSITIONS) == set(RunStatus)
    assert set(CALL_TRANSITIONS) == set(CallStatus)


def test_terminal_and_settled_have_no_way_out() -> None:
    assert all(not RUN_TRANSITIONS[status] for status in TERMINAL)
    assert all(not CALL_TRANSITIONS[status] for status in SETTLED)


def test_every_status_can_reach_an_end() -> None:
    for status in set(RunStatus) - TERMINAL:
        assert RUN_TRANSITIONS[status] & TERMINAL, status


def test_nothing_but_a_new_run_and_one_that_was_paused_is_queued() -> None:
    before = {status for status, targets in RUN_TRANSITIONS.items() if RunStatus.QUEUED in targets}
    assert before == {RunStatus.PAUSED}


# --- one event, one outcome ------------------------------------------------------------------------------------------

Expectation = tuple[RunStatus, ExitReason | None, frozenset[Effect]]

TURN_CASES: list[tuple[str, Run, ev.Event, Expectation]] = [
    ("a queued run's call is claimed", run(), ev.IterationClaimed(), (RunStatus.RUNNING, None, frozenset())),
    ("the call is handed back", asking(), ev.IterationReleased(), (RunStatus.RUNNING, None, frozenset({ASK}))),
    (
        "its worker vanishes: it is a suspect",
        asking(),
        ev.IterationLost(),
        (RunStatus.RUNNING, None, frozenset({replace(ASK, attempt=2, is_suspect=True)})),
    ),
    (
        "its worker gives it up: nobody is to blame",
        asking(),
        ev.IterationLost(loss=ev.Loss.GIVEN_UP),
        (RunStatus.RUNNING, None, frozenset({replace(ASK, attempt=2)})),
    ),
    (
        "its worker is seen to die once too often, alone",
        asking(attempt=4, deaths=2),
        ev.IterationLost(loss=ev.Loss.SEEN),
        (RunStatus.FAILED, ExitReason.STEP_QUARANTINED, frozenset()),
    ),
    (
        "a suspect's worker vanishes and nobody saw it",
        asking(attempt=4, deaths=2),
        ev.IterationLost(),
        (RunStatus.RUNNING, None, frozenset({replace(ASK, attempt=5, is_suspect=True)})),
    ),
    (
        "a step in company is never more than a suspect",
        asking(attempts_max=1),
        ev.IterationLost(loss=ev.Loss.SEEN),
        (RunStatus.RUNNING, None, frozenset({replace(ASK, attempt=2, is_suspect=True)})),
    ),
    ("the model answers", asking(), ANSWERED, (RunStatus.COMPLETED, ExitReason.TEXT_RESPONSE, frozenset())),
    ("the model asks for a tool", asking(), REPLIED_WITH_CALL, (RunStatus.RUNNING, None, frozenset({tool()}))),
    (
        "the model writes its summary",
        asking(iteration=2, iterations_max=2),
        ANSWERED,
        (RunStatus.COMPLETED, ExitReason.MAX_ITERATIONS_REACHED, frozenset()),
    ),
    (
        "the model asks for a tool although it may not",
        asking(iteration=2, iterations_max=2),
        REPLIED_WITH_CALL,
        (RunStatus.COMPLETED, ExitReason.MAX_ITERATIONS_REACHED, frozenset()),
    ),
    (
        "the answer is empty and asked for again",
        asking(attempt=2),
        AGAIN,
        (RunStatus.RUNNING, None, frozenset({replace(ASK, iteration=2)})),
    ),
    ("the calls are cut and asked for again", asking(), AGAIN_FREE, (RunStatus.RUNNING, None, frozenset({ASK}))),
    (
        "the summary is empty and asked for again",
        asking(iteration=2, iterations_max=2),
        AGAIN,
        (RunStatus.RUNNING, None, frozenset({replace(ASK, iteration=3)})),
    ),
    (
        "an answer is not whole",
        asking(),
        ev.ModelReplied(exit_reason=ExitReason.TRUNCATED, failure=FAILURE),
        (RunStatus.COMPLETED, ExitReason.TRUNCATED, frozenset()),
    ),
    ("the call fails", asking(), FAILED, (RunStatus.FAILED, ExitReason.ALL_RETRIES_EXHAUSTED, frozenset())),
    ("the provider wants a pause", asking(), AWAITED, (RunStatus.WAITING_FOR_CAPACITY, None, frozenset())),
    (
        "the pause is over",
        run(status=RunStatus.WAITING_FOR_CAPACITY, resume_at=1.0),
        ev.WaitEnded(),
        (RunStatus.RUNNING, None, frozenset({ASK})),
    ),
    (
        "a queued run is stopped",
        run(),
        ev.StopRequested(),
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_BY_USER, frozenset()),
    ),
    ("a run is stopped in its model call", asking(), ev.StopRequested(), (RunStatus.STOPPING, None, frozenset())),
    (
        "a waiting run is stopped",
        run(status=RunStatus.WAITING_FOR_CAPACITY, resume_at=1.0),
        ev.StopRequested(),
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_BY_USER, frozenset()),
    ),
    (
        "a stopped run's reply arrives",
        asking(status=RunStatus.STOPPING),
        REPLIED_WITH_CALL,
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL, frozenset()),
    ),
    (
        "a stopped run's call fails",
        asking(status=RunStatus.STOPPING),
        FAILED,
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL, frozenset()),
    ),
    (
        "a stopped run's provider wants a pause",
        asking(status=RunStatus.STOPPING),
        AWAITED,
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL, frozenset()),
    ),
    (
        "a stopped run's worker vanishes, however often before",
        asking(status=RunStatus.STOPPING, attempt=3),
        ev.IterationLost(),
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL, frozenset()),
    ),
    (
        "a stopped run's call is given up",
        asking(status=RunStatus.STOPPING),
        ev.IterationReleased(),
        (RunStatus.CANCELLED, ExitReason.INTERRUPTED_BY_USER, frozenset()),
    ),
    ("the wall clock runs out", asking(), EXPIRED, (RunStatus.EXPIRED, ExitReason.WALL_CLOCK_EXCEEDED, frozenset())),
    (
        "the wall clock runs out while stopping",
        asking(status=RunStatus.STOPPING),
        EXPIRED,
        (RunStatus.EXPIRED, ExitReason.WALL_CLOCK_EXCEEDED, frozenset()),
    ),
    ("a row is corrupt", run(), BROKEN, (RunStatus.FAILED, ExitReason.CORRUPT_STATE, frozenset())),
]


@pytest.mark.parametrize(("_name", "before", "event", "expected"), TURN_CASES, ids=[case[0] for case in TURN_CASES])
def test_a_turn_event_moves_the_run(_name: str, before: Run, event: ev.Event, expected: Expectation) -> None:
    status, reason, effects = expected

    after, added = step_run(before, event)

    assert (after.status, after.exit_reason, added) == (status, reason, effects)
    assert after.is_asking == (status in (RunStatus.RUNNING, RunStatus.STOPPING) and not added)


CallCase = tuple[str, Run, ev.Event, list[str], RunStatus, frozenset[Effect]]
CALL_CASES: list[CallCase] = [
    ("claimed", running(call()), ev.CallClaimed(position=0), ["running"], RunStatus.RUNNING, frozenset()),
    (
        "settled last: the next iteration is due",
        running(claimed()),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
        ["succeeded"],
        RunStatus.RUNNING,
        frozenset({Iterate(run_id="r", iteration=2, attempt=1)}),
    ),
    (
        "settled with an error: the model sees it and goes on",
        running(claimed()),
        ev.CallSettled(position=0, status=CallStatus.FAILED),
        ["failed"],
        RunStatus.RUNNING,
        frozenset({Iterate(run_id="r", iteration=2, attempt=1)}),
    ),
    (
        "settled beside another: nothing is due",
        running(claimed(), call(1, status=CallStatus.RUNNING)),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
        ["succeeded", "running"],
        RunStatus.RUNNING,
        frozenset(),
    ),
    (
        "settled last of its segment: the next segment is due",
        running(claimed(), call(1, segment=1), call(2, segment=1), call(3, segment=2)),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
        ["succeeded", "pending", "pending", "pending"],
        RunStatus.RUNNING,
        frozenset({tool(1), tool(2)}),
    ),
    (
        "handed back: due again in the same attempt",
        running(claimed(attempt=2)),
        ev.CallReleased(position=0),
        ["pending"],
        RunStatus.RUNNING,
        frozenset({tool(attempt=2)}),
    ),
    (
        "a pure call lost: tried again",
        running(claimed()),
        ev.CallLost(position=0),
        ["pending"],
        RunStatus.RUNNING,
        frozenset({tool(attempt=2, is_suspect=True)}),
    ),
    (
        "a keyed call lost: tried again",
        running(claimed(replay=Replay.KEYED)),
        ev.CallLost(position=0),
        ["pending"],
        RunStatus.RUNNING,
        frozenset({tool(attempt=2, is_suspect=True)}),
    ),
    (
        "a call given up: tried again, and nothing is held against it",
        running(claimed()),
        ev.CallLost(position=0, loss=ev.Loss.GIVEN_UP),
        ["pending"],
        RunStatus.RUNNING,
        frozenset({tool(attempt=2)}),
    ),
    (
        "a suspect lost, however often, and nobody saw it: tried again",
        running(claimed(attempt=9, deaths=2)),
        ev.CallLost(position=0),
        ["pending"],
        RunStatus.RUNNING,
        frozenset({tool(attempt=10, is_suspect=True)}),
    ),
    (
        "a once call lost: its outcome is unknown and the model goes on",
        running(claimed(replay=Replay.ONCE)),
        ev.CallLost(position=0),
        ["unknown"],
        RunStatus.RUNNING,
        frozenset({Iterate(run_id="r", iteration=2, attempt=1)}),
    ),
    (
        "a call seen to take its lane down once too often: quarantined, its neighbours ended",
        running(claimed(attempt=4, deaths=2), call(1), call(2, status=CallStatus.RUNNING, replay=Replay.ONCE)),
        ev.CallLost(position=0, loss=ev.Loss.SEEN),
        ["cancelled", "cancelled", "unknown"],
        RunStatus.FAILED,
        frozenset(),
    ),
    (
        "stopped: what has not begun is cancelled, what runs may end",
        running(claimed(), call(1), call(2, segment=1)),
        ev.StopRequested(),
        ["running", "cancelled", "cancelled"],
        RunStatus.STOPPING,
        frozenset(),
    ),
    (
        "stopped with nothing claimed: ended",
        running(call(), call(1)),
        ev.StopRequested(),
        ["cancelled", "cancelled"],
        RunStatus.CANCELLED,
        frozenset(),
    ),
    (
        "stopping: the last result ends the run",
        running(claimed(), call(1, status=CallStatus.CANCELLED), status=RunStatus.STOPPING),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
        ["succeeded", "cancelled"],
        RunStatus.CANCELLED,
        frozenset(),
    ),
    (
        "stopping: one of two results leaves it stopping",
        running(claimed(), call(1, status=CallStatus.RUNNING), status=RunStatus.STOPPING),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
        ["succeeded", "running"],
        RunStatus.STOPPING,
        frozenset(),
    ),
    (
        "stopping: a lost call is not tried again",
        running(claimed(), status=RunStatus.STOPPING),
        ev.CallLost(position=0),
        ["cancelled"],
        RunStatus.CANCELLED,
        frozenset(),
    ),
    (
        "stopping: a lost once call is unknown, not cancelled",
        running(claimed(replay=Replay.ONCE), status=RunStatus.STOPPING),
        ev.CallLost(position=0),
        ["unknown"],
        RunStatus.CANCELLED,
        frozenset(),
    ),
    (
        "stopping: a call handed back is cancelled",
        running(claimed(), status=RunStatus.STOPPING),
        ev.CallReleased(position=0),
        ["cancelled"],
        RunStatus.CANCELLED,
        frozenset(),
    ),
    (
        "expired: what runs is cut off",
        running(claimed(), call(1), call(2, status=CallStatus.RUNNING, replay=Replay.ONCE)),
        EXPIRED,
        ["cancelled", "cancelled", "unknown"],
        RunStatus.EXPIRED,
        frozenset(),
    ),
]


@pytest.mark.parametrize("case", CALL_CASES, ids=[case[0] for case in CALL_CASES])
def test_a_call_event_moves_the_run(case: CallCase) -> None:
    _, before, event, calls, status, effects = case

    after, added = step_run(before, event)

    assert (statuses(after), after.status, added) == (calls, status, effects)


REFUSED: list[tuple[str, Run, ev.Event]] = [
    ("a call that is claimed cannot be claimed again", asking(), ev.IterationClaimed()),
    ("no model call is due while tools are", running(call()), ev.IterationClaimed()),
    ("no model call is due while waiting", run(status=RunStatus.WAITING_FOR_CAPACITY), ev.IterationClaimed()),
    ("no model call is due while stopping", running(claimed(), status=RunStatus.STOPPING), ev.IterationClaimed()),
    ("a reply needs a claim", running(), ANSWERED),
    ("a failure needs a claim", running(), FAILED),
    ("a pause needs a claim", running(), AWAITED),
    ("a loss needs a claim", running(), ev.IterationLost()),
    ("a release needs a claim", running(), ev.IterationReleased()),
    ("nothing to wake", running(), ev.WaitEnded()),
    ("no such call", running(call()), ev.CallClaimed(position=1)),
    ("no call before the first", running(call()), ev.CallClaimed(position=-1)),
    ("a tool call that is claimed cannot be claimed again", running(claimed()), ev.CallClaimed(position=0)),
    ("a later segment has to wait", running(call(), call(1, segment=1)), ev.CallClaimed(position=1)),
    (
        "a settled call cannot be claimed",
        running(call(status=CallStatus.SUCCEEDED), call(1)),
        ev.CallClaimed(position=0),
    ),
    ("nothing is claimed while parked", running(call(), status=RunStatus.PAUSED), ev.CallClaimed(position=0)),
    ("a call that nobody holds cannot be lost", running(call()), ev.CallLost(position=0)),
    ("nor for the last time", running(call(attempt=3)), ev.CallLost(position=0)),
    ("a once call that nobody holds cannot be lost", running(call(replay=Replay.ONCE)), ev.CallLost(position=0)),
    ("a call that nobody holds cannot be handed back", running(call()), ev.CallReleased(position=0)),
    (
        "a once call that is claimed cannot be handed back: it may have begun",
        running(claimed(replay=Replay.ONCE)),
        ev.CallReleased(position=0),
    ),
    (
        "a call that never ran cannot succeed",
        running(call()),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
    ),
    (
        "nor fail: who reports on it must hold it",
        running(call()),
        ev.CallSettled(position=0, status=CallStatus.FAILED),
    ),
    ("settled as running is not settled", running(call()), ev.CallSettled(position=0, status=CallStatus.RUNNING)),
    ("settled as pending is not settled", running(claimed()), ev.CallSettled(position=0, status=CallStatus.PENDING)),
]


@pytest.mark.parametrize(("_name", "before", "event"), REFUSED, ids=[case[0] for case in REFUSED])
def test_an_event_that_cannot_happen_is_refused(_name: str, before: Run, event: ev.Event) -> None:
    with pytest.raises(InvalidTransition):
        apply_event(before, event)


LATE: list[tuple[str, Call, ev.Event]] = [
    ("a second result", call(status=CallStatus.SUCCEEDED), ev.CallSettled(position=0, status=CallStatus.FAILED)),
    ("a loss", call(status=CallStatus.SUCCEEDED), ev.CallLost(position=0)),
    ("a loss in the last attempt", call(status=CallStatus.SUCCEEDED, attempt=3), ev.CallLost(position=0)),
    ("a release", call(status=CallStatus.SUCCEEDED), ev.CallReleased(position=0)),
    ("a loss of a once call", call(status=CallStatus.UNKNOWN, replay=Replay.ONCE), ev.CallLost(position=0)),
    (
        "the result of a call whose outcome is unknown",
        call(status=CallStatus.UNKNOWN, replay=Replay.ONCE),
        ev.CallSettled(position=0, status=CallStatus.SUCCEEDED),
    ),
]


@pytest.mark.parametrize(("_name", "settled", "event"), LATE, ids=[case[0] for case in LATE])
def test_a_settled_call_ignores_what_comes_late(_name: str, settled: Call, event: ev.Event) -> None:
    before = running(settled, call(1))

    after, added = step_run(before, event)

    assert after == before
    assert added == frozenset()


@pytest.mark.parametrize("status", sorted(TERMINAL))
@pytest.mark.parametrize("event", EVERY_EVENT, ids=[event.kind for event in EVERY_EVENT])
def test_a_terminal_run_absorbs_every_event(status: RunStatus, event: ev.Event) -> None:
    before = run(status=status, exit_reason=ExitReason.TEXT_RESPONSE, calls=(call(status=CallStatus.SUCCEEDED),))

    assert step_run(before, event) == (before, frozenset())


@pytest.mark.parametrize("status", sorted(PARKED))
def test_a_parked_run_has_nothing_outstanding_and_can_be_woken_stopped_and_expired(status: RunStatus) -> None:
    parked = run(status=status, resume_at=5.0)

    assert list_outstanding(parked) == frozenset()
    if status is RunStatus.WAITING_FOR_CAPACITY:
        assert apply_event(parked, ev.WaitEnded()) == run(status=RunStatus.RUNNING)
    elif status is RunStatus.PAUSED:
        assert apply_event(parked, ev.ResumeRequested()).status is RunStatus.RUNNING
    assert apply_event(parked, ev.StopRequested()).status is RunStatus.CANCELLED
    assert apply_event(parked, EXPIRED).status is RunStatus.EXPIRED


# --- what a reply counts ---------------------------------------------------------------------------------------------


def test_a_reply_starts_the_next_steps_attempts_and_recovery_anew() -> None:
    after = apply_event(asking(attempt=3, recovery="{}"), REPLIED_WITH_CALL)

    assert (after.iteration, after.attempt, after.recovery) == (1, 1, None)


def test_a_park_keeps_the_attempt_and_what_was_tried() -> None:
    after = apply_event(asking(attempt=2), AWAITED)

    assert (after.attempt, after.recovery, after.resume_at) == (2, '{"tries":2}', 1_000.0)
    assert apply_event(after, ev.WaitEnded()).recovery == '{"tries":2}'


def test_a_stopped_reply_is_no_iteration() -> None:
    assert apply_event(asking(status=RunStatus.STOPPING), ANSWERED).iteration == 0


def test_the_calls_of_a_reply_keep_their_order_class_and_limits() -> None:
    planned = (
        ev.PlannedCall(name="a", replay=Replay.ONCE, segment=0, timeout_s=5.0),
        ev.PlannedCall(name="b", replay=Replay.KEYED, segment=1, timeout_s=6.0),
    )

    after = apply_event(asking(), ev.ModelReplied(calls=planned))

    assert after.calls == (
        Call(position=0, name="a", replay=Replay.ONCE, segment=0, timeout_s=5.0),
        Call(position=1, name="b", replay=Replay.KEYED, segment=1, timeout_s=6.0),
    )


def test_a_step_that_settles_is_acquitted() -> None:
    suspect = asking(attempt=3, deaths=1)

    assert apply_event(suspect, REPLIED_WITH_CALL).deaths is None
    assert apply_event(suspect, AGAIN).deaths is None
    assert not any(call.is_suspect for call in apply_event(suspect, REPLIED_WITH_CALL).calls)


@pytest.mark.parametrize("event", [ev.IterationReleased(), AGAIN_FREE, AWAITED])
def test_a_suspect_that_has_not_settled_stays_one(event: ev.Event) -> None:
    assert apply_event(asking(attempt=3, deaths=1), event).deaths == 1


def test_a_neighbour_of_a_suspect_is_no_suspect() -> None:
    after = apply_event(running(claimed(), call(1)), ev.CallLost(position=0))

    assert [call.deaths for call in after.calls] == [0, None]
    assert after.deaths is None


def test_a_step_that_is_lost_again_and_again_waits_longer_each_time() -> None:
    assert [compute_retry_delay_s(attempt) for attempt in range(1, 7)] == [0, 0, 1, 2, 4, 8]
    assert compute_retry_delay_s(30_000) == 300


def test_a_quarantine_names_the_step_and_says_what_to_do() -> None:
    lost = ev.CallLost(position=0, loss=ev.Loss.SEEN)
    after = apply_event(running(claimed(attempt=4, deaths=2, name="terminal")), lost)

    assert after.failure is not None
    assert "'terminal'" in after.failure.message
    assert "3 times" in after.failure.message
    assert "memory limit" in after.failure.message


def test_a_turn_keeps_what_it_remembers_until_it_is_told_otherwise() -> None:
    remembered = apply_event(asking(), AGAIN)
    assert remembered.memory == '{"version":1}'
    assert apply_event(apply_event(remembered, ev.IterationClaimed()), ev.IterationLost()).memory == '{"version":1}'
    assert apply_event(apply_event(remembered, ev.IterationClaimed()), REPLIED_WITH_CALL).memory is None


def test_asking_again_forgets_what_was_tried_about_failures() -> None:
    assert apply_event(asking(recovery="{}"), AGAIN_FREE).recovery is None
