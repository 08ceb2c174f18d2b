"""Runs that are put off, urgent or many, where tenants share a fleet."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from support.store import Store, new_run

from hermes_worker.core.explanations import ExplainedReason
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.admission import fill_places
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.tables import limits, runs


@pytest.fixture
def shared(store: Store) -> Store:
    """A fleet with one place and two tenants."""
    Tenants(store.database).create_tenant("acme")
    with store.database.write() as connection:
        connection.execute(sa.insert(limits).values(tenant="*", key_id="", name="places", value=1))
    store.database.remembered.forget()
    return store


def test_a_run_without_a_place_says_so(shared: Store) -> None:
    begun, held = shared.submit().run_id, shared.submit().run_id

    assert shared.due(begun) != []
    found = Explanations(shared.database).explain_run(held)
    assert (found.because, found.facts["tenant"]) == (ExplainedReason.FLEET_IS_SHARED, "default")


def test_an_urgent_run_gets_the_next_place_of_its_tenant(shared: Store) -> None:
    begun, _ = shared.submit().run_id, shared.submit()
    urgent = shared.submit(priority=1).run_id

    shared.answer(begun)

    assert shared.due(urgent) != []


def test_a_run_that_was_put_off_waits_for_a_place_when_its_time_has_come(shared: Store) -> None:
    begun = shared.submit().run_id
    later = shared.submit(delay_s=3600.0).run_id
    assert Explanations(shared.database).explain_run(later).because is ExplainedReason.NOT_BEFORE
    with shared.database.write() as connection:
        connection.execute(sa.update(runs).where(runs.c.run_id == later).values(not_before=1.0))

    shared.sweep()
    assert Explanations(shared.database).explain_run(later).because is ExplainedReason.FLEET_IS_SHARED
    shared.answer(begun)
    shared.sweep()

    shared.answer(later)
    assert shared.status(later) is RunStatus.COMPLETED


def test_runs_without_a_session_that_are_written_together_share_the_fleet(shared: Store) -> None:
    with shared.database.write() as connection:
        written = insert_runs(connection, [new_run(tags=("t",)) for _ in range(3)])
    fill_places(shared.database)

    assert [bool(shared.due(created.run_id)) for _, created in written] == [True, False, False]
