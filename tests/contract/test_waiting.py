"""Runs that wait for leave to ask: who goes first, where they wait, and that they hold up nobody."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import redis
from strict_server import StrictServer
from support.patience import PATIENCE_S
from support.store import Store
from support.turns import Turns
from support.valkey import for_administrator

from hermes_worker.core.run import RunStatus
from hermes_worker.models.governor import ConfiguredLimits, CredentialRef, Governor
from hermes_worker.tasks.leases import AbortReason


def test_the_call_of_an_older_run_goes_first_however_long_younger_ones_wait(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    governor = Governor(redis.Redis.from_url(broker_url, decode_responses=True), ConfiguredLimits(requests_per_min=1))
    turns = Turns.over(store, server.base_url, governor=governor)
    first, old, young = turns.submit(), turns.submit(), turns.submit()
    for run_id in (first, young, old):
        turns.step(run_id)
    turns.wake(old)  # and the other one with it
    told_s = {}
    for run_id in (young, old):
        turns.step(run_id)
        told_s[run_id] = store.views.load_run(run_id).resume_at or 0.0
    assert told_s[young] - told_s[old] == pytest.approx(61, abs=3)


def test_a_call_with_older_ones_before_it_is_not_waited_for_in_a_worker(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    """Its place would come in a second. The workers' threads are for those whose calls come before."""
    governor = Governor(redis.Redis.from_url(broker_url, decode_responses=True), ConfiguredLimits(requests_per_min=600))
    turns = Turns.over(store, server.base_url, governor=governor)
    run_id = turns.submit()
    route = turns.parts.models.chain.resolve_route("strict", 0)
    place = CredentialRef(provider=route.name, credential=route.credential)
    for number in range(20):
        governor.acquire(place, ticket=f"older{number}", tokens=1, order=0)
    turns.step(run_id)
    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    assert server.accepted == []


def test_a_run_that_is_stopped_while_it_waits_holds_up_nobody(
    store: Store, server: StrictServer, broker_url: str
) -> None:
    client = redis.Redis.from_url(for_administrator(broker_url), decode_responses=True)
    turns = Turns.over(store, server.base_url, governor=Governor(client, ConfiguredLimits(requests_per_min=15)))
    first, second = turns.submit(), turns.submit()
    turns.step(first)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(turns.step, second)
        while not any(client.type(key) == "zset" for key in client.keys("hermes:governor:*:places")):
            assert not waits.done()
        store.runs.request_stop(second)
        turns.parts.leases.abort_run(second, AbortReason.STOP)
        waits.result(timeout=PATIENCE_S)
    assert store.status(second) is RunStatus.CANCELLED
    assert client.keys("hermes:governor:*:places") == []
