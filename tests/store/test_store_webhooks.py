"""Routes and events, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.store.deliveries import Deliveries
from hermes_worker.store.tables import webhook_events
from hermes_worker.store.webhooks import RouteExists, RouteNotFound, Webhooks


def test_a_route_is_added_once_replaced_and_removed(store: Store) -> None:
    webhooks = Webhooks(store.database)
    webhooks.add("r", "secret", "{}")
    with pytest.raises(RouteExists):
        webhooks.add("r", "other", "{}")
    webhooks.add("r", "other", '{"prompt":"p"}', replaces=True)
    (row,) = webhooks.all()
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
    webhooks = Webhooks(store.database)
    with ThreadPoolExecutor(8) as pool:
        owed = list(pool.map(lambda _: webhooks.owe_once("r", "e1", ["local"], "text"), range(8)))
    assert [hints is None for hints in owed].count(False) == 1
    assert len(Deliveries(store.database).list()) == 1
    assert webhooks.owe_once("r", None, ["local"], "text") != webhooks.owe_once("r", None, ["local"], "text")


def test_events_long_past_are_forgotten(store: Store) -> None:
    Webhooks(store.database).owe_once("r", "e1", ["local"], "text")
    with store.database.write() as connection:
        connection.execute(sa.update(webhook_events).values(received_at=webhook_events.c.received_at - 90_000))
    store.sweeper.prune()
    assert Webhooks(store.database).owe_once("r", "e1", ["local"], "text") is not None
