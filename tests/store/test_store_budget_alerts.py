"""Alerts about budgets of chains and limits of tenants: each once, whoever sweeps and whatever is killed."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import Store, asks, new_run

from hermes_worker.core.budget import Amounts
from hermes_worker.core.effects import Iterate
from hermes_worker.core.limits import Limit, LimitName
from hermes_worker.core.replay import Replay
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.outbox import alerts as module
from hermes_worker.store.outbox.alerts import AlertPolicy, list_alerts, set_alert_targets, sweep_alerts
from hermes_worker.store.runs.budgets import Charge, settle_charge
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.tables import deliveries, runs

OPERATORS = AlertPolicy(targets=("telegram:1",))
NOBODY = AlertPolicy()
ACMES = "webhook:https://acme.test/ops"


@pytest.fixture
def acme(store: Store) -> str:
    Tenants(store.database).create_tenant("acme")
    set_alert_targets(store.database, "acme", [ACMES])
    return "acme"


def told(store: Store) -> list[tuple[str, str, str]]:
    """Whose deliveries, where they go, and what they say."""
    with store.database.read() as connection:
        rows = connection.execute(sa.select(deliveries).order_by(deliveries.c.pk))
        return [(row.tenant, row.target, row.body) for row in rows if row.body]


def spend(store: Store, run_id: str, tokens: int) -> None:
    """Settle a step of a chain, as whoever ends its claim does."""
    with store.database.write() as connection:
        pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
        settle_charge(connection, pk, Charge(given_back=Amounts(), spent=Amounts(tokens=tokens)))


def use(store: Store, run_id: str, tokens: int) -> None:
    """What a run at work has used by now."""
    store.change(runs, run_id, input_tokens=tokens)


def test_a_chain_is_said_at_eighty_percent_and_when_it_is_used_up(store: Store) -> None:
    run_id = store.submit(tokens_max=1_000).run_id
    for tokens, said in ((700, 0), (90, 0), (10, 1), (10, 1), (300, 2)):
        spend(store, run_id, tokens)
        for _ in range(3):
            sweep_alerts(store.database, OPERATORS)
        assert len(told(store)) == said, tokens
    assert ["80 %" in body for _, _, body in told(store)] == [True, False]
    assert all(run_id in body for _, _, body in told(store))
    store.let_pass(61)
    sweep_alerts(store.database, OPERATORS)
    assert [alert.kind for alert in list_alerts(store.database)] == ["budget_100", "budget_80"]
    assert len(told(store)) == 2, "a chain's budget does not come back"


def test_a_chain_that_is_refused_a_call_has_used_up_its_budget(store: Store) -> None:
    run_id = store.submit(tokens_max=1_000).run_id
    asked = asks(Replay.PURE)
    reply = replace(asked.reply, usage=replace(asked.reply.usage, input=700))
    store.ask_tools(run_id, replace(asked, reply=reply))
    store.settle(run_id, 0)
    sweep_alerts(store.database, OPERATORS)
    assert told(store) == []
    store.turn(run_id)  # 700 more do not fit
    sweep_alerts(store.database, OPERATORS)
    [(_, _, body)] = told(store)
    assert "used up" in body


def test_a_limit_of_any_size_can_be_compared(store: Store) -> None:
    huge = store.submit(nano_usd_max=2**62, tokens_max=2**62).run_id
    spend(store, huge, 10**6)
    sweep_alerts(store.database, OPERATORS)
    assert told(store) == []
    small = store.submit(tokens_max=1).run_id
    spend(store, small, 0)
    sweep_alerts(store.database, OPERATORS)
    assert told(store) == []


def test_a_tenant_is_told_of_its_own_chains_and_operators_are_not(store: Store, acme: str) -> None:
    theirs = store.runs.create(new_run(tenant=acme, tokens_max=100)).run_id
    ours = store.submit(tokens_max=100).run_id
    for run_id in (theirs, ours):
        spend(store, run_id, 100)
    sweep_alerts(store.database, OPERATORS)
    assert {(whose, target) for whose, target, _ in told(store)} == {(acme, ACMES), ("default", "telegram:1")}
    for _, target, body in told(store):
        assert (theirs in body) == (target == ACMES) and (ours in body) == (target != ACMES)


def test_who_names_a_target_is_not_told_of_the_past(store: Store) -> None:
    run_id = store.submit(tokens_max=1_000).run_id
    spend(store, run_id, 900)
    store.answer(run_id)
    store.let_pass(4_000)
    sweep_alerts(store.database, OPERATORS)
    assert told(store) == []


def test_a_limit_by_day_is_said_twice_and_is_over_the_next_day(store: Store, acme: str) -> None:
    TenantLimits(store.database).set_limit(acme, Limit(name=LimitName.TOKENS_PER_DAY, value=1_000, waits=True))
    run_id = store.runs.create(new_run(tenant=acme)).run_id
    for tokens, said in ((700, 0), (850, 1), (1_050, 2)):
        use(store, run_id, tokens)
        for _ in range(3):
            sweep_alerts(store.database, OPERATORS)
        assert len(told(store)) == 2 * said, "operators and the tenant"
    assert {(whose, target) for whose, target, _ in told(store)} == {(acme, ACMES), ("default", "telegram:1")}
    TenantLimits(store.database).set_limit(acme, Limit(name=LimitName.TOKENS_PER_DAY, value=10_000, waits=True))
    sweep_alerts(store.database, OPERATORS)
    store.let_pass(61)
    for _ in range(3):
        sweep_alerts(store.database, OPERATORS)
    assert [("over again" in body, "used up" in body) for _, _, body in told(store)[4:]] == [(True, True)] * 2


def test_a_limit_of_which_no_call_fits_any_more_is_used_up(store: Store, acme: str) -> None:
    TenantLimits(store.database).set_limit(acme, Limit(name=LimitName.TOKENS_PER_DAY, value=1_000, waits=True))
    run_id = store.runs.create(new_run(tenant=acme)).run_id
    store.change(runs, run_id, input_tokens=850, iteration=1)
    [effect] = [effect for effect in store.due(run_id) if isinstance(effect, Iterate)]
    assert store.runs.claim_iteration(effect, store.owner) is None, "850 more do not fit"
    sweep_alerts(store.database, OPERATORS)
    assert {("used up" in body) for _, _, body in told(store)} == {True}


def test_a_tenant_with_a_target_is_told_where_operators_have_none(store: Store, acme: str) -> None:
    TenantLimits(store.database).set_limit(acme, Limit(name=LimitName.TOKENS_PER_DAY, value=100))
    other = TenantLimits(store.database)
    Tenants(store.database).create_tenant("beta")
    other.set_limit("beta", Limit(name=LimitName.TOKENS_PER_DAY, value=100))
    for tenant in (acme, "beta"):
        use(store, store.runs.create(new_run(tenant=tenant)).run_id, 100)
    sweep_alerts(store.database, NOBODY)
    [(whose, target, body)] = told(store)
    assert (whose, target) == (acme, ACMES) and "beta" not in body


class Killed(Exception):
    """The process is gone in the middle of what it did."""


@pytest.mark.parametrize("seed", range(4))
def test_sweepers_that_are_killed_say_each_alert_once(
    store: Store, acme: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    owed = module.enqueue_deliveries

    def dies(at: str) -> None:
        if chance.random() < 0.35:
            raise Killed(at)

    def killed_owe(*args: object, **more: object) -> object:
        dies("before the delivery")
        hints = owed(*args, **more)  # type: ignore[arg-type]
        dies("behind it")
        return hints

    TenantLimits(store.database).set_limit(acme, Limit(name=LimitName.TOKENS_PER_DAY, value=2_000, waits=True))
    chains = [store.runs.create(new_run(tenant=acme, tokens_max=500)).run_id for _ in range(3)]
    monkeypatch.setattr(module, "enqueue_deliveries", killed_owe)
    kills = 0

    def swept(times: int) -> None:
        nonlocal kills
        for _ in range(times):
            try:
                sweep_alerts(store.database, OPERATORS)
            except Killed:
                kills += 1

    for used, tokens in ((200, 200), (410, 210), (610, 200), (800, 0)):
        for run_id in chains:
            use(store, run_id, used)
            spend(store, run_id, tokens)
            swept(chance.randrange(3))
        swept(60)
    for _ in range(20):  # all is settled when it has once gone through
        swept(1)
    assert kills > 3, "nobody was killed"
    said = Counter((target, body) for _, target, body in told(store))
    assert set(said.values()) == {1}, "each once"
    assert len([1 for _, body in said if "chain of run" in body]) == 6, "80 % and 100 % of three chains, to the tenant"
    of_limit = Counter((target, "used up" in body) for target, body in said if "tokens_per_day" in body)
    assert of_limit == {(target, level): 1 for target in ("telegram:1", ACMES) for level in (False, True)}
