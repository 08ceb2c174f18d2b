"""The budget of a tree: counted once, never one more than allowed, given back when a worker vanishes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import SPEC, Store, asks, check, deadlocks

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import Failure
from hermes_worker.core.pricing import Cost, CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.runs.runs import create_run_id
from hermes_worker.store.tables import budgets, runs


def tree(store: Store, children: int, *, iterations_max: int = 90, is_shared: bool = True, **spec: Any) -> list[str]:
    """A root and its children, all started."""
    root = store.with_tools(Replay.PURE, iterations_max=iterations_max, **spec)
    new = [
        NewChild(
            run_id=create_run_id(),
            spec=replace(SPEC, input=f"task {number}", iterations_max=100_000, tokens_max=spec.get("tokens_max")),
            system_prompt="You are a child.",
            tools="[]",
            workspace="{}",
        )
        for number in range(children)
    ]
    store.calls.delegate(store.call(root), new, children_max=children, is_budget_shared=is_shared)
    return [root, *(child.run_id for child in new)]


CALL_NANO_USD = 2_000_000
KNOWN = Cost(usd=Decimal("0.002"), status=CostStatus.ESTIMATED)
UNKNOWN = Cost(usd=None, status=CostStatus.UNKNOWN)


def budget(store: Store) -> Any:
    with store.database.read() as connection:
        return connection.execute(sa.select(budgets)).one()


def spent(store: Store) -> tuple[int, int]:
    row = budget(store)
    return row.iterations_reserved, row.iterations_spent


def exhaustions(store: Store, run_id: str) -> list[Any]:
    return [event.data for event in store.views.list_events_after(run_id, 0) if event.name == "budget.exhausted"]


def go_on(store: Store, run_id: str) -> None:
    """One iteration of a run that always wants another; its summary once it gets none."""
    claim = store.turn(run_id)
    asked = asks(Replay.PURE)
    store.runs.commit_reply(claim, asked.reply, asked.calls, KNOWN)
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
        store.runs.release_iteration(claim)
    elif how == "lost":
        store.vanish(worker)
        store.sweep()
        store.sweep()
    elif how == "failed":
        store.runs.commit_failure(claim, ev.ModelFailed(failure=failure, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED))
    else:
        store.change(runs, child, status="nonsense")
        store.runs.end_broken(child, ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=failure))
    assert spent(store) == (0, 1)


def test_a_tree_spends_exactly_what_its_root_may(store: Store) -> None:
    [root, *children] = tree(store, 3, iterations_max=10)
    while any(not store.status(child).is_terminal for child in children):
        for child in children:
            if not store.status(child).is_terminal:
                go_on(store, child)
    assert spent(store) == (0, 9)
    assert {store.views.load_run(child).exit_reason for child in children} == {"max_iterations_reached"}
    while not store.status(root).is_terminal:
        go_on(store, root)
    assert spent(store) == (0, 10)
    assert store.views.load_run(root).exit_reason == "max_iterations_reached"
    check(store)


def test_every_level_leaves_one_model_call_to_each_above_it(store: Store) -> None:
    [root, child] = tree(store, 1, iterations_max=5)
    store.ask_tools(child, asks(Replay.PURE))
    grandchild = NewChild(
        run_id=create_run_id(),
        spec=replace(SPEC, iterations_max=100_000),
        system_prompt="You are a child.",
        tools="[]",
        workspace="{}",
    )
    store.calls.delegate(store.call(child), [grandchild], children_max=1)
    for run_id in (grandchild.run_id, child, root):
        while not store.status(run_id).is_terminal:
            go_on(store, run_id)
    assert [store.views.load_run(run_id).iteration for run_id in (root, child, grandchild.run_id)] == [2, 2, 1]
    assert spent(store) == (0, 5)


@pytest.mark.parametrize(
    ("limits", "dimension"),
    [
        ({"tokens_max": 40}, "tokens"),
        ({"tool_calls_max": 2}, "tool_calls"),
        ({"nano_usd_max": 5 * CALL_NANO_USD // 2}, "cost"),
    ],
)
def test_other_limits_end_a_run_with_a_summary_and_their_name(
    store: Store, limits: dict[str, int], dimension: str
) -> None:
    run_id = store.submit(**limits).run_id
    while not store.status(run_id).is_terminal:
        go_on(store, run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    assert store.views.load_run(run_id).exit_reason == "budget_exhausted"
    with store.database.read() as connection:
        assert connection.execute(sa.select(runs.c.exhausted)).scalar_one() == dimension
    assert store.views.load_run(run_id).iteration == 2
    assert [data["dimension"] for data in exhaustions(store, run_id)] == [dimension]
    check(store)


def test_a_call_reserves_what_the_calls_before_it_used(store: Store) -> None:
    run_id = store.submit(tokens_max=1_000, nano_usd_max=100 * CALL_NANO_USD).run_id
    go_on(store, run_id)
    claim = store.turn(run_id)
    row = budget(store)
    assert (row.tokens_reserved, row.nano_usd_reserved) == (15, CALL_NANO_USD)
    store.runs.release_iteration(claim)
    row = budget(store)
    assert (row.tokens_reserved, row.nano_usd_reserved, row.tokens_spent) == (0, 0, 15)


def test_a_run_whose_cost_is_capped_and_not_known_sums_up(store: Store) -> None:
    run_id = store.submit(nano_usd_max=100 * CALL_NANO_USD).run_id
    asked = asks(Replay.PURE)
    store.runs.commit_reply(store.turn(run_id), asked.reply, asked.calls, UNKNOWN)
    store.settle(run_id)
    assert store.turn(run_id).loaded.run.exhausted == "cost"


def test_a_run_whose_time_is_as_good_as_over_sums_up(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, wall_s_max=1_000.0)
    store.settle(run_id)
    store.let_pass(960)
    claim = store.turn(run_id)
    assert claim.loaded.run.wants_summary
    store.runs.commit_reply(claim, asks(Replay.PURE).reply, ())
    assert store.views.load_run(run_id).exit_text == "budget_exhausted(wall_clock)"
    assert exhaustions(store, run_id) == [{"dimension": "wall_clock"}]
    check(store)


def test_a_stop_between_the_claim_and_its_refusal_for_time_is_seen(store: Store) -> None:
    """What was written to the run meanwhile has the number that the refusal would have had."""
    run_id = store.with_tools(Replay.PURE, wall_s_max=1_000.0)
    store.settle(run_id)
    store.let_pass(960)
    claim = store.turn(run_id)
    Control(store.database).steer(run_id, "faster")
    store.runs.request_stop(run_id)
    store.runs.commit_reply(claim, asks(Replay.PURE).reply, ())
    assert store.status(run_id) is RunStatus.CANCELLED
    assert "run.stopping" in store.event_names(run_id)
    check(store)


def test_from_seventy_percent_on_the_last_result_says_how_much_is_used(store: Store) -> None:
    run_id = store.submit(iterations_max=10).run_id
    for _ in range(10):
        go_on(store, run_id)
    results = store.results(run_id)
    assert results[:6] == ["ok"] * 6
    assert results[6] == "ok\n\n[BUDGET: 7 of 10 model calls are used. Begin to bring this task to its end.]"
    assert results[9] == (
        "ok\n\n[BUDGET WARNING: 10 of 10 model calls are used. Write your final answer now; call tools only for what "
        "it cannot do without.]"
    )
    assert exhaustions(store, run_id) == [{"dimension": "iterations"}]
    go_on(store, run_id)
    assert store.views.load_run(run_id).exit_text == "max_iterations_reached(10/10)"
    assert len(exhaustions(store, run_id)) == 1
    check(store)


def test_only_the_last_result_of_a_batch_carries_the_warning_below_what_the_user_said(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.PURE, tool_calls_max=2)
    Control(store.database).steer(run_id, "in French")
    store.settle(run_id, 1, "second")
    store.settle(run_id, 0, "first")
    [first, second] = store.results(run_id)
    assert second == "second"
    assert first.startswith("first\n\n[OUT-OF-BAND USER MESSAGE")
    assert "[BUDGET WARNING: 2 of 2 tool calls are used." in first.rpartition("[/OUT-OF-BAND USER MESSAGE]")[2]


def test_children_are_warned_of_the_trees_budget(store: Store) -> None:
    [_, child, other] = tree(store, 2, iterations_max=10)
    for _ in range(5):
        go_on(store, child)
    go_on(store, other)
    assert "[BUDGET: 7 of 10 model calls are used." in store.results(other)[0]


def test_a_script_costs_no_iteration_but_is_not_endless(store: Store) -> None:
    run_id = store.submit(iterations_max=2, tokens_max=10_000).run_id
    while not store.status(run_id).is_terminal:
        claim = store.turn(run_id)
        script = replace(asks(Replay.PURE).calls[0], name="execute_code")
        store.runs.commit_reply(claim, asks(Replay.PURE).reply, [script])
        if not store.status(run_id).is_terminal:
            store.settle(run_id)
    view = store.views.load_run(run_id)
    assert (view.iteration, view.exit_text) == (4, "max_iterations_reached(2/2)")
    assert spent(store) == (0, 2)


def test_mixed_children_have_a_cap_of_their_own_and_draw_from_the_tree(store: Store) -> None:
    """As ``tasks.calls.delegating`` makes them: four calls each, of a tree that has ten."""
    root = store.with_tools(Replay.PURE, iterations_max=10)
    spec = replace(SPEC, iterations_max=4, budget="mixed")
    new = [NewChild(run_id=create_run_id(), spec=spec, system_prompt="", tools="[]", workspace="{}") for _ in range(3)]
    store.calls.delegate(store.call(root), new, children_max=3, is_budget_shared=True)
    children = [child.run_id for child in new]
    for child in children:
        while not store.status(child).is_terminal:
            go_on(store, child)
    assert [store.views.load_run(child).exit_text for child in children] == [
        "max_iterations_reached(4/4)",
        "max_iterations_reached(4/4)",
        "max_iterations_reached(0/4)",
    ]
    assert spent(store) == (0, 9)
    while not store.status(root).is_terminal:
        go_on(store, root)
    assert spent(store) == (0, 10)
    check(store)


def test_independent_children_have_the_same_limits_each_for_itself(store: Store) -> None:
    [root, *children] = tree(store, 2, is_shared=False, iterations_max=9, tokens_max=40)
    for child in children:
        while not store.status(child).is_terminal:
            go_on(store, child)
    assert [store.views.load_run(child).exit_text for child in children] == ["budget_exhausted(tokens)"] * 2
    assert [store.views.load_run(child).iteration for child in children] == [2, 2]
    with store.database.read() as connection:
        rows = connection.execute(sa.select(budgets).order_by(budgets.c.root_pk)).all()
    assert [row.tokens_spent for row in rows] == [15, 45, 45]
    assert store.status(root) is RunStatus.RUNNING


def test_independent_children_charge_nobody(store: Store) -> None:
    [_, child] = tree(store, 1, iterations_max=3, is_shared=False)
    for _ in range(10):
        go_on(store, child)
    assert store.views.load_run(child).iteration == 10
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
            effect = next((effect for effect in store.due(child) if isinstance(effect, Iterate)), None)
            if effect is None:
                return
            is_doomed = number % 2 == 0 and effect.attempt == 1 and effect.iteration == 1
            claim = store.runs.claim_iteration(effect, doomed.pk if is_doomed else store.owner)
            assert store.runs.claim_iteration(effect, store.owner) is None
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
    assert sum(store.views.load_run(child).iteration for child in children) == 148
    while not store.status(root).is_terminal:
        go_on(store, root)
    assert spent(store) == (0, 150)
    assert deadlocks(store) == 0
