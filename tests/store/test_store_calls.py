"""Tool calls: the effect ledger. One claim, one result, in the model's order, and one join."""

from __future__ import annotations

import itertools
import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import Store, asks, check, settlement

from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import InvalidTransition, LeaseLost
from hermes_worker.core.notices import CANCELLED, INTERRUPTED, OUTCOME_UNKNOWN
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION, CallStatus, ExitReason, RunStatus
from hermes_worker.store.rows import BLOB_CHARS_MIN
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.tables import blobs, runs, session_documents, tool_calls

P, K, O = Replay.PURE, Replay.KEYED, Replay.ONCE  # noqa: E741


def effect(run_id: str, position: int = 0, *, iteration: int = 1, attempt: int = 1) -> RunTool:
    return RunTool(run_id=run_id, iteration=iteration, position=position, attempt=attempt)


def test_a_claim_brings_what_the_model_asked_for(store: Store) -> None:
    run_id = store.with_tools(P, O)

    claim = store.call(run_id, 1)

    assert (claim.request.id, claim.request.name, claim.request.arguments) == ("call_1", "tool1", '{"n":1}')
    assert (claim.replay, claim.timeout_s, claim.attempt) == (O, 60.0, 1)
    assert claim.idempotency_key == f"{run_id}.1.1"
    assert store.due(run_id) == [effect(run_id, 0)]


def test_intent_is_on_record_before_the_tool_runs(store: Store) -> None:
    run_id = store.with_tools(O)

    store.call(run_id)

    [view] = store.views.list_calls(run_id)
    assert (view.status, view.settled_at) == (CallStatus.RUNNING, None)
    assert view.claimed_at == pytest.approx(store.database.read_clock(), abs=5)


@pytest.mark.parametrize(
    "other", [effect("r", 1), effect("r", iteration=2), effect("r", attempt=2), effect("run_unknown")]
)
def test_a_message_that_names_another_call_claims_nothing(store: Store, other: RunTool) -> None:
    run_id = store.with_tools(P)

    assert (
        store.calls.claim(replace(other, run_id=run_id if other.run_id == "r" else other.run_id), store.owner) is None
    )


def test_a_call_of_a_later_segment_cannot_be_claimed_early(store: Store) -> None:
    run_id = store.with_tools(P, P, segments=[0, 1])

    assert store.calls.claim(effect(run_id, 1), store.owner) is None


def test_a_call_of_a_newer_state_version_is_left_to_a_newer_worker(store: Store) -> None:
    run_id = store.with_tools(P)
    store.change(runs, run_id, state_version=STATE_VERSION + 1)

    assert store.calls.claim(effect(run_id), store.owner) is None


def test_of_sixteen_workers_with_the_same_message_one_gets_the_call(store: Store) -> None:
    run_id = store.with_tools(*[P] * 8)
    owner = store.owner
    start = threading.Barrier(16)

    def race(_: int) -> list[bool]:
        start.wait()
        return [store.calls.claim(effect(run_id, position), owner) is not None for position in range(8)]

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(race, range(16)))

    assert [sum(column) for column in zip(*outcomes, strict=True)] == [1] * 8
    check(store)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_results_stand_in_call_order_whatever_the_order_of_settling(store: Store, order: tuple[int, ...]) -> None:
    run_id = store.with_tools(P, K, O)
    claims = [store.call(run_id, position) for position in range(3)]

    hints = [store.calls.settle(claims[position], settlement(f"result {position}")) for position in order]

    assert store.results(run_id) == ["result 0", "result 1", "result 2"]
    assert hints[:2] == [[], []]
    assert [hint.effect for hint in hints[2]] == [Iterate(run_id=run_id, iteration=2, attempt=1)]
    check(store)


def test_each_segment_starts_when_the_one_before_it_is_settled(store: Store) -> None:
    run_id = store.with_tools(P, P, O, P, segments=[0, 0, 1, 2])

    started = []
    while due := [each for each in store.due(run_id) if isinstance(each, RunTool)]:
        started.append([each.position for each in due])
        for each in due:
            store.settle(run_id, each.position)
            check(store)

    assert started == [[0, 1], [2], [3]]
    assert store.due(run_id) == [Iterate(run_id=run_id, iteration=2, attempt=1)]


@pytest.mark.parametrize("width", [1, 3])
def test_a_result_whose_claim_was_taken_over_is_refused_and_writes_nothing(store: Store, width: int) -> None:
    worker = store.worker()
    run_id = store.with_tools(*[P] * width)
    zombie = store.call(run_id, 0, worker.pk)
    store.vanish(worker)
    store.sweep()
    successor = store.call(run_id)

    with pytest.raises(LeaseLost, match="taken over"):
        store.calls.settle(zombie, settlement("from the grave", note={"written": "by a zombie"}))
    with pytest.raises(LeaseLost):
        store.calls.release(zombie)

    assert (successor.attempt, successor.idempotency_key) == (2, zombie.idempotency_key)
    store.calls.settle(successor, settlement("right"))
    assert store.results(run_id) == ["right"]
    assert store.calls.load_documents(zombie.session_pk, ["note"]) == {}
    check(store)


@pytest.mark.parametrize("width", [1, 2])
def test_a_settle_that_is_repeated_after_an_unknown_outcome_counts_once(store: Store, width: int) -> None:
    run_id = store.with_tools(*[P] * width)
    claim = store.call(run_id)
    store.calls.settle(claim, settlement("first"))

    with pytest.raises(LeaseLost):
        store.calls.settle(claim, settlement("second"))

    assert store.results(run_id) == ["first"]
    check(store)


def test_a_failed_call_is_an_answer_like_any_other(store: Store) -> None:
    run_id = store.with_tools(P)

    hints = store.settle(run_id, text='{"error":"no such file"}', status=CallStatus.FAILED)

    assert [hint.effect for hint in hints] == [Iterate(run_id=run_id, iteration=2, attempt=1)]
    assert store.results(run_id) == ['{"error":"no such file"}']
    completed = store.views.list_events_after(run_id, 0)[-1]
    assert (completed.name, completed.data["error"]) == ("tool.completed", True)


@pytest.mark.parametrize("width", [1, 2])
def test_a_released_call_is_due_at_once_and_costs_no_attempt(store: Store, width: int) -> None:
    run_id = store.with_tools(*[K] * width)
    claim = store.call(run_id)

    hints = store.calls.release(claim)

    assert [hint.effect for hint in hints] == [effect(run_id)]
    assert effect(run_id) in store.due(run_id)
    store.settle(run_id)
    check(store)


def test_a_once_call_is_never_handed_back(store: Store) -> None:
    run_id = store.with_tools(O)
    claim = store.call(run_id)

    with pytest.raises(InvalidTransition, match="must not run again"):
        store.calls.release(claim)

    store.calls.settle(claim, settlement())
    check(store)


# --- the join --------------------------------------------------------------------------------------------------------


def settle_all_at_once(store: Store, claims: list[CallClaim]) -> list[list[Iterate]]:
    start = threading.Barrier(len(claims))

    def settle(claim: CallClaim) -> list[Iterate]:
        start.wait()
        hints = store.calls.settle(claim, settlement(f"result {claim.position}"))
        return [hint.effect for hint in hints if isinstance(hint.effect, Iterate)]

    with ThreadPoolExecutor(len(claims)) as pool:
        return list(pool.map(settle, claims))


def test_of_thirty_two_calls_settled_at_once_exactly_one_continues_the_run(store: Store) -> None:
    rounds = 2 if store.database.is_sqlite else 15
    for _ in range(rounds):
        run_id = store.with_tools(*[P] * 32)
        claims = [store.call(run_id, position) for position in range(32)]

        continued = [effects for effects in settle_all_at_once(store, claims) if effects]

        assert continued == [[Iterate(run_id=run_id, iteration=2, attempt=1)]]
        assert store.results(run_id) == [f"result {position}" for position in range(32)]
    check(store)


def test_two_calls_settled_at_once_never_both_miss_the_join(store: Store) -> None:
    """Each sees the other as open unless the second reads after it holds the run: the classic lost join."""
    for _ in range(10 if store.database.is_sqlite else 80):
        run_id = store.with_tools(P, P)
        claims = [store.call(run_id, 0), store.call(run_id, 1)]

        continued = [effects for effects in settle_all_at_once(store, claims) if effects]

        assert len(continued) == 1
    check(store)


def test_calls_settled_and_lost_at_once_join_once(store: Store) -> None:
    """A sweeper takes half of the calls from a dead worker while the other half report."""
    for _ in range(3 if store.database.is_sqlite else 15):
        dead = store.worker()
        run_id = store.with_tools(*[O] * 8)
        lost = [store.call(run_id, position, dead.pk) for position in range(0, 8, 2)]
        ours = [store.call(run_id, position) for position in range(1, 8, 2)]
        store.vanish(dead)
        with ThreadPoolExecutor(1) as pool:
            swept = pool.submit(store.sweep)
            continued = [effects for effects in settle_all_at_once(store, ours) if effects]
        hints = [hint.effect for hint in swept.result().hints if hint.effect.run_id == run_id]

        assert len(continued) + len(hints) == 1
        assert store.due(run_id) == [Iterate(run_id=run_id, iteration=2, attempt=1)]
        assert store.results(run_id)[::2] == [OUTCOME_UNKNOWN] * len(lost)
    check(store)


# --- losing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replay", [P, K])
def test_a_step_that_costs_three_workers_their_life_is_quarantined_and_not_tried_again(
    store: Store, replay: Replay
) -> None:
    run_id = store.with_tools(replay, O, session_id="s")
    for attempt in (1, 2, 3, 4):
        worker = store.worker()
        assert store.call(run_id, 0, worker.pk).attempt == attempt
        if attempt == 1:
            store.vanish(worker)
        else:
            store.crash(worker)
        store.sweep()

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.STEP_QUARANTINED)
    assert view.error is not None and "'tool0'" in view.error and "3 times" in view.error
    assert store.calls.claim(effect(run_id, attempt=5), store.owner) is None
    assert store.results(run_id) == [INTERRUPTED, CANCELLED]
    check(store)


def test_a_once_call_whose_worker_vanished_is_unknown_and_the_model_is_told(store: Store) -> None:
    worker = store.worker()
    run_id = store.with_tools(P, O)
    store.settle(run_id, 0, "fine")
    zombie = store.call(run_id, 1, worker.pk)
    store.vanish(worker)

    swept = store.sweep()

    assert (swept.workers_expired, swept.calls_lost) == (1, 1)
    assert [hint.effect for hint in swept.hints] == [Iterate(run_id=run_id, iteration=2, attempt=1)]
    assert store.results(run_id) == ["fine", OUTCOME_UNKNOWN]
    told = json.loads(store.results(run_id)[1])
    assert told["status"] == "outcome_unknown"
    assert "do not assume that it failed" in told["error"]
    assert [call.status for call in store.views.list_calls(run_id)] == [CallStatus.SUCCEEDED, CallStatus.UNKNOWN]
    with pytest.raises(LeaseLost):
        store.calls.settle(zombie, settlement("it did work"))
    assert store.calls.claim(effect(run_id, 1, attempt=2), store.owner) is None
    check(store)


def test_a_once_call_that_never_began_is_due_again(store: Store) -> None:
    """What nobody began has no outcome that could be unknown: the model is told nothing."""
    worker = store.worker()
    run_id = store.with_tools(O)
    zombie = store.claimed_call(run_id, 0, worker.pk)
    store.vanish(worker)

    assert store.sweep().calls_lost == 1

    assert store.due(run_id) == [replace(effect(run_id, attempt=2), is_suspect=True)]
    with pytest.raises(LeaseLost):
        store.calls.begin(zombie)
    again = store.call(run_id)
    assert again.idempotency_key == zombie.idempotency_key
    store.calls.settle(again, settlement("it did work"))
    assert store.results(run_id) == ["it did work"]
    check(store)


def test_a_once_call_is_begun_by_one_claim_or_taken_from_it_and_never_both(store: Store) -> None:
    for _ in range(3 if store.database.is_sqlite else 15):
        worker = store.worker()
        run_id = store.with_tools(O)
        claim = store.claimed_call(run_id, 0, worker.pk)
        store.vanish(worker)
        with ThreadPoolExecutor(1) as pool:
            swept = pool.submit(store.sweep)
            try:
                store.calls.begin(claim)
                has_begun = True
            except LeaseLost:
                has_begun = False
        swept.result()
        store.sweep()
        (status,) = [call.status for call in store.views.list_calls(run_id)]
        assert status is (CallStatus.UNKNOWN if has_begun else CallStatus.PENDING)
    check(store)


def test_that_a_call_begins_may_be_written_twice(store: Store) -> None:
    """The answer to the first COMMIT may have been lost."""
    worker = store.worker()
    run_id = store.with_tools(O)
    claim = store.claimed_call(run_id, 0, worker.pk)
    store.calls.begin(claim)
    store.calls.begin(claim)
    store.vanish(worker)
    store.sweep()
    assert store.results(run_id) == [OUTCOME_UNKNOWN]


def test_a_claim_of_an_older_version_counts_as_begun(store: Store) -> None:
    """It knows the column not: the token of a claim that was given back stands there still."""
    worker = store.worker()
    run_id = store.with_tools(O)
    before = store.claimed_call(run_id)
    store.calls.release(before, has_begun=False)
    store.claimed_call(run_id, 0, worker.pk)
    with store.database.write() as connection:
        connection.execute(sa.update(tool_calls).values(unbegun_token=before.token))
    store.vanish(worker)
    store.sweep()
    assert [call.status for call in store.views.list_calls(run_id)] == [CallStatus.UNKNOWN]


def test_a_once_call_that_has_not_begun_can_be_given_back(store: Store) -> None:
    run_id = store.with_tools(O)
    store.calls.release(store.claimed_call(run_id), has_begun=False)
    assert store.due(run_id) == [effect(run_id)]
    assert store.call(run_id).attempt == 1


def test_the_unknown_outcome_of_a_call_is_in_the_event_stream(store: Store) -> None:
    worker = store.worker()
    run_id = store.with_tools(O)
    store.call(run_id, 0, worker.pk)
    store.vanish(worker)
    store.sweep()

    events = store.views.list_events_after(run_id, 0)
    assert [event.name for event in events] == ["message.completed", "tool.started", "tool.completed"]
    assert (events[-1].data["outcome"], events[-1].data["position"]) == ("unknown", 0)


def test_a_lost_call_that_is_tried_again_says_so_and_one_that_is_not_does_not(store: Store) -> None:
    names = {}
    for attempts_max in (2, 1):
        worker = store.worker()
        run_id = store.with_tools(P, attempts_max=attempts_max)
        store.change(tool_calls, run_id, deaths=0)
        store.call(run_id, 0, worker.pk)
        store.crash(worker)
        store.sweep()
        names[attempts_max] = store.event_names(run_id)

    assert names[2] == ["message.completed", "step.retried"]
    assert names[1] == ["message.completed", "tool.started", "tool.completed", "run.failed"]


def test_a_call_that_outstays_its_time_out_is_taken_even_from_a_live_worker(store: Store) -> None:
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(P, timeout_s=10.0))
    store.call(run_id, 0, store.owner)

    store.let_pass(35)
    assert store.sweep().calls_lost == 0
    store.let_pass(10)
    assert store.sweep().calls_lost == 1

    assert store.call(run_id).attempt == 2
    check(store)


# --- what a settle writes besides --------------------------------------------------------------------------------


def test_a_settle_writes_replaces_and_deletes_session_documents(store: Store) -> None:
    run_id = store.with_tools(P, P, P)
    claims = [store.call(run_id, position) for position in range(3)]
    session_pk = claims[0].session_pk

    store.calls.settle(claims[0], settlement(cwd="/tmp", todo=[1, "zwei"]))
    assert store.calls.load_documents(session_pk, ["cwd", "todo", "missing"]) == {"cwd": "/tmp", "todo": [1, "zwei"]}
    store.calls.settle(claims[1], settlement(cwd="/home"))
    store.calls.settle(claims[2], settlement(todo=None))

    assert store.calls.load_documents(session_pk, ["cwd", "todo"]) == {"cwd": "/home"}
    assert store.calls.load_documents(session_pk, []) == {}


def test_documents_belong_to_their_session(store: Store) -> None:
    first, second = store.with_tools(P), store.with_tools(P)
    claim = store.call(first)
    store.calls.settle(claim, settlement(cwd="/tmp"))

    assert store.calls.load_documents(store.call(second).session_pk, ["cwd"]) == {}
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(session_documents)).scalar_one() == 1


def test_equal_large_rows_are_stored_once(store: Store) -> None:
    large = "x" * BLOB_CHARS_MIN
    ids = [store.with_tools(P) for _ in range(4)]
    for run_id in ids[:3]:
        store.settle(run_id, 0, large)
    store.settle(ids[3], 0, large[:-100])

    assert [store.results(run_id) for run_id in ids] == [[large]] * 3 + [[large[:-100]]]
    with store.database.read() as connection:
        sizes = connection.execute(sa.select(sa.func.length(blobs.c.body))).scalars().all()
    assert sum(size > BLOB_CHARS_MIN for size in sizes) == 1


def test_a_fifty_megabyte_result_does_not_break_anything(store: Store) -> None:
    run_id = store.with_tools(P)
    store.settle(run_id, text="y" * 50_000_000)

    assert len(store.results(run_id)[0]) == 50_000_000
    store.answer(run_id)
    check(store)


def test_events_are_numbered_without_gaps_however_calls_interleave(store: Store) -> None:
    run_id = store.with_tools(*[P] * 16)
    claims = [store.call(run_id, position) for position in range(16)]
    random.Random(7).shuffle(claims)
    settle_all_at_once(store, claims)

    events = store.views.list_events_after(run_id, 0)
    assert [event.seq for event in events] == list(range(1, 34))
    for position in range(16):
        mine = [event.name for event in events if event.data.get("position") == position]
        assert mine == ["tool.started", "tool.completed"]
    assert [event.seq for event in store.views.list_events_after(run_id, 30)] == [31, 32, 33]
    check(store)


@pytest.mark.parametrize("text", [OUTCOME_UNKNOWN, "the server's answer cannot be read"])
def test_a_once_call_of_unknown_outcome_has_one_result_which_says_why(store: Store, text: str) -> None:
    run_id = store.with_tools(P, O)
    store.settle(run_id, 0, "fine")
    claim = store.call(run_id, 1)

    unknown = replace(settlement(text, note={"kept": 1}), status=CallStatus.UNKNOWN)
    hints = store.calls.settle(claim, unknown)

    assert [hint.effect for hint in hints] == [Iterate(run_id=run_id, iteration=2, attempt=1)]
    assert store.results(run_id) == ["fine", text]
    assert [call.status for call in store.views.list_calls(run_id)] == [CallStatus.SUCCEEDED, CallStatus.UNKNOWN]
    ended = [event for event in store.views.list_events_after(run_id, 0) if event.name == "tool.completed"]
    assert [event.data.get("outcome") for event in ended] == [None, "unknown"]
    check(store)
