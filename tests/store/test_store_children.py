"""Child runs: made with the parking of their parent's call, capped, joined on rows, stopped with their parent."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import ANSWER, EMPTY, Store, asks, check, deadlocks, new_children, settlement

from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, RunStatus
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import run_inputs, runs, tool_calls


def delegated(
    store: Store, count: int, *, children_max: int = 3, parent: str | None = None, position: int = 0
) -> tuple[str, list[str], list[Hint]]:
    """A run that has handed its call to children: its id, theirs, and what was sent."""
    if parent is None:
        parent = store.with_tools(Replay.PURE)
    new = new_children(count)
    hints = store.calls.delegate(store.call(parent, position), new, children_max=children_max)
    return parent, [child.run_id for child in new], hints


def report_of(store: Store, parent: str, position: int = 0) -> list[dict[str, object]]:
    results: list[dict[str, object]] = json.JSONDecoder().raw_decode(store.results(parent)[position])[0]["results"]
    return results


def started(store: Store, children: list[str]) -> list[str]:
    return [child for child in children if store.due(child)]


def test_a_run_waits_for_its_children_and_nobody_holds_it(store: Store) -> None:
    parent, children, hints = delegated(store, 2)
    assert store.status(parent) is RunStatus.WAITING_FOR_CHILDREN
    assert store.due(parent) == []
    assert [hint.effect for hint in hints] == [Iterate(run_id=child, iteration=1, attempt=1) for child in children]
    assert {hint.group for hint in hints} == {store.views.load_run(parent).run_id}
    check(store)


def test_the_last_child_settles_the_call_in_its_own_transaction(store: Store) -> None:
    parent, (first, second), _ = delegated(store, 2)
    assert store.answer(second, replace(ANSWER, text="two")) == []
    assert store.status(parent) is RunStatus.WAITING_FOR_CHILDREN
    [hint] = store.answer(first, replace(ANSWER, text="one"))
    assert hint.effect == Iterate(run_id=parent, iteration=2, attempt=1)
    assert [(entry["status"], entry["summary"]) for entry in report_of(store, parent)] == [
        ("completed", "one"),
        ("completed", "two"),
    ]
    assert store.views.list_calls(parent)[0].status is CallStatus.SUCCEEDED
    check(store)
    store.answer(parent)
    assert store.status(parent) is RunStatus.COMPLETED
    check(store)


def test_children_above_the_cap_wait_for_a_place_and_all_of_them_work(store: Store) -> None:
    parent, children, hints = delegated(store, 7, children_max=2)
    assert len(hints) == 2
    order = []
    while store.status(parent) is RunStatus.WAITING_FOR_CHILDREN:
        at_work = started(store, children)
        assert len(at_work) <= 2
        order.append(at_work[0])
        store.answer(at_work[0])
        check(store)
    assert order == children
    assert [entry["task_index"] for entry in report_of(store, parent)] == list(range(7))


def test_the_cap_is_the_parents_and_not_the_calls(store: Store) -> None:
    parent = store.with_tools(Replay.PURE, Replay.PURE)
    _, first, _ = delegated(store, 2, children_max=3, parent=parent)
    _, second, hints = delegated(store, 3, children_max=3, parent=parent, position=1)
    assert len(hints) == 1
    store.answer(first[0])
    assert len(started(store, [*first, *second])) == 3
    check(store)


def test_calls_of_a_reply_go_on_beside_those_that_wait(store: Store) -> None:
    parent = store.with_tools(Replay.PURE, Replay.ONCE)
    _, [child], _ = delegated(store, 1, parent=parent)
    assert store.status(parent) is RunStatus.RUNNING
    store.settle(parent, 1)
    assert store.status(parent) is RunStatus.WAITING_FOR_CHILDREN
    store.answer(child)
    assert store.status(parent) is RunStatus.RUNNING
    check(store)


def test_a_later_segment_waits_for_the_children_of_an_earlier_one(store: Store) -> None:
    parent = store.with_tools(Replay.PURE, Replay.ONCE, segments=[0, 1])
    _, [child], _ = delegated(store, 1, parent=parent)
    assert store.due(parent) == []
    store.answer(child)
    assert len(store.due(parent)) == 1
    check(store)


def test_depth_five_comes_back_up(store: Store) -> None:
    chain = [store.with_tools(Replay.PURE)]
    for _ in range(5):
        _, [child], _ = delegated(store, 1, parent=chain[-1])
        chain.append(child)
        store.ask_tools(child, asks(Replay.PURE))
    store.settle(chain[-1])
    for level, run_id in enumerate(reversed(chain)):
        store.answer(run_id, replace(ANSWER, text=f"level {level}"))
        check(store)
    assert store.status(chain[0]) is RunStatus.COMPLETED
    assert report_of(store, chain[0])[0]["summary"] == "level 4"


@pytest.mark.parametrize("how", ["stopped", "expired", "lost"])
def test_a_child_that_ends_badly_reaches_its_parent_with_what_it_had(store: Store, how: str) -> None:
    parent, [child], _ = delegated(store, 1)
    asked = asks(Replay.PURE)
    store.ask_tools_with(store.turn(child), replace(asked, reply=replace(asked.reply, text="I have found the key")))
    store.settle(child)
    if how == "stopped":
        store.runs.request_stop(child)
    elif how == "expired":
        store.change(runs, child, deadline_at=1.0)
        store.sweep()
    else:
        store.change(runs, child, deaths=0)
        for _ in range(3):
            worker = store.worker()
            store.turn(child, worker.pk)
            store.crash(worker)
            store.sweep()
    assert store.status(parent) is RunStatus.RUNNING
    [entry] = report_of(store, parent)
    assert entry["status"] == {"stopped": "interrupted", "expired": "timeout", "lost": "failed"}[how]
    assert entry["summary"] == "I have found the key"
    assert entry["tokens"] == {"input": 10, "output": 5}
    assert store.views.list_calls(parent)[0].status is CallStatus.FAILED
    check(store)


def test_a_child_whose_input_cannot_be_read_fails_and_the_parent_goes_on(store: Store) -> None:
    parent, children, _ = delegated(store, 2, children_max=1)
    store.change(run_inputs, children[1], spec="not a spec")
    store.answer(children[0])
    assert store.status(parent) is RunStatus.RUNNING
    assert [entry["status"] for entry in report_of(store, parent)] == ["completed", "failed"]
    check(store)


def test_a_stop_reaches_every_descendant(store: Store) -> None:
    parent, children, _ = delegated(store, 4, children_max=2)
    store.ask_tools(children[0], asks(Replay.PURE))
    _, [grandchild], _ = delegated(store, 1, parent=children[0])
    held = store.turn(grandchild)
    assert store.runs.request_stop(parent)[0] is RunStatus.CANCELLED
    assert set(store.runs.stop_descendants(parent)) == {*children, grandchild}
    assert [store.status(child) for child in children] == [RunStatus.CANCELLED] * 4
    assert store.status(grandchild) is RunStatus.STOPPING
    store.runs.release_iteration(held)
    assert store.status(grandchild) is RunStatus.CANCELLED
    check(store)


def test_the_sweeper_stops_the_children_of_a_run_that_ended_without_them(store: Store) -> None:
    parent, children, _ = delegated(store, 2, children_max=1)
    store.change(runs, parent, deadline_at=1.0)
    store.sweep()
    assert store.status(parent) is RunStatus.EXPIRED
    store.sweep()
    assert [store.status(child) for child in children] == [RunStatus.CANCELLED] * 2
    check(store)


def test_a_lost_claim_makes_no_children(store: Store) -> None:
    parent = store.with_tools(Replay.PURE)
    worker = store.worker()
    claim = store.call(parent, 0, worker.pk)
    store.vanish(worker)
    store.sweep()
    with pytest.raises(LeaseLost):
        store.calls.delegate(claim, new_children(2), children_max=3)
    _, children, _ = delegated(store, 2, parent=parent)
    assert len(store.views.list_runs()) == 3
    assert started(store, children) == children
    check(store)


def test_a_call_is_handed_over_once(store: Store) -> None:
    parent = store.with_tools(Replay.PURE)
    claim = store.call(parent)
    store.calls.delegate(claim, new_children(1), children_max=3)
    with pytest.raises(LeaseLost):
        store.calls.delegate(claim, new_children(1), children_max=3)
    assert len(store.views.list_runs()) == 2


def test_a_run_that_is_being_stopped_makes_no_children(store: Store) -> None:
    parent = store.with_tools(Replay.PURE)
    claim = store.call(parent)
    store.runs.request_stop(parent)
    store.calls.delegate(claim, new_children(1), children_max=3)
    assert store.status(parent) is RunStatus.CANCELLED
    assert len(store.views.list_runs()) == 1
    check(store)


def test_lost_messages_of_children_are_sent_again(store: Store) -> None:
    _, children, _ = delegated(store, 3, children_max=2)
    store.let_pass(60)
    assert {hint.effect.run_id for hint in store.sweep(EMPTY).hints} == set(children[:2])


def test_children_have_the_origin_and_the_network_of_the_first_run(store: Store) -> None:
    parent = store.with_tools(Replay.PURE, source=f"webhook:{'long-route' * 9}", network="none")
    _, [child], _ = delegated(store, 1, parent=parent)
    claimed = store.turn(child)
    assert (claimed.loaded.origin, claimed.loaded.network) == ("webhook", "none")


def test_a_child_does_not_outlive_its_parents_deadline(store: Store) -> None:
    parent = store.with_tools(Replay.PURE, wall_s_max=100.0)
    _, children, _ = delegated(store, 1, parent=parent)
    with store.database.read() as connection:
        rows = connection.execute(sa.select(runs.c.run_id, runs.c.deadline_at)).all()
    deadlines = {row.run_id: row.deadline_at for row in rows}
    assert deadlines[children[0]] == deadlines[parent]


def test_two_hundred_children_that_end_at_once_join_exactly_once(postgres_store: Store) -> None:
    store = postgres_store
    parent, children, _ = delegated(store, 200, children_max=200)
    claims = [store.turn(child) for child in children]

    def end(number: int) -> list[Hint]:
        return store.runs.commit_reply(claims[number], ModelReply(text=str(number), usage=Usage(input=1)), ())

    with ThreadPoolExecutor(16) as pool:
        sent = [hint for hints in pool.map(end, range(200)) for hint in hints]
    assert [hint.effect for hint in sent] == [Iterate(run_id=parent, iteration=2, attempt=1)]
    assert [entry["summary"] for entry in report_of(store, parent)] == [str(number) for number in range(200)]
    assert deadlocks(store) == 0


def test_ends_starts_and_stops_of_one_family_do_not_deadlock(postgres_store: Store) -> None:
    """Children end and start siblings while others stop the parent and the children in between."""
    store = postgres_store
    for _ in range(10):
        parent = store.with_tools(Replay.PURE, Replay.ONCE)
        _, children, _ = delegated(store, 12, children_max=4, parent=parent)
        claims = [store.turn(child) for child in started(store, children)]
        tool = store.call(parent, 1)
        acts = [
            *(lambda claim=claim: store.runs.commit_reply(claim, ANSWER, ()) for claim in claims),
            *(lambda child=child: store.runs.request_stop(child) for child in children[4:]),
            lambda tool=tool: store.calls.settle(tool, settlement()),
            lambda parent=parent: store.runs.request_stop(parent),
            lambda parent=parent: store.runs.stop_descendants(parent),
        ]

        def attempt(act: object) -> None:
            try:
                act()  # type: ignore[operator]
            except LeaseLost:
                pass

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(attempt, acts))
        store.runs.stop_descendants(parent)
        store.sweep()
        assert all(store.status(run_id).is_terminal for run_id in [parent, *children])
    assert deadlocks(store) == 0
    check(store)


def test_the_schema_refuses_a_child_without_a_tree(store: Store) -> None:
    parent, [child], _ = delegated(store, 1)
    with pytest.raises(sa.exc.IntegrityError):
        store.change(runs, child, root_pk=None)
    with pytest.raises(sa.exc.IntegrityError):
        store.change(tool_calls, parent, waits_for=None)
