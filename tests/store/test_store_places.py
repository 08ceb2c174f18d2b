"""Tenants share a fleet: whose run gets a place, and what becomes of it when a process dies in between."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from support.plans import plan_of, statements
from support.store import ANSWER, Store, new_run

from hermes_worker.core.fair_share import FleetPlace, ShareSize
from hermes_worker.core.run import RunStatus
from hermes_worker.observe import copy_counters, reset_counters
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.rows import Hint
from hermes_worker.store.runs.admission import ShareReading, fill_places, load_places, sweep_places
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.tables import limits, runs, tenant_shares


@pytest.fixture
def shared(store: Store) -> Store:
    """A fleet with four places and three tenants."""
    tenants = Tenants(store.database)
    for name in ("acme", "beta"):
        tenants.create_tenant(name)
    _set_places(store, 4)
    return store


def _set_places(store: Store, places: int) -> None:
    with store.database.write() as connection:
        connection.execute(sa.delete(limits).where(limits.c.name == "places"))
        connection.execute(sa.insert(limits).values(tenant="*", key_id="", name="places", value=places))
    store.database.remembered.forget()


def submit(store: Store, tenant: str, number: int = 1, **changes: Any) -> list[Created]:
    return [store.runs.create(new_run(tenant=tenant, **changes)) for _ in range(number)]


def places(store: Store) -> dict[str, list[str]]:
    """The runs of each tenant by their places, as ``HT``: held and taken."""
    with store.database.read() as connection:
        rows = connection.execute(sa.select(runs.c.tenant, runs.c.place).order_by(runs.c.pk)).all()
    found: dict[str, list[str]] = {}
    for tenant, place in rows:
        found.setdefault(tenant, []).append("-" if place is None else FleetPlace(place).name[0])
    return found


def test_with_one_tenant_a_run_begins_at_once_and_takes_no_place(store: Store) -> None:
    created = submit(store, "default", 30)

    assert all(len(each.hints) == 1 for each in created)
    assert places(store) == {"default": ["-"] * 30}


def test_a_newcomer_does_not_wait_for_the_end_of_anybodys_run(shared: Store) -> None:
    submit(shared, "acme", 20)

    submit(shared, "beta", 3)

    assert places(shared)["acme"].count("T") == 4
    assert places(shared)["beta"] == ["T", "T", "H"]  # half of the four places are its part


def test_who_ends_a_run_begins_the_next_and_the_one_who_has_used_least_comes_first(shared: Store) -> None:
    first = submit(shared, "acme", 8)
    submit(shared, "beta", 8)
    for created in first[:3]:
        finish(shared, created.run_id, tokens=1_000_000)

    assert places(shared)["beta"].count("T") == 3  # and had two before


def test_the_end_of_a_run_whose_process_dies_at_once_is_settled_by_the_sweeper(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    [one] = submit(shared, "acme")
    submit(shared, "acme", 6)
    with monkeypatch.context() as dead:
        dead.setattr("hermes_worker.store.runs.runs.fill_places", lambda database, **_: [])
        finish(shared, one.run_id)
    assert places(shared)["acme"] == ["L", "T", "T", "T", "H", "H", "H"]

    swept = shared.sweep()

    assert places(shared)["acme"] == ["-", "T", "T", "T", "T", "H", "H"]
    assert swept is not None and len(swept.hints) == 1


def test_a_run_that_was_accepted_by_a_process_that_died_is_begun_by_the_sweeper(
    shared: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dead:
        dead.setattr("hermes_worker.store.runs.runs.fill_places", lambda database, **_: [])
        [created] = submit(shared, "acme")
    assert places(shared) == {"acme": ["H"]}

    swept = shared.sweep()

    assert swept is not None
    assert [hint.effect.run_id for hint in swept.hints] == [created.run_id]


def test_two_processes_at_once_give_a_place_to_one_run(shared: Store) -> None:
    submit(shared, "acme", 6)

    again: list[Hint] = [*fill_places(shared.database), *fill_places(shared.database)]

    assert again == []
    assert places(shared)["acme"].count("T") == 4


def test_a_held_run_begins_behind_the_history_that_came_with_it(shared: Store) -> None:
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]

    [created] = submit(shared, "acme", history=history)

    assert [hint.effect.run_id for hint in created.hints] == [created.run_id]
    assert [body["role"] for body in shared.bodies(created.run_id)] == ["user", "assistant", "user"]


def test_a_session_still_does_one_run_at_a_time(shared: Store) -> None:
    created = submit(shared, "acme", 3, session_id="talk")
    assert places(shared)["acme"] == ["T", "W", "W"]

    finish(shared, created[0].run_id)

    assert places(shared)["acme"] == ["-", "T", "W"]


def test_runs_that_are_held_in_one_session_begin_one_after_the_other(shared: Store) -> None:
    blocking = submit(shared, "acme", 4)
    talk = submit(shared, "acme", 3, session_id="talk")
    assert places(shared)["acme"] == ["T"] * 4 + ["H"] * 3

    for created in blocking:
        finish(shared, created.run_id)

    assert places(shared)["acme"][4:] == ["T", "W", "W"]
    finish(shared, talk[0].run_id)
    assert places(shared)["acme"][5:] == ["T", "W"]


def test_within_a_tenant_what_somebody_waits_for_goes_before_what_is_scheduled(shared: Store) -> None:
    blocking = submit(shared, "acme", 4)
    submit(shared, "acme", 2, source="cron")
    submit(shared, "acme", 1)

    finish(shared, blocking[0].run_id)

    assert places(shared)["acme"][4:] == ["H", "H", "T"]


def test_a_run_that_waits_for_its_provider_leaves_its_place_to_others(shared: Store) -> None:
    submit(shared, "acme", 6)
    with shared.database.write() as connection:
        connection.execute(
            sa.update(runs).where(runs.c.place == FleetPlace.TAKEN.value).values(status="waiting_for_capacity")
        )

    submit(shared, "beta", 5)

    assert places(shared)["beta"].count("T") == 4
    assert places(shared)["acme"].count("T") == 4  # of its own it gets no more: they all come back


def test_a_held_run_can_be_stopped(shared: Store) -> None:
    *_, last = submit(shared, "acme", 5)

    status, hints = shared.runs.request_stop(last.run_id)

    assert (status, hints) == (RunStatus.CANCELLED, [])
    shared.sweep()
    assert places(shared)["acme"] == ["T"] * 4 + ["-"]


def test_a_tenant_that_was_idle_has_saved_nothing_up(shared: Store) -> None:
    for _ in range(5):
        for created in submit(shared, "acme", 4):
            finish(shared, created.run_id, tokens=1_000_000)
    shared.sweep()
    submit(shared, "acme", 8)

    submit(shared, "beta", 8)

    with shared.database.read() as connection:
        virtual = dict(connection.execute(sa.select(tenant_shares.c.tenant, tenant_shares.c.virtual)).all())
    assert virtual["beta"] >= virtual["acme"] > 0


def test_a_backlog_of_any_size_costs_a_look_into_the_index_for_each_tenant(own_postgres_store: Store) -> None:
    store = own_postgres_store
    for number in range(40):
        Tenants(store.database).create_tenant(f"t{number}")
    _set_places(store, 4)
    [first] = submit(store, "t0")
    with store.database.write() as connection:
        connection.exec_driver_sql(_BACKLOG)
    with store.database.statement() as connection:
        connection.exec_driver_sql("vacuum analyze runs")
    with statements(store.database) as seen:
        finish(store, first.run_id)

    read = {
        sql: sum(node.get("Actual Rows", 0) * node.get("Actual Loops", 1) for node in scans)
        for sql, parameters in seen
        if sql.lower().startswith(("select", "with")) and " runs" in sql
        for scans in [
            [node for node in plan_of(store.database, sql, parameters, executes=True) if "Scan" in node["Node Type"]]
        ]
    }
    assert len(read) > 2
    assert max(read.values()) < 40 * 40, read


_BACKLOG = """
with made as (
    insert into sessions (session_id, tenant, system_prompt, tools_hash, workspace, created_at)
    select 's' || n, 't' || mod(n, 40), '', (select tools_hash from sessions limit 1), '{}', 1
    from generate_series(1, 20000) n returning pk, session_id, tenant
)
insert into runs (run_id, session_pk, tenant, model, status, state_version, iterations_max, attempts_max,
                  created_at, updated_at, place, place_rank)
select 'r' || session_id, pk, tenant, 'm', 'queued', 1, 10, 3, 1, 1, 0, 0 from made
"""


def finish(store: Store, run_id: str, *, tokens: int = 1000) -> None:
    store.answer(run_id, replace(ANSWER, usage=replace(ANSWER.usage, input=tokens)))


def test_the_sweeper_finds_nothing_to_do_where_nobody_shares(store: Store) -> None:
    submit(store, "default")

    assert sweep_places(store.database) == []


def test_what_is_read_for_metrics_is_what_the_rows_say_and_names_no_tenant(shared: Store) -> None:
    TenantLimits(shared.database).set_weight("acme", 3.0)
    TenantLimits(shared.database).set_weight("beta", 0.5)
    reset_counters()
    submit(shared, "acme", 7)
    submit(shared, "beta", 3)
    shared.let_pass(90.0)
    said = places(shared)

    with shared.database.snapshot() as connection:
        found = load_places(shared.database, connection)

    assert found.places == 4
    for share, tenant in ((ShareSize.MORE, "acme"), (ShareSize.LESS, "beta")):
        reading = found.shares[share]
        assert (reading.held, reading.at_work) == (said[tenant].count("H"), said[tenant].count("T"))
        assert reading.oldest_held_s == pytest.approx(90.0, abs=60.0)
        assert copy_counters()[f"places.given.{share}"] == said[tenant].count("T")
    assert found.shares[ShareSize.USUAL] == ShareReading()
