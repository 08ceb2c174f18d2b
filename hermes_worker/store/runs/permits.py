"""Permits for model calls, where a tenant or an API key has a limit of model calls in flight, or of tokens or money.

Theory of operation. The claim of a step stays one statement on one row. Only a tenant with such a limit pays for a
second look: after the claim, ``require_permit`` locks the tenant's rows in ``limits``, reads the calls in flight, and
``core.limits`` decides. A call is permitted while fewer calls are in flight than the limit allows, and while three sums
fit together: what is spent, what the calls in flight are expected to take, and what this call is expected to take. A
refused call gives its claim up and waits as a row (invariant I8).

``runs.permit`` has four kinds of value:

    NULL                    no permit was ever wanted, or it has been taken off
    a lease token           the claim with that token has a permit; it is worthless once the claim is another
    ``WAITS_FOR_PERMIT``    the call was refused; the run is parked
    ``_GRANTED``            the run was parked and is due again: it counts as in flight, and its next claim asks again

So a permit ends with its claim, however that ends, and no permit can leak: a dead worker's token is replaced by the
sweeper. Ended permits are taken off in batches, when there are more than ``_ENDED_KEPT``.

The process that ends a call looks afterwards which parked runs may go on (``pass_permits_on``), in a transaction of its
own. If it dies before that, the sweeper does it, and so does it notice a limit that was raised, or a period that began.
The lock on the tenant's limits makes decisions follow one another; tenants without such limits take no lock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.limits import (
    CallsNow,
    Limit,
    LimitName,
    Spending,
    compute_period_left_s,
    explain_refusal,
    find_refusing_limit,
    parse_key_id,
    select_period_use,
)
from hermes_worker.core.run import RunStatus
from hermes_worker.core.step import apply_event
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Nothing, Prepared, fetch_rows, select_columns
from hermes_worker.store.rows import Hint, LoadedRun, lock_run
from hermes_worker.store.runs.limits import NANO_USD, TOKENS, Owner, fetch_limits, load_spending
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import limits, runs, tool_calls

WAITS_FOR_PERMIT = "waits"
"""Value of ``runs.permit``: the run's next call waits for a permit."""
_GRANTED = "granted"
"""Value of ``runs.permit``: the run's next call may have one, and the run is due again. Any other text is the token of
a claim that has a permit."""
_LOOK_AGAIN_S = 60.0
"""Seconds after which a call that waits for other calls is tried again, in case no process passed a permit on."""
_BATCH = 50
_ENDED_KEPT = 20
"""How many runs may keep a permit whose claim has ended: taking it off costs a write, and reading it costs nothing."""
_NAMES = [name.value for name in LimitName if name.is_of_calls]


class _PermitRow(NamedTuple):
    pk: int
    principal: str | None
    permit: str | None
    tokens: int
    nano_usd: int
    iteration: int


class _FoundCall(NamedTuple):
    what: str
    now: float
    pk: int
    principal: str | None
    permit: str | None
    tokens: int
    nano_usd: int
    iteration: int

    @property
    def row(self) -> _PermitRow:
        return _PermitRow(*self[2:])


class _OfTenant(TypedDict):
    tenant: str


class _Asking(TypedDict):
    tenant: str
    pk: int


class _Marking(TypedDict):
    of_pk: int
    is_permit: str


class _Sums(NamedTuple):
    tokens: int
    nano_usd: int
    calls: int


class _LockedLimit(NamedTuple):
    key_id: str
    name: str
    value: int
    waits: int


class _WaitingTenant(NamedTuple):
    tenant: str


def _make_literal(text: str) -> sa.ColumnElement[str]:
    return sa.literal_column(f"'{text}'", sa.String)


_COLUMNS = (
    runs.c.pk,
    runs.c.principal,
    runs.c.permit,
    TOKENS.label("tokens"),
    NANO_USD.label("nano_usd"),
    runs.c.iteration,
)
_ASKS, _IN_FLIGHT, _ENDED = "asks", "in flight", "ended"
_has_permit = sa.text("permit is not null")
"""Written as in the partial index, so that PostgreSQL uses that."""
_is_in_flight = sa.or_(
    runs.c.lease_token == runs.c.permit, sa.and_(runs.c.permit == _GRANTED, runs.c.hinted_at.is_not(None))
)
_is_waiting = sa.and_(runs.c.permit == WAITS_FOR_PERMIT, runs.c.status == RunStatus.WAITING_FOR_CAPACITY.value)
_TENANTS_WAITING: Prepared[Nothing, _WaitingTenant] = Prepared(
    sa.select(runs.c.tenant).where(_has_permit, _is_waiting).distinct().limit(_BATCH), gives=_WaitingTenant
)
_LIMITS: Prepared[_OfTenant, _LockedLimit] = Prepared(
    sa.select(*select_columns(limits, _LockedLimit))
    .where(limits.c.tenant == sa.bindparam("tenant"), limits.c.name.in_([_make_literal(name) for name in _NAMES]))
    .order_by(limits.c.key_id, limits.c.name)
    .with_for_update(),
    takes=_OfTenant,
    gives=_LockedLimit,
)
_MARK = Prepared(
    sa.update(runs).where(runs.c.pk == sa.bindparam("of_pk")).values(permit=sa.bindparam("is_permit")), takes=_Marking
)


def _select_calls(what: sa.ColumnElement[str], columns: Sequence[sa.ColumnElement[Any]]) -> sa.Select[Any]:
    return sa.select(what.label("what"), db_now().label("now"), *columns)


def _select_counted_calls() -> sa.CompoundSelect[Any]:
    """Select the run that asks, the other runs of its tenant that have or had a permit, and the tenant's auxiliary
    calls in flight. Auxiliary calls count and never wait, because a tool waits for them."""
    tenant: sa.BindParameter[str] = sa.bindparam("tenant")
    pk: sa.BindParameter[int] = sa.bindparam("pk")
    asks, in_flight, ended = map(_make_literal, (_ASKS, _IN_FLIGHT, _ENDED))
    what = sa.case((_is_in_flight, in_flight), else_=ended)
    nothing: Iterator[sa.Label[Any]] = (
        sa.literal_column("0").label(name) for name in ("tokens", "nano_usd", "iteration")
    )
    auxiliary = _select_calls(in_flight, [runs.c.pk, runs.c.principal, runs.c.permit, *nothing])
    return sa.union_all(
        _select_calls(asks, _COLUMNS).where(runs.c.pk == pk),
        _select_calls(what, _COLUMNS).where(
            _has_permit, sa.not_(_is_waiting), runs.c.tenant == tenant, runs.c.pk != pk
        ),
        auxiliary.join(tool_calls, tool_calls.c.run_pk == runs.c.pk).where(
            tool_calls.c.lease_owner.is_not(None), tool_calls.c.asks == 1, runs.c.tenant == tenant
        ),
    )


_CALLS: Prepared[_Asking, _FoundCall] = Prepared(_select_counted_calls(), takes=_Asking, gives=_FoundCall)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TenantCalls:
    """The model calls of a tenant, as read under the lock on its limits."""

    tenant: str
    limits: Mapping[Owner, Mapping[LimitName, Limit]]
    now: float
    asking: _PermitRow | None
    """The run that wants a permit."""
    in_flight: Sequence[_PermitRow]
    spent: Mapping[Owner, Mapping[str, Spending]]
    at_work: Mapping[Owner, _Sums]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refusal:
    """Why a run gets no permit."""

    owner: Owner
    limit: Limit
    used: Spending
    """Tokens or money that count against the limit."""
    expected: Spending
    """Tokens or money that the refused call is expected to take."""


def require_permit(database: Database, loaded: LoadedRun, tenant: str) -> bool:
    """Whether the model call that ``loaded`` was just claimed for may be made now. When it returns False, the claim was
    given up and the run waits."""
    if not has_limits(database, tenant):
        return True
    with database.write() as connection:
        known = _lock_limits(connection, tenant)
        if not known:
            return True
        calls = _load_calls(connection, tenant, known, asks=loaded.pk)
        refused = _find_refusal(calls, calls.asking, calls.in_flight) if calls.asking is not None else None
        if refused is None:
            _mark(connection, loaded.pk, str(loaded.lease_token))
            return True
        return _park(connection, loaded, refused, now=calls.now)


def pass_permits_on(database: Database, tenant: str) -> list[Hint]:
    """Let parked calls of a tenant go on for which there is a permit now. Returns the hints to send. Call it after the
    end of a transaction that ended a call."""
    is_any = sa.select(runs.c.pk).where(_has_permit, _is_waiting, runs.c.tenant == tenant).limit(1)
    if database.select(is_any).first() is None:
        return []
    with database.write() as connection:
        known = _lock_limits(connection, tenant)
        calls = _load_calls(connection, tenant, known)
        waiting = sa.select(*_COLUMNS).where(_has_permit, _is_waiting, runs.c.tenant == tenant)
        # Older chains come first, as in the governor.
        oldest = sa.func.coalesce(runs.c.root_pk, runs.c.pk), runs.c.pk
        found = waiting.order_by(*oldest).limit(_BATCH).with_for_update(skip_locked=True)
        in_flight = list(calls.in_flight)
        hints: list[Hint] = []
        for row in fetch_rows(connection.execute(found), _PermitRow):
            if _find_refusal(calls, row, in_flight) is None:
                hints += _resume(connection, row.pk)
                in_flight.append(row)
        return hints


def sweep_permits(database: Database) -> list[Hint]:
    """Let parked calls of every tenant go on for which there is a permit now. Returns the hints to send; for the
    sweeper."""
    with database.read() as connection:
        tenants = [row.tenant for row in _TENANTS_WAITING.all(connection, {})]
    return [hint for tenant in tenants for hint in pass_permits_on(database, tenant)]


def has_limits(database: Database, tenant: str | None = None) -> bool:
    """Whether model calls of ``tenant`` need permits; without ``tenant``, whether any tenant's do. At most half a
    second old."""
    known = fetch_limits(database)
    theirs = (of_owner for owner, of_owner in known.items() if tenant in (None, owner.tenant))
    return any(name.is_of_calls for of_owner in theirs for name in of_owner)


def _lock_limits(connection: Connection, tenant: str) -> dict[Owner, dict[LimitName, Limit]]:
    found: dict[Owner, dict[LimitName, Limit]] = {}
    for row in _LIMITS.all(connection, {"tenant": tenant}):
        limit = Limit(name=LimitName(row.name), value=row.value, waits=bool(row.waits))
        found.setdefault(Owner(tenant, row.key_id), {})[limit.name] = limit
    return found


def _load_calls(
    connection: Connection, tenant: str, known: Mapping[Owner, Mapping[LimitName, Limit]], *, asks: int = 0
) -> _TenantCalls:
    """Read the tenant's calls under the lock. ``asks`` is the ``pk`` of the run that wants a permit."""
    found = _CALLS.all(connection, {"tenant": tenant, "pk": asks})
    by_kind: dict[str, list[_PermitRow]] = {}
    for call in found:
        by_kind.setdefault(call.what, []).append(call.row)
    if len(by_kind.get(_ENDED, ())) > _ENDED_KEPT:
        _remove_ended_permits(connection, tenant)
    now = found[0].now if found else connection.execute(sa.select(db_now())).scalar_one()
    spenders = [owner for owner, of_owner in known.items() if any(name.is_spending for name in of_owner)]
    return _TenantCalls(
        tenant=tenant,
        limits=known,
        now=now,
        asking=next(iter(by_kind.get(_ASKS, ())), None),
        in_flight=by_kind.get(_IN_FLIGHT, []),
        spent=load_spending(connection, [tenant], now) if spenders else {},
        at_work={owner: sum_open_usage(connection, owner) for owner in spenders},
    )


def _remove_ended_permits(connection: Connection, tenant: str) -> None:
    """Take permits off runs whose claim has ended. Rows that another process has locked are skipped."""
    is_over = sa.not_(sa.or_(_is_in_flight, _is_waiting))
    ended = sa.select(runs.c.pk).where(_has_permit, runs.c.tenant == tenant, sa.func.coalesce(is_over, sa.true()))
    few = ended.limit(_BATCH).with_for_update(skip_locked=True)
    connection.execute(sa.update(runs).where(runs.c.pk.in_(few)).values(permit=None))


def holds_for_spending(connection: Connection, owner: Owner, now: float) -> bool:
    """Whether a run waits for a new period, because what it may spend in this one does not suffice for its next call. A
    run that waits for other calls looks again sooner."""
    waits = sa.select(runs.c.pk).where(_has_permit, _is_waiting, owner.has_run, runs.c.resume_at > now + _LOOK_AGAIN_S)
    return connection.execute(waits.limit(1)).first() is not None


def sum_open_usage(connection: Connection, owner: Owner) -> _Sums:
    """Sum what the runs of a tenant or a key used that are not yet in its account."""
    used = (TOKENS.label("tokens"), NANO_USD.label("nano_usd"), runs.c.iteration.label("calls"))
    places = ("place = 2", "place = 3", "place = 4")  # each has its partial index
    each = sa.union_all(*(sa.select(*used).where(sa.text(place), owner.has_run) for place in places)).subquery()
    sums = (sa.func.coalesce(sa.func.sum(each.c[name]), 0) for name in _Sums._fields)
    return _Sums(*(int(value) for value in connection.execute(sa.select(*sums)).one()))


def _find_refusal(calls: _TenantCalls, row: _PermitRow, in_flight: Sequence[_PermitRow]) -> _Refusal | None:
    """Find the limit that refuses the next call of a run; ``None`` when it is permitted."""
    for owner in dict.fromkeys((Owner(calls.tenant), Owner(calls.tenant, parse_key_id(row.principal)))):
        found = calls.limits.get(owner)
        if not found:
            continue
        theirs = [each for each in in_flight if owner.key_id in ("", parse_key_id(each.principal))]
        sums = calls.at_work.get(owner, _Sums(0, 0, 0))
        taking = sum((_estimate_next_call(each, sums) for each in theirs), start=Spending())
        now_used = CallsNow(
            in_flight=len(theirs),
            used=Spending(tokens=sums.tokens, nano_usd=sums.nano_usd) + taking,
            by_period=calls.spent.get(owner, {}),
        )
        expected = _estimate_next_call(row, sums)
        limit = find_refusing_limit(found, now_used, expected, calls.now)
        if limit is not None:
            used = select_period_use(limit, now_used.by_period, calls.now) + now_used.used
            return _Refusal(owner=owner, limit=limit, used=used, expected=expected)
    return None


def _estimate_next_call(row: _PermitRow, sums: _Sums) -> Spending:
    """Estimate what the run's next call takes: the average of its own calls, or, before its first one, of the tenant's
    other calls."""
    tokens, nano, calls = (
        (row.tokens, row.nano_usd, row.iteration) if row.iteration else (sums.tokens, sums.nano_usd, sums.calls)
    )
    return Spending(tokens=int(tokens) // max(1, calls), nano_usd=int(nano) // max(1, calls))


def _park(connection: Connection, loaded: LoadedRun, refused: _Refusal, *, now: float) -> bool:
    owner, limit = refused.owner, refused.limit
    whose = f"the key {owner.key_id}" if owner.key_id else f"the tenant {owner.tenant!r}"
    reason = explain_refusal(limit, whose, refused.used, refused.expected)
    wait_s = compute_period_left_s(limit.name, now) if limit.name.is_spending else _LOOK_AGAIN_S
    event = ev.CapacityAwaited(
        resume_at=now + wait_s, recovery=loaded.run.recovery or "", memory=loaded.run.memory, reason=reason
    )
    save_step(connection, loaded, apply_event(loaded.run, event), StepOutput(waits_for=reason, is_of_holder=True))
    _mark(connection, loaded.pk, WAITS_FOR_PERMIT)
    return False


def _resume(connection: Connection, pk: int) -> list[Hint]:
    loaded = lock_run(connection, pk)
    if loaded is None or loaded.run.status is not RunStatus.WAITING_FOR_CAPACITY:
        return []
    _mark(connection, pk, _GRANTED)
    return save_step(connection, loaded, apply_event(loaded.run, ev.WaitEnded()))


def _mark(connection: Connection, pk: int, permit: str) -> None:
    _MARK.run(connection, {"of_pk": pk, "is_permit": permit})
