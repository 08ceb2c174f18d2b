"""Runs that are written many at a time are the same as those that are written one by one."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import Store, asks, check, new_run

from hermes_worker.core.effects import Iterate
from hermes_worker.core.replay import Replay
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.runs.runs import Created, NewRun, begin_held
from hermes_worker.store.tables import budgets, runs


def write(store: Store, *news: NewRun) -> list[tuple[int, Created]]:
    with store.database.write() as connection:
        return insert_runs(connection, news)


def test_each_opens_its_conversation_and_is_due(store: Store) -> None:
    written = write(store, *(new_run(session_id=f"s{n}", input=f"task {n}", deliver=["local"]) for n in range(7)))
    assert len({pk for pk, _ in written}) == 7
    for number, (_, created) in enumerate(written):
        assert created.session_id == f"s{number}"
        (hint,) = created.hints
        assert hint.effect == Iterate(run_id=created.run_id, iteration=1, attempt=1)
        assert store.due(created.run_id) == [hint.effect]
        assert store.bodies(created.run_id)[-1] == {"role": "user", "content": f"task {number}"}
        store.ask_tools(created.run_id, asks(Replay.PURE))
        store.settle(created.run_id)
        store.answer(created.run_id)
    check(store)


def test_columns_are_those_of_a_single_run(store: Store) -> None:
    single = store.submit(session_id="one", tokens_max=7, idle_s_max=60.0, deliver=["local"])
    ((_, created),) = write(store, new_run(session_id="two", tokens_max=7, idle_s_max=60.0, deliver=["local"]))
    with store.database.read() as connection:
        rows = [
            connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one()._asdict()
            for run_id in (single.run_id, created.run_id)
        ]
        limits = [
            connection.execute(sa.select(budgets).where(budgets.c.root_pk == row["pk"])).one()._asdict() for row in rows
        ]
    differing = {name for name in rows[0] if rows[0][name] != rows[1][name]}
    assert differing <= {"pk", "run_id", "session_pk", "hinted_at", "deadline_at", "created_at", "updated_at"}
    spans = [row["deadline_at"] - row["created_at"] for row in rows]
    assert spans[1] == pytest.approx(spans[0])
    assert {**limits[0], "root_pk": 0} == {**limits[1], "root_pk": 0}
    titles = {store.views.load_run(run_id).title for run_id in (single.run_id, created.run_id)}
    assert titles == {"hello"}


def test_a_conversation_that_goes_on_and_one_that_has_a_past_are_begun_too(store: Store) -> None:
    busy = store.submit(session_id="busy")
    history = [{"role": "user", "content": "earlier"}, {"role": "assistant", "content": "answer"}]
    fresh, twice, again, behind, later = write(
        store,
        new_run(session_id="fresh"),
        new_run(session_id="twice"),
        new_run(session_id="twice"),
        new_run(session_id="busy"),
        new_run(session_id="later", history=history),
    )
    assert all(created.hints for _, created in (fresh, twice, later))
    assert not any(created.hints for _, created in (again, behind))
    assert [body["content"] for body in store.bodies(later[1].run_id)] == ["earlier", "answer", "hello"]
    for first, second in ((busy.run_id, behind[1].run_id), (twice[1].run_id, again[1].run_id)):
        assert store.due(second) == []
        store.answer(first)
        store.answer(second)
    check(store)


def test_a_held_one_waits_until_it_is_begun(store: Store) -> None:
    ((pk, held), (_, going)) = write(
        store, new_run(session_id="held", is_held=True), new_run(session_id="going", is_held=False)
    )
    assert (held.hints, store.due(held.run_id)) == ([], [])
    assert store.due(going.run_id)
    with store.database.write() as connection:
        (hint,) = begin_held(connection, pk)
    assert hint.effect.run_id == held.run_id
    store.answer(held.run_id)


def test_nothing_is_written_for_nothing(store: Store) -> None:
    assert write(store) == []
