"""Questions that are closed: who answered what, and what became of those that nobody answered."""

from __future__ import annotations

from support.questions import DANGER, QUESTION
from support.store import Store

from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store.runs.approval_history import ClosedQuestion, load_decisions
from hermes_worker.store.runs.waits import Waits


def asked(store: Store, question: Question = DANGER, **spec: object) -> str:
    run_id = store.with_tools(Replay.ONCE, **spec)
    Waits(store.database).ask(store.call(run_id), question)
    return run_id


def decisions(store: Store, tenant: str | None = "default", **wanted: object) -> list[ClosedQuestion]:
    return load_decisions(store.database, tenant=tenant, **wanted)  # type: ignore[arg-type]


def test_the_newest_question_comes_first_and_open_ones_are_not_there(store: Store) -> None:
    allowed, answered = asked(store), asked(store, QUESTION)
    expired, stopped, still_open = asked(store), asked(store), asked(store)
    Waits(store.database).approve(allowed, ApprovalChoice.SESSION, by="cli:anna")
    Waits(store.database).reply(answered, "2", by="api:bob")
    store.runs.stop_tree(stopped)
    found = decisions(store)
    assert [(each.run_id, each.outcome, each.by) for each in found][1:] == [
        (answered, "answered", "api:bob"),
        (allowed, "session", "cli:anna"),
    ]
    assert found[0].run_id == stopped
    assert found[0].by is None
    assert {still_open, expired}.isdisjoint(each.run_id for each in found)

    store.let_pass(61)
    store.sweep()

    found = decisions(store)
    assert [each.run_id for each in found] == [still_open, stopped, expired, answered, allowed]
    assert (found[0].outcome, found[0].tool, found[0].kind) == ("expired", "tool0", WaitKind.APPROVAL)
    assert found[-1].request["command"] == "rm -r build"
    assert found[-1].closed_at >= found[-1].opened_at


def test_a_page_begins_below_a_number_and_a_kind_is_told_apart(store: Store) -> None:
    runs = [asked(store), asked(store, QUESTION), asked(store)]
    Waits(store.database).approve(runs[0], ApprovalChoice.ONCE, by="cli:anna")
    Waits(store.database).reply(runs[1], "red", by="cli:anna")
    Waits(store.database).approve(runs[2], ApprovalChoice.DENY, by="cli:anna", reason="not here")

    first = decisions(store, limit=2)
    assert [each.run_id for each in first] == [runs[2], runs[1]]
    assert first[0].reason == "not here"
    assert [each.run_id for each in decisions(store, before=first[-1].wait_id)] == [runs[0]]
    assert [each.run_id for each in decisions(store, kind=WaitKind.INPUT)] == [runs[1]]


def test_a_decision_says_with_which_other_arguments_the_call_ran(store: Store) -> None:
    as_asked, changed, denied = asked(store), asked(store), asked(store)
    Waits(store.database).approve(as_asked, ApprovalChoice.ONCE, by="cli:anna")
    instead = '{"command":"rm -r build/tmp"}'
    Waits(store.database).approve(changed, ApprovalChoice.ONCE, by="cli:anna", arguments=instead)
    Waits(store.database).approve(denied, ApprovalChoice.DENY, by="cli:anna")
    ran = {each.run_id: each.changed_arguments for each in decisions(store)}
    assert ran == {as_asked: None, changed: instead, denied: None}


def test_what_another_tenant_was_asked_is_not_there(store: Store) -> None:
    mine, theirs = asked(store), asked(store, tenant="acme")
    for run_id in (mine, theirs):
        Waits(store.database).approve(run_id, ApprovalChoice.ONCE, by="cli:anna")

    assert [(each.run_id, each.tenant) for each in decisions(store)] == [(mine, "default")]
    assert [each.run_id for each in decisions(store, "acme")] == [theirs]
    assert [each.run_id for each in decisions(store, None)] == [theirs, mine]
