"""A delegation tree as one thing: one order of its events, one bill, one off switch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from support.patience import PATIENCE_S
from support.store import SPEC, Store, asks, check, deadlocks

from hermes_worker.core.budget import Dimension
from hermes_worker.core.pricing import Cost, CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.trees import TreeEvent, Trees, sort_events
from hermes_worker.store.tables import tree_events


def tree(store: Store, **spec: Any) -> tuple[str, str, str]:
    """A root, its child and its grandchild, which is at work."""
    root = store.with_tools(Replay.PURE, **spec)
    [child] = store.delegate(root, 1)
    store.ask_tools(child, asks(Replay.PURE))
    [grandchild] = store.delegate(child, 1)
    return root, child, grandchild


def finish(store: Store, *run_ids: str) -> None:
    for run_id in run_ids:
        store.answer(run_id)


# --- events ----------------------------------------------------------------------------------------------------------


def place(found: list[TreeEvent], run_id: str, name: str) -> int:
    return next(event.seq for event in found if event.run_id == run_id and event.event.name == name)


def test_the_events_of_a_tree_have_one_order_without_gaps(store: Store) -> None:
    root, child, grandchild = tree(store)
    finish(store, grandchild, child, root)
    found = Trees(store.database).list_events_after(root, 0)
    assert [event.seq for event in found] == list(range(1, len(found) + 1))
    for run_id in (root, child, grandchild):
        own = [event.event for event in found if event.run_id == run_id]
        assert own == store.views.list_events_after(run_id, 0)
    assert {(event.run_id, event.parent_run_id, event.depth) for event in found} == {
        (root, None, 0),
        (child, root, 1),
        (grandchild, child, 2),
    }
    ends = [place(found, run_id, "run.completed") for run_id in (grandchild, child, root)]
    joins = [place(found, run_id, "tool.completed") for run_id in (child, root)]
    assert ends[0] < joins[0] < ends[1] < joins[1] < ends[2]


def test_numbers_are_given_once_and_are_the_same_for_every_reader_and_from_every_run(store: Store) -> None:
    root, child, grandchild = tree(store)
    trees = Trees(store.database)
    early = trees.list_events_after(grandchild, 0)
    assert not trees.is_over(root)
    finish(store, grandchild, child, root)
    late = trees.list_events_after(child, early[-1].seq)
    assert [event.seq for event in [*early, *late]] == list(range(1, len(early) + len(late) + 1))
    assert trees.list_events_after(root, 0) == [*early, *late]
    assert trees.list_events_after(root, 0, limit=3) == early[:3]
    assert trees.is_over(child)
    with pytest.raises(RunNotFound):
        trees.list_events_after("run_x", 0)
    with pytest.raises(RunNotFound):
        trees.is_over("run_x")


def test_a_tree_that_nobody_follows_costs_nothing(store: Store) -> None:
    finish(store, *reversed(tree(store)))
    with store.database.read() as connection:
        assert connection.execute(sa.select(tree_events)).all() == []


def test_readers_that_number_at_the_same_time_agree(postgres_store: Store) -> None:
    store = postgres_store
    root = store.with_tools(Replay.PURE)
    children = store.delegate(root, 20)
    trees = Trees(store.database)

    def read(_: int) -> list[tuple[int, str, int]]:
        seen: list[tuple[int, str, int]] = []
        while True:
            is_over = trees.is_over(root)
            found = trees.list_events_after(root, len(seen), limit=7)
            seen += [(event.seq, event.run_id, event.event.seq) for event in found]
            if is_over and not found:
                return seen

    with ThreadPoolExecutor(8) as pool:
        readers = [pool.submit(read, number) for number in range(4)]
        list(pool.map(lambda child: finish(store, child), children))
        finish(store, root)
        first, *others = [reader.result(timeout=PATIENCE_S) for reader in readers]
    assert all(other == first for other in others)
    assert [seq for seq, _, _ in first] == list(range(1, len(first) + 1))
    assert len({(run_id, seq) for _, run_id, seq in first}) == len(first)
    assert deadlocks(store) == 0


def test_an_event_that_is_dated_back_stays_behind_the_one_before_it() -> None:
    def event(run_pk: int, seq: int, at: float, depth: int) -> Any:
        return SimpleNamespace(run_pk=run_pk, seq=seq, at=at, depth=depth)

    rows = [event(1, 1, 10.0, 0), event(1, 2, 5.0, 0), event(1, 3, 20.0, 0), event(2, 1, 11.0, 1), event(2, 2, 20.0, 1)]
    assert [(row.run_pk, row.seq) for row in sort_events(rows)] == [(1, 1), (1, 2), (2, 1), (2, 2), (1, 3)]


# --- budget ----------------------------------------------------------------------------------------------------------


def test_the_budget_says_what_is_reserved_and_spent_and_by_whom(store: Store) -> None:
    root, child, grandchild = tree(store, iterations_max=10, tokens_max=1_000)
    store.turn(grandchild)
    found = Trees(store.database).load_budget(root)
    assert found.owner_run_id == root
    dimensions = {dimension: rest for dimension, *rest in found.iterate_dimensions()}
    assert dimensions[Dimension.ITERATIONS] == [10, 1, 2]
    assert dimensions[Dimension.TOKENS] == [1_000, 15, 30]
    assert dimensions[Dimension.TOOL_CALLS] == [None, 0, 2]
    assert dimensions[Dimension.WALL_CLOCK][0] == pytest.approx(SPEC.wall_s_max, abs=1)
    assert (found.own.spent.iterations, found.own.spent.tool_calls) == (1, 1)
    [share] = found.children
    assert (share.run_id, share.index, share.status) == (child, 0, RunStatus.WAITING_FOR_CHILDREN)
    assert (share.spent.iterations, share.spent.tokens, share.spent.tool_calls) == (1, 15, 1)
    assert (share.reserved.iterations, share.reserved.tokens) == (1, 15)
    below = Trees(store.database).load_budget(child)
    assert (below.owner_run_id, below.budget, below.children[0].run_id) == (root, found.budget, grandchild)


def test_what_children_cost_rolls_up_to_every_run_above_them(store: Store) -> None:
    root, child, grandchild = tree(store)
    cost = Cost(usd=Decimal("0.25"), status=CostStatus.ESTIMATED)
    store.runs.commit_reply(store.turn(grandchild), asks().reply, (), cost)
    store.runs.commit_reply(store.turn(child), asks().reply, (), Cost(usd=None, status=CostStatus.UNKNOWN))
    found = Trees(store.database).load_budget(root)
    assert found.children[0].spent.nano_usd == 250_000_000
    assert found.children[0].has_unknown_cost
    assert found.budget.spent.nano_usd == 250_000_000
    assert found.budget.has_unknown_cost


def test_a_run_alone_has_its_own_model_calls_and_no_children(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, iterations_max=7)
    found = Trees(store.database).load_budget(run_id)
    assert (found.owner_run_id, list(found.children), found.children_total) == (run_id, [], 0)
    assert next(found.iterate_dimensions()) == (Dimension.ITERATIONS, 7, 0, 1)
    with pytest.raises(RunNotFound):
        Trees(store.database).load_budget("run_x")


# --- stop ------------------------------------------------------------------------------------------------------------


def test_a_stop_reaches_every_run_below_and_is_idempotent(store: Store) -> None:
    root, child, grandchild = tree(store)
    claim = store.turn(grandchild)
    stopped = store.runs.stop_tree(root)
    assert (stopped.status, set(stopped.run_ids), stopped.was_new) == (
        RunStatus.CANCELLED,
        {root, child, grandchild},
        True,
    )
    assert store.status(child) is RunStatus.CANCELLED
    assert store.status(grandchild) is RunStatus.STOPPING
    again = store.runs.stop_tree(root)
    assert (again.status, again.hints, again.was_new) == (RunStatus.CANCELLED, [], False)
    store.runs.release_iteration(claim)
    assert store.status(grandchild) is RunStatus.CANCELLED
    assert json.loads(store.results(root)[0])["status"] == "cancelled"
    check(store)


def test_children_that_wait_for_a_place_are_stopped_without_a_model_call(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    children = store.delegate(root, 5, children_max=2)
    store.runs.stop_tree(root)
    assert {store.status(child) for child in children} == {RunStatus.CANCELLED}
    assert [store.views.load_run(child).iteration for child in children] == [0] * 5
    assert all(not store.due(child) for child in children)
    check(store)
