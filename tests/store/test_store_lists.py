"""A page of a list of runs: what it says, and what it costs."""

from __future__ import annotations

from dataclasses import replace

from support.plans import plan_of, statements
from support.store import Store

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.store.rows import BLOB_CHARS_MIN


def test_a_page_says_of_each_run_what_the_run_says(store: Store) -> None:
    ended = store.submit().run_id
    store.answer(ended)
    later = store.submit(session_id=ended).run_id
    store.answer(later, ModelReply(text="x" * (BLOB_CHARS_MIN + 1), usage=Usage()))
    in_the_same = store.submit(session_id=ended).run_id
    long = store.with_tools(Replay.PURE, Replay.PURE)
    store.settle(long, 0)
    store.settle(long, 1)
    store.answer(long)
    at_work = store.with_tools(Replay.PURE)
    waiting = store.submit().run_id
    expected = [waiting, at_work, long, in_the_same, later, ended]

    page = store.views.list_runs(limit=5)

    assert [view.run_id for view in page] == expected[:5]
    assert page == [replace(store.views.load_run(view.run_id), pending_steer=None) for view in page]
    assert {view.output is None for view in page} == {True, False}
    assert [view.run_id for view in store.views.list_runs(before=page[-1].run_id)] == expected[5:]
    assert [view.run_id for view in store.views.list_runs(session_id=ended)] == expected[3:]


def test_a_page_goes_down_no_index_once_a_run(own_postgres_store: Store) -> None:
    """From PostgreSQL 17 on; 50 runs took 150 descents before, of a level more with every hundredfold of rows."""
    store = own_postgres_store
    for _ in range(60):
        store.answer(store.submit().run_id)
    with store.database.statement() as connection:
        connection.exec_driver_sql("vacuum analyze")
    with statements(store.database) as seen:
        assert len(store.views.list_runs(limit=50)) == 50
    [(statement, parameters)] = seen
    with store.database.write() as connection:
        connection.exec_driver_sql("set local enable_seqscan = off")  # as with more rows
        connection.exec_driver_sql("set local enable_bitmapscan = off")
        nodes = plan_of(store.database, statement, parameters, executes=True, on=connection)
    searches = {node["Index Name"]: node["Index Searches"] for node in nodes if "Index Searches" in node}
    assert {"pk_sessions", "pk_events", "pk_messages"} <= searches.keys()
    assert sum(searches.values()) <= 8, searches
