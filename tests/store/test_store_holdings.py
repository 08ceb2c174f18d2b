"""Workers that are alive, what they hold, and the request that one of them leave."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import TTL_S, Store, asks

from hermes_worker.core.replay import Replay
from hermes_worker.schemas.fleet import WorkerObject
from hermes_worker.store import worker_claims as holdings
from hermes_worker.store.access.audit import Actor, AuditLog, set_actor
from hermes_worker.store.tables import workers
from hermes_worker.store.worker_claims import load_workers
from hermes_worker.store.workers import Registration, WorkerNotFound


def beat(store: Store, registration: Registration, *, is_draining: bool = False, sandbox: str | None = None) -> bool:
    """One heartbeat; whether the process was asked to leave."""
    renewed = store.workers.renew(registration, ttl_s=TTL_S, watermarks={}, is_draining=is_draining, sandbox=sandbox)
    assert renewed is not None
    return renewed.draining_at is not None


def only(store: Store) -> WorkerObject:
    [view] = load_workers(store.database)
    return view


def test_a_worker_shows_what_it_holds_the_oldest_first(store: Store) -> None:
    busy, idle = store.worker("busy"), store.worker("idle")
    first, second = store.submit().run_id, store.submit(tenant="acme").run_id
    store.ask_tools(first, asks(Replay.PURE, Replay.PURE), owner=busy.pk)
    store.call(first, 1, owner=busy.pk)
    store.let_pass(1)
    store.turn(second, owner=busy.pk)

    found = load_workers(store.database)
    assert [view.name for view in found] == ["busy", "idle"]
    assert [view.worker_id for view in found] == [busy.worker_id, idle.worker_id]
    assert found[0].queues == ["model", "tools"]
    assert found[0].held == {"model": 1, "tool": 1}
    assert [(step.kind, step.run_id, step.tenant, step.position, step.tool) for step in found[0].steps] == [
        ("tool", first, "default", 1, "tool1"),
        ("model", second, "acme", None, None),
    ]
    assert (found[1].held, found[1].steps) == ({}, [])
    assert found[0].model_dump()["held"] == {"model": 1, "tool": 1}


def test_every_claim_is_counted_and_the_oldest_are_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = [
        (holdings._MODEL_STEPS, "_MODEL_STEPS"),
        (holdings._TOOL_STEPS, "_TOOL_STEPS"),
    ]
    for statement, name in limited:
        monkeypatch.setattr(holdings, name, statement.limit(2))
    busy = store.worker("busy")
    claimed = [store.submit().run_id for _ in range(3)]
    for run_id in claimed:
        store.turn(run_id, owner=busy.pk)
        store.let_pass(1)

    view = only(store)
    assert view.held == {"model": 3}
    assert [step.run_id for step in view.steps] == claimed[:2]


def test_a_worker_that_left_died_or_fell_silent_is_not_listed(store: Store) -> None:
    left, silent, here = store.worker("left"), store.worker("silent"), store.worker("here")
    store.workers.retire(left)
    store.vanish(silent)

    assert [view.worker_id for view in load_workers(store.database)] == [here.worker_id]


def test_a_worker_hears_with_its_heartbeat_that_it_should_leave(store: Store) -> None:
    asked, other = store.worker("asked"), store.worker("other")
    assert not beat(store, asked)
    store.workers.drain(asked.worker_id)
    first = next(view.draining_at for view in load_workers(store.database) if view.name == "asked")
    assert first is not None

    store.workers.drain(asked.worker_id)  # once more

    assert beat(store, asked)
    assert not beat(store, other)
    assert [view.draining_at for view in load_workers(store.database)] == [first, None]


def test_who_asked_a_worker_to_leave_is_recorded(store: Store) -> None:
    asked = store.worker("asked")
    with set_actor(Actor(tenant="default", name="cli:ann")):
        store.workers.drain(asked.worker_id)

    [deed] = AuditLog(store.database).list_actions("default")
    assert (deed.act, deed.subject, deed.after) == ("worker.drain", asked.worker_id, {"name": "asked"})
    assert deed.actor == "cli:ann"


@pytest.mark.parametrize("is_known", [True, False])
def test_nobody_who_is_not_alive_can_be_asked_to_leave(store: Store, is_known: bool) -> None:
    gone = store.worker("gone")
    store.workers.retire(gone)
    with set_actor(Actor(tenant="default", name="cli:ann")), pytest.raises(WorkerNotFound):
        store.workers.drain(gone.worker_id if is_known else "nobody")
    assert AuditLog(store.database).list_actions("default") == []


def test_a_worker_says_once_when_it_began_to_leave(store: Store) -> None:
    here = store.worker()
    beat(store, here)
    assert only(store).draining_at is None
    beat(store, here, is_draining=True)
    began = only(store).draining_at
    assert began is not None
    beat(store, here, is_draining=True)
    assert only(store).draining_at == began


def test_the_rung_of_a_sandbox_stays_known(store: Store) -> None:
    here = store.worker()
    beat(store, here)
    assert only(store).sandbox is None
    beat(store, here, sandbox="namespaces")
    beat(store, here)
    assert only(store).sandbox == "namespaces"


def test_a_heartbeat_behind_its_time_is_told_so(store: Store) -> None:
    late = store.worker()
    with store.database.write() as connection:
        connection.execute(sa.update(workers).values(state="dead"))
    assert store.workers.renew(late, ttl_s=TTL_S, watermarks={}) is None
