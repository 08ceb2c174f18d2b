"""Model calls: one worker gets each, its reply is written once, and whoever lost the claim writes nothing."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import ANSWER, Store, asks, check, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION, ExitReason, RunStatus
from hermes_worker.store.tables import messages, runs

FAILURE = Failure(kind="timeout", message="the model did not answer")
FAILED = ev.ModelFailed(failure=FAILURE, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED)


def test_a_run_with_an_answer_completes(store: Store) -> None:
    run_id = store.submit().run_id

    assert store.answer(run_id) == []

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason, view.output) == (RunStatus.COMPLETED, "text_response", "done")
    assert (view.usage, view.iteration) == (Usage(input=3, output=2), 1)
    assert view.started_at is not None and view.finished_at is not None
    assert store.event_names(run_id) == ["message.completed", "run.completed"]
    check(store)


def test_a_claim_takes_the_run_out_of_what_is_due(store: Store) -> None:
    created = store.submit()
    effect = created.hints[0].effect
    assert isinstance(effect, Iterate)

    claim = store.runs.claim_iteration(effect, store.owner)

    assert claim is not None
    assert claim.loaded.run.status is RunStatus.RUNNING
    assert store.due(created.run_id) == []
    assert store.runs.claim_iteration(effect, store.owner) is None


@pytest.mark.parametrize("change", [{"iteration": 2}, {"attempt": 2}, {"run_id": "run_unknown"}])
def test_a_message_that_names_another_step_claims_nothing(store: Store, change: dict[str, object]) -> None:
    effect = store.submit().hints[0].effect
    assert isinstance(effect, Iterate)

    assert store.runs.claim_iteration(replace(effect, **change), store.owner) is None  # type: ignore[arg-type]


def test_of_sixteen_workers_with_the_same_message_one_gets_the_claim(store: Store) -> None:
    effects = [store.submit().hints[0].effect for _ in range(10)]
    owner = store.owner
    start = threading.Barrier(16)

    def race(_: int) -> list[bool]:
        start.wait()
        return [store.runs.claim_iteration(effect, owner) is not None for effect in effects]  # type: ignore[arg-type]

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(race, range(16)))

    assert [sum(column) for column in zip(*outcomes, strict=True)] == [1] * 10


def test_a_reply_whose_claim_was_taken_over_is_refused_and_writes_nothing(store: Store) -> None:
    worker = store.worker()
    run_id = store.submit().run_id
    zombie = store.turn(run_id, worker.pk)
    store.vanish(worker)
    store.sweep()
    successor = store.turn(run_id)

    with pytest.raises(LeaseLost, match="taken over"):
        store.runs.commit_reply(zombie, ModelReply(text="from the grave", usage=Usage(input=100)), ())
    with pytest.raises(LeaseLost):
        store.runs.commit_failure(zombie, FAILED)
    with pytest.raises(LeaseLost):
        store.runs.release_iteration(zombie)

    store.runs.commit_reply(successor, ANSWER, ())
    assert [row.get("content") for row in store.bodies(run_id)] == ["hello", "done"]
    usage = store.views.load_run(run_id).usage
    assert (usage.total, usage.unknown_attempts) == (ANSWER.usage.total, 1)
    check(store)


def test_a_commit_that_is_repeated_after_an_unknown_outcome_counts_once(store: Store) -> None:
    """The COMMIT got through, its answer did not: the worker cannot know and tries again."""
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    asked = asks(Replay.PURE)
    store.runs.commit_reply(claim, asked.reply, asked.calls)

    with pytest.raises(LeaseLost):
        store.runs.commit_reply(claim, asked.reply, asked.calls)

    view = store.views.load_run(run_id)
    assert (view.iteration, view.usage) == (1, asked.reply.usage)
    assert len(store.bodies(run_id)) == 2
    check(store)


def test_a_commit_that_failed_half_way_leaves_nothing_and_can_be_repeated(store: Store) -> None:
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    asked = asks(Replay.PURE, Replay.PURE)
    with store.database.write() as connection:  # the place of the second result is taken: the insert must fail
        session_pk = claim.loaded.session_pk
        taken = {"session_pk": session_pk, "seq": 2, "run_pk": 0, "role": "user", "body": "{}", "created_at": 0.0}
        connection.execute(sa.insert(messages), taken)

    with pytest.raises(sa.exc.IntegrityError):
        store.runs.commit_reply(claim, asked.reply, asked.calls)
    assert store.views.load_run(run_id).iteration == 0
    assert store.views.list_calls(run_id) == []

    with store.database.write() as connection:
        connection.execute(sa.delete(messages).where(messages.c.session_pk == session_pk, messages.c.seq == 2))
    store.runs.commit_reply(claim, asked.reply, asked.calls)
    check(store)


def test_a_released_call_is_due_at_once_and_costs_no_attempt(store: Store) -> None:
    run_id = store.submit().run_id

    hints = store.runs.release_iteration(store.turn(run_id))

    assert [hint.effect for hint in hints] == store.due(run_id)
    assert hints[0].effect == Iterate(run_id=run_id, iteration=1, attempt=1)
    check(store)


def test_a_failed_model_call_fails_the_run_visibly(store: Store) -> None:
    run_id = store.submit().run_id

    store.runs.commit_failure(store.turn(run_id), FAILED)

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "all_retries_exhausted_no_response")
    assert (view.failure_kind, view.error) == ("timeout", "the model did not answer")
    assert store.event_names(run_id) == ["run.failed"]
    check(store)


def test_a_run_that_waits_for_capacity_is_parked_as_a_row(store: Store) -> None:
    run_id = store.submit().run_id
    awaited = ev.CapacityAwaited(resume_at=store.database.read_clock() + 60, recovery='{"tries":1}')

    assert store.runs.commit_failure(store.turn(run_id), awaited) == []

    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    assert store.due(run_id) == []
    assert store.event_names(run_id) == ["run.waiting"]
    check(store)


def test_a_reply_asks_for_its_first_segment_only(store: Store) -> None:
    run_id = store.submit().run_id

    hints = store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE, Replay.ONCE, segments=[0, 0, 1]))

    assert [hint.effect for hint in hints] == [
        RunTool(run_id=run_id, iteration=1, position=position, attempt=1) for position in (0, 1)
    ]
    assert store.due(run_id) == [hint.effect for hint in hints]
    check(store)


def test_the_usage_of_every_reply_is_added_once(store: Store) -> None:
    run_id = store.submit().run_id
    for _ in range(3):
        store.ask_tools(run_id, asks(Replay.PURE))
        store.settle(run_id)
    store.answer(run_id)

    assert store.views.load_run(run_id).usage == Usage(input=33, output=17)
    assert store.views.load_run(run_id).iteration == 4
    check(store)


def test_a_summary_that_asks_for_tools_although_it_may_not_still_ends_the_run_in_good_order(store: Store) -> None:
    """Models do that. Their calls are not run, and the session's next turn must not trip over them."""
    run_id = store.submit(iterations_max=1, session_id="s").run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id)

    asked = asks(Replay.ONCE, Replay.ONCE)
    hints = store.runs.commit_reply(store.turn(run_id), replace(asked.reply, text="what I know"), asked.calls)

    assert hints == []
    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason, view.output) == (
        RunStatus.COMPLETED,
        "max_iterations_reached",
        "what I know",
    )
    assert "tool_calls" not in store.bodies(run_id)[-1]
    following = store.submit(session_id="s").run_id
    claim = store.turn(following)
    assert len(store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)) == 5
    check(store)


@pytest.mark.parametrize("name", ["nul\x00", "half \ud800", "x" * 5_000])
def test_a_tool_name_that_no_database_can_hold_is_a_call_like_any_other(store: Store, name: str) -> None:
    """The name comes from the model. Dispatch will answer that there is no such tool; the run goes on."""
    run_id = store.submit().run_id
    request = ToolRequest(id="call_0", name=name, arguments="{}")
    planned = ev.PlannedCall(name=name, replay=Replay.PURE, segment=0)

    store.runs.commit_reply(store.turn(run_id), ModelReply(text="", tool_requests=(request,)), (planned,))
    store.settle(run_id, text="no such tool")

    assert store.results(run_id) == ["no such tool"]
    check(store)


@pytest.mark.parametrize("text", ["nul\x00", "half \ud800", "x" * 100_000])
def test_a_failure_message_that_no_database_can_hold_is_kept_as_well_as_it_can_be(store: Store, text: str) -> None:
    run_id = store.submit().run_id
    failed = ev.ModelFailed(failure=Failure(kind="unknown", message=text), exit_reason=ExitReason.MODEL_CALL_REFUSED)

    store.runs.commit_failure(store.turn(run_id), failed)

    view = store.views.load_run(run_id)
    assert view.exit_reason == "model_call_refused"
    assert view.error is not None and view.error.startswith(text[:3])
    check(store)


@pytest.mark.parametrize("text", ["nul\x00", "half \ud800", "𝄞" * 30_000, "\u2028\u2029"])
def test_what_the_model_and_the_tools_say_is_kept_whatever_it_is(store: Store, text: str) -> None:
    expected = text.replace("\ud800", "\ufffd")
    run_id = store.submit(input=text).run_id
    store.ask_tools(run_id, asks(Replay.PURE))
    store.settle(run_id, text=text)
    store.answer(run_id, ModelReply(text=text))

    said = [row["content"] for row in store.bodies(run_id)]
    assert said == [expected, None, expected, expected]
    assert store.views.load_run(run_id).output == expected


def test_a_run_of_a_newer_state_version_is_left_to_a_newer_worker(store: Store) -> None:
    effect = store.submit().hints[0].effect
    assert isinstance(effect, Iterate)
    store.change(runs, effect.run_id, state_version=STATE_VERSION + 1)

    assert store.runs.claim_iteration(effect, store.owner) is None
    assert store.status(effect.run_id) is RunStatus.QUEUED


def test_a_stop_beside_a_reply_is_seen_by_the_reply(store: Store) -> None:
    """The claim was read before the stop; the commit decides again on what the run is now."""
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    store.runs.request_stop(run_id)

    asked = asks(Replay.ONCE)
    assert store.runs.commit_reply(claim, replace(asked.reply, text="half a thought"), asked.calls) == []

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.CANCELLED, "interrupted_during_api_call")
    assert view.usage == asked.reply.usage  # it was paid for
    assert "half a thought" not in json.dumps(store.bodies(run_id))
    assert store.views.list_calls(run_id) == []
    check(store)


def test_results_are_not_lost_when_a_pure_reply_follows(store: Store) -> None:
    run_id = store.with_tools(Replay.PURE)
    claim = store.call(run_id)
    store.calls.settle(claim, settlement("the result"))
    store.answer(run_id)

    assert [row["role"] for row in store.bodies(run_id)] == ["user", "assistant", "tool", "assistant"]
    check(store)
