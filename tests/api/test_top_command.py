"""``hermes-worker top`` over a real server: what it shows of rows, and what its keys do to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_lines import at_server, keyed_file
from serving import Served
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.cli.top.view import OpenRun, TopAction, TopState, list_rows, press_key, render_rows, update_fleet
from hermes_worker.cli.top.watching import FleetWatch
from hermes_worker.client import HermesClient, RefusedError
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.operation import AnswerMismatch
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.waits import Waits


@pytest.fixture
def watch(api: Served) -> Iterator[FleetWatch]:
    with HermesClient(api.url, api_key=api.key, patience_s=0.5) as client:
        yield FleetWatch(client)


def asking(store: Store) -> str:
    """A run that waits to be allowed a command."""
    run_id = store.with_tools(Replay.ONCE)
    request = {"command": "rm -rf build", "description": "deletes"}
    choices = ("once", "session", "always", "deny")
    question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=600)
    Waits(store.database).ask(store.call(run_id), question)
    return run_id


def looked(watch: FleetWatch) -> TopState:
    return update_fleet(TopState(), watch.poll_once())


def text_of(state: TopState) -> str:
    return "\n".join(line.text for line in render_rows(state))


def confirmed(state: TopState, row: str, key: str) -> TopAction:
    while state.chosen != row:
        state, _ = press_key(state, "down")
    state, _ = press_key(state, key)
    _, action = press_key(state, "y")
    assert action is not None
    return action


def test_it_shows_runs_by_tree_and_what_waits(store: Store, watch: FleetWatch) -> None:
    parent = store.with_tools(Replay.PURE)
    children = store.delegate(parent, 2)
    waits = asking(store)
    state = looked(watch)
    depths = {run.run_id: run.depth for run in state.fleet.runs}
    assert {depths[parent], depths[waits]} == {0}
    below = [run.run_id for run in state.fleet.runs if run.depth == 1]
    assert len(below) == 2, children
    places = [run.run_id for run in state.fleet.runs]
    assert {places[places.index(parent) + 1], places[places.index(parent) + 2]} == set(below)
    text = text_of(state)
    assert "rm -rf build" in text and "waiting for approval" in text
    assert state.fleet.untold == {}
    assert "QUEUE" in text and "model" in text


def test_a_section_that_cannot_be_read_is_reported_alone(watch: FleetWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_client: HermesClient) -> None:
        raise AnswerMismatch("it has another form")

    monkeypatch.setattr(HermesClient, "workers", refuse)
    facts = watch.poll_once()
    assert (list(facts.untold), facts.lost_because) == (["workers"], "")
    assert facts.queues


def test_a_fault_of_this_program_is_called_so(watch: FleetWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_client: HermesClient) -> None:
        raise TypeError("float() argument must not be 'NoneType'")

    monkeypatch.setattr(HermesClient, "provider_states", fail)
    told = watch.poll_once().untold["keys"]
    assert told == "a fault of hermes-worker, please report it: TypeError: float() argument must not be 'NoneType'"


def test_a_question_is_answered(store: Store, watch: FleetWatch) -> None:
    run_id = store.with_tools(Replay.ONCE)
    question = Question(kind=WaitKind.INPUT, request={"question": "Which?"}, choices=("red", "blue"), expires_s=600)
    Waits(store.database).ask(store.call(run_id), question)
    state, action = looked(watch), None
    for key in ("a", "2", "enter"):
        state, action = press_key(state, key)
    assert action is not None and watch.do(action) == "answered"
    assert list(looked(watch).fleet.questions) == []


def test_its_keys_do_what_they_say(store: Store, watch: FleetWatch) -> None:
    waits, runs = asking(store), [store.submit().run_id for _ in range(2)]
    state = looked(watch)
    assert watch.do(confirmed(state, list_rows(state.fleet)[0], "a")) == "allowed"
    assert list(looked(watch).fleet.questions) == []
    assert watch.do(confirmed(state, f"run {runs[0]}", "s")) == f"{runs[0]} was asked to stop"
    assert store.status(runs[0]) is RunStatus.CANCELLED
    with pytest.raises(RefusedError):
        watch.do(confirmed(state, list_rows(state.fleet)[0], "d"))
    assert f"run {waits}" in list_rows(looked(watch).fleet)


def test_a_run_is_opened_with_its_tree_and_its_calls(store: Store, watch: FleetWatch) -> None:
    parent = store.with_tools(Replay.PURE)
    store.delegate(parent, 2)
    opened = watch.open(OpenRun(run_id=parent))
    text = "\n".join(opened.lines)
    assert text.count("run_") >= 3
    assert "calls" in opened.lines and "1.0" in text
    assert "  user: " in text[text.index("\nconversation\n") :]


def test_what_the_key_may_not_see_is_said(api: Served, store: Store) -> None:
    store.submit()
    reader = Tenants(api.client.database).create_key("default", "reader", [KeyScope.RUNS_READ]).token
    with HermesClient(api.url, api_key=reader, patience_s=0.5) as client:
        state = looked(FleetWatch(client))
    assert len(state.fleet.runs) == 1
    assert {"workers", "queues"} <= set(state.fleet.untold)
    assert "workers: " in text_of(state) and "scope" in text_of(state)


def test_a_server_that_is_away_leaves_what_was_seen_last(api: Served, store: Store, watch: FleetWatch) -> None:
    run_id = store.submit().run_id
    assert f"run {run_id}" in list_rows(looked(watch).fleet)
    api.stop()
    state = looked(watch)
    assert f"run {run_id}" in list_rows(state.fleet)
    assert "not connected" in text_of(state)


def test_a_pipe_gets_one_look_as_text(api: Served, store: Store, tmp_path: Path) -> None:
    run_id = store.submit().run_id
    remote: CommandLine = at_server(api.url, tmp_path, keyed_file(tmp_path / "key", api.key))
    for words in (["top"], ["top", "--once"]):
        printed = remote.inline(*words)
        assert (printed.code, run_id in printed.out, "\x1b" in printed.out) == (0, True, False), printed.err
    away = remote.inline("top", "--server", "http://127.0.0.1:9")
    assert (away.code, "does not answer" in away.err) == (2, True)
