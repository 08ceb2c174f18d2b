"""``hermes-worker fleet alerts``."""

from __future__ import annotations

import json

import sqlalchemy as sa
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.core.key_states import Finding, KeyCondition
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.key_states import KeyStates
from hermes_worker.store.outbox.alerts import AlertPolicy, sweep_alerts
from hermes_worker.store.tables import deliveries


def test_an_operator_sees_alerts(hermes: CommandLine, store: Store) -> None:
    found = Finding(condition=KeyCondition.NO_MONEY)
    KeyStates(store.database).record_failure(("openai", "key1"), found, run_id="run_1", reason="pay first")
    sweep_alerts(store.database, AlertPolicy(targets=("telegram:1",)))
    [line] = [line for line in hermes.inline("fleet", "alerts", "list").out.splitlines() if line.startswith("provider")]
    assert "no money" in line
    [row] = map(json.loads, hermes.inline("fleet", "alerts", "list", "--json").out.splitlines())
    assert (row["kind"], row["subject"], row["recovered_at"]) == ("provider", "key1", None)


def test_a_test_of_alerts_owes_a_delivery_to_each_target(hermes: CommandLine, store: Store) -> None:
    refused = hermes.inline("fleet", "alerts", "test")
    assert refused.code == 2 and "HERMES_ALERT_TARGETS" in refused.err
    hermes.environ["HERMES_ALERT_TARGETS"] = "telegram:1,email:ops@example.org"
    assert "2 deliveries are owed" in hermes.inline("fleet", "alerts", "test").out
    with store.database.read() as connection:
        targets = connection.execute(sa.select(deliveries.c.target).order_by(deliveries.c.pk)).scalars().all()
    assert targets == ["telegram:1", "email:ops@example.org"]


def test_a_tenant_has_targets_of_its_own_for_alerts(hermes: CommandLine, store: Store) -> None:
    Tenants(store.database).create_tenant("acme")
    of_acme = ("fleet", "alerts", "targets", "--tenant", "acme")
    assert hermes.inline(*of_acme).out == ""
    hook = "webhook:https://acme.example/ops"
    assert hermes.inline(*of_acme, "--set", hook, "--set", "local").out.splitlines() == ["local", hook]
    assert hermes.inline(*of_acme, "--none").out == ""
    refused = hermes.inline(*of_acme, "--set", "telegram:5")
    assert refused.code == 2 and "may not use" in refused.err
    assert "HERMES_ALERT_TARGETS" in hermes.inline("fleet", "alerts", "targets", "--set", "local").err
    assert (
        "there is no tenant" in hermes.inline("fleet", "alerts", "targets", "--tenant", "nobody", "--set", "local").err
    )
