"""Why a run does not move, as the rows tell it."""

from __future__ import annotations

from support.store import Store

from hermes_worker.core import events as ev
from hermes_worker.core.replay import Replay
from hermes_worker.core.status_reason import StandingReason, StatusReason
from hermes_worker.store.runs.status_reasons import Standings


def of(store: Store, run_id: str) -> StatusReason:
    return Standings(store.database).find_standing(run_id)


def test_a_run_that_no_worker_serves_says_which_queue_is_missing(store: Store) -> None:
    run_id = store.submit().run_id
    found = of(store, run_id)
    assert (found.reason, found.text) == (
        StandingReason.NO_WORKER,
        "no worker consumes the queue 'model', where its model call waits",
    )
    store.worker("here")
    assert of(store, run_id).reason is StandingReason.DUE


def test_a_run_behind_another_of_its_session_names_it(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    second = store.submit(session_id="s").run_id
    store.worker("here")
    assert of(store, first).reason is StandingReason.DUE
    assert of(store, second).text == f"run {first} of its session goes first"


def test_a_claimed_model_call_names_its_worker_and_its_age(store: Store) -> None:
    run_id = store.submit().run_id
    store.turn(run_id)
    found = of(store, run_id)
    assert (found.reason, found.text) == (StandingReason.ASKING_MODEL, "asking the model on default")
    store.let_pass(12)
    lasts_s = of(store, run_id).lasts_s
    assert lasts_s is not None
    assert lasts_s >= 12


def test_a_suspect_says_that_it_is_to_be_tried_apart(store: Store) -> None:
    run_id, lost = store.submit().run_id, store.worker()
    store.turn(run_id, lost.pk)
    store.vanish(lost)
    store.sweep()
    store.worker("here")
    found = of(store, run_id)
    assert (found.reason, found.until) == (StandingReason.DUE, None)
    assert "apart from all other work" in found.text


def test_a_parked_run_says_what_the_provider_answered(store: Store) -> None:
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    until = store.database.read_clock() + 60
    store.runs.commit_failure(claim, ev.CapacityAwaited(resume_at=until, recovery="{}", reason="it answered 500"))
    found = of(store, run_id)
    assert (found.reason, found.text, found.until) == (StandingReason.WAITING_FOR_PROVIDER, "it answered 500", until)
    waiting = store.views.list_events_after(run_id, 0)[-1]
    assert waiting.data["reason"] == "it answered 500"


def test_open_calls_are_told_by_segment(store: Store) -> None:
    run_id = store.with_tools(Replay.ONCE, Replay.ONCE, segments=(0, 1))
    found = of(store, run_id)
    assert (found.reason, found.text) == (
        StandingReason.DUE,
        "tool0 waits in the queue 'tools' for a worker that is free",
    )
