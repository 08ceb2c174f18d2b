"""Rows of keys: one truth for the fleet, one probe at a time, and runs that are woken."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core import events as ev
from hermes_worker.core.key_states import Finding, KeyCondition, KeyRules
from hermes_worker.core.recovery_state import RecoveryState, dump_recovery_state
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.audit import Actor, set_actor
from hermes_worker.store.key_states import KeyStates, KeyUnknown
from hermes_worker.store.tables import audit_log, parked_on_keys

NO_MONEY = Finding(condition=KeyCondition.NO_MONEY, is_answer=True)
REFUSED = Finding(condition=KeyCondition.REFUSED, is_answer=True)
KEY = ("openai", "key1")


def keys_of(store: Store, **rules: float) -> KeyStates:
    return KeyStates(store.database, KeyRules(**rules))  # type: ignore[arg-type]


def close(keys: KeyStates, credential: str = "key1") -> None:
    row = keys.record_failure(("openai", credential), NO_MONEY, run_id="r", reason="pay first")
    assert row is not None and row.state.is_closed


def park(store: Store, *credentials: str) -> str:
    """A run that waits for keys."""
    run_id = store.submit().run_id
    claim = store.turn(run_id)
    event = ev.CapacityAwaited(
        resume_at=store.database.read_clock() + 300,
        recovery=json.dumps({}),
        memory=dump_recovery_state(RecoveryState()),
        reason="no money",
        keys=credentials,
    )
    store.runs.commit_failure(claim, event)
    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY
    return run_id


def at_work(store: Store, run_ids: list[str]) -> list[str]:
    return [run_id for run_id in run_ids if store.status(run_id) is RunStatus.RUNNING]


def test_a_key_is_closed_for_everybody_once(store: Store) -> None:
    keys = keys_of(store)
    assert keys.list_keys() == []
    close(keys)
    [row] = keys_of(store).list_keys()
    assert (row.credential, row.provider, row.state.condition) == ("key1", "openai", KeyCondition.NO_MONEY)
    assert (row.state.epoch, row.reason, row.parked, row.is_probed) == (1, "pay first", 0, False)
    close(keys)
    assert keys.list_keys() == [row]


def test_runs_that_report_at_once_are_all_heard(store: Store) -> None:
    keys = keys_of(store, runs_needed=8)
    with ThreadPoolExecutor(4) as workers:
        list(workers.map(lambda run: keys.record_failure(KEY, REFUSED, run_id=f"r{run}", reason="no"), range(8)))
    [row] = keys.list_keys()
    assert (row.state.condition, row.state.epoch) == (KeyCondition.REFUSED, 1)


def test_what_says_nothing_writes_nothing(store: Store) -> None:
    keys = keys_of(store)
    assert keys.record_failure(KEY, Finding(is_answer=True), run_id="r", reason="bad") is None
    assert keys.record_answer("key1") is None
    assert keys.list_keys() == []


def test_of_many_workers_one_makes_the_probe(store: Store) -> None:
    keys = keys_of(store)
    close(keys)
    assert keys.claim_probe("key1", store.owner) is None, "it is not time yet"
    store.let_pass(30)
    owner = store.owner
    with ThreadPoolExecutor(4) as workers:
        claimed = [probe for probe in workers.map(lambda _: keys.claim_probe("key1", owner), range(12)) if probe]
    assert len(claimed) == 1
    assert keys.list_keys()[0].is_probed
    failed = keys.record_probe_failure(claimed[0], NO_MONEY, reason="still nothing")
    assert failed is not None and failed.state.probes == 1 and failed.reason == "still nothing"
    assert keys.record_probe_failure(claimed[0], NO_MONEY, reason="again") is None, "it is over"
    assert keys.claim_probe("key1", owner) is None


def test_a_probe_whose_worker_is_gone_is_free(store: Store) -> None:
    keys = keys_of(store)
    close(keys)
    store.let_pass(30)
    worker = store.worker("short")
    lost = keys.claim_probe("key1", worker.pk)
    assert lost is not None and keys.claim_probe("key1", store.owner) is None
    store.vanish(worker)
    store.sweep()
    taken = keys.claim_probe("key1", store.owner)
    assert taken is not None
    assert keys.record_probe_answer(lost) is None, "who lost it has no say"
    opened = keys.record_probe_answer(taken)
    assert opened is not None and not opened.state.is_closed


def test_one_run_is_woken_for_a_probe_and_all_when_the_key_is_open(store: Store) -> None:
    keys = keys_of(store)
    close(keys)
    parked = [park(store, "key1") for _ in range(5)]
    assert keys.list_keys()[0].parked == 5
    store.sweep()
    assert at_work(store, parked) == []
    store.let_pass(30)
    for _ in range(3):
        store.sweep()
    assert at_work(store, parked) == parked[:1], "the oldest, and once"
    probe = keys.claim_probe("key1", store.owner)
    assert probe is not None
    keys.record_probe_answer(probe)
    store.sweep()
    store.sweep()
    assert at_work(store, parked) == parked
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(parked_on_keys)).scalar() == 0


def test_a_run_goes_on_with_the_first_key_that_is_open(store: Store) -> None:
    keys = keys_of(store)
    for credential in ("key1", "key2"):
        close(keys, credential)
    run_id = park(store, "key1", "key2")
    other = park(store, "key1")
    keys.open("key2")
    store.sweep()
    store.sweep()
    assert at_work(store, [run_id, other]) == [run_id]


def test_a_stopped_run_is_not_woken(store: Store) -> None:
    keys = keys_of(store)
    close(keys)
    run_id = park(store, "key1")
    store.runs.request_stop(run_id)
    keys.open("key1")
    store.sweep()
    store.sweep()
    assert store.status(run_id) is RunStatus.CANCELLED


def test_somebody_who_opens_a_key_is_named(store: Store) -> None:
    keys = keys_of(store)
    with pytest.raises(KeyUnknown, match="providers status"):
        keys.open("key1")
    close(keys)
    with set_actor(Actor(tenant="default", name="cli:ann")):
        assert not keys.open("key1").state.is_closed
    with store.database.read() as connection:
        [row] = connection.execute(sa.select(audit_log.c.act, audit_log.c.subject, audit_log.c.actor)).all()
    assert tuple(row) == ("provider_key.open", "key1", "cli:ann")
