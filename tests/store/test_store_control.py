"""Pausing, steering, and what becomes of input for a session that is busy."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from support.store import Store, asks, check, new_run, settlement

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.control import Control, NotAtWork
from hermes_worker.store.runs import Multitask, SessionActive, SessionBusy
from hermes_worker.store.steering import pending


def test_a_paused_run_begins_nothing_and_goes_on_where_it_was(store: Store) -> None:
    control = Control(store.database)
    run_id = store.with_tools(Replay.ONCE)
    assert control.pause(run_id) is RunStatus.PAUSED
    assert control.pause(run_id) is RunStatus.PAUSED
    assert store.due(run_id) == []
    check(store)
    status, hints = control.resume(run_id)
    assert (status, len(hints)) == (RunStatus.RUNNING, 1)
    assert control.resume(run_id) == (RunStatus.RUNNING, [])
    check(store)
    store.settle(run_id)
    store.answer(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED


def test_what_is_in_flight_at_a_pause_ends_as_it_would(store: Store) -> None:
    control = Control(store.database)
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    control.pause(run_id)
    assert store.ask_tools_with(claim, asks(Replay.ONCE)) == []
    assert store.status(run_id) is RunStatus.PAUSED
    check(store)
    _, [hint] = control.resume(run_id)
    assert hint.effect in store.due(run_id)
    call = store.call(run_id)
    control.pause(run_id)
    assert store.calls.settle(call, settlement()) == []
    control.resume(run_id)
    store.answer(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    check(store)


def test_a_run_that_waits_for_its_turn_can_be_paused_and_waits_again(store: Store) -> None:
    control = Control(store.database)
    first = store.submit(session_id="s").run_id
    second = store.submit(session_id="s").run_id
    control.pause(second)
    assert control.resume(second) == (RunStatus.QUEUED, [])
    control.pause(second)
    store.answer(first)
    check(store)
    _, [hint] = control.resume(second)
    assert hint.effect in store.due(second)
    store.answer(second)
    check(store)


def test_an_ended_run_is_neither_paused_nor_steered(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    control = Control(store.database)
    for act in (control.pause, control.resume, lambda run: control.steer(run, "x")):
        with pytest.raises(NotAtWork):
            act(run_id)


@pytest.mark.parametrize("when", ["before the claim", "while it runs"])
def test_what_is_said_to_a_run_joins_the_last_result_of_the_batch(store: Store, when: str) -> None:
    control = Control(store.database)
    run_id = store.with_tools(Replay.ONCE, Replay.ONCE, segments=[0, 1])
    control.steer(run_id, "in French")
    store.settle(run_id, 0, "one")
    if when == "before the claim":
        control.steer(run_id, "please")
    call = store.call(run_id, 1)
    if when == "while it runs":
        control.steer(run_id, "please")
    store.calls.settle(call, settlement("two"))
    first, second = store.results(run_id)
    assert first == "one"
    assert second.startswith("two\n\n[OUT-OF-BAND USER MESSAGE")
    assert "in French\nplease\n[/OUT-OF-BAND" in second
    assert [row["role"] for row in store.bodies(run_id)].count("user") == 1
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id, 0, "three")
    assert store.results(run_id)[-1] == "three"
    check(store)


def test_what_came_too_late_to_be_read_is_kept(store: Store) -> None:
    run_id = store.submit().run_id
    Control(store.database).steer(run_id, "in French")
    store.answer(run_id)
    with store.database.read() as connection:
        assert pending(connection, 1) == ["in French"]


def test_a_busy_session_rejects_what_is_not_to_wait(store: Store) -> None:
    store.submit(session_id="s", multitask=Multitask.REJECT)
    with pytest.raises(SessionActive):
        store.submit(session_id="s", multitask=Multitask.REJECT)
    check(store)


def test_an_interrupting_run_is_next_when_the_one_at_work_is_stopped(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    claim = store.turn(first)
    waiting = store.submit(session_id="s").run_id
    urgent = store.submit(session_id="s", multitask=Multitask.INTERRUPT)
    assert urgent.interrupted == first
    assert store.status(first) is RunStatus.STOPPING
    [hint] = store.runs.release_turn(claim)
    assert hint.effect.run_id == urgent.run_id
    assert store.status(first) is RunStatus.CANCELLED
    store.answer(urgent.run_id)
    store.answer(waiting)
    check(store)


def test_an_interrupting_run_starts_at_once_when_nobody_holds_the_one_at_work(store: Store) -> None:
    store.submit(session_id="s")
    urgent = store.submit(session_id="s", multitask=Multitask.INTERRUPT)
    assert [hint.effect.run_id for hint in urgent.hints] == [urgent.run_id]
    check(store)


def test_a_steering_submission_makes_no_run(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    said = store.submit(session_id="s", multitask=Multitask.STEER, input="in French")
    assert (said.run_id, said.was_steered) == (first, True)
    store.ask_tools(first, asks(Replay.ONCE))
    store.settle(first, 0)
    assert "in French" in store.results(first)[0]
    check(store)


def test_however_many_submit_at_once_a_session_has_one_turn(store: Store) -> None:
    kinds = list(Multitask)

    def submit(number: int) -> str:
        try:
            store.runs.create(new_run(session_id="s", input=f"n{number}", multitask=kinds[number % 4]))
        except (SessionActive, SessionBusy) as refusal:
            return type(refusal).__name__
        return "accepted"

    with ThreadPoolExecutor(12) as pool:
        outcomes = list(pool.map(submit, range(50)))
    assert outcomes.count("accepted") >= 1
    at_work = [view for view in store.views.runs(limit=100) if store.due(view.run_id)]
    assert len(at_work) == 1
    check(store)
