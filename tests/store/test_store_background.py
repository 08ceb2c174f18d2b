"""Children in the background: the run goes on at once, and what they leave begins a new turn of its session."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import SPEC, Store, asks, check, deadlocks

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.runs.new_children import NewChild
from hermes_worker.store.tables import deliveries, runs

NOTE = '{"status":"dispatched"}'


def sent(store: Store, count: int, *, children_max: int = 1_000, **spec: Any) -> tuple[str, list[str]]:
    """A run that has sent children into the background and is about to go on."""
    root = store.with_tools(Replay.PURE, session_id="s", **spec)
    return root, store.delegate(root, count, children_max=children_max, note=NOTE)


def turns(store: Store) -> list[str]:
    """The runs of the session, oldest first."""
    return [view.run_id for view in reversed(store.views.list_runs(session_id="s"))]


def pk_of(store: Store, run_id: str) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one())


def report_of(store: Store, run_id: str) -> list[dict[str, Any]]:
    text = next(row["content"] for row in reversed(store.bodies(run_id)) if row["role"] == "user")
    assert text.startswith("[BACKGROUND RESULT deleg_")
    found: list[dict[str, Any]] = json.loads(text.partition("\n")[2])["results"]
    return found


def test_the_run_goes_on_at_once_and_the_answers_begin_a_new_turn(store: Store) -> None:
    root, [first, second] = sent(store, 2)
    assert store.results(root) == [NOTE]
    store.answer(root)
    assert store.status(root) is RunStatus.COMPLETED
    store.sweep()
    store.answer(second)
    assert turns(store) == [root]
    [hint] = store.answer(first)
    [_, later] = turns(store)
    assert hint.effect.run_id == later
    assert [entry["summary"] for entry in report_of(store, later)] == ["done", "done"]
    store.answer(later)
    assert [row["role"] for row in store.bodies(later)] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]
    check(store)


def test_the_new_turn_waits_for_the_one_at_work(store: Store) -> None:
    root, [child] = sent(store, 1)
    assert store.answer(child) == []
    [_, later] = turns(store)
    assert store.status(later) is RunStatus.QUEUED
    [hint] = store.answer(root)
    assert hint.effect.run_id == later
    check(store)


def test_the_new_turn_is_asked_for_what_the_first_one_was(store: Store) -> None:
    root, [child] = sent(store, 1, iterations_max=7, tokens_max=500, deliver=["local"], metadata={"k": "v"})
    store.answer(root)
    store.answer(child)
    [_, later] = turns(store)
    claim = store.turn(later)
    spec = store.calls.load_spec(claim.loaded.pk)
    assert (spec.iterations_max, spec.tokens_max, spec.source) == (7, 500, SPEC.source)
    assert spec.metadata["k"] == "v"
    assert spec.metadata["delegated_by"] == root
    assert claim.loaded.budget_pk == claim.loaded.root_pk == pk_of(store, root)
    store.runs.commit_reply(claim, asks().reply, ())
    with store.database.read() as connection:
        owed = connection.execute(sa.select(sa.func.count()).select_from(deliveries)).scalar_one()
    assert owed == 2


def test_no_more_of_them_work_at_once_than_may(store: Store) -> None:
    root, children = sent(store, 3, children_max=1)
    store.answer(root)
    for child in children:
        assert sum(bool(store.due(one)) for one in children) == 1
        store.answer(child)
    [_, later] = turns(store)
    assert len(report_of(store, later)) == 3
    check(store)


@pytest.mark.parametrize("how", ["failed", "stopped", "expired"])
def test_a_child_that_ends_badly_is_reported_all_the_same(store: Store, how: str) -> None:
    root, [child] = sent(store, 1)
    store.answer(root)
    if how == "stopped":
        store.runs.request_stop(child)
    elif how == "expired":
        store.change(runs, child, deadline_at=1.0)
        store.sweep()
    else:
        store.change(runs, child, attempts_max=1, deaths=0)
        worker = store.worker("doomed")
        store.turn(child, worker.pk)
        store.crash(worker)
        store.sweep()
    [_, later] = turns(store)
    expected = {"failed": "failed", "stopped": "interrupted", "expired": "timeout"}[how]
    assert [entry["status"] for entry in report_of(store, later)] == [expected]
    check(store)


def test_the_turn_has_the_origin_and_the_network_of_what_caused_it(store: Store) -> None:
    root, [child] = sent(store, 1, source="webhook:route", network="none")
    store.answer(root)
    [hint] = store.answer(child)
    claimed = store.turn(hint.effect.run_id)
    assert (claimed.loaded.origin, claimed.loaded.network) == ("webhook", "none")


def test_children_outlive_their_turn_but_not_its_stop(store: Store) -> None:
    root, children = sent(store, 2)
    store.runs.request_stop(root)
    assert store.sweep().hints == ()
    assert {store.status(child) for child in children} == {RunStatus.CANCELLED}
    assert turns(store) == [root]
    check(store)


def test_stopping_a_run_that_has_ended_stops_what_works_for_it_and_nothing_comes_back(store: Store) -> None:
    root, children = sent(store, 2)
    store.answer(root)
    stopped = store.runs.stop_tree(root)
    assert set(stopped.run_ids) == {root, *children}
    assert {store.status(child) for child in children} == {RunStatus.CANCELLED}
    assert turns(store) == [root]
    check(store)


def test_a_run_that_is_being_stopped_sends_nobody(store: Store) -> None:
    root = store.with_tools(Replay.PURE, session_id="s")
    claim = store.call(root)
    store.runs.request_stop(root)
    child = NewChild(run_id="run_c", spec=SPEC, system_prompt="", tools="[]", workspace="{}")
    store.calls.delegate(claim, [child], children_max=1, note=NOTE)
    assert store.status(root) is RunStatus.CANCELLED
    assert len(store.views.list_runs()) == 1
    check(store)


def test_many_that_end_at_once_begin_one_turn(postgres_store: Store) -> None:
    store = postgres_store
    root, children = sent(store, 60, children_max=40)
    store.answer(root)
    waiting = list(children)
    while waiting:
        ready = [child for child in waiting if store.due(child)]
        with ThreadPoolExecutor(12) as pool:
            list(pool.map(store.answer, ready))
        waiting = [child for child in waiting if child not in ready]
    [_, later] = turns(store)
    assert len(report_of(store, later)) == 60
    assert deadlocks(store) == 0
    check(store)
