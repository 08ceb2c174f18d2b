"""Questions to people: parked as rows, answered once, by whoever is first or by time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import pytest
import sqlalchemy as sa
from support.questions import DANGER, QUESTION
from support.store import Store, asks, check

from hermes_worker.core.effects import RunTool
from hermes_worker.core.errors import LeaseLost
from hermes_worker.core.questions import APPROVED_KEY, Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, RunStatus, WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.runs.waits import (
    ApprovalAnswer,
    NothingAsked,
    NotOffered,
    NotWaiting,
    Waits,
    settle_approval,
)
from hermes_worker.store.tables import waits


def parked(store: Store, question: Question = DANGER) -> str:
    run_id = store.with_tools(Replay.ONCE)
    assert Waits(store.database).ask(store.call(run_id), question) == []
    return run_id


def test_a_call_that_needs_permission_parks_its_run_and_nobody_holds_it(store: Store) -> None:
    run_id = parked(store)
    assert store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL
    assert store.due(run_id) == []
    assert [call.status for call in store.views.list_calls(run_id)] == [CallStatus.WAITING]
    [wait] = Waits(store.database).list_open()
    assert (wait.run_id, wait.tool, wait.request["command"]) == (run_id, "tool0", "rm -r build")
    assert store.event_names(run_id)[-2:] == ["approval.request", "run.waiting"]
    check(store)


def test_an_approved_call_runs_with_the_arguments_that_were_shown(store: Store) -> None:
    run_id = parked(store)
    [hint] = Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    assert isinstance(hint.effect, RunTool)
    assert store.status(run_id) is RunStatus.RUNNING
    claim = store.call(run_id)
    assert claim.is_approved
    assert claim.request.arguments == '{"command":"rm -r build"}'
    assert "approval.responded" in store.event_names(run_id)
    assert Waits(store.database).list_open() == []
    check(store)


def test_who_answered_is_recorded(store: Store) -> None:
    allowed, answered, forgotten = parked(store), parked(store, QUESTION), parked(store)
    questions = Waits(store.database)
    assert questions.list_answers(allowed) == []
    questions.approve(allowed, ApprovalChoice.SESSION, by="cli:anna")
    questions.reply(answered, "2", by="api:key-0a1b2c3d\x1b")
    store.let_pass(3_601)
    store.sweep()
    told = [(run_id, questions.list_answers(run_id)) for run_id in (allowed, answered, forgotten)]
    assert [(answer.outcome, answer.by, answer.tool) for _, [answer] in told] == [
        ("session", "cli:anna", "tool0"),
        ("answered", "api:key-0a1b2c3d\x1b", "tool0"),
        ("expired", "timeout", "tool0"),
    ]
    for run_id, [answer] in told:
        [event] = [event for event in store.views.list_events_after(run_id, 0) if event.name.endswith(".responded")]
        assert event.data["by"] == answer.by


def test_who_stopped_paused_or_steered_a_run_stands_in_its_events(store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE)
    control = Control(store.database)
    control.steer(run_id, "in French", by="cli:anna")
    control.pause(run_id, by="cli:bob")
    control.resume(run_id, by="cli:carl")
    store.runs.stop_tree(run_id, by="api:key-0a1b2c3d")
    told = [(event.name, event.data["by"]) for event in store.views.list_events_after(run_id, 0) if "by" in event.data]
    assert told[:3] == [("run.steered", "cli:anna"), ("run.waiting", "cli:bob"), ("run.resumed", "cli:carl")]
    assert {by for _, by in told[3:]} == {"api:key-0a1b2c3d"}
    assert told[3:]


def test_arguments_can_be_changed_with_the_approval(store: Store) -> None:
    run_id = parked(store)
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, arguments='{"command":"ls"}', by="cli:tester")
    assert store.call(run_id).request.arguments == '{"command":"ls"}'


def test_a_denied_call_is_settled_with_the_reason_and_the_run_goes_on(store: Store) -> None:
    run_id = parked(store)
    Waits(store.database).approve(run_id, ApprovalChoice.DENY, reason="not here", by="cli:tester")
    [result] = store.results(run_id)
    assert json.loads(result)["status"] == "denied"
    assert "not here" in result
    assert store.status(run_id) is RunStatus.RUNNING
    store.answer(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    check(store)


def test_of_many_answers_one_counts(store: Store) -> None:
    run_id = parked(store)

    def answer(number: int) -> bool:
        try:
            Waits(store.database).approve(
                run_id, ApprovalChoice.ONCE if number % 2 else ApprovalChoice.DENY, by="cli:tester"
            )
        except NothingAsked:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(answer, range(8))) == 1
    check(store)


@pytest.mark.parametrize("kind", [WaitKind.APPROVAL, WaitKind.INPUT])
def test_an_answer_that_comes_late_is_none_to_the_next_question(store: Store, kind: WaitKind) -> None:
    """Two people look at the same command; by the time the second one answers, the run asks about another."""
    questions = Waits(store.database)
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE, segments=[0, 1]))

    def answer(wait_id: int) -> None:
        if kind is WaitKind.APPROVAL:
            questions.approve(run_id, ApprovalChoice.ONCE, wait_id=wait_id, by="cli:tester")
        else:
            questions.reply(run_id, "1", wait_id=wait_id, by="cli:tester")

    question = DANGER if kind is WaitKind.APPROVAL else QUESTION
    questions.ask(store.call(run_id, 0), question)
    [first] = questions.list_open()
    assert store.views.list_events_after(run_id, 0)[-2].data["wait_id"] == first.wait_id
    answer(first.wait_id)
    if kind is WaitKind.APPROVAL:
        store.settle(run_id, 0)
    questions.ask(store.call(run_id, 1), question)
    [second] = questions.list_open()
    for wrong in (first.wait_id, second.wait_id + 1):
        with pytest.raises(NothingAsked, match=str(wrong)):
            answer(wrong)
    assert questions.list_open() == [second]
    answer(second.wait_id)
    assert questions.list_open() == []
    check(store)


def test_permission_for_the_session_and_for_good_are_remembered(store: Store) -> None:
    questions = Waits(store.database)
    run_id = parked(store)
    questions.approve(run_id, ApprovalChoice.SESSION, by="cli:tester")
    claim = store.call(run_id)
    assert store.calls.load_documents(claim.session_pk, [APPROVED_KEY]) == {APPROVED_KEY: ["recursive delete"]}
    assert questions.load_terms(claim.run_pk).allowed == frozenset()
    other = parked(store)
    questions.approve(other, ApprovalChoice.ALWAYS, by="cli:tester")
    assert questions.load_terms(store.call(other).run_pk).allowed == {"recursive delete"}


SEVERAL: Final = replace(
    DANGER, request={**DANGER.request, "pattern_keys": ["recursive delete", "git push with force", "SQL DROP"]}
)


def test_every_danger_that_was_asked_about_is_remembered(store: Store) -> None:
    questions = Waits(store.database)
    run_id = parked(store, SEVERAL)
    questions.approve(run_id, ApprovalChoice.SESSION, by="cli:tester")
    claim = store.call(run_id)
    named = sorted(SEVERAL.request["pattern_keys"])
    assert store.calls.load_documents(claim.session_pk, [APPROVED_KEY]) == {APPROVED_KEY: named}
    other = parked(store, SEVERAL)
    questions.approve(other, ApprovalChoice.ALWAYS, by="cli:tester")
    assert questions.load_terms(store.call(other).run_pk).allowed == set(named)


def test_once_remembers_nothing(store: Store) -> None:
    questions = Waits(store.database)
    run_id = parked(store, SEVERAL)
    questions.approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    claim = store.call(run_id)
    assert store.calls.load_documents(claim.session_pk, [APPROVED_KEY]) == {}
    assert questions.load_terms(claim.run_pk).allowed == frozenset()


def test_what_a_chat_cannot_show_whole_is_not_allowed_from_it(store: Store) -> None:
    request = {**DANGER.request, "command": f"echo {'x' * 20_000}; rm -r build"}
    run_id = parked(store, replace(DANGER, request=request))
    [wait] = Waits(store.database).list_open()

    def answer(choice: ApprovalChoice, *, is_from_chat: bool) -> None:
        said = ApprovalAnswer(choice=choice, by="telegram:42", is_from_chat=is_from_chat)
        with store.database.write() as connection:
            settle_approval(connection, find_run(connection, run_id), said, wait_id=wait.wait_id)

    for choice in (ApprovalChoice.ONCE, ApprovalChoice.SESSION, ApprovalChoice.ALWAYS):
        with pytest.raises(NotOffered, match=rf"too long to be shown here.*approvals show {wait.wait_id}'"):
            answer(choice, is_from_chat=True)
    assert [each.wait_id for each in Waits(store.database).list_open()] == [wait.wait_id]
    answer(ApprovalChoice.ONCE, is_from_chat=False)
    assert store.call(run_id).is_approved
    check(store)


def test_who_follows_a_run_is_told_which_arguments_replaced_those_that_were_shown(store: Store) -> None:
    run_id = parked(store)
    changed = '{"command":"ls \u202egpj"}'
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, arguments=changed, by="cli:tester")
    [answered] = [each for each in store.views.list_events_after(run_id, 0) if each.name == "approval.responded"]
    assert answered.data["changed_arguments"] == '{"command":"ls <U+202E>gpj"}'


def test_marks_that_nobody_sees_are_shown_in_the_event_that_asks(store: Store) -> None:
    run_id = parked(store, replace(DANGER, request={**DANGER.request, "command": "rm -r \u202ex\u200b"}))
    [asked] = [each for each in store.views.list_events_after(run_id, 0) if each.name == "approval.request"]
    assert asked.data["command"] == "rm -r <U+202E>x<U+200B>"
    assert store.views.list_calls(run_id)


def test_nobody_answering_means_no(store: Store) -> None:
    run_id = parked(store)
    store.let_pass(30)
    store.sweep()
    assert store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL
    store.let_pass(31)
    store.sweep()
    [result] = store.results(run_id)
    assert "Nobody approved" in result
    assert store.status(run_id) is RunStatus.RUNNING
    with pytest.raises(NothingAsked):
        Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    check(store)


@pytest.mark.parametrize(("said", "understood"), [("2", "blue"), ("green", "green"), ("7", "7")])
def test_a_question_is_answered_by_the_number_of_a_choice_or_in_words(store: Store, said: str, understood: str) -> None:
    run_id = parked(store, QUESTION)
    assert store.status(run_id) is RunStatus.WAITING_FOR_INPUT
    Waits(store.database).reply(run_id, said, by="cli:tester")
    [result] = store.results(run_id)
    assert json.loads(result) == {
        "question": "Which?",
        "choices_offered": ["red", "blue"],
        "user_response": understood,
    }
    check(store)


def test_a_question_that_nobody_answers_tells_the_model_so(store: Store) -> None:
    run_id = parked(store, QUESTION)
    store.let_pass(3_601)
    store.sweep()
    [result] = store.results(run_id)
    assert json.loads(result)["user_response"] is None
    assert store.status(run_id) is RunStatus.RUNNING


def test_a_stop_ends_a_waiting_run_at_once_and_closes_its_question(store: Store) -> None:
    run_id = parked(store)
    store.runs.request_stop(run_id)
    assert store.status(run_id) is RunStatus.CANCELLED
    with store.database.read() as connection:
        assert connection.execute(sa.select(waits.c.outcome)).scalars().all() == ["cancelled"]
    with pytest.raises(NotWaiting):
        Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    check(store)


def test_a_claim_that_was_lost_asks_nothing(store: Store) -> None:
    run_id = store.with_tools(Replay.KEYED)
    worker = store.worker("mortal")
    claim = store.call(run_id, owner=worker.pk)
    store.vanish(worker)
    store.sweep()
    with pytest.raises(LeaseLost):
        Waits(store.database).ask(claim, DANGER)
    assert Waits(store.database).list_open() == []


def test_a_run_is_parked_only_when_its_other_calls_are_done(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE))
    Waits(store.database).ask(store.call(run_id, 0), DANGER)
    assert store.status(run_id) is RunStatus.RUNNING
    store.settle(run_id, 1)
    assert store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL
    Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:tester")
    store.settle(run_id, 0)
    store.answer(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    check(store)
