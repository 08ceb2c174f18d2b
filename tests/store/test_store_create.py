"""Accepting runs: durable, once per idempotency key, and one turn at a time per session."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import ANSWER, Store, asks, check, new_run

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate
from hermes_worker.core.errors import Failure
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.core.spec import Multitask
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict, RequestReplayed
from hermes_worker.store.runs.runs import SESSION_QUEUE_MAX, Created, SessionBusy, SessionNotFound
from hermes_worker.store.tables import blobs, idempotency_keys, run_inputs, runs, sessions

BROKEN = ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=Failure(kind="internal_error", message="a defect"))


def test_a_submitted_run_is_queued_and_its_first_model_call_is_due(store: Store) -> None:
    created = store.submit(input="what time is it?")

    assert [hint.effect for hint in created.hints] == [Iterate(run_id=created.run_id, iteration=1, attempt=1)]
    assert store.due(created.run_id) == [hint.effect for hint in created.hints]
    assert (created.session_id, created.was_replayed) == (created.run_id, False)
    assert store.status(created.run_id) is RunStatus.QUEUED
    assert store.bodies(created.run_id) == [{"role": "user", "content": "what time is it?"}]
    check(store)


def test_the_hint_carries_the_time_of_its_row(store: Store) -> None:
    created = store.submit()

    with store.database.read() as connection:
        hinted_at = connection.execute(sa.select(runs.c.hinted_at)).scalar_one()
    assert created.hints[0].at == pytest.approx(hinted_at, abs=0.01)
    assert created.hints[0].at == pytest.approx(store.database.read_clock(), abs=5)


def test_history_comes_before_the_first_message_of_a_new_session(store: Store) -> None:
    history = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]

    created = store.submit(history=history, input="c", session_id="s")
    store.answer(created.run_id)
    again = store.submit(history=history, input="d", session_id="s")

    assert [row["content"] for row in store.bodies(again.run_id)] == ["a", "b", "c", "done", "d"]
    check(store)


def test_what_a_session_began_with_is_kept_for_its_later_runs(store: Store) -> None:
    first = store.submit(session_id="s", system_prompt="one", tools='[{"a":1}]', workspace='{"w":1}')
    store.answer(first.run_id)
    second = store.submit(session_id="s", system_prompt="two", tools="[]", workspace="{}")

    context = store.runs.load_session_context(store.turn(second.run_id).loaded.session_pk)

    assert (context.system_prompt, context.tools, context.workspace) == ("one", '[{"a":1}]', '{"w":1}')


def test_equal_tool_definitions_are_stored_once(store: Store) -> None:
    for _ in range(3):
        store.submit(tools='[{"type":"function"}]')

    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(blobs)).scalar_one() == 1


# --- idempotency keys ------------------------------------------------------------------------------------------------


def test_the_same_request_under_the_same_key_gives_the_same_run(store: Store) -> None:
    first = store.submit(idempotency_key="k", fingerprint="f", session_id="s")
    second = store.submit(idempotency_key="k", fingerprint="f", session_id="s")

    assert (second.run_id, second.session_id, second.was_replayed) == (first.run_id, first.session_id, True)
    assert second.hints == ()
    assert len(store.views.list_runs()) == 1


def test_another_request_under_the_same_key_is_refused(store: Store) -> None:
    store.submit(idempotency_key="k", fingerprint="f")

    with pytest.raises(IdempotencyConflict, match="'k'"):
        store.submit(idempotency_key="k", fingerprint="g")
    assert len(store.views.list_runs()) == 1


SOURCES = ("api", "cli", "cron", "webhook:r", "webhook:s")


def test_a_key_of_one_source_is_none_of_another(store: Store) -> None:
    made = [store.submit(idempotency_key="k", fingerprint=source, source=source) for source in SOURCES]
    again = [store.submit(idempotency_key="k", fingerprint=source, source=source) for source in SOURCES]

    assert len({created.run_id for created in made}) == len(SOURCES)
    assert [created.run_id for created in again] == [created.run_id for created in made]
    assert all(created.was_replayed for created in again)


def test_a_signed_request_is_taken_once_whatever_key_it_comes_with(store: Store) -> None:
    first = store.submit(idempotency_key="e1", fingerprint="f", proof="p", source="webhook:r")

    for key in ("e2", None):
        with pytest.raises(RequestReplayed):
            store.submit(idempotency_key=key, fingerprint="f", proof="p", source="webhook:r")
    assert store.submit(idempotency_key="e1", fingerprint="f", proof="p", source="webhook:r").run_id == first.run_id
    assert store.submit(idempotency_key="e1", fingerprint="f", proof="p2", source="webhook:r").run_id == first.run_id
    with pytest.raises(IdempotencyConflict):
        store.submit(idempotency_key="e1", fingerprint="g", proof="p3", source="webhook:r")
    store.submit(idempotency_key="e1", fingerprint="f", proof="p", source="webhook:s")
    assert len(store.views.list_runs()) == 2


def test_sixteen_ids_for_one_signed_request_at_the_same_time_make_one_run(store: Store) -> None:
    start = threading.Barrier(16)

    def submit(number: int) -> str:
        start.wait()
        try:
            made = store.runs.create(
                new_run(idempotency_key=f"e{number}", fingerprint="f", proof="p", source="webhook:r")
            )
        except RequestReplayed:
            return "replayed"
        return made.run_id

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(submit, range(16)))

    assert outcomes.count("replayed") == 15
    assert len(store.views.list_runs()) == 1
    check(store)


def test_a_key_outlives_its_run(store: Store) -> None:
    first = store.submit(idempotency_key="k", fingerprint="f")
    store.answer(first.run_id)

    assert store.submit(idempotency_key="k", fingerprint="f").run_id == first.run_id


def test_sixteen_submissions_under_one_key_at_the_same_time_make_one_run(store: Store) -> None:
    start = threading.Barrier(16)

    def submit(number: int) -> Created:
        start.wait()
        return store.runs.create(new_run(idempotency_key=f"key{number % 2}", fingerprint="f"))

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(submit, range(16)))

    assert len({created.run_id for created in made}) == 2
    assert sum(not created.was_replayed for created in made) == 2
    assert len(store.views.list_runs()) == 2
    check(store)


def test_sixteen_conflicting_submissions_at_the_same_time_make_one_run_and_refuse_the_rest(store: Store) -> None:
    start = threading.Barrier(16)

    def submit(number: int) -> str:
        start.wait()
        try:
            return store.runs.create(new_run(idempotency_key="k", fingerprint=str(number))).run_id
        except IdempotencyConflict:
            return "refused"

    with ThreadPoolExecutor(16) as pool:
        outcomes = list(pool.map(submit, range(16)))

    assert outcomes.count("refused") == 15
    assert len(store.views.list_runs()) == 1


def test_old_keys_and_signatures_are_forgotten(store: Store) -> None:
    store.submit(idempotency_key="old", fingerprint="f", proof="p")
    store.let_pass(90_000)
    store.submit(idempotency_key="new", fingerprint="f")

    list(Pruner(store.database, DEFAULT_RULES).prune_stepwise())

    with store.database.read() as connection:
        assert connection.execute(sa.select(idempotency_keys.c.key)).scalars().all() == ["new"]


# --- sessions --------------------------------------------------------------------------------------------------------


def test_a_name_of_one_source_is_none_of_another(store: Store) -> None:
    made = [store.submit(session_id="s", source=source, input=source) for source in SOURCES]
    assert all(created.hints for created in made), "nobody waits for anybody else's conversation"

    for source, created in zip(SOURCES, made, strict=True):
        assert [view.run_id for view in store.views.list_runs(session_id="s", source=source)] == [created.run_id]
        assert store.bodies(created.run_id) == [{"role": "user", "content": source}]
        label = store.views.load_run(created.run_id).session
        assert (label.id, label.choose_reference(source), label.choose_reference("other")) == (
            created.run_id,
            "s",
            created.run_id,
        )


def test_an_id_continues_a_session_whoever_named_it(store: Store) -> None:
    named = store.submit(session_id="s", source="webhook:r")
    nameless = store.submit(source="cli")

    for opened in (named, nameless):
        following = store.submit(session_id=opened.run_id, source="api")
        assert following.hints == []
        assert store.views.load_run(following.run_id).session.id == opened.run_id
    check(store)


@pytest.mark.parametrize("multitask", list(Multitask))
def test_a_name_that_looks_like_an_id_begins_nothing(store: Store, multitask: Multitask) -> None:
    with pytest.raises(SessionNotFound, match="must not look like an id"):
        store.submit(session_id=f"run_{'0' * 32}", multitask=multitask)
    assert store.views.list_runs() == []


def test_a_run_waits_while_its_session_is_busy_and_is_due_when_its_turn_comes(store: Store) -> None:
    first = store.submit(session_id="s", input="one")
    second = store.submit(session_id="s", input="two")
    assert second.hints == []
    assert store.due(second.run_id) == []
    assert [row["content"] for row in store.bodies(first.run_id)] == ["one"]

    hints = store.answer(first.run_id)

    assert [hint.effect for hint in hints] == [Iterate(run_id=second.run_id, iteration=1, attempt=1)]
    assert [row["content"] for row in store.bodies(second.run_id)] == ["one", "done", "two"]
    check(store)


def test_waiting_runs_take_their_turns_in_the_order_of_submission(store: Store) -> None:
    ids = [store.submit(session_id="s", input=str(number)).run_id for number in range(6)]

    order = []
    while due := [run_id for run_id in ids if store.due(run_id)]:
        assert len(due) == 1
        order.append(due[0])
        store.answer(due[0])

    assert order == ids
    check(store)


@pytest.mark.parametrize("ending", ["answer", "stop", "fail", "break"])
def test_however_a_run_ends_its_session_goes_on(store: Store, ending: str) -> None:
    first = store.submit(session_id="s")
    second = store.submit(session_id="s")

    if ending == "answer":
        hints = store.answer(first.run_id)
    elif ending == "stop":
        _, hints = store.runs.request_stop(first.run_id)
    elif ending == "fail":
        failed = ev.ModelFailed(failure=BROKEN.failure, exit_reason=ExitReason.MODEL_CALL_REFUSED)
        hints = store.runs.commit_failure(store.turn(first.run_id), failed)
    else:
        hints = store.runs.end_broken(first.run_id, BROKEN)

    assert [hint.effect for hint in hints] == store.due(second.run_id)
    store.answer(second.run_id)
    assert store.status(second.run_id) is RunStatus.COMPLETED
    check(store)


def test_a_waiting_run_that_is_stopped_is_skipped(store: Store) -> None:
    first, second, third = (store.submit(session_id="s").run_id for _ in range(3))

    assert store.runs.request_stop(second) == (RunStatus.CANCELLED, [])
    hints = store.answer(first)

    assert [hint.effect.run_id for hint in hints] == [third]
    check(store)


def test_a_session_takes_so_many_waiting_runs_and_no_more(store: Store) -> None:
    ids = [store.submit(session_id="s").run_id for _ in range(SESSION_QUEUE_MAX + 1)]

    with pytest.raises(SessionBusy, match="'s'"):
        store.submit(session_id="s")

    store.answer(ids[0])
    store.submit(session_id="s")
    check(store)


def test_sixteen_first_messages_of_one_session_at_the_same_time_take_turns(store: Store) -> None:
    start = threading.Barrier(16)

    def submit(_: int) -> Created:
        start.wait()
        return store.runs.create(new_run(session_id="s"))

    with ThreadPoolExecutor(16) as pool:
        made = list(pool.map(submit, range(16)))

    assert sum(len(created.hints) for created in made) == 1
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(sessions)).scalar_one() == 1
    check(store)


def test_a_stopped_turn_leaves_the_transcript_fit_for_the_next(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    store.ask_tools(first, asks(Replay.PURE, Replay.ONCE))
    second = store.submit(session_id="s", input="next").run_id

    store.runs.request_stop(first)

    rows = store.bodies(second)
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    claim = store.turn(second)
    assert len(store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)) == 6
    store.runs.commit_reply(claim, ANSWER, ())
    check(store)


@pytest.mark.parametrize(
    "spec", ["not json", "[]", "{}", '{"input": 5, "model": "m"}', '{"input": ["x"], "model": "m"}']
)
def test_a_waiting_run_that_cannot_be_read_ends_alone(store: Store, spec: str) -> None:
    """It must neither keep the run before it from ending nor the one after it from starting."""
    first, corrupt, third = (store.submit(session_id="s").run_id for _ in range(3))
    store.change(run_inputs, corrupt, spec=spec)

    hints = store.answer(first)

    assert store.status(first) is RunStatus.COMPLETED
    view = store.views.load_run(corrupt)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "corrupt_state")
    assert store.event_names(corrupt) == ["run.failed"]
    assert [hint.effect.run_id for hint in hints] == [third]
    check(store)


def test_a_waiting_run_whose_input_is_gone_ends_alone(store: Store) -> None:
    first, corrupt = (store.submit(session_id="s").run_id for _ in range(2))
    with store.database.write() as connection:
        pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == corrupt)).scalar_one()
        connection.execute(sa.delete(run_inputs).where(run_inputs.c.run_pk == pk))

    store.answer(first)

    assert store.status(first) is RunStatus.COMPLETED
    assert store.views.load_run(corrupt).exit_reason == "corrupt_state"
    check(store)


def test_content_parts_are_kept_as_they_came(store: Store) -> None:
    parts = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]

    created = store.submit(input=parts)

    assert store.bodies(created.run_id) == [{"role": "user", "content": parts}]
    assert json.loads(json.dumps(parts)) == parts
