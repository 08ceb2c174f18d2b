"""Pausing, steering, and what becomes of input for a session that is busy."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from support.store import SPEC, Store, asks, check, deadlocks, new_run, settlement

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.core.spec import Multitask
from hermes_worker.store.runs.control import STEER_CHARS_MAX, Control, NotAtWork, NothingToSay
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import SESSION_QUEUE_MAX, SessionActive, SessionBusy, create_run_id
from hermes_worker.store.runs.steering import load_pending


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


def at_work(store: Store, children: list[str]) -> list[str]:
    return [child for child in children if store.due(child)]


def test_a_pause_reaches_the_whole_tree_and_so_does_its_end(store: Store) -> None:
    control = Control(store.database)
    root = store.with_tools(Replay.PURE)
    children = store.delegate(root, 3, children_max=2)
    store.ask_tools(children[0], asks(Replay.PURE))
    [grandchild] = store.delegate(children[0], 1, children_max=2)
    in_flight = store.turn(grandchild)
    control.pause(root)
    assert [store.status(run_id) for run_id in (root, *children[:2], grandchild)] == [RunStatus.PAUSED] * 4
    store.runs.commit_reply(in_flight, asks().reply, ())
    assert store.status(grandchild) is RunStatus.COMPLETED
    assert all(not store.due(run_id) for run_id in (root, *children))
    check(store)
    status, hints = control.resume(root)
    assert status is RunStatus.WAITING_FOR_CHILDREN
    assert {hint.effect.run_id for hint in hints} == set(children[:2])
    assert at_work(store, children) == children[:2]
    for child in children:
        store.answer(child)
    store.answer(root)
    assert store.status(root) is RunStatus.COMPLETED
    check(store)


@pytest.mark.parametrize("note", [None, "dispatched"], ids=["foreground", "background"])
def test_nobody_starts_a_child_of_a_paused_run(store: Store, note: str | None) -> None:
    control = Control(store.database)
    root = store.with_tools(Replay.PURE, Replay.ONCE)
    claim = store.call(root, 0)
    control.pause(root)
    new = [
        NewChild(run_id=create_run_id(), spec=SPEC, system_prompt="", tools="[]", workspace="{}"),
        NewChild(run_id=create_run_id(), spec=SPEC, system_prompt="", tools="[]", workspace="{}"),
    ]
    children = [child.run_id for child in new]
    assert store.calls.delegate(claim, new, children_max=1, note=note) == []
    assert at_work(store, children) == []
    _, hints = control.resume(root)
    assert children[0] in {hint.effect.run_id for hint in hints}
    assert at_work(store, children) == children[:1]
    claim_of_child = store.turn(children[0])
    control.pause(root)
    store.runs.commit_reply(claim_of_child, asks().reply, ())
    assert at_work(store, children) == []
    control.resume(root)
    assert at_work(store, children) == children[1:]
    check(store)


@pytest.mark.parametrize("note", [None, "dispatched"], ids=["foreground", "background"])
def test_a_child_that_is_paused_before_it_began_holds_no_place_and_takes_none_later(
    store: Store, note: str | None
) -> None:
    control = Control(store.database)
    root = store.with_tools(Replay.PURE)
    first, second, third = children = store.delegate(root, 3, children_max=1, note=note)
    control.pause(second)
    store.answer(first)
    assert at_work(store, children) == [third]
    assert control.resume(second) == (RunStatus.QUEUED, [])
    assert at_work(store, children) == [third]
    check(store)
    [hint] = [hint for hint in store.answer(third) if hint.effect.run_id == second]
    assert hint.effect in store.due(second)
    store.answer(second)
    check(store)


def test_a_paused_child_keeps_its_place(store: Store) -> None:
    control = Control(store.database)
    root = store.with_tools(Replay.PURE)
    children = store.delegate(root, 3, children_max=2)
    control.pause(children[0])
    store.answer(children[1])
    assert at_work(store, children) == children[2:]
    control.resume(children[0])
    assert at_work(store, children) == [children[0], children[2]]
    check(store)


def test_pauses_and_ends_of_one_family_do_not_deadlock(postgres_store: Store) -> None:
    store = postgres_store
    control = Control(store.database)
    for _ in range(5):
        root = store.with_tools(Replay.PURE)
        children = store.delegate(root, 12, children_max=4)
        claims = [store.turn(child) for child in at_work(store, children)]
        acts = [
            *(lambda claim=claim: store.runs.commit_reply(claim, asks().reply, ()) for claim in claims),
            *(lambda child=child: control.pause(child) for child in children[4:8]),
            *(lambda child=child: control.resume(child) for child in children[4:8]),
            *(lambda root=root, act=act: act(root) for act in (control.pause, control.resume)),
        ]
        random.Random(7).shuffle(acts)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda act: act(), acts))
        for run_id in (root, *children):
            if not store.status(run_id).is_terminal:
                control.resume(run_id)
        while store.status(root) is RunStatus.WAITING_FOR_CHILDREN:
            assert 1 <= len(at_work(store, children)) <= 4
            store.answer(at_work(store, children)[0])
            check(store)
    assert deadlocks(store) == 0


@pytest.mark.parametrize("text", ["", " \n", "x" * (STEER_CHARS_MAX + 1)])
def test_nothing_and_too_much_are_not_said(store: Store, text: str) -> None:
    run_id = store.submit().run_id
    with pytest.raises(NothingToSay):
        Control(store.database).steer(run_id, text)


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
        assert load_pending(connection, 1) == ["in French"]


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
    [hint] = store.runs.release_iteration(claim)
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


@pytest.mark.parametrize("seed", range(3))
def test_of_fifty_that_submit_at_the_same_moment_a_session_has_one_turn_after_the_other(
    store: Store, seed: int
) -> None:
    """Every mixture of ways to meet a busy session; then the session works off what it took."""
    chance = random.Random(seed)
    kinds = [chance.choice(list(Multitask)) for _ in range(50)]
    together = Barrier(50)

    def submit(number: int) -> str:
        together.wait()
        try:
            created = store.runs.create(new_run(session_id="s", input=f"n{number}", multitask=kinds[number]))
        except (SessionActive, SessionBusy) as refusal:
            return type(refusal).__name__
        return "steered" if created.was_steered else "accepted"

    with ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(submit, range(50)))
    refused = [kind for kind, outcome in zip(kinds, outcomes, strict=True) if outcome == "SessionActive"]
    assert set(refused) <= {Multitask.REJECT}
    taken = [view.run_id for view in store.views.list_runs(limit=100)]
    assert len(taken) == outcomes.count("accepted") <= SESSION_QUEUE_MAX + 1 + kinds.count(Multitask.INTERRUPT)
    worked = 0
    while turn := [run_id for run_id in taken if store.due(run_id)]:
        assert len(turn) == 1
        check(store)
        store.answer(turn[0])
        worked += 1
    assert worked >= 1
    assert all(store.status(run_id).is_terminal for run_id in taken)
