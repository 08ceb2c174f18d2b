"""Marks of lists: every change of a list changes its mark, that of no other tenant, and a look costs what is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.questions import DANGER
from support.store import Store, asks

from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.list_kinds import ListKind
from hermes_worker.core.replay import Replay
from hermes_worker.safety.approvals import ApprovalChoice
from hermes_worker.store import list_marks as changes
from hermes_worker.store.access.audit import Act, Actor, record_action, set_actor
from hermes_worker.store.gateway import GatewayRows
from hermes_worker.store.list_marks import load_marks
from hermes_worker.store.runs.control import Control
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import alerts, deliveries, firings, jobs, key_states, runs, sessions

Changing = Callable[..., None]


OF_NO_TENANT = {ListKind.FLEET, ListKind.GATEWAY}
"""For operators, whatever tenant they look at."""


def differing(store: Store, before: changes.Marks, tenant: str | None = "default") -> set[ListKind]:
    after = load_marks(store.database, tenant)
    return {kind for kind in ListKind if before[kind] != after[kind]}


@pytest.fixture
def changed(store: Store) -> Callable[..., object]:
    """``with changed(*kinds)``: what is done there changes these marks of the default tenant, and no other's."""
    assert store.submit(tenant="acme") and store.owner

    @contextmanager
    def watching(*kinds: ListKind, and_others: tuple[ListKind, ...] = ()) -> Iterator[None]:
        own, others = (load_marks(store.database, tenant) for tenant in ("default", "acme"))
        everybodys = load_marks(store.database, None)
        assert differing(store, own) == set(), "nothing is told where nothing happened"
        yield
        found = differing(store, own)
        assert set(kinds) <= found <= {*kinds, *and_others}
        assert set(kinds) <= differing(store, everybodys, None)
        assert differing(store, others, "acme") - OF_NO_TENANT == set()

    return watching


def execute(store: Store, statement: sa.Executable) -> None:
    with store.database.write() as connection:
        connection.execute(statement)


def test_every_step_of_a_run_is_told(store: Store, changed: Changing) -> None:
    began = (ListKind.SESSIONS,)
    with changed(ListKind.RUNS, and_others=began):
        run_id = store.submit().run_id
    with changed(ListKind.RUNS):
        claim = store.turn(run_id)
    with changed(ListKind.RUNS):
        store.ask_tools_with(claim, asks(Replay.ONCE))
    with changed(ListKind.RUNS, ListKind.APPROVALS):
        Waits(store.database).ask(store.call(run_id), DANGER)
    with changed(ListKind.RUNS, ListKind.APPROVALS):
        Waits(store.database).approve(run_id, ApprovalChoice.DENY, by="ann")
    with changed(ListKind.RUNS):
        Control(store.database).pause(run_id, by="ann")
    with changed(ListKind.RUNS):
        Control(store.database).resume(run_id, by="ann")
    with changed(ListKind.RUNS):
        store.answer(run_id)


def test_a_run_that_began_and_ended_between_two_looks_is_told(store: Store, changed: Changing) -> None:
    with changed(ListKind.RUNS, and_others=(ListKind.SESSIONS,)):
        store.answer(store.submit().run_id)


def test_an_old_run_that_is_still_open_is_told(
    store: Store, changed: Changing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "NEWEST", 2)
    old = store.submit().run_id
    for _ in range(3):
        store.answer(store.submit().run_id)
    with changed(ListKind.RUNS):
        store.answer(old)


def test_what_commits_late_with_an_earlier_time_is_told(store: Store, changed: Changing) -> None:
    late, newest = store.submit().run_id, store.submit().run_id
    store.change(runs, newest, updated_at=2e9)
    with changed(ListKind.RUNS):
        store.change(runs, late, updated_at=1.9e9)
    with changed(ListKind.RUNS):
        store.change(runs, newest, updated_at=1.8e9)


def test_jobs_deliveries_sessions_and_deeds_are_told(store: Store, changed: Changing) -> None:
    job = {
        "job_id": "job1", "tenant": "default", "name": "n", "definition": "{}", "state": "scheduled",
        "created_at": 1.0, "updated_at": 1.0,
    }  # fmt: skip
    with changed(ListKind.JOBS):
        execute(store, sa.insert(jobs).values(**job))
    with changed(ListKind.JOBS):
        execute(store, sa.update(jobs).values(updated_at=2.0, state="paused"))
    slot = {"slot": 5.0, "outcome": "missed", "reason": "away", "settled_at": 6.0}
    with changed(ListKind.JOBS):
        execute(store, sa.insert(firings).values(job_pk=sa.select(jobs.c.pk).scalar_subquery(), **slot))
    owed = {
        "delivery_id": "dlv_1", "tenant": "default", "target": "local", "body": "b", "state": "pending",
        "created_at": 1.0, "updated_at": 1.0,
    }  # fmt: skip
    with changed(ListKind.DELIVERIES):
        execute(store, sa.insert(deliveries).values(**owed))
    with changed(ListKind.DELIVERIES):
        execute(store, sa.update(deliveries).values(updated_at=2.0, settled_at=2.0, state="failed"))
    store.submit()
    with changed(ListKind.SESSIONS):
        execute(store, sa.update(sessions).where(sessions.c.tenant == "default").values(archived_at=3.0))
    deeds = (ListKind.AUDIT, ListKind.RUNS, ListKind.SESSIONS, ListKind.JOBS, ListKind.DELIVERIES)
    with changed(*deeds), set_actor(Actor(tenant="default", name="ann")), store.database.write() as connection:
        record_action(connection, Act.RUN_STOP, "run_1")


def test_the_fleet_is_told(store: Store, changed: Changing) -> None:
    with changed(ListKind.FLEET):
        store.worker("new")
    raised = {"tenant": "default", "kind": "k", "subject": "s", "epoch": 1, "text": "t", "raised_at": 1.0}
    with changed(ListKind.FLEET):
        execute(store, sa.insert(alerts).values(**raised))
    with changed(ListKind.FLEET):
        execute(store, sa.update(alerts).values(recovered_at=2.0))
    key = {
        "credential": "c", "provider": "p", "condition": "down", "epoch": 1, "since": 1.0, "evidence": "{}",
        "probes": 0, "probe_at": 9.0,
    }  # fmt: skip
    with changed(ListKind.FLEET):
        execute(store, sa.insert(key_states).values(**key))


def test_accounts_of_chats_and_their_people_are_told(store: Store, changed: Changing) -> None:
    rows = GatewayRows(store.database)
    with changed(ListKind.GATEWAY):
        held = rows.acquire_lease("telegram:default", mode="poll", token_hash="t", holder="gw", lease_s=30)
    assert held is not None
    with changed(ListKind.GATEWAY):
        rows.renew(held, 30, error="it says Conflict")
    with changed(ListKind.GATEWAY), store.database.write() as connection:
        code = rows.create_code(connection, "telegram:default", "42")
    assert code is not None
    with changed(ListKind.GATEWAY):
        rows.pair("telegram:default", code, ChatRole.MEMBER)
    with changed(ListKind.GATEWAY):
        assert rows.revoke("telegram:default", "42")
    with changed(ListKind.GATEWAY):
        rows.release(held)


def test_a_look_reads_one_statement_and_no_run_that_has_ended_but_the_newest(store: Store) -> None:
    with statements(store.database) as sent:
        load_marks(store.database, "default")
    assert len([text for text, _ in sent if text != "BEGIN"]) == 1
    assert "ix_runs_open" in _plan(store, changes._select_runs("default")[0])


def _plan(store: Store, statement: sa.Select[tuple[int, int]]) -> str:
    text = str(statement.compile(store.database.engine, compile_kwargs={"literal_binds": True}))
    with store.database.write() as connection:
        if store.database.is_sqlite:
            return str(connection.exec_driver_sql(f"explain query plan {text}").all())
        connection.exec_driver_sql("set local enable_seqscan = off")
        return str(connection.exec_driver_sql(f"explain {text}").all())
