"""Answering, pausing and steering runs on the command line."""

from __future__ import annotations

import os
import pwd
from dataclasses import replace

import pytest
from support.commandline import CommandLine
from support.questions import DANGER, QUESTION
from support.store import Store, asks

from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.runs.waits import Waits

SECRET = "sk-abcdefghijklmnopqrstuvwxyz123456"
WITH_SECRET = replace(DANGER, request={**DANGER.request, "command": f"rm -r build --token={SECRET}"})


def waiting(store: Store, question: Question) -> tuple[str, str]:
    """A run that asks, and the number of its question."""
    run_id = store.with_tools(Replay.ONCE)
    waits = Waits(store.database)
    waits.ask(store.call(run_id), question)
    return run_id, str(waits.list_open(run_id=run_id)[0].wait_id)


def test_a_command_that_waits_is_shown_and_allowed(hermes: CommandLine, store: Store) -> None:
    run_id, wait_id = waiting(store, WITH_SECRET)
    shown = hermes.inline("runs", "show", run_id).out
    assert "? wants to run (recursive delete): rm -r build" in shown
    assert SECRET not in shown
    assert f"hermes-worker runs approve {run_id} --wait-id {wait_id}, or 'deny' instead of 'approve', until " in shown
    allowed = hermes.inline("runs", "approve", run_id, "--choice", "session", "--wait-id", wait_id)
    assert (allowed.code, allowed.out.split()) == (0, [run_id, "running"])
    assert store.call(run_id).is_approved
    me = f"cli:{pwd.getpwuid(os.getuid()).pw_name}"
    hermes.environ.update(USER="somebody-else", LOGNAME="somebody-else")
    assert f"answered  tool0 (iteration 1, call 1): session, by {me}, " in hermes.inline("runs", "show", run_id).out
    assert [answer["by"] for answer in hermes.run_of(run_id)["answers"]] == [me]
    late = hermes.inline("runs", "deny", run_id, "--wait-id", wait_id)
    assert (late.code, late.err.count("\n")) == (2, 1)
    assert f"waits for no approval {wait_id}" in late.err


def test_a_command_that_waits_is_refused_with_a_reason(hermes: CommandLine, store: Store) -> None:
    run_id, wait_id = waiting(store, WITH_SECRET)
    unseen = hermes.inline("runs", "approve", run_id)
    assert unseen.code == 2, "nobody at a terminal has seen it"
    assert f"{wait_id}  {format_question_code(int(wait_id))}  waits " in unseen.err
    assert "    rm -r build --token=" in unseen.err and SECRET not in unseen.err
    assert f"if this is what you allow, add --wait-id {wait_id}" in unseen.err
    assert hermes.inline("runs", "deny", run_id, "--reason", "not here").code == 0, "it is the only one"
    assert "not here" in store.results(run_id)[0]
    assert "waits for no approval" in hermes.inline("runs", "deny", run_id).err


def test_one_of_several_questions_has_to_be_named(hermes: CommandLine, store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE, Replay.ONCE)
    waits = Waits(store.database)
    for position in (0, 1):
        waits.ask(store.call(run_id, position), QUESTION)
    first, second = (str(wait.wait_id) for wait in waits.list_open(run_id=run_id))
    unnamed = hermes.inline("runs", "answer", run_id, "2")
    assert (unnamed.code, unnamed.err.count("--wait-id ")) == (2, 2)
    assert hermes.inline("runs", "answer", run_id, "2", "--wait-id", first).code == 0
    left = hermes.inline("runs", "answer", run_id, "green")
    assert (left.code, f"{second}  {format_question_code(int(second))}" in left.err) == (0, True)


@pytest.mark.parametrize(("said", "understood"), [("2", "blue"), ("green", "green")])
def test_a_question_is_shown_and_answered(hermes: CommandLine, store: Store, said: str, understood: str) -> None:
    run_id, wait_id = waiting(store, QUESTION)
    shown = hermes.inline("runs", "show", run_id).out
    assert "? Which? (1 red, 2 blue)" in shown
    assert f"hermes-worker runs answer {run_id} --wait-id {wait_id} NUMBER-OR-TEXT, until " in shown
    assert hermes.inline("runs", "answer", run_id, "--wait-id", wait_id, said).code == 0
    assert understood in store.results(run_id)[0]
    empty = hermes.inline("runs", "answer", run_id, "--wait-id", wait_id, " ")
    assert (empty.code, empty.err) == (2, "hermes-worker: the answer is empty\n")


def test_a_run_is_paused_steered_and_goes_on(hermes: CommandLine, store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    assert hermes.inline("runs", "pause", run_id).out.split() == [run_id, "paused"]
    assert store.status(run_id) is RunStatus.PAUSED
    assert hermes.inline("runs", "steer", run_id, "in French").code == 0
    assert hermes.inline("runs", "resume", run_id).out.split() == [run_id, "running"]
    store.settle(run_id)
    assert "in French" in store.results(run_id)[0]
    store.answer(run_id)
    for verb in (["pause"], ["resume"], ["steer", "x"]):
        over = hermes.inline("runs", verb[0], run_id, *verb[1:])
        assert (over.code, over.err.count("\n")) == (2, 1), over.said
        assert "not at work" in over.err


@pytest.mark.parametrize("verb", ["pause", "resume", "approve", "deny", "steer", "answer"])
def test_an_id_that_no_database_takes_is_an_unknown_run(hermes: CommandLine, verb: str) -> None:
    more = ["x"] if verb in ("steer", "answer") else []
    unknown = hermes.inline("runs", verb, "run_\udcff", *more)
    assert (unknown.code, unknown.err.count("\n")) == (2, 1), unknown.said
    assert "there is no run" in unknown.err


def test_nothing_is_no_steer(hermes: CommandLine, store: Store) -> None:
    run_id = store.submit().run_id
    said = hermes.inline("runs", "steer", run_id, " ")
    assert (said.code, said.err) == (2, "hermes-worker: there is nothing to say: the text is empty\n")


def test_what_a_run_asks_is_shown_while_it_is_watched(hermes: CommandLine, store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE, segments=[0, 1]))
    waits = Waits(store.database)
    waits.ask(store.call(run_id, 0), WITH_SECRET)
    waits.approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    store.settle(run_id, 0)
    waits.ask(store.call(run_id, 1), QUESTION)
    store.runs.request_stop(run_id)
    watched = hermes.inline("runs", "watch", run_id)
    assert "? wants to run (recursive delete): rm -r build" in watched.out
    assert "allowed by cli:tester (once)" in watched.out
    assert "? Which? (1 red, 2 blue)" in watched.out
