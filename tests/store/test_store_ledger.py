"""The calls of a run, one by one, with what was asked and what came back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from support.questions import DANGER
from support.store import TTL_S, Store, asks

from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.services.presenters import build_entry_object
from hermes_worker.store.runs.call_ledger import CallNotFound, Ledger
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.runs.waits import Waits


def test_calls_come_in_the_order_in_which_the_model_asked_page_by_page(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.ONCE)
    store.settle(run_id, 0)
    store.settle(run_id, 1)
    store.ask_tools(run_id, asks(Replay.KEYED))
    ledger = Ledger(store.database)

    found = ledger.list_calls(run_id)
    first = found[0].row.iteration
    places = [(first, 0), (first, 1), (first + 1, 0)]
    assert [(call.row.iteration, call.row.position) for call in found] == places
    assert [(call.row.name, call.row.replay, call.row.status) for call in found] == [
        ("tool0", "pure", CallStatus.SUCCEEDED),
        ("tool1", "once", CallStatus.SUCCEEDED),
        ("tool0", "keyed", CallStatus.PENDING),
    ]
    assert ledger.list_calls(run_id, limit=2) == found[:2]
    assert ledger.list_calls(run_id, after=places[0]) == found[1:]
    assert ledger.list_calls(run_id, after=places[1]) == found[2:]
    assert ledger.list_calls(run_id, after=places[2]) == []


def test_a_call_shows_who_holds_it_and_who_died_with_it(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    first = store.worker("first")
    store.call(run_id, owner=first.pk)
    [call] = [found.row for found in Ledger(store.database).list_calls(run_id)]
    assert (call.name, call.worker, call.attempt, call.deaths or 0, call.settled_at) == ("tool0", "first", 1, 0, None)
    assert call.claimed_at is not None

    store.vanish(first)
    store.let_pass(TTL_S)
    store.sweep()
    store.call(run_id, owner=store.worker("second").pk)

    [call] = [found.row for found in Ledger(store.database).list_calls(run_id)]
    assert (call.worker, call.attempt) == ("second", 2)


def test_a_call_has_its_arguments_and_its_result(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE, Replay.PURE)
    [first, second] = Ledger(store.database).list_calls(run_id)
    store.settle(run_id, 1, "it worked")

    open_call = Ledger(store.database).load_call(run_id, first.row.iteration, 0)
    assert (open_call.request["id"], json.loads(open_call.request["function"]["arguments"]), open_call.result) == (
        "call_0",
        {"n": 0},
        None,
    )
    settled = Ledger(store.database).load_call(run_id, second.row.iteration, 1)
    assert (settled.request["id"], json.loads(settled.request["function"]["arguments"])) == ("call_1", {"n": 1})
    assert settled.result == "it worked"
    assert settled.changed_arguments is None
    assert settled.row.settled_at is not None


def test_what_a_person_allowed_stands_beside_what_the_model_wrote(store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    Waits(store.database).ask(store.call(run_id), DANGER)
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:anna")

    [entry] = Ledger(store.database).list_calls(run_id)
    found = Ledger(store.database).load_call(run_id, entry.row.iteration, entry.row.position)
    assert json.loads(found.request["function"]["arguments"]) == {"n": 0}
    assert found.changed_arguments == '{"command":"rm -r build"}'
    assert "rm -r build" in entry.about, "a list says what ran, and not what was asked for"


def test_a_call_that_was_allowed_as_it_was_has_no_other_arguments(store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    question = replace(DANGER, request={**DANGER.request, "arguments": '{ "n":0}'})
    Waits(store.database).ask(store.call(run_id), question)
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:anna")
    [entry] = Ledger(store.database).list_calls(run_id)
    assert Ledger(store.database).load_call(run_id, entry.row.iteration, entry.row.position).changed_arguments is None


def test_a_call_that_a_person_denied_is_told_from_one_that_failed(store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE, Replay.ONCE)
    Waits(store.database).ask(store.call(run_id), DANGER)
    assert not Ledger(store.database).list_calls(run_id)[0].row.is_denied, "it is asked about"
    Waits(store.database).approve(run_id, ApprovalChoice.DENY, by="cli:anna")
    denied, other = Ledger(store.database).list_calls(run_id)
    assert (bool(denied.row.is_denied), bool(other.row.is_denied)) == (True, False)
    assert (build_entry_object(denied).word, build_entry_object(other).word) == ("denied", "pending")


def test_what_is_not_there_is_named(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    ledger = Ledger(store.database)
    with pytest.raises(CallNotFound):
        ledger.load_call(run_id, 999_999, 9_999)
    with pytest.raises(RunNotFound):
        ledger.load_call("run_x", 0, 0)
    with pytest.raises(RunNotFound):
        ledger.list_calls("run_x")
