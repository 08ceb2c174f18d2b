"""Stopping a run at every point of its life: it ends, visibly, and nothing it did is told wrongly."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from support.store import ANSWER, Store, check, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.notices import CANCELLED, OUTCOME_UNKNOWN, STOPPED_ANSWER
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, ExitReason, RunStatus
from hermes_worker.store.runs.runs import RunNotFound

P, K, O = Replay.PURE, Replay.KEYED, Replay.ONCE  # noqa: E741


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A moment in a run's life: how to get there, and what the holders of claims then do."""

    name: str
    reach: Callable[[Store], str]
    expected: RunStatus
    finish: Callable[[Store, str], object] | None = None
    """Give up what is held; ``None`` when nothing is."""


def _queued(store: Store) -> str:
    return store.submit(session_id="s").run_id


def _asking(store: Store) -> str:
    run_id = _queued(store)
    _held[run_id] = store.turn(run_id)
    return run_id


def _parked(store: Store) -> str:
    run_id = _queued(store)
    awaited = ev.CapacityAwaited(resume_at=store.database.read_clock() + 60, recovery="{}")
    store.runs.commit_failure(store.turn(run_id), awaited)
    return run_id


def _tools_due(store: Store) -> str:
    return store.with_tools(P, O, session_id="s")


def _tool_running(store: Store) -> str:
    run_id = _tools_due(store)
    _held[run_id] = store.call(run_id, 1)
    return run_id


def _between_segments(store: Store) -> str:
    run_id = store.with_tools(P, P, session_id="s", segments=[0, 1])
    store.settle(run_id, 0)
    return run_id


def _between_iterations(store: Store) -> str:
    run_id = store.with_tools(P, session_id="s")
    store.settle(run_id)
    return run_id


def _asking_again(store: Store) -> str:
    run_id = _between_iterations(store)
    _held[run_id] = store.turn(run_id)
    return run_id


_held: dict[str, object] = {}


def _reply(store: Store, run_id: str) -> object:
    return store.runs.commit_reply(_held[run_id], ANSWER, ())  # type: ignore[arg-type]


def _release(store: Store, run_id: str) -> object:
    return store.runs.release_iteration(_held[run_id])  # type: ignore[arg-type]


def _settle(store: Store, run_id: str) -> object:
    return store.calls.settle(_held[run_id], settlement("it ran"))  # type: ignore[arg-type]


POINTS = [
    Point(name="queued", reach=_queued, expected=RunStatus.CANCELLED),
    Point(name="asking, then the reply comes", reach=_asking, expected=RunStatus.STOPPING, finish=_reply),
    Point(name="asking, then it is given up", reach=_asking, expected=RunStatus.STOPPING, finish=_release),
    Point(name="parked", reach=_parked, expected=RunStatus.CANCELLED),
    Point(name="tools due", reach=_tools_due, expected=RunStatus.CANCELLED),
    Point(name="a tool runs", reach=_tool_running, expected=RunStatus.STOPPING, finish=_settle),
    Point(name="between segments", reach=_between_segments, expected=RunStatus.CANCELLED),
    Point(name="between iterations", reach=_between_iterations, expected=RunStatus.CANCELLED),
    Point(name="asking again", reach=_asking_again, expected=RunStatus.STOPPING, finish=_reply),
]


@pytest.mark.parametrize("point", POINTS, ids=[point.name for point in POINTS])
def test_a_stop_at_any_point_ends_the_run_and_frees_its_session(store: Store, point: Point) -> None:
    run_id = point.reach(store)
    following = store.submit(session_id="s").run_id

    status, _ = store.runs.request_stop(run_id)

    assert status is point.expected
    assert store.runs.find_stopping([run_id, following]) == {run_id}
    check(store)
    if point.finish is not None:
        assert store.due(run_id) == []
        point.finish(store, run_id)
    assert store.status(run_id) is RunStatus.CANCELLED
    check(store)
    claim = store.turn(following)
    rows = store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
    assert json.loads(rows[-1].body) == {"role": "user", "content": "hello"}
    store.runs.commit_reply(claim, ANSWER, ())
    check(store)


@pytest.mark.parametrize("point", POINTS, ids=[point.name for point in POINTS])
def test_a_stop_whose_worker_never_answers_ends_by_the_sweeper(store: Store, point: Point) -> None:
    run_id = point.reach(store)
    store.runs.request_stop(run_id)
    with store.database.write() as connection:
        connection.exec_driver_sql("update workers set expires_at = 1")

    store.sweep()

    assert store.status(run_id) is RunStatus.CANCELLED
    check(store)


@pytest.mark.parametrize("point", POINTS, ids=[point.name for point in POINTS])
def test_stopping_twice_changes_nothing(store: Store, point: Point) -> None:
    run_id = point.reach(store)
    store.runs.request_stop(run_id)
    events = store.event_names(run_id)

    status, hints = store.runs.request_stop(run_id)

    assert (status, hints) == (point.expected, [])
    assert store.event_names(run_id) == events


@pytest.mark.parametrize("point", POINTS, ids=[point.name for point in POINTS])
def test_a_deadline_at_any_point_ends_the_run_at_once(store: Store, point: Point) -> None:
    run_id = point.reach(store)
    store.let_pass(86_401)

    store.sweep()

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.EXPIRED, ExitReason.WALL_CLOCK_EXCEEDED)
    check(store)
    if point.finish is not None:
        with pytest.raises(LeaseLost):
            point.finish(store, run_id)
        check(store)


def test_a_run_that_has_ended_stays_as_it_ended(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)

    assert store.runs.request_stop(run_id) == (RunStatus.COMPLETED, [])
    assert store.event_names(run_id)[-1] == "run.completed"


def test_a_run_that_waits_for_its_session_frees_nothing_when_it_is_stopped(store: Store) -> None:
    at_work = store.submit(session_id="s").run_id
    claim = store.turn(at_work)
    waiting, last = (store.submit(session_id="s").run_id for _ in range(2))

    assert store.runs.request_stop(waiting) == (RunStatus.CANCELLED, [])

    check(store)
    assert store.views.load_run(last).started_at is None
    store.runs.commit_reply(claim, ANSWER, ())
    store.answer(last)
    assert store.views.load_run(last).status is RunStatus.COMPLETED
    check(store)


def test_a_run_that_is_not_there_cannot_be_stopped(store: Store) -> None:
    with pytest.raises(RunNotFound, match="'run_x'"):
        store.runs.request_stop("run_x")


def test_a_stopped_runs_tools_are_told_apart_by_what_became_of_them(store: Store) -> None:
    dead = store.worker()
    run_id = store.with_tools(P, O, O, K)
    finished, lost = store.call(run_id, 0), store.call(run_id, 1, dead.pk)
    store.runs.request_stop(run_id)
    assert store.results(run_id) == [CANCELLED, CANCELLED]

    store.calls.settle(finished, settlement("it ran"))
    store.vanish(dead)
    store.sweep()

    assert lost.replay is O
    assert store.results(run_id) == ["it ran", OUTCOME_UNKNOWN, CANCELLED, CANCELLED]
    statuses = [call.status for call in store.views.list_calls(run_id)]
    assert statuses == [CallStatus.SUCCEEDED, CallStatus.UNKNOWN, CallStatus.CANCELLED, CallStatus.CANCELLED]
    assert store.bodies(run_id)[-1] == {"role": "assistant", "content": STOPPED_ANSWER}
    assert store.event_names(run_id)[-1] == "run.cancelled"
    check(store)
