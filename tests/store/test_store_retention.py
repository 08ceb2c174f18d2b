"""What is deleted goes whole, and what is kept can still be continued, streamed and joined; a legal hold wins."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest
import sqlalchemy as sa
from support.history import History, dangling, ends_of_streams, go_on, held_rows, hold_some
from support.samples import take_turns
from support.store import Store, asks

from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES, RetentionKind, RetentionRule, parse_rules
from hermes_worker.core.run import RunStatus
from hermes_worker.features.retention.hold_rows import HoldNotFound, Retention
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.runs import RunDeleted, RunNotFound, SessionNotFound
from hermes_worker.store.statistics import count_ended_rows
from hermes_worker.store.tables import (
    blobs,
    deleted_runs,
    deliveries,
    events,
    legal_holds,
    messages,
    runs,
    sessions,
    tool_calls,
)

DAY_S = 86_400.0
KINDS = ("sqlite", "postgresql")
POLICIES = (
    "runs=30d",
    "runs=30d transcripts=30d events=10d",
    "transcripts=20d",
    "runs=/5 deliveries=5d firings=3d/2",
    "runs=2h transcripts=2h events=1h deliveries=1h firings=1h tombstones=1h",
)


def rules(text: str) -> dict[RetentionKind, RetentionRule]:
    return {**DEFAULT_RULES, **parse_rules(text.split())}


def pruned(store: Store, text: str, *, acts: bool = True, batches: int = 10**9) -> Counter[str]:
    """What a pass deletes under rules, or one that stops after so many batches."""
    count_ended_rows(store.database)
    counts: Counter[str] = Counter()
    for number, batch in enumerate(Pruner(store.database, rules(text)).prune_stepwise(acts=acts)):
        if number == batches:
            break
        counts[batch.what] += batch.count
    return +counts


def count(store: Store, table: sa.Table) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


@pytest.mark.parametrize(("store", "text"), take_turns(KINDS, POLICIES), indirect=["store"])
def test_whatever_is_deleted_the_rest_can_go_on(store: Store, text: str) -> None:
    random = Random(text)
    history = History(store, random)
    history.play(25)
    holds = Retention(store.database, DEFAULT_RULES)
    hold_some(store, holds, random)
    held, before = held_rows(store), count(store, runs)

    foretold = pruned(store, text, acts=False)
    assert count(store, runs) == before
    stopped = pruned(store, text, batches=random.randrange(1, 8))
    assert dangling(store) == []
    done = stopped + pruned(store, text)

    # Which of two rules takes a delivery or firing that goes with its run depends on their order.
    exact = (RetentionKind.RUNS, RetentionKind.TRANSCRIPTS, RetentionKind.IDEMPOTENCY_KEYS)
    assert {kind: done[kind] for kind in exact} == {kind: foretold[kind] for kind in exact}
    assert before - count(store, runs) == done["runs"]
    assert done, "nothing was old enough: the test shows nothing"
    assert dangling(store) == []
    assert held_rows(store) == held
    assert ends_of_streams(store) == []
    assert pruned(store, text) == Counter()
    store.let_pass(7_200.0)
    pruned(store, text)
    assert dangling(store) == []
    go_on(store)
    assert dangling(store) == []


def ended(store: Store, age_s: float = 0.0, **changes: object) -> str:
    run_id = store.submit(**changes).run_id
    store.answer(run_id)
    if age_s:
        store.let_pass(age_s)
    return run_id


def test_a_deleted_run_is_known_to_its_tenant_as_deleted(store: Store) -> None:
    run_id = ended(store, 40 * DAY_S)
    kept = ended(store)
    assert pruned(store, "runs=30d")["runs"] == 1

    for look in (store.views.load_run, store.views.load_transcript, store.runs.request_stop):
        with pytest.raises(RunDeleted, match=run_id):
            look(run_id)
    everybody = Tenants(store.database)
    with pytest.raises(RunDeleted):
        everybody.require_run("default", run_id)
    with pytest.raises(RunNotFound) as raised:
        everybody.require_run("acme", run_id)
    assert not isinstance(raised.value, RunDeleted)
    assert store.views.complete_id(run_id[4:16]) == run_id
    assert store.views.load_run(kept).status is RunStatus.COMPLETED

    store.let_pass(366 * DAY_S)
    assert pruned(store, "runs=never")["tombstones"] == 1
    with pytest.raises(RunNotFound) as raised:
        store.views.load_run(run_id)
    assert not isinstance(raised.value, RunDeleted)


def test_a_chain_stays_while_one_of_its_runs_is_open(store: Store) -> None:
    parent = store.submit().run_id
    store.ask_tools(parent, asks(Replay.PURE))
    (child,) = store.delegate(parent, 1, note="later")
    store.answer(parent)
    store.let_pass(400 * DAY_S)
    ended(store)
    assert pruned(store, "runs=30d transcripts=30d")["runs"] == 0

    store.answer(child)
    (turn,) = [view.run_id for view in store.views.list_runs(status=RunStatus.QUEUED)]
    store.answer(turn)
    store.let_pass(40 * DAY_S)
    ended(store)
    assert pruned(store, "runs=30d transcripts=30d")["runs"] == 4  # with the run that kept the newest number before
    assert dangling(store) == []


def test_by_count_the_newest_stay(store: Store) -> None:
    ids = [ended(store, 7_200.0) for _ in range(5)]
    assert pruned(store, "runs=/2")["runs"] == 3
    assert [view.run_id for view in store.views.list_runs()] == ids[:2:-1]


def test_nothing_that_ended_within_the_hour_goes(store: Store) -> None:
    for _ in range(3):
        ended(store)
    assert pruned(store, "runs=/0 transcripts=1h") == Counter()


def test_a_delivery_that_is_not_settled_keeps_its_run(store: Store) -> None:
    run_id = ended(store, 40 * DAY_S, deliver=["local"])
    ended(store)
    assert pruned(store, "runs=30d")["runs"] == 0
    with store.database.write() as connection:
        settled = {"state": "failed", "hinted_at": None, "settled_at": 1.0}
        connection.execute(sa.update(deliveries).values(settled))
    assert pruned(store, "runs=30d deliveries=never")["runs"] == 1
    assert count(store, deliveries) == 0
    with pytest.raises(RunDeleted):
        store.views.load_run(run_id)


def test_a_request_that_may_be_repeated_keeps_its_run(store: Store) -> None:
    run_id = ended(store, 7_200.0, idempotency_key="k", fingerprint="f")
    ended(store)
    assert pruned(store, "runs=1h")["runs"] == 0
    assert store.submit(idempotency_key="k", fingerprint="f").run_id == run_id


def test_a_session_that_goes_takes_its_runs_along_and_can_begin_anew(store: Store) -> None:
    first = ended(store, session_id="chat", input="x" * 200_000)
    session_id = store.views.load_run(first).session.id
    store.let_pass(40 * DAY_S)
    other = ended(store)
    done = pruned(store, "transcripts=30d")
    assert (done["runs"], done["transcripts"]) == (1, 1)
    with pytest.raises(SessionNotFound):
        store.submit(session_id=session_id)

    anew = store.submit(session_id="chat", input="y").run_id
    store.answer(anew)
    assert [body["role"] for body in store.bodies(anew)] == ["user", "assistant"]
    assert store.views.load_run(other).status is RunStatus.COMPLETED


def test_a_text_goes_when_nothing_refers_to_it_and_stays_when_it_is_used_again(store: Store) -> None:
    long, other = "x" * 200_000, "y" * 200_000
    ended(store, input=long)
    ended(store, input=other)
    store.let_pass(40 * DAY_S)
    ended(store)
    assert count(store, blobs) == 3
    pruned(store, "transcripts=30d")
    assert count(store, blobs) == 3  # for an hour more
    again = store.submit(input=long).run_id
    store.let_pass(7_200.0)
    assert pruned(store, "transcripts=30d")["blobs"] == 1
    assert count(store, blobs) == 2
    assert dangling(store) == []
    assert long in store.bodies(again)[0]["content"]


def test_of_old_events_the_end_stays(store: Store) -> None:
    run_id = ended(store, 100 * DAY_S)
    young = ended(store)
    seen = count(store, events)
    deleted = pruned(store, "")["events"]
    assert deleted and count(store, events) == seen - deleted
    assert [event.name for event in store.views.list_events_after(run_id, 0)] == ["run.completed"]
    assert len(store.views.list_events_after(young, 0)) > 1
    assert store.views.load_run(run_id).output == "done"
    assert pruned(store, "") == Counter()


def test_a_hold_on_a_tenant_keeps_everything_of_it(store: Store) -> None:
    History(store, Random(1))
    ended(store, tenant="acme")
    ended(store)
    store.let_pass(400 * DAY_S)
    ended(store)
    holds = Retention(store.database, DEFAULT_RULES)
    held = holds.place_hold("acme", reason="a court", by="test")
    with pytest.raises(HoldNotFound):
        holds.release("default", held.number)
    text = "runs=30d transcripts=30d"
    assert pruned(store, text)["runs"] == 1
    assert [view.tenant for view in holds.list_holds("acme")] == ["acme"]
    holds.release("acme", held.number)
    assert pruned(store, text)["runs"] == 1


def test_tenants_have_rules_of_their_own(store: Store) -> None:
    History(store, Random(1))
    theirs, ours = ended(store, tenant="acme"), ended(store)
    store.let_pass(40 * DAY_S)
    ended(store)
    Retention(store.database, DEFAULT_RULES).set_rule("acme", RetentionKind.RUNS, RetentionRule(age_s=30 * DAY_S))
    assert pruned(store, "")["runs"] == 1
    assert store.views.load_run(ours).run_id == ours
    with pytest.raises(RunDeleted):
        store.views.load_run(theirs)
    Retention(store.database, DEFAULT_RULES).unset_rule("acme", RetentionKind.RUNS)
    assert Retention(store.database, DEFAULT_RULES).load_rules("acme") == dict(DEFAULT_RULES)


def test_a_hold_is_kept_by_the_database_itself(store: Store) -> None:
    run_id = ended(store)
    Retention(store.database, DEFAULT_RULES).place_hold("default", run_id=run_id, reason="a court", by="test")
    with pytest.raises(sa.exc.IntegrityError), store.database.write() as connection:
        connection.execute(sa.delete(runs))
    assert count(store, legal_holds) == 1


def test_a_look_is_taken_by_one_of_many_processes(store: Store) -> None:
    pruners = [Pruner(store.database, rules("")) for _ in range(3)]
    assert [pruner.prune_once() is not None for pruner in pruners] == [True, False, False]


def test_two_at_once_delete_everything_once(own_postgres_store: Store) -> None:
    store = own_postgres_store
    ids = [ended(store, session_id="chat" if number % 2 else None) for number in range(40)]
    store.let_pass(40 * DAY_S)
    ended(store)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: pruned(store, "runs=30d transcripts=30d"), range(4)))
    assert sum(each["runs"] for each in found) == len(ids)
    assert (count(store, runs), count(store, sessions), count(store, deleted_runs)) == (1, 1, 40)
    assert count(store, messages) == 2
    assert count(store, tool_calls) == 0
