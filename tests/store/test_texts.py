"""Texts that a database cannot hold: what callers choose may hold NUL and lone surrogates, and breaks nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.errors import HermesError
from hermes_worker.features.webhooks.rows import Webhooks
from hermes_worker.store.access.logins import Logins
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.engine.stored_texts import make_storable
from hermes_worker.store.jobs.jobs import Jobs
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.tables import webhook_events

BAD = ["a\0b", "a\ud800b"]
LOOK_UPS: dict[str, Callable[[Store, str], Any]] = {
    "a run": lambda store, text: store.views.load_run(text),
    "the beginning of an id": lambda store, text: store.views.complete_id(text),
    "the runs of a session": lambda store, text: store.views.list_runs(session_id=text),
    "a run to stop": lambda store, text: store.runs.stop_tree(text),
    "a job": lambda store, text: Jobs(store.database).get(text),
    "a delivery": lambda store, text: Deliveries(store.database).get(text),
    "a target": lambda store, text: Deliveries(store.database).find_dead_reason(text),
    "a route": lambda store, text: Webhooks(store.database).find(text),
    "a tenant": lambda store, text: Tenants(store.database).require_tenant(text),
    "the keys of a tenant": lambda store, text: Tenants(store.database).list_keys(text),
    "a login": lambda store, text: Logins(store.database).find(text),
}


@pytest.mark.parametrize("text", BAD, ids=repr)
def test_what_no_database_can_hold_is_not_found(store: Store, text: str) -> None:
    for name, look_up in LOOK_UPS.items():
        try:
            found = look_up(store, text)
        except HermesError:
            continue  # there is nothing that is called so
        assert found in (None, [], text) or name == "a login", name


@pytest.mark.parametrize("text", BAD, ids=repr)
def test_what_is_called_so_is_found_under_the_same_text(store: Store, text: str) -> None:
    created = store.submit(session_id=text, idempotency_key=text, fingerprint="f", model=text)
    again = store.submit(session_id=text, idempotency_key=text, fingerprint="f", model=text)
    assert (again.run_id, again.was_replayed) == (created.run_id, True)
    assert store.views.load_run(created.run_id).model == make_storable(text)


def test_many_rows_at_once_are_made_plain_and_others_stay_the_same_object(store: Store) -> None:
    rows = [{"tenant": "default", "route": f"r{number}", "received_at": 1.0} for number in range(3)]
    rows[1]["route"] = BAD[0]
    with store.database.write() as connection:
        connection.execute(sa.insert(webhook_events), rows)
        found = connection.execute(sa.select(webhook_events.c.route).order_by(webhook_events.c.route)).scalars().all()
        assert connection.execute(sa.select(sa.literal("schön\t☃"))).scalar_one() == "schön\t☃"
    assert sorted(found) == ["a\ufffdb", "r0", "r2"]


@pytest.mark.parametrize("text", ["", "plain", "schön ☃ 🎉", "\ufffd"])
def test_a_plain_text_stays_as_it_is(text: str) -> None:
    assert make_storable(text) is text or make_storable(text) == text
