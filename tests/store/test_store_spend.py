"""What runs cost, added up: each run once, and what is unknown beside what is known."""

from __future__ import annotations

from decimal import Decimal

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.features.spend import rows as spend
from hermes_worker.features.spend.rows import SpendBy, SpendQuery, SpendRow, load_spend
from hermes_worker.store.runs import listing
from hermes_worker.store.tables import firings, jobs, runs, sessions

DAY_S = 86_400.0
FIRST = 20_000 * DAY_S  # 2024-10-04


def cost(store: Store, run_id: str, usd: float, **values: object) -> str:
    """Write what a run cost, known unless ``values`` say otherwise."""
    known = {"cost_nano_usd": round(usd * 1e9), "cost_status": CostStatus.KNOWN.value}
    store.change(runs, run_id, **{**known, **values})
    return run_id


def rows(store: Store, by: SpendBy, **asked: object) -> list[SpendRow]:
    wanted = {"after": 0.0, "before": 1e11, "tenant": "default", **asked}
    return load_spend(store.database, SpendQuery(by=by, **wanted))  # type: ignore[arg-type]


def sums(store: Store, by: SpendBy, **asked: object) -> list[tuple[str | None, int, Decimal | None]]:
    return [(row.key, row.runs, row.cost_usd) for row in rows(store, by, **asked)]


def job_of(store: Store, run_id: str, job_id: str) -> None:
    """Make the run that of a job's slot."""
    with store.database.write() as connection:
        job = {"job_id": job_id, "tenant": "default", "name": "nightly", "definition": "{}", "state": "scheduled"}
        made = connection.execute(sa.insert(jobs).values(**job, created_at=1.0, updated_at=1.0))
        run_pk = connection.execute(sa.select(runs.c.pk).where(runs.c.run_id == run_id)).scalar_one()
        slot = {"slot": 1.0, "outcome": "fired", "reason": "", "settled_at": 1.0, "run_pk": run_pk}
        connection.execute(sa.insert(firings).values(job_pk=made.inserted_primary_key[0], **slot))


def test_days_are_those_of_utc_and_the_newest_comes_first(store: Store) -> None:
    for at, usd in ((FIRST, 1), (FIRST + DAY_S - 0.5, 2), (FIRST + DAY_S, 4)):
        cost(store, store.submit().run_id, usd, created_at=at)

    assert sums(store, SpendBy.DAY) == [("2024-10-05", 1, Decimal(4)), ("2024-10-04", 2, Decimal(3))]


def test_a_time_has_its_beginning_and_not_its_end(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_NEAR", 2)
    for number in range(40):
        cost(store, store.submit().run_id, 1, created_at=FIRST + number * DAY_S)

    found = sums(store, SpendBy.DAY, after=FIRST + 7 * DAY_S, before=FIRST + 9 * DAY_S)
    assert [key for key, _, _ in found] == ["2024-10-12", "2024-10-11"]
    assert len(sums(store, SpendBy.DAY, limit=3)) == 3


def test_models_are_told_apart_and_the_most_expensive_comes_first(store: Store) -> None:
    for model, usd in (("small", 1), ("large", 5), ("small", 2)):
        cost(store, store.submit(model=model).run_id, usd)

    assert sums(store, SpendBy.MODEL) == [("large", 1, Decimal(5)), ("small", 2, Decimal(3))]


def test_a_tenant_sees_its_own_and_operators_see_all(store: Store) -> None:
    cost(store, store.submit().run_id, 1)
    cost(store, store.submit(tenant="acme").run_id, 2)

    assert sums(store, SpendBy.TENANT) == [("default", 1, Decimal(1))]
    assert sums(store, SpendBy.MODEL, tenant="acme") == [("scripted", 1, Decimal(2))]
    assert sums(store, SpendBy.TENANT, tenant=None) == [("acme", 1, Decimal(2)), ("default", 1, Decimal(1))]


def test_what_a_run_delegated_counts_for_the_job_and_the_session_in_which_its_tree_began(store: Store) -> None:
    root = store.with_tools(Replay.PURE, session_id="talk", input="Count the files\nof src")
    [child] = store.delegate(root, 1)
    other = store.submit().run_id
    job_of(store, root, "0123456789ab")
    for run_id, usd in ((root, 1), (child, 4), (other, 8)):
        cost(store, run_id, usd)

    assert sums(store, SpendBy.JOB) == [(None, 1, Decimal(8)), ("0123456789ab", 2, Decimal(5))]
    assert [row.name for row in rows(store, SpendBy.JOB)] == [None, "nightly"]
    assert sums(store, SpendBy.SESSION) == [(other, 1, Decimal(8)), (root, 2, Decimal(5))]
    assert [row.name for row in rows(store, SpendBy.SESSION)] == ["hello", "Count the files"]
    with store.database.write() as connection:
        connection.execute(sa.update(sessions).values(title=None))
    assert [row.name for row in rows(store, SpendBy.SESSION)] == [None, "talk"], "of before there were titles"


def test_what_is_unknown_is_never_zero(store: Store) -> None:
    cost(store, store.submit(model="a").run_id, 1, doubtful_nano_usd=250_000_000)
    cost(store, store.submit(model="a").run_id, 2)
    cost(store, store.submit(model="b").run_id, 0, cost_status=CostStatus.UNKNOWN.value, unpriced_calls=3)

    [a, b] = rows(store, SpendBy.MODEL)
    assert (a.cost_usd, a.doubtful_cost_usd, a.unknown_runs) == (Decimal(3), Decimal("0.25"), 1)
    assert (b.cost_usd, b.unknown_runs, b.unpriced_calls) == (None, 1, 3)


def test_a_run_that_has_cost_nothing_yet_is_no_unknown_one(store: Store) -> None:
    store.submit()
    [row] = rows(store, SpendBy.DAY)
    assert (row.runs, row.unknown_runs, row.cost_usd) == (1, 0, None)


def test_tokens_are_added_up(store: Store) -> None:
    for _ in range(2):
        store.answer(store.submit().run_id)

    [row] = rows(store, SpendBy.MODEL)
    assert (row.usage.input, row.usage.output) == (6, 4)


def test_every_way_of_telling_apart_has_a_key() -> None:
    assert set(spend._KEYS) == set(SpendBy)
