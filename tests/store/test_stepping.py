"""What a step writes, decided without a database."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from support.store import ANSWER, Store, asks, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.budget import Amounts, Budget, BudgetLimits
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import Failure
from hermes_worker.core.messages import Message, Role, Usage, build_assistant_body, build_tool_body
from hermes_worker.core.pricing import Cost, CostStatus, Spent
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import Call, CallStatus, ExitReason, Run, RunStatus, WaitKind
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.step import apply_event
from hermes_worker.store.rows import BLOB_CHARS_MIN, LoadedRun, ParentCall
from hermes_worker.store.runs.step_plan import (
    ChangeCall,
    CloseWait,
    DeleteDocuments,
    EndRun,
    HandOnSession,
    JoinParent,
    MarkMessagesRead,
    PlanInputs,
    RequiredInputs,
    SettleBudget,
    StepOutput,
    StepPlan,
    decide_required_inputs,
    plan_step,
)
from hermes_worker.store.runs.step_statements import ROWS_MAX, NewRows

ASKING = Run(run_id="run_1", status=RunStatus.RUNNING, iteration=1, is_asking=True)
CALL = Call(position=0, name="terminal", replay=Replay.PURE, segment=0, status=CallStatus.RUNNING, timeout_s=60.0)
CALLING = replace(ASKING, is_asking=False, calls=(CALL,))
ASKED = replace(CALLING, calls=(replace(CALL, asks=True),))
WAITING = replace(CALL, status=CallStatus.WAITING, waits_for=WaitKind.APPROVAL)
SETTLED = ev.CallSettled(position=0, status=CallStatus.SUCCEEDED)
BROKEN = ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=Failure(kind="internal_error", message="no"))
COST = Cost(usd=Decimal("0.002"), status=CostStatus.KNOWN)


def loaded(run: Run, **changes: Any) -> LoadedRun:
    """A run that has begun: its session's rows 1 and 2 are a question and a reply that asks for tools."""
    facts: dict[str, Any] = {
        "pk": 7,
        "session_pk": 3,
        "model": "scripted",
        "endpoint": None,
        "origin": None,
        "network": None,
        "replies": run.iteration,
        "run": run,
        "message_seq": 2 + len(run.calls),
        "event_seq": 5,
        "result_seqs": tuple(3 + call.position for call in run.calls),
        "cost_status": None,
        "is_watched": False,
        "lease_token": "t" if run.is_asking else None,
        "parent": None,
        "root_pk": 7,
        "depth": 0,
        "budget_pk": None,
        "reserved": Amounts(),
        "used": Amounts(),
        "doubtful": Amounts(),
        "unpriced_calls": 0,
        "output_tokens": 0,
        "left_s": 3_600.0,
        "wall_s": 3_600.0,
    }
    return LoadedRun(**{**facts, **changes})


def result(text: str = "ok", position: int = 0) -> Message:
    return Message(seq=3 + position, role=Role.TOOL, body=build_tool_body(f"call_{position}", text))


def results(planned: StepPlan) -> list[str]:
    more = [each for each in planned.rest if isinstance(each, NewRows)]
    rows = [*planned.first.rows.messages, *(row for rows in more for row in rows.messages)]
    return [str(row["body"]) for row in rows if row["role"] == "tool"]


def kinds(planned: StepPlan) -> list[type]:
    return [type(each) for each in planned.rest]


def settling(before: LoadedRun, text: str = "ok", known: PlanInputs | None = None, **more: Any) -> StepPlan:
    """The result of the only call."""
    additions = StepOutput(messages=[result(text)], written_calls=frozenset({0}), **more)
    return plan_step(before, apply_event(before.run, SETTLED), additions, known or PlanInputs())


def test_a_reply_that_goes_on_is_one_statement_and_makes_its_calls_due() -> None:
    asked = asks(Replay.PURE, Replay.PURE, segments=(0, 1))
    before = loaded(ASKING)
    after = apply_event(before.run, ev.ModelReplied(calls=asked.calls))
    message = Message(seq=3, role=Role.ASSISTANT, body=build_assistant_body(asked.reply))
    planned = plan_step(
        before, after, StepOutput(messages=[message], usage=Usage(input=9), cost=COST, is_of_holder=True)
    )

    assert planned.rest == ()
    assert planned.added == [RunTool(run_id="run_1", iteration=2, position=0, attempt=1)]
    assert [(row["result_seq"], row["timeout_s"], row["is_due"]) for row in planned.first.rows.calls] == [
        (4, 60.0, True),
        (5, 60.0, False),
    ]
    run = planned.first.run
    assert (run["seen_token"], run["new_token"], run["seen_event_seq"]) == ("t", None, 5)
    assert (run["input"], run["cost_nano_usd"]) == (9, 2_000_000)


def test_the_result_of_the_only_call_is_one_statement_and_asks_the_model_again() -> None:
    planned = settling(loaded(CALLING))
    assert planned.rest == ()
    assert planned.added == [Iterate(run_id="run_1", iteration=2, attempt=1)]


def test_nothing_has_to_be_looked_up_for_a_usual_step() -> None:
    assert not decide_required_inputs(loaded(CALLING), apply_event(CALLING, SETTLED), StepOutput())
    after = apply_event(ASKING, ev.ModelReplied(calls=asks(Replay.PURE).calls))
    assert not decide_required_inputs(loaded(ASKING), after, StepOutput(is_of_holder=True))


@pytest.mark.parametrize(
    ("before", "event", "changes", "wanted"),
    [
        (ASKING, ev.StopRequested(), {}, RequiredInputs()),  # who holds the claim writes the end
        (ASKING, BROKEN, {}, RequiredInputs(is_call_lost=True)),
        (
            replace(CALLING, calls=(replace(CALL, asks=True),)),
            BROKEN,
            {},
            RequiredInputs(auxiliary_lost=(0,), tool_call_ids=True),
        ),
        (CALLING, BROKEN, {}, RequiredInputs(tool_call_ids=True)),
        (CALLING, SETTLED, {"steers": 1}, RequiredInputs(said=True)),
        (CALLING, SETTLED, {"budget_pk": 7}, RequiredInputs(budget=True)),
        (CALLING, BROKEN, {"steers": 1, "budget_pk": 7}, RequiredInputs(tool_call_ids=True)),
    ],
)
def test_what_stands_in_other_rows_is_asked_for_only_where_the_plan_depends_on_it(
    before: Run, event: ev.Event, changes: dict[str, Any], wanted: RequiredInputs
) -> None:
    assert decide_required_inputs(loaded(before, **changes), apply_event(before, event), StepOutput()) == wanted


def test_a_lost_claim_is_not_looked_up_for_the_step_of_its_holder() -> None:
    after = apply_event(ASKING, BROKEN)
    assert decide_required_inputs(loaded(ASKING), after, StepOutput(is_of_holder=True)) == RequiredInputs()
    answered = apply_event(ASKED, ev.CallAnswered(position=0, is_last=True))
    assert decide_required_inputs(loaded(ASKED), answered, StepOutput()).auxiliary_lost == (0,)
    assert decide_required_inputs(loaded(ASKED), answered, StepOutput(held_call=0)).auxiliary_lost == ()


def test_what_lost_calls_may_have_taken_is_booked_with_the_step() -> None:
    lost = Spent(usage=Usage(unknown_attempts=1, unknown_input=40), cost=Cost(usd=None, status=CostStatus.UNKNOWN))
    run = plan_step(
        loaded(ASKING), apply_event(ASKING, BROKEN), StepOutput(usage=Usage(input=2)), PlanInputs(lost=lost)
    ).first.run
    assert (run["input"], run["unknown_attempts"], run["unknown_input"], run["unpriced_calls"]) == (2, 1, 40, 1)


# --- what takes more than one statement -------------------------------------------------------------------------------


def test_a_long_result_is_kept_as_a_blob_before_its_row() -> None:
    [more] = settling(loaded(CALLING), "a" * BLOB_CHARS_MIN).rest
    assert isinstance(more, NewRows)
    [(digest, body)] = more.blobs
    assert body.endswith('"}') and len(digest) == 64
    assert not more.messages


def test_a_result_that_a_note_makes_long_is_measured_with_the_note() -> None:
    """The rule that looked at the result before notes lengthened it wrote three statements without a transaction."""
    text = "a" * (BLOB_CHARS_MIN - len(result("").body) - 1)
    before = loaded(replace(CALLING, iteration=80, iterations_max=90))
    assert len(result(text).body) < BLOB_CHARS_MIN
    planned = settling(before, text)
    assert kinds(planned) == [NewRows]
    [row] = planned.first.rows.messages
    assert row["body"] is None and row["blob_hash"] is not None


def test_rows_beyond_what_fits_into_one_statement_follow_it() -> None:
    asked = asks(*[Replay.PURE] * (ROWS_MAX + 2))
    before = loaded(ASKING)
    planned = plan_step(
        before, apply_event(before.run, ev.ModelReplied(calls=asked.calls)), StepOutput(is_of_holder=True)
    )
    [more] = planned.rest
    assert isinstance(more, NewRows)
    assert [row["position"] for row in planned.first.rows.calls] == [0, 1, 2, 3]
    assert [row["position"] for row in more.calls] == [4, 5]


def test_events_of_the_step_itself_count_among_the_rows() -> None:
    """``ROWS_MAX`` of the caller's, and one of the status."""
    told = [RunEvent(name=RunEventName.REPLY_DISCARDED)] * ROWS_MAX
    planned = plan_step(loaded(ASKING), apply_event(ASKING, ev.StopRequested()), StepOutput(events=told))
    [more] = planned.rest
    assert isinstance(more, NewRows)
    assert [row["event"] for row in more.events] == ["run.stop_requested"] or len(more.events) == 1
    assert planned.first.run["new_event_seq"] == 5 + ROWS_MAX + 1


def test_what_the_user_said_stands_in_the_last_result_and_is_marked_as_said() -> None:
    planned = settling(loaded(CALLING, steers=1), known=PlanInputs(said=["mind the gap"]))
    assert planned.rest == (MarkMessagesRead(seq=3),)
    assert "mind the gap" in results(planned)[0]


def test_how_much_of_a_budget_is_used_stands_in_the_last_result() -> None:
    budget = Budget(limits=BudgetLimits(iterations=10), spent=Amounts(iterations=8))
    planned = settling(loaded(CALLING, budget_pk=7), known=PlanInputs(budget=budget))
    assert "8" in results(planned)[0] and planned.rest == ()
    assert "8" not in results(settling(loaded(CALLING)))[0]


def test_documents_are_deleted_beside_the_step() -> None:
    assert settling(loaded(CALLING), documents_gone=["cwd"]).rest == (DeleteDocuments(keys=["cwd"]),)


def test_a_call_whose_question_is_over_gets_a_row_and_its_wait_is_closed() -> None:
    before = loaded(replace(CALLING, status=RunStatus.WAITING_FOR_APPROVAL, calls=(WAITING,)))
    after = apply_event(before.run, ev.StopRequested())
    planned = plan_step(before, after, StepOutput(), PlanInputs(tool_call_ids=["call_0"]))
    assert kinds(planned)[:2] == [CloseWait, ChangeCall]
    assert [after.calls[0]] == [each.call for each in planned.rest if isinstance(each, ChangeCall)]
    assert len(results(planned)) == 1


def test_an_end_frees_the_session_joins_the_parent_and_settles_the_budget_last() -> None:
    """In this order everybody takes their locks: who claims a run locks the run before the budget."""
    parent = ParentCall(run_pk=1, iteration=1, position=0)
    before = loaded(ASKING, parent=parent, budget_pk=1, reserved=Amounts(iterations=1))
    planned = plan_step(
        before, apply_event(ASKING, ev.ModelReplied(calls=())), StepOutput(is_of_holder=True, output_seq=3)
    )
    assert kinds(planned) == [EndRun, HandOnSession, JoinParent, SettleBudget]
    assert planned.first.run["new_status"] == "running", "the CHECK couples status and reason"
    assert planned.added == []


def test_an_end_without_an_answer_closes_the_transcript() -> None:
    planned = plan_step(loaded(ASKING), apply_event(ASKING, BROKEN), StepOutput())
    [row] = planned.first.rows.messages
    assert (row["seq"], row["role"]) == (3, "assistant")
    assert [each.message_seq for each in planned.rest if isinstance(each, HandOnSession)] == [3]


def test_a_step_that_costs_nothing_leaves_the_budget_alone() -> None:
    assert settling(loaded(CALLING, budget_pk=7)).rest == ()


# --- written ---------------------------------------------------------------------------------------------------------


def test_the_result_of_a_claimed_call_and_its_plan_agree(store: Store) -> None:
    claim = store.call(store.with_tools(Replay.PURE))
    [hint] = store.calls.settle(claim, settlement("a" * (BLOB_CHARS_MIN + 1)))
    assert hint.effect == Iterate(run_id=claim.run_id, iteration=2, attempt=1)
    assert store.results(claim.run_id) == ["a" * (BLOB_CHARS_MIN + 1)]
    store.runs.commit_reply(store.turn(claim.run_id), ANSWER, ())
