"""Model calls whose claim is taken away: booked beside what is certain, once, and counted against limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import ANSWER, EMPTY, POLICY, Store, asks, check

from hermes_worker.core import events as ev
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.messages import Usage
from hermes_worker.core.metering import OUTPUT_TOKENS_ASSUMED, estimate_tokens
from hermes_worker.core.pricing import Cost, CostStatus, Spent, compute_cost, parse_own_price
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.lab.audit import check_invariants
from hermes_worker.store.runs.runs import CompactionRow, IterationClaim
from hermes_worker.store.runs.trees import Trees
from hermes_worker.store.sweep import Sweeper
from hermes_worker.store.tables import budgets, runs

PRICES = dict([parse_own_price("custom:scripted=1/10")])
KNOWN = Cost(usd=Decimal("0.001"), status=CostStatus.ESTIMATED)
BROKEN = ev.RunBroken(reason=ExitReason.CORRUPT_STATE, failure=Failure(kind="corrupt_state", message="no"))


def lose(store: Store, run_id: str) -> IterationClaim:
    """A worker takes the model call, and vanishes."""
    worker = store.worker()
    claim = store.turn(run_id, worker.pk)
    store.vanish(worker)
    store.sweep()
    return claim


def unknown(store: Store, run_id: str) -> tuple[int, int, int]:
    usage = store.views.load_run(run_id).usage
    return usage.unknown_attempts, usage.unknown_input, usage.unknown_output


def transcript_tokens(store: Store, run_id: str) -> int:
    head = estimate_tokens(["You are a test.", "[]"])
    return head + estimate_tokens([row.body for row in store.views.load_transcript(run_id)])


def test_a_takeover_books_one_attempt_as_large_as_the_stored_transcript(store: Store) -> None:
    run_id = store.submit(input="a long story " * 100).run_id
    size = transcript_tokens(store, run_id)
    late = lose(store, run_id)
    store.sweep()
    assert unknown(store, run_id) == (1, size, OUTPUT_TOKENS_ASSUMED)
    with pytest.raises(LeaseLost):
        store.runs.commit_reply(late, ANSWER, ())
    with pytest.raises(LeaseLost):
        store.runs.release_iteration(late, Spent(usage=Usage(unknown_attempts=1)))
    store.answer(run_id)
    assert unknown(store, run_id) == (1, size, OUTPUT_TOKENS_ASSUMED)
    assert store.views.load_run(run_id).usage.total == ANSWER.usage.total
    check(store)


def test_every_claim_that_is_lost_is_booked_once(store: Store) -> None:
    run_id = store.submit(attempts_max=5).run_id
    size = transcript_tokens(store, run_id)
    for losses in (1, 2, 3):
        lose(store, run_id)
        store.sweep()
        assert unknown(store, run_id) == (losses, losses * size, losses * OUTPUT_TOKENS_ASSUMED)


def test_the_output_is_taken_to_be_what_the_replies_of_the_run_were_on_average(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id)
    lose(store, run_id)
    assert unknown(store, run_id)[2] == asks().reply.usage.output


def test_rows_that_a_compaction_stands_for_were_not_sent_again(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    store.settle(run_id, text="x" * 40_000)
    body = json.dumps({"_compacted": {"head": 1, "through": 3, "summary": "s"}, "content": "short", "role": "user"})
    row = CompactionRow(body=body.replace('": ', '":'), rows=2, number=1, usage=Usage())
    store.runs.commit_compaction(store.turn(run_id), ev.AskedAgain(memory=None, is_counted=False), row)
    lose(store, run_id)
    assert unknown(store, run_id)[1] < 1_000


def deadline(store: Store, run_id: str) -> None:
    store.let_pass(1e6)
    # Whoever holds the call is alive; only the run's time is over.
    store.sweep()


def too_long(store: Store, run_id: str) -> None:
    with store.database.write() as connection:
        connection.execute(sa.update(runs).values(claimed_at=runs.c.claimed_at - POLICY.model_call_s_max - 1))
    store.sweep()


def broken_off(store: Store, run_id: str) -> None:
    store.runs.end_broken(run_id, BROKEN)
    store.runs.end_broken(run_id, BROKEN)


def forced_to_end(store: Store, run_id: str) -> None:
    store.change(runs, run_id, status="nonsense")
    broken_off(store, run_id)


@pytest.mark.parametrize("take_away", [deadline, too_long, broken_off, forced_to_end])
def test_whoever_takes_a_claim_away_books_its_attempt(store: Store, take_away: Callable[[Store, str], None]) -> None:
    run_id = store.submit(tokens_max=100_000, wall_s_max=1e5).run_id
    claim = store.turn(run_id, store.worker(ttl_s=1e9).pk)
    take_away(store, run_id)
    with pytest.raises(LeaseLost):
        store.runs.commit_reply(claim, ANSWER, ())
    attempts, read, written = unknown(store, run_id)
    assert (attempts, written) == (1, OUTPUT_TOKENS_ASSUMED)
    assert read > 0
    with store.database.read() as connection:
        budget = connection.execute(sa.select(budgets)).one()
    assert (budget.tokens_spent, budget.tokens_reserved, budget.iterations_reserved) == (read + written, 0, 0)


def test_a_stop_whose_call_was_lost_books_it_with_the_end(store: Store) -> None:
    run_id = store.submit().run_id
    worker = store.worker()
    store.turn(run_id, worker.pk)
    store.runs.request_stop(run_id)
    assert unknown(store, run_id)[0] == 0
    store.vanish(worker)
    store.sweep()
    assert store.status(run_id) is RunStatus.CANCELLED
    assert unknown(store, run_id)[0] == 1


def test_a_claim_that_is_given_back_unharmed_books_nothing(store: Store) -> None:
    run_id = store.submit().run_id
    store.runs.release_iteration(store.turn(run_id))
    assert unknown(store, run_id) == (0, 0, 0)


def test_what_its_holder_sent_in_vain_is_booked_with_whatever_ends_the_claim(store: Store) -> None:
    spent = Spent(
        usage=Usage(unknown_attempts=1, unknown_input=10, unknown_output=4),
        cost=Cost(usd=Decimal(0), status=CostStatus.UNKNOWN, doubtful_usd=Decimal("0.5")),
    )
    run_id = store.submit(nano_usd_max=10**10).run_id
    store.runs.release_iteration(store.turn(run_id), spent)
    failure = ev.ModelFailed(failure=Failure(kind="timeout", message="late"), exit_reason=ExitReason.MODEL_CALL_REFUSED)
    store.runs.commit_failure(store.turn(run_id), failure, spent)
    view = store.views.load_run(run_id)
    assert (view.usage.unknown_attempts, view.usage.unknown_input, view.usage.unknown_output) == (2, 20, 8)
    assert (view.cost_usd, view.doubtful_cost_usd, view.cost_status) == (0, 1, CostStatus.UNKNOWN)
    with store.database.read() as connection:
        budget = connection.execute(sa.select(budgets)).one()
    assert (budget.nano_usd_spent, budget.tokens_spent, budget.unknown_costs) == (10**9, 28, 0)


def test_attempts_whose_outcome_nobody_knows_use_up_a_limit_of_tokens(store: Store) -> None:
    run_id = store.submit(tokens_max=2 * OUTPUT_TOKENS_ASSUMED, attempts_max=9).run_id
    lose(store, run_id)
    lose(store, run_id)
    claim = store.turn(run_id)
    assert claim.loaded.run.exhausted == "tokens"
    store.runs.commit_reply(claim, ANSWER, ())
    assert store.views.load_run(run_id).exit_text == "budget_exhausted(tokens)"


def test_a_lost_attempt_is_priced_and_counts_against_a_limit_of_dollars(store: Store) -> None:
    def pricing(model: str, position: int, usage: Usage) -> Cost:
        assert position == 0
        return compute_cost(usage, provider="custom", model=model, own_prices=PRICES)

    sweeping = replace(store, sweeper=Sweeper(store.database, POLICY, pricing))
    run_id = store.submit(nano_usd_max=20_000_000, attempts_max=9).run_id
    lose(sweeping, run_id)
    view = store.views.load_run(run_id)
    # 1,000 tokens of output at 10 dollars a million, with the margin of an estimate, and a little input.
    assert Decimal("0.015") < view.doubtful_cost_usd < Decimal("0.016")
    assert (view.cost_usd, view.cost_status) == (0, CostStatus.UNKNOWN)
    claim = store.turn(run_id)
    assert claim.loaded.run.exhausted is None, "there is something left"
    store.runs.release_iteration(claim)
    lose(sweeping, run_id)
    assert store.turn(run_id).loaded.run.exhausted == "cost"


def test_a_lost_attempt_without_a_price_stops_a_run_with_a_limit_of_dollars(store: Store) -> None:
    run_id = store.submit(nano_usd_max=10**12).run_id
    lose(store, run_id)
    assert store.turn(run_id).loaded.run.exhausted == "cost"


def test_a_tree_counts_what_its_root_and_its_children_may_have_spent(store: Store) -> None:
    root = store.with_tools(Replay.PURE)
    store.settle(root)
    lose(store, root)
    store.ask_tools(root, asks(Replay.PURE))
    [child] = store.delegate(root, 1)
    lose(store, child)
    tree = Trees(store.database).load_budget(root)
    certain = 2 * asks().reply.usage.total
    of_root, of_child = sum(unknown(store, root)[1:]), sum(unknown(store, child)[1:])
    assert tree.budget.spent.tokens == certain + of_root + of_child
    assert tree.own.spent.tokens == certain + of_root
    assert [share.spent.tokens for share in tree.children] == [of_child]
    store.answer(child)
    store.sweep(EMPTY)
    report = json.loads(store.results(root)[-1])
    assert report["results"][0]["unknown_attempts"] == 1


def test_a_reply_whose_cost_is_only_bounded_charges_the_bound(store: Store) -> None:
    run_id = store.submit(nano_usd_max=6 * 10**9).run_id
    bounded = Cost(usd=Decimal(0), status=CostStatus.UNKNOWN, doubtful_usd=Decimal("1.5"))
    estimated = replace(asks(Replay.PURE).reply, usage=Usage(input=10, output=5, estimated=15))
    for _ in range(3):
        store.runs.commit_reply(store.turn(run_id), estimated, asks(Replay.PURE).calls, bounded)
        store.settle(run_id)
    view = store.views.load_run(run_id)
    assert (view.usage.total, view.usage.estimated) == (45, 45)
    assert (view.cost_usd, view.doubtful_cost_usd, view.cost_status) == (0, Decimal("4.5"), CostStatus.UNKNOWN)
    claim = store.turn(run_id)
    assert claim.loaded.run.exhausted is None
    store.runs.commit_reply(claim, estimated, asks(Replay.PURE).calls, bounded)
    store.settle(run_id)
    assert store.turn(run_id).loaded.run.exhausted == "cost"


@pytest.mark.parametrize(("asked", "broken"), [(0, 0), (1, 1), (2, 0), (3, 0), (4, 1)])
def test_the_crash_lab_compares_what_is_booked_with_what_the_model_was_asked(
    store: Store, tmp_path: Path, asked: int, broken: int
) -> None:
    run_id = store.submit().run_id
    lose(store, run_id)
    store.answer(run_id)
    store.answer(store.submit().run_id)
    found = check_invariants(store.database, tmp_path / "none", submitted=[run_id], expected={}, model_requests=asked)
    of = {finding.invariant: finding.broken for finding in found}
    assert of["model requests that stand in no total"] == broken
