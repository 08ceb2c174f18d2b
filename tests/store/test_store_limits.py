"""What tenants and keys may use at most: refused or held, by rows, over any number of processes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.store import ANSWER, Store, new_run

from hermes_worker.core.limits import (
    Limit,
    LimitName,
    LimitReached,
    Spending,
    compute_period_left_s,
    compute_periods,
    compute_room,
    take_token,
)
from hermes_worker.core.pricing import build_billed_cost
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import Created
from hermes_worker.store.tables import runs, spending


@pytest.fixture
def limited(store: Store) -> TenantLimits:
    Tenants(store.database).create_tenant("acme")
    return TenantLimits(store.database)


def submit(store: Store, tenant: str = "acme", principal: str | None = None) -> Created:
    return store.runs.create(new_run(tenant=tenant, principal=principal))


def at_work(store: Store, tenant: str = "acme") -> int:
    with store.database.read() as connection:
        taken_places = sa.select(sa.func.count()).where(runs.c.tenant == tenant, runs.c.place == 2)
        return int(connection.execute(taken_places).scalar_one())


def finish(store: Store, run_id: str, *, usd: str = "0", tokens: int = 10) -> None:
    reply = replace(ANSWER, usage=replace(ANSWER.usage, input=tokens))
    store.runs.commit_reply(store.turn(run_id), reply, (), build_billed_cost(Decimal(usd)))


def test_runs_beyond_the_limit_wait_where_it_says_so(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=2, waits=True))

    created = [submit(store) for _ in range(4)]

    assert at_work(store) == 2
    finish(store, created[0].run_id)
    assert at_work(store) == 2


def test_runs_beyond_the_limit_are_refused_by_its_name(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=2))
    submit(store)
    submit(store)

    with pytest.raises(LimitReached, match=r"its limit runs \(2\)"):
        submit(store)
    assert submit(store, "default").hints  # only itself


def test_a_raised_limit_lets_held_runs_begin(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=0, waits=True))
    submit(store)
    assert at_work(store) == 0

    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=1, waits=True))

    assert [hint.effect.kind for hint in store.sweep().hints] == ["ask_model"]


def test_the_queue_of_a_tenant_has_a_limit(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=1, waits=True))
    limited.set_limit("acme", Limit(name=LimitName.QUEUED, value=2))
    for _ in range(3):
        submit(store)

    with pytest.raises(LimitReached) as refused:
        submit(store)
    assert (refused.value.limit.name, refused.value.retry_after_s) == (LimitName.QUEUED, 5.0)


def test_of_many_submissions_at_once_as_many_are_accepted_as_the_minute_has(
    store: Store, limited: TenantLimits
) -> None:
    limited.set_limit("acme", Limit(name=LimitName.SUBMITS_PER_MIN, value=5))

    def attempt(_: int) -> bool:
        try:
            submit(store)
        except LimitReached:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(24))) == 5


def test_a_key_has_a_rate_of_its_own(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.SUBMITS_PER_MIN, value=1), key_id="key_1")
    submit(store, principal="api:ci/key_1")

    with pytest.raises(LimitReached, match="the key key_1"):
        submit(store, principal="api:ci/key_1")
    submit(store, principal="api:ci/key_2")


def test_runs_of_a_key_beyond_its_limit_wait_and_hold_up_no_others(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=2, waits=True), key_id="key_1")
    of_key = [submit(store, principal="api:ci/key_1") for _ in range(20)]

    of_other = [submit(store, principal="api:ci/key_2"), submit(store, principal=None)]

    assert all(each.hints for each in (*of_key[:2], *of_other))
    assert not any(each.hints for each in of_key[2:])
    finish(store, of_key[0].run_id)
    assert at_work(store) == 4
    said = Explanations(store.database).explain_run(of_key[-1].run_id)
    assert "the limit of the key key_1 'runs' is reached" in said.text
    assert said.facts["limited_key"] == "key_1"


@pytest.mark.parametrize("name", [LimitName.RUNS, LimitName.QUEUED])
def test_a_key_is_refused_by_its_own_numbers(store: Store, limited: TenantLimits, name: LimitName) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=1, waits=True))
    limited.set_limit("acme", Limit(name=name, value=1), key_id="key_1")
    submit(store, principal="api:ci/key_2")
    submit(store, principal="api:ci/key_1")

    with pytest.raises(LimitReached, match=f"the key key_1 has reached its limit {name.value}"):
        submit(store, principal="api:ci/key_1")
    submit(store, principal="api:ci/key_2")


def test_a_key_that_has_spent_its_month_is_refused_and_others_are_not(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.USD_PER_MONTH, value=1_000_000_000), key_id="key_1")
    finish(store, submit(store, principal="api:ci/key_1").run_id, usd="1.25")
    finish(store, submit(store, principal="api:ci/key_2").run_id, usd="9")
    store.sweep()

    with pytest.raises(LimitReached, match="the key key_1 has reached its limit usd_per_month"):
        submit(store, principal="api:ci/key_1")
    assert submit(store, principal="api:ci/key_2").hints


def test_what_a_key_may_spend_is_reserved_before_its_runs_begin(store: Store, limited: TenantLimits) -> None:
    finish(store, submit(store, principal="api:ci/key_1").run_id, usd="1")
    store.sweep()
    limited.set_limit("acme", Limit(name=LimitName.USD_PER_DAY, value=3_500_000_000, waits=True), key_id="key_1")

    of_key = [submit(store, principal="api:ci/key_1") for _ in range(5)]

    assert [bool(each.hints) for each in of_key] == [True, True, False, False, False]


def test_a_key_whose_id_ends_like_anothers_is_another(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=0), key_id="key_1")

    assert submit(store, principal="api:ci/akey_1").hints
    assert submit(store, principal="api:ci/key%1").hints
    assert submit(store, principal="cli:me/key_1").hints


def test_what_a_day_may_cost_is_reserved_before_a_run_begins(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.USD_PER_DAY, value=3_500_000_000, waits=True))
    finish(store, submit(store).run_id, usd="1")
    store.sweep()

    *_, last = [submit(store) for _ in range(5)]

    assert at_work(store) == 2  # one dollar is spent, and each is expected to take another
    said = Explanations(store.database).explain_run(last.run_id)
    assert "its limit 'usd_per_day' leaves no room for a run like its others until the period ends; 2" in said.text
    assert said.until is not None and said.until % 86_400 == 0


def test_a_tenant_that_has_spent_its_day_is_refused_until_the_next(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.USD_PER_DAY, value=1_000_000_000))
    finish(store, submit(store).run_id, usd="1.25")
    store.sweep()

    with pytest.raises(LimitReached) as refused:
        submit(store)
    assert 0 < refused.value.retry_after_s <= 86_400
    with store.database.read() as connection:
        rows = connection.execute(sa.select(spending.c.period, spending.c.nano_usd, spending.c.tokens)).all()
    assert sorted((len(period), nano, tokens) for period, nano, tokens in rows) == [
        (7, 1_250_000_000, 12),
        (10, 1_250_000_000, 12),
    ]


def test_tokens_have_limits_as_well(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.TOKENS_PER_MONTH, value=1_000))
    finish(store, submit(store).run_id, tokens=2_000)
    store.sweep()

    with pytest.raises(LimitReached, match="tokens_per_month"):
        submit(store)


def test_a_held_run_says_which_limit_holds_it_and_how_many_go_before(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.RUNS, value=1, waits=True))
    *_, last = [submit(store) for _ in range(4)]

    said = Explanations(store.database).explain_run(last.run_id)

    assert "its limit 'runs' is reached; 2 of its runs go before" in said.text
    assert [said.facts[name] for name in ("ahead", "tenant_at_work", "limit")] == [2, 1, "runs"]


def test_a_limit_that_is_taken_away_holds_no_longer(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.SUBMITS_PER_MIN, value=0))
    with pytest.raises(LimitReached):
        submit(store)

    limited.unset_limit("acme", LimitName.SUBMITS_PER_MIN)

    assert submit(store).hints
    assert limited.list_limits("acme") == []


def test_periods_are_days_and_months_of_utc() -> None:
    at = datetime(2026, 12, 31, 23, 59, 0, tzinfo=UTC).timestamp()

    assert compute_periods(at) == ("2026-12-31", "2026-12")
    assert (
        compute_period_left_s(LimitName.USD_PER_DAY, at) == compute_period_left_s(LimitName.USD_PER_MONTH, at) == 60.0
    )


@pytest.mark.parametrize(
    ("value", "used", "each", "more"), [(10, 0, 3, 3), (10, 8, 3, 0), (10, 12, 3, 0), (10, 10, 0, 0), (10, 9, 0, 1)]
)
def test_room_is_for_whole_runs(value: int, used: int, each: int, more: int) -> None:
    limit = Limit(name=LimitName.TOKENS_PER_DAY, value=value)

    assert compute_room(limit, Spending(tokens=used), Spending(tokens=each)) == more


def test_a_bucket_fills_with_time_and_never_beyond_its_minute() -> None:
    assert take_token(0.0, 0.0, 6) == (0.0, 10.0)
    assert take_token(0.0, 10.0, 6) == (0.0, 0.0)
    assert take_token(0.0, 1e6, 6) == (5.0, 0.0)
    assert take_token(3.0, -50.0, 6) == (2.0, 0.0)
