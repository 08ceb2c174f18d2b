"""The budget of a tree: counted once, never one more than allowed, given back when a worker vanishes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import SPEC, Store, asks, check, deadlocks

from hermes_worker.core import events as ev
from hermes_worker.core.effects import AskModel
from hermes_worker.core.errors import Failure
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.store.children import NewChild
from hermes_worker.store.runs import new_run_id
from hermes_worker.store.tables import budgets, runs


def tree(store: Store, children: int, *, iterations_max: int = 90, is_shared: bool = True, **spec: Any) -> list[str]:
    """A root and its children, all started."""
    root = store.with_tools(Replay.PURE, iterations_max=iterations_max, **spec)
    new = [
        NewChild(
            run_id=new_run_id(),
            spec=replace(SPEC, input=f"task {number}", iterations_max=100_000),
            system_prompt="You are a child.",
            tools="[]",
            workspace="{}",
        )
        for number in range(children)
    ]
    store.calls.delegate(store.call(root), new, children_max=children, is_budget_shared=is_shared)
    return [root, *(child.run_id for child in new)]


def budget(store: Store) -> Any:
    with store.database.read() as connection:
        return connection.execute(sa.select(budgets)).one()


def spent(store: Store) -> tuple[int, int]:
    row = budget(store)
    return row.iterations_reserved, row.iterations_spent


def go_on(store: Store, run_id: str) -> None:
    """One iteration of a run that always wants another; its summary once it gets none."""
    claim = store.turn(run_id)
    asked = asks(Replay.PURE)
    store.ask_tools_with(claim, asked)
    if not store.status(run_id).is_terminal:
        store.settle(run_id)


def test_a_run_that_delegates_nothing_has_no_budget_row(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id)
    store.answer(run_id)
    with store.database.read() as connection:
        assert connection.execute(sa.select(budgets)).all() == []


def test_a_claim_reserves_and_its_commit_spends(store: Store) -> None:
    [_, child] = tree(store, 1)
    assert spent(store) == (0, 1)
    claim = store.turn(child)
    assert spent(store) == (1, 1)
    store.ask_tools_with(claim, asks(Replay.PURE, Replay.PURE))
    row = budget(store)
    assert (row.iterations_reserved, row.iterations_spent, row.tokens_spent, row.tool_calls_spent) == (0, 2, 30, 3)


@pytest.mark.parametrize("how", ["released", "lost", "failed", "broken"])
def test_a_model_call_that_brings_no_reply_is_given_back_once(store: Store, how: str) -> None:
    [_, child] = tree(store, 1)
    worker = store.worker()
    claim = store.turn(child, worker.pk)
    failure = Failure(kind="timeout", message="late")
    if how == "released":
        store.runs.release_turn(claim)
    elif how == "lost":
        store.vanish(worker)
        store.sweep()
        store.sweep()
    elif how == "failed":
        store.runs.commit_failure(claim, ev.ModelFailed(failure=failure, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED))
    else:
        store.change(runs, child, status="nonsense")
        store.runs.break_off(child, ev.Broken(reason=ExitReason.CORRUPT_STATE, failure=failure))
    assert spent(store) == (0, 1)


def test_a_tree_spends_exactly_what_its_root_may(store: Store) -> None:
    [root, *children] = tree(store, 3, iterations_max=10)
    while any(not store.status(child).is_terminal for child in children):
        for child in children:
            if not store.status(child).is_terminal:
                go_on(store, child)
    assert spent(store) == (0, 9)
    assert {store.views.run(child).exit_reason for child in children} == {"max_iterations_reached"}
    while not store.status(root).is_terminal:
        go_on(store, root)
    assert spent(store) == (0, 10)
    assert store.views.run(root).exit_reason == "max_iterations_reached"
    check(store)


def test_every_level_leaves_one_model_call_to_each_above_it(store: Store) -> None:
    [root, child] = tree(store, 1, iterations_max=5)
    store.ask_tools(child, asks(Replay.PURE))
    grandchild = NewChild(
        run_id=new_run_id(),
        spec=replace(SPEC, iterations_max=100_000),
        system_prompt="You are a child.",
        tools="[]",
        workspace="{}",
    )
    store.calls.delegate(store.call(child), [grandchild], children_max=1)
    for run_id in (grandchild.run_id, child, root):
        while not store.status(run_id).is_terminal:
            go_on(store, run_id)
    assert [store.views.run(run_id).iteration for run_id in (root, child, grandchild.run_id)] == [2, 2, 1]
    assert spent(store) == (0, 5)


@pytest.mark.parametrize(
    ("limits", "dimension"), [({"tokens_max": 25}, "tokens"), ({"tool_calls_max": 2}, "tool_calls")]
)
def test_other_limits_end_a_run_with_a_summary_and_their_name(
    store: Store, limits: dict[str, int], dimension: str
) -> None:
    run_id = store.submit(**limits).run_id
    while not store.status(run_id).is_terminal:
        go_on(store, run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    assert store.views.run(run_id).exit_reason == "budget_exhausted"
    with store.database.read() as connection:
        assert connection.execute(sa.select(runs.c.exhausted)).scalar_one() == dimension
    assert store.views.run(run_id).iteration == 2
    check(store)


def test_independent_children_charge_nobody(store: Store) -> None:
    [_, child] = tree(store, 1, iterations_max=3, is_shared=False)
    for _ in range(10):
        go_on(store, child)
    assert store.views.run(child).iteration == 10
    with store.database.read() as connection:
        assert connection.execute(sa.select(budgets)).all() == []


def test_two_hundred_children_at_once_never_get_one_more(postgres_store: Store) -> None:
    """Half of the workers vanish with what they had claimed, and every message comes twice."""
    store = postgres_store
    [root, *children] = tree(store, 200, iterations_max=150)
    doomed = store.worker("doomed")

    def drive(number: int) -> None:
        child = children[number]
        while True:
            effect = next((effect for effect in store.due(child) if isinstance(effect, AskModel)), None)
            if effect is None:
                return
            is_doomed = number % 2 == 0 and effect.attempt == 1 and effect.iteration == 1
            claim = store.runs.claim_turn(effect, doomed.pk if is_doomed else store.owner)
            assert store.runs.claim_turn(effect, store.owner) is None
            if claim is None or is_doomed:
                return
            store.ask_tools_with(claim, asks(Replay.PURE))
            if not store.status(child).is_terminal:
                store.settle(child)

    assert store.owner
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(drive, range(200)))
        assert sum(spent(store)) <= 149
        store.vanish(doomed)
        while any(not store.status(child).is_terminal for child in children):
            store.sweep()
            list(pool.map(drive, range(200)))
    assert spent(store) == (0, 149)
    assert sum(store.views.run(child).iteration for child in children) == 148
    while not store.status(root).is_terminal:
        go_on(store, root)
    assert spent(store) == (0, 150)
    assert deadlocks(store) == 0
