"""Routes and events, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.core.sources import RequestKeys
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.features.webhooks.rows import RouteExists, RouteNotFound, RouteRow, Webhooks
from hermes_worker.store.access.idempotency_keys import IdempotencyConflict, RequestReplayed
from hermes_worker.store.outbox.deliveries import Deliveries
from hermes_worker.store.tables import webhook_events


def event(event_id: str | None, *, fingerprint: str = "f", proof: str | None = None) -> RequestKeys:
    return RequestKeys(source="webhook:r", key=event_id, fingerprint=fingerprint, proof=proof)


def test_a_route_is_added_once_replaced_and_removed(store: Store) -> None:
    webhooks = Webhooks(store.database)
    webhooks.add("r", "secret", "{}")
    with pytest.raises(RouteExists):
        webhooks.add("r", "other", "{}")
    webhooks.add("r", "other", '{"prompt":"p"}', replaces=True)
    (row,) = webhooks.list_routes()
    assert (row.name, row.secret, row.definition) == ("r", "other", '{"prompt":"p"}')
    assert "other" not in repr(row)
    webhooks.remove("r")
    assert webhooks.find("r") is None
    with pytest.raises(RouteNotFound):
        webhooks.remove("r")


def test_the_rate_is_exact_when_many_come_at_once(store: Store) -> None:
    webhooks = Webhooks(store.database)
    webhooks.add("r", "secret", "{}")
    with ThreadPoolExecutor(8) as pool:
        admitted = list(pool.map(lambda _: webhooks.admit("r", 7), range(24)))
    assert admitted.count(True) == 7


def test_an_event_is_owed_once_when_it_comes_twice_at_once(store: Store) -> None:
    outbox = Deliveries(store.database)
    with ThreadPoolExecutor(8) as pool:
        owed = list(pool.map(lambda _: outbox.enqueue_once(event("e1"), ["local"], "text"), range(8)))
    assert [hints is None for hints in owed].count(False) == 1
    assert len(Deliveries(store.database).list()) == 1
    nameless = event(None)
    assert outbox.enqueue_once(nameless, ["local"], "text") != outbox.enqueue_once(nameless, ["local"], "text")


def test_an_id_or_a_signature_of_another_event_is_no_duplicate(store: Store) -> None:
    outbox = Deliveries(store.database)
    assert outbox.enqueue_once(event("e1", proof="p"), ["local"], "text") is not None
    with pytest.raises(IdempotencyConflict):
        outbox.enqueue_once(event("e1", fingerprint="other"), ["local"], "text")
    with pytest.raises(RequestReplayed):
        outbox.enqueue_once(event("e2", proof="p"), ["local"], "text")
    assert outbox.enqueue_once(replace(event("e1", proof="p"), source="webhook:s"), ["local"], "text") is not None
    assert len(Deliveries(store.database).list()) == 2


def test_events_long_past_are_forgotten(store: Store) -> None:
    webhooks, outbox = Webhooks(store.database), Deliveries(store.database)
    webhooks.admit("r", 7)
    outbox.enqueue_once(event("e1", proof="p"), ["local"], "text")
    store.let_pass(90_000)
    list(Pruner(store.database, DEFAULT_RULES).prune_stepwise())
    with store.database.read() as connection:
        assert connection.execute(sa.select(webhook_events)).all() == []
    assert outbox.enqueue_once(event("e1", proof="p"), ["local"], "text") is not None


def test_secrets_are_stored_anew_unless_the_route_was_changed_meanwhile(store: Store) -> None:
    webhooks = Webhooks(store.database)
    for name in ("a", "b", "c"):
        webhooks.add(name, f"secret of {name}", "{}")

    def change(row: RouteRow) -> str | None:
        if row.name == "b":
            webhooks.add("b", "another", "{}", replaces=True)
        return None if row.name == "c" else row.secret.upper()

    assert webhooks.reseal(change) == 1
    assert [row.secret for row in webhooks.list_routes()] == ["SECRET OF A", "another", "secret of c"]
