"""Counters that agree with the rows: each row that is over is counted once, and a total never goes back."""

from __future__ import annotations

import threading
from decimal import Decimal
from unittest.mock import patch

import pytest
import sqlalchemy as sa
from support.plans import plan_of, statements
from support.recount import Counted, counted
from support.store import ANSWER, Store

from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import Cost, CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.store import statistics as module
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.statistics import count_ended_rows, load_totals
from hermes_worker.store.tables import deliveries, firings, jobs, runs, statistics


def said(store: Store) -> Counted:
    with store.database.snapshot() as connection:
        return {key: amount for key, amount in load_totals(connection).items() if amount}


def some_work(store: Store) -> None:
    """Runs in every state: over, in the middle of tool calls, with a lost claim, and not begun."""
    for _ in range(3):
        run_id = store.with_tools(Replay.PURE, Replay.ONCE)
        store.settle(run_id, 0)
        store.settle(run_id, 1)
        store.answer(run_id)
    store.settle(store.with_tools(Replay.PURE, Replay.ONCE), 0)
    lost = store.worker("lost")
    store.turn(store.submit().run_id, lost.pk)
    store.vanish(lost)
    store.submit()


def test_what_is_counted_and_what_is_not_add_up_to_the_rows(store: Store) -> None:
    some_work(store)
    before, true = counted(store.database)
    store.sweep()
    after, still_true = counted(store.database)

    assert before == true
    assert after == still_true
    assert after["runs_ended", ("completed", "text_response")] == 3
    assert after["tool_calls", ("succeeded", "once")] == 3
    assert after["steps_retried", ("model",)] == 1


def test_a_run_is_counted_once_by_however_many_processes(postgres_store: Store) -> None:
    for _ in range(40):
        postgres_store.answer(postgres_store.submit().run_id)
    found: list[int] = []

    def count() -> None:
        found.append(count_ended_rows(postgres_store.database))

    with patch.object(module, "_BATCH", 7):
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sum(found) == 40
    assert said(postgres_store)["runs_ended", ("completed", "text_response")] == 40


def test_rows_may_be_deleted_once_they_are_counted(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    store.sweep()
    before = said(store)
    with store.database.write() as connection:
        connection.execute(sa.delete(runs).where(runs.c.run_id == run_id))

    assert said(store) == before
    assert before["runs_ended", ("completed", "text_response")] == 1


def test_what_a_title_costs_is_counted_although_its_run_has_been(store: Store) -> None:
    claim = store.turn(store.submit().run_id)
    store.runs.commit_reply(claim, ANSWER, ())
    store.sweep()
    cost = Cost(usd=Decimal("0.5"), status=CostStatus.KNOWN)
    store.runs.set_title(claim, "A title", usage=Usage(input=70, output=7), cost=cost)

    now, true = counted(store.database)
    assert now == true
    assert now["cost_nano_usd", ("scripted",)] == 500_000_000


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_delivery_that_is_sent_again_is_counted_for_each_of_its_ends(store: Store, is_swept: bool) -> None:
    with store.database.write() as connection:
        connection.execute(
            sa.insert(deliveries).values(
                delivery_id="d1",
                tenant="default",
                target="telegram:-100",
                state="failed",
                adjustments="",
                created_at=1.0,
                updated_at=1.0,
                settled_at=2.0,
            )
        )
    if is_swept:
        store.sweep()
    Deliveries(store.database).retry("d1")
    assert said(store)["deliveries", ("failed", "telegram")] == 1

    with store.database.write() as connection:
        connection.execute(sa.update(deliveries).values(state="delivered", hinted_at=None, settled_at=3.0))
    store.sweep()
    assert said(store)["deliveries", ("failed", "telegram")] == 1
    assert said(store)["deliveries", ("delivered", "telegram")] == 1


def test_a_defect_in_counting_costs_no_run_anything(store: Store) -> None:
    store.answer(store.submit().run_id)
    lost = store.worker("lost")
    store.turn(store.submit().run_id, lost.pk)
    store.vanish(lost)
    with patch.object(module, "add_amounts", side_effect=ValueError("a defect")):
        swept = store.sweep()

    assert swept.iterations_lost == 1
    assert swept.hints
    store.sweep()
    now, true = counted(store.database)
    assert now == true


def test_slots_are_counted_by_their_outcome(store: Store) -> None:
    job = {"job_id": "0123456789ab", "tenant": "default", "name": "j", "definition": "{}", "state": "scheduled"}
    with store.database.write() as connection:
        pk = connection.execute(sa.insert(jobs).values(**job, created_at=1.0, updated_at=1.0)).inserted_primary_key
        assert pk is not None
        for slot in (1.0, 2.0):
            values = {"job_pk": pk[0], "slot": slot, "outcome": "missed", "reason": "late", "settled_at": slot}
            connection.execute(sa.insert(firings).values(values))
    store.sweep()

    assert said(store)["firings", ("missed",)] == 2


def test_the_counters_are_kept_short_and_lose_nothing(store: Store) -> None:
    with patch.object(module, "_ROWS_MAX", 20):
        for _ in range(6):
            store.answer(store.submit().run_id)
            store.sweep()
    with store.database.read() as connection:
        rows = connection.execute(sa.select(sa.func.count()).select_from(statistics)).scalar_one()
    now, true = counted(store.database)

    assert rows <= 20
    assert now == true


def test_a_sweep_that_finds_nothing_over_asks_once_more(store: Store) -> None:
    store.sweep()
    with statements(store.database) as seen:
        count_ended_rows(store.database)
    assert len([sql for sql, _ in seen if "SELECT" in sql]) == 1


def test_looking_for_what_to_count_reads_indexes_of_what_is_not_counted(own_postgres_store: Store) -> None:
    """However many rows there have ever been."""
    store = own_postgres_store
    for _ in range(300):
        store.answer(store.submit().run_id)
    store.sweep()
    with store.database.write() as connection:
        connection.exec_driver_sql("analyze runs")
    with statements(store.database) as seen:
        said(store)
        count_ended_rows(store.database)
    for sql, parameters in seen:
        if "FROM runs" in sql:
            nodes = plan_of(store.database, sql, parameters)
            assert not [node for node in nodes if node["Node Type"] == "Seq Scan" and node["Relation Name"] == "runs"]
