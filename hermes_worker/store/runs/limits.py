"""Limits of tenants and API keys: where they are stored, and whether a submission is within them.

Limits and what is used are rows, so they hold over all replicas. A change is seen within half a second. Only tenants
that have limits pay for looking. Limits on runs at work are kept by ``store.runs.admission``, also for runs without a
submission, such as those of jobs: these are never refused, they wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.limits import (
    Limit,
    LimitName,
    LimitReached,
    Spending,
    compute_period_left_s,
    compute_periods,
    compute_room,
    parse_key_id,
    select_period_use,
    take_token,
)
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, FactCache, RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_rows, select_columns
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.runs.sharing import FLEET, PLACES
from hermes_worker.store.tables import limits, runs, spending, submit_rates, tenant_shares

Limits = Mapping[LimitName, Limit]
_RETRY_S = 5.0


def is_of_key(key_id: str) -> sa.ColumnElement[bool]:
    """Condition that a run was submitted with this key, or belongs to a run that was."""
    return runs.c.principal.startswith("api:") & runs.c.principal.endswith(f"/{key_id}", autoescape=True)


class Owner(NamedTuple):
    """The tenant, or with ``key_id`` the API key of the tenant, that limits belong to."""

    tenant: str
    key_id: str = ""

    @property
    def has_run(self) -> sa.ColumnElement[bool]:
        """Condition that a run counts against the limits of this owner."""
        is_tenants = runs.c.tenant == self.tenant
        return is_tenants & is_of_key(self.key_id) if self.key_id else is_tenants


class LimitView(NamedTuple):
    """A limit as its row says it; money in nano-USD."""

    key_id: str
    name: str
    value: int
    waits: int


class _LimitRow(NamedTuple):
    tenant: str
    key_id: str
    name: str
    value: int
    waits: int


class _SetLimit(NamedTuple):
    name: str
    value: int


class _Bucket(NamedTuple):
    tokens: float
    age_s: float


def get_limits(connection: Connection, remembered: FactCache) -> Mapping[Owner, Limits]:
    """Every limit, by its owner. At most half a second old."""
    return remembered.get("limits", lambda: _load_limits(connection))


def fetch_limits(database: Database) -> Mapping[Owner, Limits]:
    """Every limit, by its owner, for a caller without a connection. At most half a second old."""

    def read() -> Mapping[Owner, Limits]:
        with database.read() as connection:
            return _load_limits(connection)

    return database.remembered.get("limits", read)


def _load_limits(connection: Connection) -> Mapping[Owner, Limits]:
    found: dict[Owner, dict[LimitName, Limit]] = {}
    known = {name.value for name in LimitName}
    wanted = sa.select(*select_columns(limits, _LimitRow)).where(limits.c.tenant != FLEET, limits.c.name.in_(known))
    for row in fetch_rows(connection.execute(wanted), _LimitRow):
        limit = Limit(name=LimitName(row.name), value=row.value, waits=bool(row.waits))
        found.setdefault(Owner(row.tenant, row.key_id), {})[limit.name] = limit
    return found


def require_within_limits(connection: Connection, tenant: str, principal: str | None) -> None:
    """Check a submission against the limits of its tenant and its key. Call it in the transaction that accepts the
    submission: one that is refused for another reason uses up nothing. Raises ``LimitReached``."""
    known = get_limits(connection, Database.get_remembered(connection))
    owners = [each for each in dict.fromkeys((Owner(tenant), Owner(tenant, parse_key_id(principal)))) if each in known]
    for owner in owners:
        for limit in known[owner].values():
            _require_limit(connection, owner, limit)
    for owner in owners:
        rate = known[owner].get(LimitName.SUBMITS_PER_MIN)
        if rate is not None:
            _take_token(connection, owner, rate)


def _require_limit(connection: Connection, owner: Owner, limit: Limit) -> None:
    if limit.name is LimitName.QUEUED:
        _require_queue(connection, owner, limit)
    elif limit.name.is_spending and not limit.waits:
        _require_room(connection, owner, limit)
    elif limit.name is LimitName.RUNS and not limit.waits:
        _require_place(connection, owner, limit)


def _require_queue(connection: Connection, owner: Owner, limit: Limit) -> None:
    few = sa.select(runs.c.pk).where(_IS_HELD, owner.has_run).limit(limit.value + 1)
    if connection.execute(sa.select(sa.func.count()).select_from(few.subquery())).scalar_one() >= limit.value:
        raise LimitReached(limit, _RETRY_S, key_id=owner.key_id)


def _require_place(connection: Connection, owner: Owner, limit: Limit) -> None:
    open_runs = sa.select(sa.func.count()).where(owner.has_run, sa.or_(sa.text("place = 2"), _IS_HELD))
    if connection.execute(open_runs).scalar_one() >= limit.value:
        raise LimitReached(limit, _RETRY_S, key_id=owner.key_id)


def _require_room(connection: Connection, owner: Owner, limit: Limit) -> None:
    now = connection.execute(sa.select(db_now())).scalar_one()
    used = select_period_use(limit, load_spending(connection, [owner.tenant], now).get(owner, {}), now)
    at_work = sa.select(sa.func.coalesce(sa.func.sum(TOKENS), 0), sa.func.coalesce(sa.func.sum(NANO_USD), 0))
    tokens, nano = connection.execute(at_work.where(owner.has_run, sa.text("place = 2"))).one()
    if (
        compute_room(limit, used + Spending(tokens=int(tokens), nano_usd=int(nano)), Spending(tokens=1, nano_usd=1))
        == 0
    ):
        raise LimitReached(limit, compute_period_left_s(limit.name, now), key_id=owner.key_id)


def _take_token(connection: Connection, owner: Owner, limit: Limit) -> None:
    """Take one token, under the lock of the bucket, so that two submissions never take the same. Raises
    ``LimitReached``."""
    first = {"tenant": owner.tenant, "key_id": owner.key_id, "tokens": float(limit.value), "at": db_now()}
    connection.execute(build_insert_ignoring(connection, submit_rates).values(**first))
    this = (submit_rates.c.tenant == owner.tenant) & (submit_rates.c.key_id == owner.key_id)
    age = (db_now() - submit_rates.c.at).label("age_s")
    row = fetch_one(connection.execute(sa.select(submit_rates.c.tokens, age).where(this).with_for_update()), _Bucket)
    left, wait_s = take_token(row.tokens, row.age_s, limit.value)
    if wait_s > 0:
        raise LimitReached(limit, wait_s, key_id=owner.key_id)
    connection.execute(sa.update(submit_rates).where(this).values(tokens=left, at=db_now()))


_IS_HELD = sa.text("place = 0")
TOKENS = (
    runs.c.input_tokens
    + runs.c.output_tokens
    + runs.c.cache_read_tokens
    + runs.c.cache_write_tokens
    + runs.c.unknown_input_tokens
    + runs.c.unknown_output_tokens
)
NANO_USD = runs.c.cost_nano_usd + runs.c.doubtful_nano_usd


def load_spending(connection: Connection, tenants: Sequence[str], now: float) -> dict[Owner, dict[str, Spending]]:
    """Load what ended runs of tenants, and of each of their API keys, used today and this month, by period."""
    rows = connection.execute(
        sa.select(
            spending.c.tenant, spending.c.key_id, spending.c.period, spending.c.tokens, spending.c.nano_usd
        ).where(spending.c.tenant.in_(tenants), spending.c.period.in_(compute_periods(now)))
    )
    found: dict[Owner, dict[str, Spending]] = {}
    for tenant, key_id, period, tokens, nano_usd in rows:
        used = Spending(tokens=int(tokens), nano_usd=int(nano_usd))
        found.setdefault(Owner(tenant, key_id), {})[period] = used
    return found


def add_spending(connection: Connection, spent: Mapping[Owner, Spending], now: float) -> None:
    """Add what ended runs used to the accounts of their tenants and their API keys. The caller takes each run once."""
    rows = [
        {
            "tenant": owner.tenant,
            "key_id": owner.key_id,
            "period": period,
            "more_tokens": used.tokens,
            "more_nano_usd": used.nano_usd,
        }
        for owner, used in sorted(spent.items())
        for period in compute_periods(now)
    ]
    if not rows:
        return
    names = ("tenant", "key_id", "period")
    connection.execute(
        build_insert_ignoring(connection, spending), [{name: row[name] for name in names} for row in rows]
    )
    this = sa.and_(*(spending.c[name] == sa.bindparam(f"of_{name}") for name in names))
    more = {
        "tokens": spending.c.tokens + sa.bindparam("more_tokens"),
        "nano_usd": spending.c.nano_usd + sa.bindparam("more_nano_usd"),
    }
    given = [{f"of_{name}" if name in names else name: value for name, value in row.items()} for row in rows]
    connection.execute(sa.update(spending).where(this).values(**more), given)


class TenantLimits(RowStore):
    """Reads and sets limits, weights and the places of the fleet. Thread-safe."""

    def list_limits(self, tenant: str) -> Sequence[LimitView]:
        """List the limits of a tenant and of its API keys."""
        wanted = sa.select(limits.c.key_id, limits.c.name, limits.c.value, limits.c.waits)
        rows = self.database.select(wanted.where(limits.c.tenant == tenant).order_by(limits.c.key_id, limits.c.name))
        return [LimitView(*row) for row in rows]

    def load_weight(self, tenant: str) -> float:
        found = self.database.select(sa.select(tenant_shares.c.weight).where(tenant_shares.c.tenant == tenant))
        return float(found.scalar() or 1.0)

    def set_limit(self, tenant: str, limit: Limit, *, key_id: str = "") -> None:
        self._write_limit(tenant, key_id, limit.name.value, limit.value, waits=limit.waits)

    def replace_limits(self, tenant: str, wanted: Sequence[Limit], *, key_id: str = "") -> None:
        """Replace all limits of a tenant, or of one of its keys, by ``wanted``. Idempotent."""
        this = (limits.c.tenant == tenant) & (limits.c.key_id == key_id)
        rows = [
            {"tenant": tenant, "key_id": key_id, "name": each.name.value, "value": each.value, "waits": int(each.waits)}
            for each in sorted(wanted, key=lambda each: each.name)
        ]
        with self.database.write() as connection:
            gone = connection.execute(sa.delete(limits).where(this).returning(*select_columns(limits, _SetLimit)))
            before: dict[str, object] = {row.name: row.value for row in fetch_rows(gone, _SetLimit)}
            if rows:
                connection.execute(sa.insert(limits), rows)
            after = {str(row["name"]): row["value"] for row in rows}
            record_action(connection, Act.LIMIT_SET, key_id or tenant, tenant=tenant, before=before, after=after)
        self.database.remembered.forget()

    def unset_limit(self, tenant: str, name: LimitName, *, key_id: str = "") -> None:
        """Remove a limit. Idempotent."""
        self._write_limit(tenant, key_id, name.value, None)

    def set_places(self, places: int | None) -> None:
        """Set how many runs may be at work at once in the whole fleet; ``None`` for as many as its workers can do."""
        self._write_limit(FLEET, "", PLACES, places)

    def set_weight(self, tenant: str, weight: float) -> None:
        with self.database.write() as connection:
            connection.execute(build_insert_ignoring(connection, tenant_shares).values(tenant=tenant))
            this = tenant_shares.c.tenant == tenant
            before = connection.execute(sa.select(tenant_shares.c.weight).where(this).with_for_update()).scalar_one()
            connection.execute(sa.update(tenant_shares).where(this).values(weight=weight))
            facts = {"before": {"weight": before}, "after": {"weight": weight}}
            record_action(connection, Act.LIMIT_SET, tenant, tenant=tenant, **facts)

    def _write_limit(self, tenant: str, key_id: str, name: str, value: int | None, *, waits: bool = False) -> None:
        this = (limits.c.tenant == tenant) & (limits.c.key_id == key_id) & (limits.c.name == name)
        with self.database.write() as connection:
            before = connection.execute(sa.delete(limits).where(this).returning(limits.c.value)).scalar()
            if value is not None:
                values = {"tenant": tenant, "key_id": key_id, "name": name, "value": value, "waits": int(waits)}
                connection.execute(sa.insert(limits).values(**values))
            facts = {"before": {name: before}, "after": {name: value, "waits": waits}}
            owner = None if tenant == FLEET else tenant
            record_action(connection, Act.LIMIT_SET, key_id or tenant, tenant=owner, **facts)
        self.database.remembered.forget()
