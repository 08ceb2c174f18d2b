"""After a database was set back: what may have been done since is in doubt, and nothing is silently done again."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import EMPTY, Store, asks, check

from hermes_worker.core.auxiliary import AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.messages import build_user_body
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.store.restore_detection import WorkersAlive, mark_epoch
from hermes_worker.store.tables import deliveries, tool_calls

VERDICT = Consultation(
    questions=(AuxiliaryQuestion(task=AuxTask.APPROVAL, messages=(build_user_body("may it?"),)),), material={}
)


def statuses(store: Store, run_id: str) -> list[str]:
    return [call.status.value for call in store.views.list_calls(run_id)]


def test_once_calls_are_in_doubt_and_the_others_are_done_again(store: Store) -> None:
    lost = store.worker("lost", ttl_s=1.0)
    at_work = store.with_tools(Replay.ONCE, Replay.KEYED, Replay.PURE)
    for position in range(3):
        store.claimed_call(at_work, position, lost.pk)  # in the copy it has not begun; it may have since
    due = store.with_tools(Replay.ONCE, Replay.KEYED)
    asking = store.submit().run_id
    store.turn(asking, lost.pk)
    store.let_pass(600.0)

    found = mark_epoch(store.database, are_workers_gone=True)

    assert (found.claims_given_up, found.calls_in_doubt) == (2, 2)
    store.sweep(EMPTY)
    assert statuses(store, at_work) == [CallStatus.UNKNOWN, CallStatus.PENDING, CallStatus.PENDING]
    assert statuses(store, due) == [CallStatus.UNKNOWN, CallStatus.PENDING]
    with store.database.read() as connection:
        attempts = connection.execute(sa.select(tool_calls.c.attempt).where(tool_calls.c.position == 1)).scalars()
        assert sorted(attempts) == [1, 2]
    assert store.due(asking)
    check(store)


def test_a_once_call_that_waits_for_others_or_for_a_verdict_may_have_had_its_turn(store: Store) -> None:
    in_turn = store.with_tools(Replay.PURE, Replay.ONCE, Replay.PURE, segments=(0, 1, 2))
    judged = store.with_tools(Replay.ONCE)
    store.auxiliary_calls.enqueue_questions(store.call(judged), VERDICT)
    being_judged = store.with_tools(Replay.ONCE)
    store.auxiliary_calls.enqueue_questions(store.call(being_judged), VERDICT)
    store.question(being_judged)

    assert mark_epoch(store.database, are_workers_gone=True).calls_in_doubt == 3

    store.sweep(EMPTY)
    assert statuses(store, in_turn) == [CallStatus.PENDING, CallStatus.UNKNOWN, CallStatus.PENDING]
    assert statuses(store, judged) == statuses(store, being_judged) == [CallStatus.UNKNOWN]
    store._owner = None
    store.settle(in_turn, 0)
    store.settle(in_turn, 2)
    for run_id in (in_turn, judged, being_judged):
        store.answer(run_id)
    check(store)


def test_deliveries_that_may_have_left_say_so(store: Store) -> None:
    run_id = store.submit(deliver=["local"]).run_id
    store.answer(run_id)
    store.let_pass(600.0)
    assert mark_epoch(store.database, are_workers_gone=True).deliveries_in_doubt == 1
    with store.database.read() as connection:
        assert connection.execute(sa.select(deliveries.c.is_in_doubt, deliveries.c.state)).all() == [(True, "pending")]


def test_a_database_in_which_a_worker_is_at_work_was_not_set_back(store: Store) -> None:
    store.worker("busy")
    run_id = store.with_tools(Replay.ONCE)
    with pytest.raises(WorkersAlive, match=r"busy|default"):
        mark_epoch(store.database)
    assert statuses(store, run_id) == [CallStatus.PENDING]


def test_runs_go_on_from_where_the_database_was(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE))
    mark_epoch(store.database, are_workers_gone=True)
    store.sweep(EMPTY)
    store._owner = None
    store.answer(run_id)
    assert "unknown" in store.results(run_id)[0].lower()
    check(store)
