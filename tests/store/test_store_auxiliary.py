"""Auxiliary calls: left by a tool call, claimed like it, answered once, billed once, and never in doubt."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import POLICY, Store, asks, check, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.auxiliary import AuxiliaryAnswer, AuxiliaryQuestion, AuxTask, Consultation
from hermes_worker.core.budget import Dimension
from hermes_worker.core.effects import AskAuxiliary, Iterate, RunTool
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.messages import Usage, build_user_body
from hermes_worker.core.metering import estimate_tokens
from hermes_worker.core.notices import CANCELLED
from hermes_worker.core.pricing import Cost, CostStatus, Spent, compute_cost, parse_own_price
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, ExitReason, RunStatus
from hermes_worker.core.status_reason import StandingReason
from hermes_worker.store.runs.auxiliary import AuxiliaryClaim
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.status_reasons import Standings
from hermes_worker.store.sweep import Sweeper
from hermes_worker.store.tables import auxiliary_calls, budgets, runs, tool_calls

P, O = Replay.PURE, Replay.ONCE  # noqa: E741
PRICES = dict([parse_own_price("custom:scripted=1/10")])
SPENT = Spent(usage=Usage(input=7, output=3), cost=Cost(usd=Decimal("0.000037"), status=CostStatus.ESTIMATED))
BROKEN = ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=Failure(kind="corrupt_state", message="no"))
SEEN = AuxiliaryAnswer(text="a red square")


def consultation(*texts: str, **material: Any) -> Consultation:
    questions = [
        AuxiliaryQuestion(task=AuxTask.VISION, messages=(build_user_body(text),)) for text in texts or ("what?",)
    ]
    return Consultation(questions=questions, material=material)


def asking(store: Store, *replays: Replay, texts: tuple[str, ...] = (), **changes: Any) -> str:
    """A run whose first call has left a question."""
    run_id = store.with_tools(*(replays or (P,)), **changes)
    store.auxiliary_calls.enqueue_questions(store.call(run_id), consultation(*texts, at="x"))
    return run_id


def effect(run_id: str, **changes: Any) -> AskAuxiliary:
    return replace(AskAuxiliary(run_id=run_id, iteration=1, position=0, attempt=1), **changes)


def lose(store: Store, run_id: str) -> AuxiliaryClaim:
    """A worker of the models takes the question, and vanishes."""
    worker = store.worker()
    claim = store.question(run_id, owner=worker.pk)
    store.vanish(worker)
    store.sweep()
    return claim


def unknown(store: Store, run_id: str) -> tuple[int, int]:
    usage = store.views.load_run(run_id).usage
    return usage.unknown_attempts, usage.unknown_input


@pytest.mark.parametrize("replay", list(Replay))
def test_a_call_waits_for_its_answer_as_a_row_and_then_goes_on_with_it(store: Store, replay: Replay) -> None:
    run_id = store.with_tools(replay)
    hints = store.auxiliary_calls.enqueue_questions(store.call(run_id), consultation("what is it?", at="x"))

    assert [hint.effect for hint in hints] == store.due(run_id) == [effect(run_id)]
    assert store.status(run_id) is RunStatus.RUNNING
    check(store)
    claim = store.question(run_id)
    assert claim.question.messages == (build_user_body("what is it?"),)
    assert (claim.question.task, claim.refused_by) == (AuxTask.VISION, None)
    check(store)

    [hint] = store.auxiliary_calls.settle_question(claim, SEEN, SPENT)

    assert hint.effect == RunTool(run_id=run_id, iteration=1, position=0, attempt=1)
    call = store.call(run_id)
    assert call.has_asked
    [consulted] = store.auxiliary_calls.list_answers(call)
    assert (consulted.material, consulted.answers) == ({"at": "x"}, [SEEN])
    view = store.views.load_run(run_id)
    assert (view.usage.total, view.cost_usd) == (15 + 10, Decimal("0.000037"))
    store.calls.settle(call, settlement("done"))
    check(store)
    assert store.results(run_id) == ["done"]


def test_a_call_that_asks_nothing_is_as_it_was(store: Store) -> None:
    run_id = store.with_tools(P)
    assert not store.call(run_id).has_asked
    with store.database.read() as connection:
        assert connection.execute(sa.select(tool_calls.c.asks)).scalars().all() == [None]


def test_a_question_is_no_tool_call_and_a_tool_call_no_question(store: Store) -> None:
    run_id = store.with_tools(P, P)
    tool = RunTool(run_id=run_id, iteration=1, position=0, attempt=1)
    assert store.auxiliary_calls.claim(effect(run_id), store.owner) is None
    store.auxiliary_calls.enqueue_questions(store.call(run_id), consultation())
    assert store.calls.claim(tool, store.owner) is None
    others = [effect(run_id, attempt=2), effect(run_id, position=1), effect(run_id, iteration=2), effect("run_no")]
    for other in (*others, effect(run_id, is_suspect=True)):
        assert store.auxiliary_calls.claim(other, store.owner) is None
    store.question(run_id)
    assert store.auxiliary_calls.claim(effect(run_id), store.owner) is None
    assert store.calls.claim(tool, store.owner) is None


def test_questions_are_answered_one_by_one_and_what_was_sent_is_dropped(store: Store) -> None:
    run_id = asking(store, texts=("one", "two", "three"))
    for number in range(3):
        claim = store.question(run_id)
        assert claim.number == number
        answer = AuxiliaryAnswer(failure="timeout") if number == 1 else AuxiliaryAnswer(text=f"answer {number}\x00")
        store.auxiliary_calls.settle_question(claim, answer)
        check(store)
    call = store.call(run_id)
    [consulted] = store.auxiliary_calls.list_answers(call)
    assert [answer.text for answer in consulted.answers] == ["answer 0\ufffd", None, "answer 2\ufffd"]
    assert consulted.answers[1].failure == "timeout"
    with store.database.read() as connection:
        assert connection.execute(sa.select(auxiliary_calls.c.request)).scalars().all() == [None] * 3


def test_a_call_may_ask_again_when_it_goes_on(store: Store) -> None:
    run_id = asking(store)
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN)
    store.auxiliary_calls.enqueue_questions(store.call(run_id), consultation("and?", second=True))
    store.auxiliary_calls.settle_question(store.question(run_id), AuxiliaryAnswer(text="blue"))
    first, second = store.auxiliary_calls.list_answers(store.call(run_id))
    assert (first.answers, second.answers) == ([SEEN], [AuxiliaryAnswer(text="blue")])
    assert second.material == {"second": True}


def test_an_answer_counts_once(store: Store) -> None:
    run_id = asking(store)
    claim = store.question(run_id)
    store.auxiliary_calls.settle_question(claim, SEEN, SPENT)
    for again in (
        lambda: store.auxiliary_calls.settle_question(claim, SEEN, SPENT),
        lambda: store.auxiliary_calls.release(claim, SPENT),
    ):
        with pytest.raises(LeaseLost):
            again()
    assert store.views.load_run(run_id).usage.total == 15 + 10


def test_a_question_of_a_call_that_is_not_held_is_not_left(store: Store) -> None:
    run_id = store.with_tools(P)
    claim = store.call(run_id)
    store.calls.settle(claim, settlement())
    with pytest.raises(LeaseLost):
        store.auxiliary_calls.enqueue_questions(claim, consultation())


@pytest.mark.parametrize("replay", [P, O])
def test_a_question_whose_worker_vanished_is_asked_again_and_the_attempt_is_booked_once(
    store: Store, replay: Replay
) -> None:
    run_id = asking(store, replay, texts=("x" * 4_000,))
    late = lose(store, run_id)
    store.sweep()
    check(store)
    sent = estimate_tokens([late.question.to_json()])
    assert unknown(store, run_id) == (1, sent)
    assert "step.retried" in store.event_names(run_id)
    with pytest.raises(LeaseLost):
        store.auxiliary_calls.settle_question(late, SEEN, SPENT)

    [due] = store.due(run_id)
    assert due == effect(run_id, attempt=2, is_suspect=True)
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN, SPENT)

    assert unknown(store, run_id) == (1, sent)
    assert store.views.load_run(run_id).usage.total == 15 + 10
    call = store.call(run_id)
    assert call.whole_run is not None
    assert (call.attempt, call.whole_run.run.calls[0].deaths) == (2, None), "what was answered is acquitted"
    check(store)


def test_a_lost_attempt_is_priced_as_the_runs_own_model(store: Store) -> None:
    sweeper = Sweeper(
        store.database,
        POLICY,
        lambda model, position, usage: compute_cost(usage, provider="custom", model=model, own_prices=PRICES),
    )
    run_id = asking(store)
    worker = store.worker()
    store.question(run_id, owner=worker.pk)
    store.vanish(worker)
    while not unknown(store, run_id)[0]:
        sweeper.sweep(None)
        store.let_pass(POLICY.interval_s)
    with store.database.read() as connection:
        row = connection.execute(sa.select(runs.c.doubtful_nano_usd, runs.c.unpriced_calls)).one()
    assert row.doubtful_nano_usd > 0
    assert row.unpriced_calls == 0


def test_a_question_that_takes_lanes_down_ends_its_run(store: Store) -> None:
    run_id = asking(store, O)
    lose(store, run_id)
    for _ in range(3):
        lane = store.worker("lane")
        store.question(run_id, owner=lane.pk)
        store.crash(lane)
        store.sweep()
        store.let_pass(600)
    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.STEP_QUARANTINED.value)
    assert unknown(store, run_id)[0] == 4
    check(store)


def test_a_question_is_handed_over_with_what_it_took_in_vain(store: Store) -> None:
    run_id = asking(store, O)
    [hint] = store.auxiliary_calls.release(store.question(run_id), SPENT)
    assert hint.effect == effect(run_id)
    assert store.views.load_run(run_id).usage.total == 15 + 10
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN)
    check(store)


def test_a_stop_cancels_a_question_that_nobody_asks_yet(store: Store) -> None:
    run_id = asking(store, O)
    store.runs.request_stop(run_id)
    assert store.status(run_id) is RunStatus.CANCELLED
    assert store.results(run_id) == [CANCELLED]
    assert store.auxiliary_calls.claim(effect(run_id), store.owner) is None
    check(store)


@pytest.mark.parametrize("way", ["answer", "release", "vanish"])
def test_a_stopped_run_ends_when_its_question_is_let_go_of(store: Store, way: str) -> None:
    run_id = asking(store, O)
    worker = store.worker()
    claim = store.question(run_id, owner=worker.pk)
    store.runs.request_stop(run_id)
    assert store.status(run_id) is RunStatus.STOPPING
    if way == "vanish":
        store.vanish(worker)
        store.sweep()
        assert unknown(store, run_id)[0] == 1
    elif way == "answer":
        store.auxiliary_calls.settle_question(claim, SEEN, SPENT)
        assert store.views.load_run(run_id).usage.total == 15 + 10
    else:
        store.auxiliary_calls.release(claim)
    assert store.status(run_id) is RunStatus.CANCELLED
    [view] = store.views.list_calls(run_id)
    assert view.status is CallStatus.CANCELLED, "it has had no effect"
    assert "tool.started" not in store.event_names(run_id)
    check(store)


def test_a_call_of_a_run_that_is_being_stopped_asks_nothing(store: Store) -> None:
    run_id = store.with_tools(O)
    claim = store.call(run_id)
    store.runs.request_stop(run_id)
    assert store.auxiliary_calls.enqueue_questions(claim, consultation()) == []
    assert store.status(run_id) is RunStatus.CANCELLED
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(auxiliary_calls)).scalar_one() == 0
    check(store)


def test_a_deadline_takes_the_claim_and_books_it(store: Store) -> None:
    run_id = asking(store, O)
    store.question(run_id)
    store.change(runs, run_id, deadline_at=1.0)
    store.sweep()
    assert store.status(run_id) is RunStatus.EXPIRED
    assert unknown(store, run_id)[0] == 1
    [view] = store.views.list_calls(run_id)
    assert view.status is CallStatus.CANCELLED
    check(store)


def test_an_end_by_force_books_it_too(store: Store) -> None:
    run_id = asking(store, O, tokens_max=100_000)
    store.question(run_id)
    store.change(runs, run_id, status="nonsense")
    for _ in range(2):
        store.runs.end_broken(run_id, BROKEN)
    assert store.status(run_id) is RunStatus.FAILED
    assert unknown(store, run_id)[0] == 1
    [view] = store.views.list_calls(run_id)
    assert view.status is CallStatus.CANCELLED
    check(store)


def test_a_question_that_outstays_its_time_is_taken_away(store: Store) -> None:
    run_id = asking(store)
    store.question(run_id)
    store.change(tool_calls, run_id, deadline_at=1.0)
    store.sweep()
    [due] = store.due(run_id)
    assert isinstance(due, AskAuxiliary) and due.attempt == 2
    check(store)


def test_a_lost_message_is_sent_again_to_the_models(store: Store) -> None:
    run_id = asking(store)
    store.let_pass(60)
    assert store.sweep({"model": 5, "tools": 0, "delivery": 0}).hints == (), "it waits behind others"
    [hint] = store.sweep({"model": 0, "tools": 5, "delivery": 0}).hints
    assert hint.effect == effect(run_id)
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN)
    store.let_pass(60)
    [hint] = store.sweep({"model": 5, "tools": 0, "delivery": 0}).hints
    assert hint.effect == RunTool(run_id=run_id, iteration=1, position=0, attempt=1)


def test_a_paused_run_asks_nothing_until_it_goes_on(store: Store) -> None:
    run_id = asking(store)
    Control(store.database).pause(run_id)
    assert store.due(run_id) == []
    assert store.auxiliary_calls.claim(effect(run_id), store.owner) is None
    Control(store.database).resume(run_id)
    assert store.due(run_id) == [effect(run_id)]
    check(store)


def test_siblings_and_later_segments_wait_for_a_call_that_asks(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(P, P, P, segments=[0, 0, 1]))
    store.auxiliary_calls.enqueue_questions(store.call(run_id, 0), consultation())
    assert store.settle(run_id, 1) == []
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN)
    [hint] = store.settle(run_id, 0)
    assert isinstance(hint.effect, RunTool) and hint.effect.position == 2
    [hint] = store.settle(run_id, 2)
    assert isinstance(hint.effect, Iterate)
    check(store)


@pytest.mark.parametrize(
    ("limits", "spent", "refused"),
    [
        ({"tokens_max": 100}, {"tokens_spent": 99}, Dimension.TOKENS),
        ({"nano_usd_max": 100}, {"nano_usd_spent": 100}, Dimension.COST),
        ({"nano_usd_max": 100}, {"unknown_costs": 1}, Dimension.COST),
        ({"tokens_max": 10_000}, {}, None),
        ({"tool_calls_max": 1}, {}, None),
        ({"iterations_max": 1, "tokens_max": 10_000}, {}, None),
    ],
)
def test_a_budget_that_is_used_up_refuses_the_question(
    store: Store, limits: dict[str, int], spent: dict[str, int], refused: Dimension | None
) -> None:
    run_id = asking(store, **limits)
    with store.database.write() as connection:
        connection.execute(sa.update(budgets).values(tool_calls_spent=1, **spent))
    assert store.question(run_id).refused_by is refused


def test_what_an_answer_took_counts_in_the_budget(store: Store) -> None:
    run_id = asking(store, tokens_max=10_000)
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN, SPENT)
    with store.database.read() as connection:
        row = connection.execute(sa.select(budgets)).one()
    assert (row.tokens_spent, row.tokens_reserved) == (15 + 10, 0)


def test_where_a_run_stands_says_that_a_model_is_asked(store: Store) -> None:
    run_id = asking(store)
    standings = Standings(store.database)
    store.worker()
    assert standings.find_standing(run_id).text == (
        "a question of tool0 to a model waits in the queue 'model' for a worker that is free"
    )
    store.question(run_id)
    where = standings.find_standing(run_id)
    assert (where.reason, where.text) == (StandingReason.ASKING_MODEL, "asking a model for tool0 on default")


def test_answers_are_kept_until_a_day_after_their_call(store: Store) -> None:
    run_id = asking(store)
    store.auxiliary_calls.settle_question(store.question(run_id), SEEN)
    count = sa.select(sa.func.count()).select_from(auxiliary_calls)

    def kept() -> int:
        store.let_pass(100_000)
        store.sweeper.prune()
        with store.database.read() as connection:
            return int(connection.execute(count).scalar_one())

    assert kept() == 1
    store.settle(run_id)
    store.sweeper.prune()
    with store.database.read() as connection:
        assert connection.execute(count).scalar_one() == 1
    assert kept() == 0


def test_of_many_that_want_a_question_one_gets_it(postgres_store: Store) -> None:
    store = postgres_store
    run_id = asking(store)
    with ThreadPoolExecutor(8) as pool:
        claims = list(pool.map(lambda _: store.auxiliary_calls.claim(effect(run_id), store.owner), range(16)))
    assert sum(claim is not None for claim in claims) == 1


def test_siblings_that_are_answered_at_once_join_once(postgres_store: Store) -> None:
    store = postgres_store
    for _ in range(10):
        run_id = store.with_tools(*[P] * 6)
        for position in range(6):
            store.auxiliary_calls.enqueue_questions(store.call(run_id, position), consultation())
        questions = [store.question(run_id, position) for position in range(6)]
        with ThreadPoolExecutor(6) as pool:
            hints = [
                hint
                for sent in pool.map(lambda one: store.auxiliary_calls.settle_question(one, SEEN, SPENT), questions)
                for hint in sent
            ]
        assert sorted(hint.effect.position for hint in hints if isinstance(hint.effect, RunTool)) == list(range(6))
        assert store.views.load_run(run_id).usage.total == 15 + 6 * 10
    check(store)
