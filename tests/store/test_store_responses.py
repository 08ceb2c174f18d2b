"""Runs as responses: what was said in one turn, and what its caller deleted."""

from __future__ import annotations

import json

import pytest
from support.store import Store, asks

from hermes_worker.core.replay import Replay
from hermes_worker.store.runs.responses import Responses
from hermes_worker.store.runs.runs import RunNotFound


def test_a_turn_has_the_rows_of_its_run_and_what_was_asked(store: Store) -> None:
    responses = Responses(store.database)
    first = store.submit(input="one", session_id="s", echo={"store": True}).run_id
    store.answer(first)
    second = store.submit(input="two", session_id="s").run_id
    store.ask_tools(second, asks(Replay.PURE))
    store.settle(second, 0, "found")
    store.answer(second)
    turn = responses.load_turn(second)
    assert [json.loads(row.body)["content"] for row in turn.said] == ["two", None, "found", "done"]
    assert (turn.view.run_id, turn.spec.input, turn.spec.echo) == (second, "two", {})
    assert responses.load_turn(first).spec.echo == {"store": True}
    with pytest.raises(RunNotFound):
        responses.load_turn("run_x")


def test_a_response_is_deleted_once_and_its_run_stays(store: Store) -> None:
    responses = Responses(store.database)
    run_id = store.submit().run_id
    assert not responses.is_deleted(run_id)
    responses.delete(run_id)
    responses.delete(run_id)
    assert responses.is_deleted(run_id)
    assert store.views.load_run(run_id).run_id == run_id
    with pytest.raises(RunNotFound):
        responses.delete("run_x")
