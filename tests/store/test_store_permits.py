"""Model calls of tenants and keys with limits: who may ask, who waits as a row, and who goes on when."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.store import ANSWER, Store, asks, new_run

from hermes_worker.core.effects import Iterate
from hermes_worker.core.limits import CallsNow, Limit, LimitName, Spending, explain_refusal, find_refusing_limit
from hermes_worker.core.pricing import build_billed_cost
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.explanations import Explanations
from hermes_worker.store.runs.limits import TenantLimits
from hermes_worker.store.runs.runs import IterationClaim
from hermes_worker.store.tables import runs


@pytest.fixture
def limited(store: Store) -> TenantLimits:
    Tenants(store.database).create_tenant("acme")
    return TenantLimits(store.database)


def submit(store: Store, number: int = 1, principal: str | None = None, tenant: str = "acme") -> list[str]:
    return [store.runs.create(new_run(tenant=tenant, principal=principal)).run_id for _ in range(number)]


def claim(store: Store, run_id: str, iteration: int = 1) -> IterationClaim | None:
    return store.runs.claim_iteration(Iterate(run_id=run_id, iteration=iteration, attempt=1), store.owner)


def waiting(store: Store) -> list[str]:
    with store.database.read() as connection:
        wanted = sa.select(runs.c.run_id).where(runs.c.status == "waiting_for_capacity").order_by(runs.c.pk)
        return list(connection.execute(wanted).scalars())


def test_a_call_beyond_the_limit_waits_as_a_row_and_goes_on_when_one_ends(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=2))
    one, two, three, four = submit(store, 4)
    claims = [claim(store, run_id) for run_id in (one, two, three, four)]
    assert [each is not None for each in claims] == [True, True, False, False]
    assert waiting(store) == [three, four]

    assert claims[0] is not None
    hints = store.runs.commit_reply(claims[0], ANSWER, ())

    assert [hint.effect for hint in hints] == [Iterate(run_id=three, iteration=1, attempt=1)]
    assert waiting(store) == [four]
    assert claim(store, three) is not None


def test_a_call_that_was_told_to_go_on_is_not_overtaken(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=1))
    one, two, three = submit(store, 3)
    first = claim(store, one)
    assert first is not None and claim(store, two) is None
    store.runs.commit_reply(first, ANSWER, ())

    assert claim(store, three) is None  # it would be the second of one
    assert claim(store, two) is not None


def test_the_other_tenants_are_not_held(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=0))
    [theirs], [ours] = submit(store), submit(store, tenant="default")

    assert claim(store, theirs) is None
    assert claim(store, ours) is not None


def test_a_key_has_a_limit_of_its_own(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=1), key_id="key_1")
    of_key, of_other = submit(store, 2, "api:ci/key_1"), submit(store, 2, "api:ci/key_2")

    assert [claim(store, each) is not None for each in (*of_key, *of_other)] == [True, False, True, True]
    said = Explanations(store.database).explain_run(of_key[1])
    assert said.because.value == "limit"
    assert said.text == "its next model call waits: the limit model_calls of the key key_1 (1) is reached"


def test_the_end_of_a_dead_workers_call_is_noticed_by_the_sweeper(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=1))
    one, two = submit(store, 2)
    dead = store.worker("dead")
    assert store.runs.claim_iteration(Iterate(run_id=one, iteration=1, attempt=1), dead.pk) is not None
    assert claim(store, two) is None

    store.vanish(dead)
    store.sweep()

    assert waiting(store) == []


def test_a_raised_limit_is_noticed_by_the_sweeper_and_so_is_one_that_is_gone(
    store: Store, limited: TenantLimits
) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=0))
    made = submit(store, 3)
    assert [claim(store, each) for each in made] == [None, None, None]

    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=1))
    store.sweep()
    assert waiting(store) == made[1:]
    limited.unset_limit("acme", LimitName.MODEL_CALLS)
    store.sweep()

    assert waiting(store) == []


def test_of_many_claims_at_once_as_many_get_permits_as_there_are(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=3))
    made = submit(store, 12)

    with ThreadPoolExecutor(6) as pool:
        claimed = list(pool.map(lambda run_id: claim(store, run_id), made))

    assert sum(each is not None for each in claimed) == 3
    assert len(waiting(store)) == 9


def test_a_call_that_waits_can_be_stopped_and_paused(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.MODEL_CALLS, value=0))
    one, two = submit(store, 2)
    claim(store, one), claim(store, two)

    status, _ = store.runs.request_stop(one)

    assert status is RunStatus.CANCELLED
    assert waiting(store) == [two]


def test_a_run_that_has_begun_stops_asking_where_its_tenants_day_is_spent(store: Store, limited: TenantLimits) -> None:
    """A run was let go on to its end, so many at once could spend any multiple of the limit."""
    limited.set_limit("acme", Limit(name=LimitName.USD_PER_DAY, value=11_000_000_000, waits=True))
    made = submit(store, 4)
    for run_id in made:
        won = claim(store, run_id)
        assert won is not None
        asked = asks(Replay.PURE)
        store.runs.commit_reply(won, asked.reply, asked.calls, build_billed_cost(Decimal("2")))
        store.settle(run_id)

    second = [claim(store, run_id, 2) for run_id in made]

    # Eight of eleven dollars are spent, and a call takes two.
    assert [each is not None for each in second] == [True, False, False, False]
    assert Explanations(store.database).explain_run(made[1]).text == (
        "its next model call waits: of the limit usd_per_day of the tenant 'acme' (11 USD) 1 USD is left and the next "
        "call is expected to take 2 USD; it waits for a new period"
    )


def test_without_a_limit_a_claim_is_one_statement(store: Store, limited: TenantLimits) -> None:
    [run_id, again] = submit(store, 2)
    assert claim(store, run_id) is not None  # what is remembered is read

    with statements(store.database) as seen:
        assert claim(store, again) is not None

    assert len([sql for sql, _ in seen if not sql.startswith("BEGIN")]) == 1, seen


@pytest.mark.parametrize(
    ("name", "value", "in_flight", "used", "expected", "is_refused"),
    [
        (LimitName.MODEL_CALLS, 2, 1, 0, 0, False),
        (LimitName.MODEL_CALLS, 2, 2, 0, 0, True),
        (LimitName.TOKENS_PER_DAY, 100, 9, 90, 10, False),
        (LimitName.TOKENS_PER_DAY, 100, 0, 91, 10, True),
        (LimitName.TOKENS_PER_DAY, 100, 0, 100, 0, True),
        (LimitName.RUNS, 0, 9, 0, 0, False),
    ],
)
def test_what_refuses_a_call(
    name: LimitName, value: int, in_flight: int, used: int, expected: int, is_refused: bool
) -> None:
    now = CallsNow(in_flight=in_flight, used=Spending(tokens=used), by_period={})

    found = find_refusing_limit({name: Limit(name=name, value=value)}, now, Spending(tokens=expected), 0.0)

    assert (found is not None) is is_refused


def test_a_limit_that_is_used_up_is_said_to_be_reached() -> None:
    limit = Limit(name=LimitName.TOKENS_PER_DAY, value=100)
    told = [explain_refusal(limit, "the key k", Spending(tokens=used), Spending(tokens=30)) for used in (80, 100, 120)]
    assert told == [
        "of the limit tokens_per_day of the key k (100) 20 is left and the next call is expected to take 30; it waits "
        "for a new period",
        *["the limit tokens_per_day of the key k (100) is reached"] * 2,
    ]


def test_usage_counts_once(store: Store, limited: TenantLimits) -> None:
    limited.set_limit("acme", Limit(name=LimitName.TOKENS_PER_DAY, value=1_000))
    [run_id] = submit(store)
    won = claim(store, run_id)
    assert won is not None
    used = replace(ANSWER, usage=replace(ANSWER.usage, input=400))
    store.runs.commit_reply(won, used, ())
    store.sweep()
    [again] = submit(store)

    assert claim(store, again) is not None
