"""Alerts as rows and deliveries: each once, whoever sweeps."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from support.store import POLICY, Store

from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox import alerts as alerting
from hermes_worker.store.outbox.alerts import AlertPolicy, list_alerts, sweep_alerts
from hermes_worker.store.sweep import Sweeper, SweepPolicy
from hermes_worker.store.tables import dead_targets, deliveries, runs

TARGETS = AlertPolicy(targets=("telegram:1", "email:ops@example.org"), backlog_age_s=60)


def told(store: Store) -> list[tuple[str, str]]:
    with store.database.read() as connection:
        rows = connection.execute(sa.select(deliveries.c.target, deliveries.c.body).order_by(deliveries.c.pk))
        return [(row.target, row.body) for row in rows]


def close(store: Store) -> KeyStates:
    keys = KeyStates(store.database)
    keys.record_failure(
        ("openai", "key1"), Finding(condition=KeyCondition.NO_MONEY), run_id="r", reason="pay sk-secret"
    )
    return keys


def sweep_with_ten(store: Store) -> None:
    with ThreadPoolExecutor(10) as sweepers:
        list(sweepers.map(lambda _: sweep_alerts(store.database, TARGETS), range(20)))


def test_ten_sweepers_say_each_trouble_and_its_end_once(store: Store) -> None:
    keys = close(store)
    sweep_with_ten(store)
    assert [target for target, _ in told(store)] == list(TARGETS.targets)
    assert all("no money" in body and "secret" not in body for _, body in told(store))
    keys.open("key1")
    sweep_with_ten(store)
    assert len(told(store)) == 2, "it may come back at once"
    store.let_pass(61)
    sweep_with_ten(store)
    assert [body.partition(":")[0] for _, body in told(store)[2:]] == ["hermes-worker, over again"] * 2
    [alert] = list_alerts(store.database)
    assert alert.recovered_at is not None
    close(store)
    sweep_with_ten(store)
    assert len(told(store)) == 6, "the next time is another one"


def test_a_key_that_comes_and_goes_is_one_trouble(store: Store) -> None:
    for _ in range(5):
        close(store).open("key1")
        close(store)
        sweep_alerts(store.database, TARGETS)
        KeyStates(store.database).open("key1")
        sweep_alerts(store.database, TARGETS)
        store.let_pass(30)
    assert len(told(store)) == 2


def test_a_dead_target_is_not_over_because_others_die(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerting, "_DEAD_TARGETS_MAX", 2)
    for at in range(4):
        with store.database.write() as connection:
            values = {"tenant": "acme", "key": f"slack:{at}", "reason": "gone", "marked_at": 1_000.0 + at}
            connection.execute(sa.insert(dead_targets).values(**values))
        sweep_alerts(store.database, TARGETS)
        store.let_pass(61)
    sweep_alerts(store.database, TARGETS)
    assert len(told(store)) == 4, "two alerts for two targets, and nothing is over"


def test_a_dead_target_is_said_elsewhere_and_without_its_address(store: Store) -> None:
    with store.database.write() as connection:
        values = {"tenant": "acme", "key": "telegram:1", "reason": "blocked", "marked_at": 1_000.0}
        connection.execute(sa.insert(dead_targets).values(**values))
    for _ in range(3):
        sweep_alerts(store.database, TARGETS)
    [(target, body)] = told(store)
    assert target == "email:ops@example.org"
    assert "acme" in body and "telegram:1" not in body


def test_a_backlog_is_said_when_it_is_old(store: Store) -> None:
    store.submit()
    sweep_alerts(store.database, TARGETS)
    assert told(store) == []
    store.let_pass(61)
    sweep_with_ten(store)
    assert len(told(store)) == 2 and "queue model" in told(store)[0][1]


def test_a_backlog_that_is_worked_off_is_said_to_be_over_once(store: Store) -> None:
    run_id = store.submit().run_id
    store.let_pass(61)
    sweep_with_ten(store)
    store.answer(run_id)
    sweep_with_ten(store)
    assert len(told(store)) == 2, "it may come back at once"
    store.let_pass(61)
    sweep_with_ten(store)
    assert [("over again" in body, "queue model" in body) for _, body in told(store)[2:]] == [(True, True)] * 2


def test_a_target_that_lives_again_is_said_once_to_be_so(store: Store) -> None:
    with store.database.write() as connection:
        values = {"tenant": "acme", "key": "telegram:1", "reason": "blocked", "marked_at": 1_000.0}
        connection.execute(sa.insert(dead_targets).values(**values))
    sweep_with_ten(store)
    with store.database.write() as connection:
        connection.execute(sa.delete(dead_targets))
    sweep_with_ten(store)
    store.let_pass(61)
    sweep_with_ten(store)
    said = [(target, "over again" in body) for target, body in told(store)]
    assert said == [("email:ops@example.org", False), *((target, True) for target in TARGETS.targets)]


def test_a_quarantine_is_said_once_before_it_is_counted(store: Store) -> None:
    run_id = store.submit().run_id
    store.answer(run_id)
    store.change(runs, run_id, exit_reason=ExitReason.STEP_QUARANTINED.value, status=RunStatus.FAILED.value)
    policy = SweepPolicy(interval_s=0.0, ttl_s=POLICY.ttl_s, resend_grace_s=POLICY.resend_grace_s, alerts=TARGETS)
    for _ in range(3):
        Sweeper(store.database, policy).sweep(None)
    assert [run_id in body for _, body in told(store)] == [True, True]
    assert [alert.kind for alert in list_alerts(store.database)] == ["quarantine"]


def test_who_names_no_target_is_told_nothing(store: Store) -> None:
    close(store)
    for _ in range(3):
        store.sweep()
    assert list_alerts(store.database) == []
