"""How many statements and transactions each step of a run takes, on both databases. A step may become cheaper only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.store import ANSWER, Store, asks, new_children, settlement

from hermes_worker.core.auxiliary import AuxiliaryAnswer, AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.messages import build_user_body
from hermes_worker.core.pricing import Cost, CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.store.runs.control import Control

P = Replay.PURE
COST = Cost(usd=Decimal("0.002"), status=CostStatus.KNOWN)
Act = Callable[[], object]


def claim_of_a_model_call(store: Store, **changes: object) -> Act:
    run_id = store.submit(**changes).run_id
    owner = store.owner
    return lambda: store.runs.claim_iteration(Iterate(run_id=run_id, iteration=1, attempt=1), owner)


def claim_within_a_budget(store: Store) -> Act:
    return claim_of_a_model_call(store, tokens_max=1_000_000)


def reply_with(store: Store, calls: int, **changes: object) -> Act:
    asked = asks(*[P] * calls)
    claim = store.turn(store.submit(**changes).run_id)
    return lambda: store.runs.commit_reply(claim, asked.reply, asked.calls, COST)


def reply_with_one_call(store: Store) -> Act:
    return reply_with(store, 1)


def reply_with_four_calls(store: Store) -> Act:
    return reply_with(store, 4)


def reply_with_six_calls(store: Store) -> Act:
    return reply_with(store, 6)


def reply_within_a_budget(store: Store) -> Act:
    return reply_with(store, 1, tokens_max=1_000_000)


def long_reply(store: Store) -> Act:
    asked = asks(P)
    claim = store.turn(store.submit().run_id)
    return lambda: store.runs.commit_reply(claim, replace(asked.reply, text="a" * 20_000), asked.calls)


def answer(store: Store) -> Act:
    claim = store.turn(store.submit().run_id)
    return lambda: store.runs.commit_reply(claim, ANSWER, ())


def answer_that_hands_the_session_on(store: Store) -> Act:
    first = store.submit(session_id="s").run_id
    store.submit(session_id="s")
    claim = store.turn(first)
    return lambda: store.runs.commit_reply(claim, ANSWER, ())


def answer_that_is_delivered(store: Store) -> Act:
    claim = store.turn(store.submit(deliver=("webhook:https://a.test/",)).run_id)
    return lambda: store.runs.commit_reply(claim, ANSWER, ())


def claim_of_a_tool_call(store: Store) -> Act:
    run_id = store.with_tools(P)
    owner = store.owner
    return lambda: store.calls.claim(RunTool(run_id=run_id, iteration=1, position=0, attempt=1), owner)


def settlement_of(store: Store, text: str = "ok", **updates: object) -> Act:
    claim = store.call(store.with_tools(P))
    return lambda: store.calls.settle(claim, settlement(text, **updates))


def result_of_the_only_call(store: Store) -> Act:
    return settlement_of(store)


def result_with_a_document(store: Store) -> Act:
    return settlement_of(store, cwd="/tmp")


def result_with_six_documents(store: Store) -> Act:
    """More than fit into one statement: on PostgreSQL such a result used to be lost."""
    return settlement_of(store, **{f"key{number}": number for number in range(6)})


def result_that_deletes_a_document(store: Store) -> Act:
    return settlement_of(store, cwd=None)


def long_result(store: Store) -> Act:
    return settlement_of(store, "a" * 20_000)


def result_within_a_budget(store: Store) -> Act:
    claim = store.call(store.with_tools(P, tokens_max=1_000_000))
    return lambda: store.calls.settle(claim, settlement())


def result_after_a_steer(store: Store) -> Act:
    run_id = store.with_tools(P)
    Control(store.database).steer(run_id, "mind the gap")
    claim = store.call(run_id)
    return lambda: store.calls.settle(claim, settlement())


def first_result_of_two(store: Store) -> Act:
    claim = store.call(store.with_tools(P, P))
    return lambda: store.calls.settle(claim, settlement())


def last_result_of_two(store: Store) -> Act:
    run_id = store.with_tools(P, P)
    store.settle(run_id, 1)
    claim = store.call(run_id)
    return lambda: store.calls.settle(claim, settlement())


def release_of_a_model_call(store: Store) -> Act:
    claim = store.turn(store.submit().run_id)
    return lambda: store.runs.release_iteration(claim)


def release_of_a_tool_call(store: Store) -> Act:
    claim = store.call(store.with_tools(P))
    return lambda: store.calls.release(claim)


def stop_of_pending_calls(store: Store) -> Act:
    run_id = store.with_tools(P, P)
    return lambda: store.runs.request_stop(run_id)


def stop_of_a_claimed_model_call(store: Store) -> Act:
    run_id = store.submit().run_id
    store.turn(run_id)
    return lambda: store.runs.request_stop(run_id)


def reply_to_a_stopped_run(store: Store) -> Act:
    claim = store.turn(store.submit().run_id)
    store.runs.request_stop(claim.run_id)
    reloaded = replace(claim, loaded=store.runs._require_claim(claim))
    return lambda: store.runs.commit_reply(reloaded, ANSWER, ())


def delegation_to_a_child(store: Store) -> Act:
    run_id = store.with_tools(P)
    claim = store.call(run_id)
    return lambda: store.calls.delegate(claim, new_children(1), children_max=1)


def end_of_the_only_child(store: Store) -> Act:
    [child] = store.delegate(store.with_tools(P), 1)
    claim = store.turn(child)
    return lambda: store.runs.commit_reply(claim, ANSWER, (), COST)


def end_of_a_child_that_starts_the_next(store: Store) -> Act:
    child, _ = store.delegate(store.with_tools(P), 2, children_max=1)
    claim = store.turn(child)
    return lambda: store.runs.commit_reply(claim, ANSWER, (), COST)


def end_of_a_background_child(store: Store) -> Act:
    [child] = store.delegate(store.with_tools(P), 1, note="started")
    claim = store.turn(child)
    return lambda: store.runs.commit_reply(claim, ANSWER, (), COST)


def _consultation() -> Consultation:
    question = AuxiliaryQuestion(task=AuxTask.VISION, messages=(build_user_body("what is it?"),))
    return Consultation(questions=[question], material={})


def auxiliary_question(store: Store) -> Act:
    claim = store.call(store.with_tools(P))
    return lambda: store.auxiliary_calls.enqueue_questions(claim, _consultation())


def auxiliary_claim_and_answer(store: Store) -> Act:
    run_id = store.with_tools(P)
    store.auxiliary_calls.enqueue_questions(store.call(run_id), _consultation())
    owner = store.owner
    effect = store.due(run_id)[0]

    def act() -> None:
        claim = store.auxiliary_calls.claim(effect, owner)  # type: ignore[arg-type]
        assert claim is not None
        store.auxiliary_calls.settle_question(claim, AuxiliaryAnswer(text="a square"))

    return act


STEPS: dict[Callable[[Store], Act], tuple[tuple[int, int], tuple[int, int]]] = {
    claim_of_a_model_call: ((1, 1), (1, 0)),
    claim_within_a_budget: ((5, 2), (4, 1)),
    reply_with_one_call: ((4, 1), (1, 0)),
    reply_with_four_calls: ((4, 1), (1, 0)),
    reply_with_six_calls: ((4, 1), (2, 1)),
    reply_within_a_budget: ((5, 1), (2, 1)),
    long_reply: ((6, 1), (3, 1)),
    answer: ((6, 1), (4, 1)),
    answer_that_hands_the_session_on: ((11, 1), (9, 1)),
    answer_that_is_delivered: ((7, 1), (5, 1)),
    claim_of_a_tool_call: ((2, 1), (1, 0)),
    result_of_the_only_call: ((4, 1), (1, 0)),
    result_with_a_document: ((5, 1), (1, 0)),
    result_with_six_documents: ((5, 1), (2, 1)),
    result_that_deletes_a_document: ((5, 1), (2, 1)),
    long_result: ((6, 1), (3, 1)),
    result_within_a_budget: ((5, 1), (2, 0)),
    result_after_a_steer: ((7, 1), (4, 1)),
    first_result_of_two: ((6, 1), (4, 1)),
    last_result_of_two: ((6, 1), (4, 1)),
    release_of_a_model_call: ((1, 1), (1, 0)),
    release_of_a_tool_call: ((5, 1), (5, 1)),
    stop_of_pending_calls: ((14, 1), (12, 1)),
    stop_of_a_claimed_model_call: ((7, 1), (6, 1)),
    reply_to_a_stopped_run: ((5, 1), (4, 1)),
    delegation_to_a_child: ((12, 1), (6, 1)),
    end_of_the_only_child: ((16, 1), (11, 1)),
    end_of_a_child_that_starts_the_next: ((18, 1), (16, 1)),
    end_of_a_background_child: ((15, 1), (13, 1)),
    auxiliary_question: ((7, 1), (7, 1)),
    auxiliary_claim_and_answer: ((10, 2), (10, 2)),
}
"""For each step, on SQLite and on PostgreSQL: statements, and transactions that are begun for them. A single statement
on PostgreSQL is its own transaction."""


def counted(store: Store, act: Act) -> tuple[int, int]:
    """Statements and transactions. SQLite's BEGIN is no statement here."""
    begun: list[object] = []

    def note(connection: object) -> None:
        begun.append(connection)

    sa.event.listen(store.database.engine, "begin", note)
    try:
        with statements(store.database) as seen:
            act()
    finally:
        sa.event.remove(store.database.engine, "begin", note)
    savepoints = ("BEGIN", "SAVEPOINT", "RELEASE")
    return len([text for text, _ in seen if not text.startswith(savepoints)]), len(begun)


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
def test_a_step_takes_as_many_statements_as_it_says(store: Store, step: Callable[[Store], Act]) -> None:
    act = step(store)
    assert counted(store, act) == STEPS[step][0 if store.database.is_sqlite else 1]
