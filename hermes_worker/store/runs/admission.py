"""Give away the places of a fleet that tenants share.

Theory of operation. ``runs.place`` says where a run stands (``core.fair_share.FleetPlace``):

    NULL   shares nothing, or its cost is counted
    0      held: it could begin, and waits for a place
    1      waits for its session or for a time, and then for a place
    2      has a place
    3      a child: it works in the place of the run that it belongs to
    4      has ended, and its cost is not yet in its tenant's account

A run that shares the fleet is written as *held*: its session is free, and it waits for a place. A process that accepts
a run, or ends one, calls ``fill_places`` afterwards, in a transaction of its own; the sweeper does so as well. So a
process that dies in between costs time and nothing else. ``core.fair_share`` decides whose turn it is, from rows alone:
who is at work, who is held, and what the ended runs have cost. No counter goes up and down, so none can drift.

One process at a time gives places away: it locks the row ``*`` (``FLEET``) of ``tenant_shares``. The others do not wait
for that row. A process that finds it locked leaves the work to the holder, and the holder looks once more after letting
it go. This is why nothing is missed:

    A: lock *, decide, COMMIT  ...........  look again: is anything due?  -> finds what B wrote
    B:            write a held run, COMMIT, find * locked, go away

Every other row is taken with SKIP LOCKED, so this work never waits for the end of a run. A round also takes the costs
of ended runs (``place`` 4) into their tenants' accounts, in the same transaction that clears ``place``, so each run is
counted once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.fair_share import (
    USUAL_NANO_USD,
    Account,
    Admitted,
    FleetPlace,
    ShareSize,
    UsedByRun,
    admit_runs,
)
from hermes_worker.core.limits import LimitName, Spending, compute_room, parse_key_id, select_period_use
from hermes_worker.core.run import RunStatus
from hermes_worker.observe import count, log
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Nothing, Prepared, fetch_rows
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.rows import Hint, build_insert_ignoring
from hermes_worker.store.runs.inputs import CorruptInput
from hermes_worker.store.runs.limits import Limits, Owner, add_spending, get_limits, is_of_key, load_spending
from hermes_worker.store.runs.sharing import FLEET, get_fleet_places
from hermes_worker.store.runs.step_writer import activate, end_unreadable
from hermes_worker.store.tables import runs, sessions, tenant_shares

_ROUNDS_MAX = 8
_BATCH = 16
"""Runs that begin in one transaction."""
_ENDED_MAX = 500
_AT_WORK = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING_FOR_CHILDREN, RunStatus.STOPPING)
_PARKED = RunStatus.WAITING_FOR_CAPACITY
"""The other open states wait for people: such a run uses no place until somebody answers."""


class _HeldOf(NamedTuple):
    tenant: str | None
    held: int


class _CostRow(NamedTuple):
    tenant: str
    principal: str | None
    status: str
    tokens: int
    nano_usd: int
    iteration: int
    unpriced_calls: int


class _HeldRuns(NamedTuple):
    tenant: str
    runs: int
    created_at: float


class _PlacedRuns(NamedTuple):
    tenant: str
    status: str
    runs: int


class _TenantShareRow(NamedTuple):
    tenant: str
    weight: float
    virtual: float
    mean: float | None
    is_busy: int


class _WrittenShare(TypedDict):
    tenant: str
    virtual: float
    mean: float | None
    is_busy: int


class _FleetClock(NamedTuple):
    virtual: float
    mean: float | None
    now: float


class _WantedRuns(TypedDict):
    tenant: str
    most: int


class _HeldRun(NamedTuple):
    pk: int
    run_id: str
    principal: str | None
    status: str
    session_pk: int
    active_run_pk: int | None
    message_seq: int


class _AnyPlaces(NamedTuple):
    is_held: bool
    has_left: bool


_IS_HELD, _IS_AT_WORK, _HAS_LEFT = sa.text("place = 0"), sa.text("place = 2"), sa.text("place = 4")
"""Written as in the partial indexes, so that PostgreSQL uses those."""


def _select_held_tenants() -> sa.Select[tuple[str, int]]:
    """Select every tenant with a held run and how many it has, with one index probe per tenant."""
    first = sa.select(sa.func.min(runs.c.tenant).label("tenant")).where(_IS_HELD).cte("held_tenants", recursive=True)
    following = sa.select(sa.func.min(runs.c.tenant)).where(_IS_HELD, runs.c.tenant > first.c.tenant).scalar_subquery()
    names = first.union_all(sa.select(following).where(first.c.tenant.is_not(None)))
    few = sa.select(runs.c.pk).where(_IS_HELD, runs.c.tenant == names.c.tenant).limit(_BATCH).correlate(names)
    counted = sa.select(sa.func.count()).select_from(few.subquery()).scalar_subquery()
    return sa.select(names.c.tenant, counted.label("held")).where(names.c.tenant.is_not(None))


_nano = runs.c.cost_nano_usd + runs.c.doubtful_nano_usd
_tokens = sum(
    (
        runs.c[name]
        for name in (
            "output_tokens",
            "cache_read_tokens",
            "cache_write_tokens",
            "unknown_input_tokens",
            "unknown_output_tokens",
        )
    ),
    start=runs.c.input_tokens,
)
_USED = (
    runs.c.tenant,
    runs.c.principal,
    runs.c.status,
    _tokens.label("tokens"),
    _nano.label("nano_usd"),
    runs.c.iteration,
    runs.c.unpriced_calls,
)
_IS_ANY = Prepared(
    sa.select(
        sa.exists(sa.select(runs.c.pk).where(_IS_HELD)).label("is_held"),
        sa.exists(sa.select(runs.c.pk).where(_HAS_LEFT)).label("has_left"),
    ),
    gives=_AnyPlaces,
)
_HELD: Prepared[Nothing, _HeldOf] = Prepared(_select_held_tenants(), gives=_HeldOf)
_WORKING = Prepared(
    sa.select(*_USED).where(
        _IS_AT_WORK, sa.text(f"status in ({', '.join(repr(status.value) for status in (*_AT_WORK, _PARKED))})")
    ),
    gives=_CostRow,
)
_heads = (
    sa.select(runs.c.tenant, sa.func.count().label("runs"), sa.func.min(runs.c.pk).label("first"))
    .where(_IS_HELD)
    .group_by(runs.c.tenant)
    .subquery("heads")
)
_first = runs.alias("first")
_HELD_RUNS: Prepared[Nothing, _HeldRuns] = Prepared(
    sa.select(_heads.c.tenant, _heads.c.runs, _first.c.created_at).join(_first, _first.c.pk == _heads.c.first),
    gives=_HeldRuns,
)
_PLACED_RUNS: Prepared[Nothing, _PlacedRuns] = Prepared(
    sa.select(runs.c.tenant, runs.c.status, sa.func.count().label("runs"))
    .where(_IS_AT_WORK, sa.text(f"status in ({', '.join(repr(status.value) for status in (*_AT_WORK, _PARKED))})"))
    .group_by(runs.c.tenant, runs.c.status),
    gives=_PlacedRuns,
)
_SHARES = Prepared(
    sa.select(*(tenant_shares.c[name] for name in _TenantShareRow._fields)).where(tenant_shares.c.tenant != FLEET),
    gives=_TenantShareRow,
)
_is_fleet = tenant_shares.c.tenant == FLEET
_read_clock = sa.select(tenant_shares.c.virtual, tenant_shares.c.mean, db_now().label("now")).where(_is_fleet)
_READ_CLOCK = Prepared(_read_clock, gives=_FleetClock)
_TAKE_CLOCK = Prepared(_read_clock.with_for_update(skip_locked=True), gives=_FleetClock)
_WRITE_SHARE = Prepared(
    sa.update(tenant_shares)
    .where(tenant_shares.c.tenant == sa.bindparam("tenant"))
    .values(virtual=sa.bindparam("virtual"), mean=sa.bindparam("mean"), is_busy=sa.bindparam("is_busy")),
    takes=_WrittenShare,
)
_SETTLE = Prepared(
    sa.update(runs)
    .where(runs.c.pk.in_(sa.select(runs.c.pk).where(_HAS_LEFT).limit(_ENDED_MAX).with_for_update(skip_locked=True)))
    .values(place=None)
    .returning(*_USED),
    gives=_CostRow,
)
_next = (
    sa.select(
        runs.c.pk,
        runs.c.run_id,
        runs.c.principal,
        runs.c.status,
        runs.c.session_pk,
        sessions.c.active_run_pk,
        sessions.c.message_seq,
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(sa.text("runs.place = 0"), runs.c.tenant == sa.bindparam("tenant"))
    .order_by(runs.c.place_rank, runs.c.pk)
    .limit(sa.bindparam("most"))
    .with_for_update(skip_locked=True)
)
_NEXT = Prepared(_next, takes=_WantedRuns, gives=_HeldRun)
_this = runs.c.pk == sa.bindparam("run")
_TAKE_PLACE = Prepared(sa.update(runs).where(_this).values(place=FleetPlace.TAKEN.value), takes=RunKey)
_WAIT = Prepared(sa.update(runs).where(_this).values(place=FleetPlace.WAITS.value), takes=RunKey)


def fill_places(database: Database, *, expects_place: bool = False) -> list[Hint]:
    """Begin held runs for which there is a place, and return the hints to send. Call it after the end of a transaction
    that wrote a held run or ended one. Does not raise when the database is away: the sweeper does it again.

    With ``expects_place`` a place is given away at once; otherwise the function looks first whether there is any, which
    costs less where there is none.
    """
    hints: list[Hint] = []
    try:
        for number in range(_ROUNDS_MAX):
            if not (expects_place and number == 0) and not _is_anything_due(database):
                break
            begun = _fill_once(database)
            if begun is None:
                break  # another process holds the round and looks again when it is done
            hints += begun
    except UnavailableError as error:
        log.warning("places.put_off", error=str(error))
    return hints


def sweep_places(database: Database) -> list[Hint]:
    """Add what has ended to the tenants' accounts and begin held runs for which there is a place. Returns the hints to
    send; for the sweeper."""
    with database.read() as connection:
        found = _IS_ANY.one(connection, {})
    if not (found.is_held or found.has_left):
        return []
    return [*((_fill_once(database) or ()) if found.has_left else ()), *fill_places(database)]


def _is_anything_due(database: Database) -> bool:
    with database.read() as connection:
        held = _HELD.all(connection, {})
        if not held:
            return False
        clock = _READ_CLOCK.first(connection, {})
        return clock is None or bool(_decide(database, connection, held, clock, {}).admitted.tenants)


def _fill_once(database: Database) -> list[Hint] | None:
    """Give places away in one transaction, and return the hints to send; ``None`` when another process is doing it."""
    with database.write() as connection:
        clock = _TAKE_CLOCK.first(connection, {})
        if clock is None:
            made = (
                build_insert_ignoring(connection, tenant_shares).values(tenant=FLEET).returning(tenant_shares.c.tenant)
            )
            return None if connection.execute(made).first() is None else []
        ended = _settle_ended_runs(connection)
        decided = _decide(database, connection, _HELD.all(connection, {}), clock, ended)
        hints: list[Hint] = []
        busy_sessions: set[int] = set()
        given: Counter[ShareSize] = Counter()
        for tenant in dict.fromkeys(decided.admitted.tenants):
            most = decided.admitted.tenants.count(tenant)
            for candidate in _lock_next_runs(connection, tenant, most, decided.rooms.get(tenant, {})):
                begun = _begin_held(connection, candidate, busy_sessions)
                given[ShareSize.from_weight(decided.admitted.accounts[tenant].weight)] += bool(begun)
                hints += begun
        _write_decision(connection, decided, clock, ended)
    for share, number in given.items():
        count(f"places.given.{share}", number)
    return hints


def _lock_next_runs(connection: Connection, tenant: str, most: int, rooms: _KeyRooms) -> list[_HeldRun]:
    """Lock the tenant's held runs that begin next, at most as many of each API key as its limits leave room for."""
    if not rooms:
        return list(_NEXT.all(connection, {"tenant": tenant, "most": most}))
    full = [key_id for key_id, more in rooms.items() if more == 0]
    found = fetch_rows(
        connection.execute(_next.where(*_exclude_keys(full)), {"tenant": tenant, "most": most}), _HeldRun
    )
    left = dict(rooms)
    begins = []
    for candidate in found:
        key_id = parse_key_id(candidate.principal)
        if left.get(key_id, 1) > 0:
            begins.append(candidate)
            left[key_id] = left.get(key_id, most + 1) - 1
    return begins


def _exclude_keys(key_ids: Iterable[str]) -> list[sa.ColumnElement[bool]]:
    """The conditions that a run was submitted with none of these API keys."""
    return [sa.or_(runs.c.principal.is_(None), sa.not_(is_of_key(key_id))) for key_id in key_ids]


def _begin_held(connection: Connection, candidate: _HeldRun, busy_sessions: set[int]) -> list[Hint]:
    """Let a held run begin, whose row and session are locked. A run that cannot begin now is left to what lets it
    begin: the end of its session's active run, or the end of its pause."""
    is_free = candidate.active_run_pk is None and candidate.session_pk not in busy_sessions
    if not is_free or candidate.status != RunStatus.QUEUED.value:
        _WAIT.run(connection, {"run": candidate.pk})
        return []
    try:
        hint = activate(connection, candidate.session_pk, candidate.pk, candidate.run_id, candidate.message_seq)
    except CorruptInput as error:
        log.error("run.broken", run_id=candidate.run_id, error=str(error))
        return end_unreadable(connection, candidate.pk)
    busy_sessions.add(candidate.session_pk)
    _TAKE_PLACE.run(connection, {"run": candidate.pk})
    return [hint]


def _estimate_cost(row: _CostRow) -> float:
    return UsedByRun(
        tokens=int(row.tokens), nano_usd=int(row.nano_usd), calls=row.iteration, unpriced_calls=row.unpriced_calls
    ).cost


_Ended = Mapping[str, Sequence[_CostRow]]


def _settle_ended_runs(connection: Connection) -> _Ended:
    """Mark up to ``_ENDED_MAX`` ended runs as counted and return their costs by tenant. The caller adds them to the
    accounts in the same transaction."""
    found: dict[str, list[_CostRow]] = defaultdict(list)
    for row in _SETTLE.all(connection, {}):
        found[row.tenant].append(row)
    return found


def _list_costs(ended: Iterable[_CostRow]) -> list[float]:
    """The costs of ended runs, without runs that ended before they began: those say nothing about the next one."""
    return [cost for row in ended if (cost := _estimate_cost(row))]


_KeyRooms = Mapping[str, int]
"""For each API key with limits, how many more runs of it may begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decision:
    """The decision of one round: whose runs begin, and how much room the limits of API keys leave, by tenant."""

    admitted: Admitted
    rooms: Mapping[str, _KeyRooms]
    shares: Mapping[str, _TenantShareRow]
    """The rows of ``tenant_shares`` as they were read."""


def _decide(
    database: Database, connection: Connection, held: Sequence[_HeldOf], clock: _FleetClock, ended: _Ended
) -> _Decision:
    shares = {row.tenant: row for row in _SHARES.all(connection, {})}
    working: dict[str, list[_CostRow]] = defaultdict(list)
    for row in _WORKING.all(connection, {}):
        working[row.tenant].append(row)
    waiting = {row.tenant: int(row.held) for row in held if row.tenant is not None}
    busy = {tenant for tenant, share in shares.items() if share.is_busy}
    usual = USUAL_NANO_USD if clock.mean is None else clock.mean
    known = get_limits(connection, database.remembered)
    rooms: dict[str, dict[str, int]] = {}
    for owner in known:
        if owner.key_id and owner.tenant in waiting:
            share, rows = shares.get(owner.tenant), working.get(owner.tenant, ())
            found = _compute_key_room(connection, owner, known[owner], share, rows, clock.now, usual)
            if found is not None:
                rooms.setdefault(owner.tenant, {})[owner.key_id] = found
    waiting |= {tenant: _count_startable(connection, tenant, of_keys) for tenant, of_keys in rooms.items()}
    accounts = [
        _build_account(tenant, shares.get(tenant), waiting.get(tenant, 0), working.get(tenant, ())).charge(
            _list_costs(ended.get(tenant, ()))
        )
        for tenant in sorted({*waiting, *working, *busy, *ended})
    ]
    limited = _apply_limits(known, connection, accounts, working, clock.now, usual)
    places = get_fleet_places(connection, database)
    admitted = admit_runs(limited, places=places, clock=clock.virtual, usual=usual, most=_BATCH)
    return _Decision(admitted=admitted, rooms=rooms, shares=shares)


def _compute_key_room(
    connection: Connection,
    owner: Owner,
    limits: Limits,
    share: _TenantShareRow | None,
    of_tenant: Iterable[_CostRow],
    now: float,
    usual: float,
) -> int | None:
    """Compute how many more runs of an API key may begin; ``None`` when no limit of it bears on that."""
    rows = [row for row in of_tenant if parse_key_id(row.principal) == owner.key_id]
    spent = load_spending(connection, [owner.tenant], now) if any(name.is_spending for name in limits) else {}
    caps = _compute_caps(_build_account(owner.tenant, share, 0, rows), limits, spent.get(owner, {}), rows, now, usual)
    return max(0, min(caps.values()) - len(rows)) if caps else None


def _count_startable(connection: Connection, tenant: str, rooms: _KeyRooms) -> int:
    """Count the held runs of a tenant that the limits of its keys would let begin, up to the batch size."""
    held = sa.select(runs.c.pk).where(_IS_HELD, runs.c.tenant == tenant)
    few = [held.where(*_exclude_keys(rooms)).limit(_BATCH)]
    few += [held.where(is_of_key(key_id)).limit(min(more, _BATCH)) for key_id, more in rooms.items()]
    counted = [sa.select(sa.func.count()).select_from(each.subquery()) for each in few]
    return sum(int(connection.execute(each).scalar_one()) for each in counted)


def _apply_limits(
    known: Mapping[Owner, Limits],
    connection: Connection,
    accounts: Sequence[Account],
    working: Mapping[str, Sequence[_CostRow]],
    now: float,
    usual: float,
) -> list[Account]:
    """Return the accounts with how many runs their tenants may have at work, by the limits of their number and of
    spending."""
    of_tenants = {each.tenant: known.get(Owner(each.tenant), {}) for each in accounts}
    spenders = [tenant for tenant, found in of_tenants.items() if any(name.is_spending for name in found)]
    spent = load_spending(connection, spenders, now) if spenders else {}
    limited = []
    for each in accounts:
        rows = working.get(each.tenant, ())
        caps = _compute_caps(each, of_tenants[each.tenant], spent.get(Owner(each.tenant), {}), rows, now, usual)
        limited.append(replace(each, runs_max=min(caps.values(), default=None)))
    return limited


def _compute_caps(
    account: Account,
    limits: Limits,
    spent: Mapping[str, Spending],
    working: Sequence[_CostRow],
    now: float,
    usual: float,
) -> dict[LimitName, int]:
    """Compute how many runs at work each limit lets the tenant have. What a run is expected to spend is reserved for
    each run at work, and for the next."""
    each = Spending(
        tokens=max((int(row.tokens) for row in working), default=0), nano_usd=int(account.choose_expected_cost(usual))
    )
    reserved = Spending(
        tokens=len(working) * each.tokens, nano_usd=sum(max(each.nano_usd, int(row.nano_usd)) for row in working)
    )
    caps: dict[LimitName, int] = {}
    for name, limit in limits.items():
        if name is LimitName.RUNS:
            caps[name] = limit.value
        elif name.is_spending:
            more = compute_room(limit, select_period_use(limit, spent, now) + reserved, each)
            caps[name] = account.at_work + account.parked + more
    return caps


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldReason:
    """The reason that keeps a tenant's runs from beginning."""

    places: int
    """Runs that may be at work in the whole fleet."""
    at_work: int
    """Runs of the tenant at work, including those that wait for their provider."""
    limit: LimitName | None
    """The limit of the tenant or of the key that is reached; ``None`` when the fleet has no place."""
    key_id: str = ""
    """The id of the API key whose limit it is; empty when it is the tenant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareReading:
    """Counts of the runs of all tenants whose share has the same size."""

    held: int = 0
    at_work: int = 0
    """Runs with a place. Runs that wait for people are not among them until somebody answers."""
    parked: int = 0
    """Runs that wait for their provider: they use no place."""
    oldest_held_s: float = 0.0
    """Age in seconds of the held run that was submitted first; 0 when none is held."""

    def __add__(self, other: ShareReading) -> ShareReading:
        return ShareReading(
            held=self.held + other.held,
            at_work=self.at_work + other.at_work,
            parked=self.parked + other.parked,
            oldest_held_s=max(self.oldest_held_s, other.oldest_held_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacesReading:
    """Snapshot of how the places of the fleet are used."""

    places: int
    """Runs that may be at work in the whole fleet, where tenants share it."""
    shares: Mapping[ShareSize, ShareReading]


def load_places(database: Database, connection: Connection) -> PlacesReading:
    """Count the places in use and the held runs of all tenants at this moment, from two indexes and without locks.
    Raises ``UnavailableError``."""
    weights = {row.tenant: row.weight for row in _SHARES.all(connection, {})}
    now = connection.execute(sa.select(db_now())).scalar_one()
    found = dict.fromkeys(ShareSize, ShareReading())
    for held in _HELD_RUNS.all(connection, {}):
        since = max(0.0, now - held.created_at)
        found[ShareSize.from_weight(weights.get(held.tenant, 1.0))] += ShareReading(held=held.runs, oldest_held_s=since)
    for placed in _PLACED_RUNS.all(connection, {}):
        is_parked = placed.status == _PARKED.value
        number = {"parked" if is_parked else "at_work": placed.runs}
        found[ShareSize.from_weight(weights.get(placed.tenant, 1.0))] += ShareReading(**number)
    return PlacesReading(places=get_fleet_places(connection, database), shares=found)


def explain_held(database: Database, connection: Connection, tenant: str, principal: str | None = None) -> HoldReason:
    """Explain what keeps the held runs of a tenant from beginning at this moment; nothing is locked."""
    at_work = [row for row in _WORKING.all(connection, {}) if row.tenant == tenant]
    share = next((row for row in _SHARES.all(connection, {}) if row.tenant == tenant), None)
    clock = _READ_CLOCK.first(connection, {})
    known = get_limits(connection, database.remembered)
    usual = USUAL_NANO_USD if clock is None or clock.mean is None else clock.mean
    now = connection.execute(sa.select(db_now())).scalar_one() if clock is None else clock.now
    spent = load_spending(connection, [tenant], now)
    reached: list[tuple[LimitName, str]] = []
    for owner in dict.fromkeys((Owner(tenant), Owner(tenant, parse_key_id(principal)))):
        rows = [row for row in at_work if owner.key_id in ("", parse_key_id(row.principal))]
        account = _build_account(tenant, share, 1, rows)
        caps = _compute_caps(account, known.get(owner, {}), spent.get(owner, {}), rows, now, usual)
        reached += [(name, owner.key_id) for name, most in caps.items() if len(rows) >= most]
    limit, key_id = next(iter(reached), (None, ""))
    return HoldReason(places=get_fleet_places(connection, database), at_work=len(at_work), limit=limit, key_id=key_id)


def _build_account(tenant: str, share: _TenantShareRow | None, held: int, working: Iterable[_CostRow]) -> Account:
    found = list(working)
    account = Account(
        tenant=tenant,
        held=held,
        costs_so_far=tuple(_estimate_cost(row) for row in found if row.status != _PARKED.value),
        parked=sum(row.status == _PARKED.value for row in found),
    )
    if share is None:
        return account
    return replace(account, weight=share.weight, virtual=share.virtual, mean=share.mean, was_busy=bool(share.is_busy))


def _write_decision(connection: Connection, decided: _Decision, clock: _FleetClock, ended: _Ended) -> None:
    accounts = decided.admitted.accounts
    if new := sorted(accounts.keys() - decided.shares.keys()):
        connection.execute(build_insert_ignoring(connection, tenant_shares), [{"tenant": tenant} for tenant in new])
    usual = Account(tenant=FLEET, mean=clock.mean).charge(
        [cost for rows in ended.values() for cost in _list_costs(rows)]
    )
    rows: list[_WrittenShare] = [
        {"tenant": each.tenant, "virtual": each.virtual, "mean": each.mean, "is_busy": int(each.was_busy)}
        for each in accounts.values()
        if _is_changed(each, decided.shares.get(each.tenant))
    ]
    rows.append({"tenant": FLEET, "virtual": decided.admitted.clock, "mean": usual.mean, "is_busy": 0})
    _WRITE_SHARE.run_each(connection, rows)
    add_spending(connection, _sum_spending(ended), clock.now)


def _is_changed(account: Account, share: _TenantShareRow | None) -> bool:
    now = (account.virtual, account.mean, int(account.was_busy))
    return share is None or now != (share.virtual, share.mean, share.is_busy)


def _sum_spending(ended: _Ended) -> dict[Owner, Spending]:
    """Sum what ended runs used, by tenant and by API key."""
    found: dict[Owner, Spending] = {}
    for row in (row for rows in ended.values() for row in rows):
        for owner in dict.fromkeys((Owner(row.tenant), Owner(row.tenant, parse_key_id(row.principal)))):
            found[owner] = found.get(owner, Spending()) + Spending(tokens=int(row.tokens), nano_usd=int(row.nano_usd))
    return found
