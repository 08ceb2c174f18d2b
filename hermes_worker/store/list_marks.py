"""Whether lists changed, without reading them: a mark of each list, which differs from an earlier one when rows of the
list were added, deleted or written in between.

A mark is made of the open rows and the newest rows of each kind: how many there are, the sum of their numbers and the
sum of their times. Sums notice a row whatever the order in which transactions commit; a maximum would not. No step
writes anything for it, and no index has to hold a time (``tables.runs``). One statement reads all marks. It costs the
open rows and a few hundred more, however many have ended. A change to a row that is neither open nor among the newest
is not noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import sqlalchemy as sa

from hermes_worker.core.list_kinds import ListKind, Marks
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import Prepared, Values
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    alerts,
    audit_log,
    channels,
    chat_people,
    deliveries,
    firings,
    jobs,
    key_states,
    runs,
    sessions,
    waits,
    workers,
)

NEWEST = 100
"""Newest rows of a kind that are looked at beside the open ones: a page of its list."""
_MARK_CHARS = 12


_Rows = sa.Select[int, int]
"""Select of a list's rows: the number of each, and its time."""


class _ListSums(NamedTuple):
    kind: str
    part: int
    rows: int
    numbers: int | None
    times: int | None


def load_marks(database: Database, tenant: str | None, kinds: Collection[ListKind] = tuple(ListKind)) -> Marks:
    """Compute the marks of a tenant's lists, or of the lists of all tenants for ``None``. Raises
    ``UnavailableError``."""
    wanted = tuple(kind for kind in ListKind if kind in kinds)
    with database.read() as connection:
        found = _build_statement(tenant, wanted, NEWEST).all(connection, {})
    texts: dict[str, list[str]] = {kind.value: [] for kind in wanted}
    for row in sorted(found, key=lambda row: (row.kind, row.part)):
        texts[row.kind].append(f"{row.rows} {row.numbers} {row.times}")
    return {
        kind: hashlib.sha256("\n".join(texts[kind.value]).encode("ascii")).hexdigest()[:_MARK_CHARS] for kind in wanted
    }


@lru_cache(maxsize=256)
def _build_statement(tenant: str | None, kinds: Sequence[ListKind], _newest: int) -> Prepared[Values, _ListSums]:
    """Build the statement once per tenant and kinds: building it at each look took most of the time."""
    parts = [_select_sums(kind, number, part) for kind in kinds for number, part in enumerate(_PARTS[kind](tenant))]
    return Prepared(sa.union_all(*parts), names=(), gives=_ListSums)


def _select_sums(kind: ListKind, number: int, part: _Rows) -> sa.Select[str, int, int, int, int]:
    rows = part.subquery()
    return sa.select(
        sa.literal(kind.value).label("kind"),
        sa.literal(number).label("part"),
        sa.func.count().label("rows"),
        sa.func.sum(rows.c.number).label("numbers"),
        sa.func.sum(rows.c.time).label("times"),
    )


def _sum_milliseconds(*columns: sa.ColumnElement[float]) -> sa.ColumnElement[int]:
    """Whole milliseconds: a sum of integers does not depend on the order of its parts."""
    total = sum((sa.func.coalesce(column, 0.0) for column in columns[1:]), sa.func.coalesce(columns[0], 0.0))
    return sa.cast(total * 1000, sa.BigInteger())


def _select_rows(table: sa.Table, time: sa.ColumnElement[int], tenant: str | None) -> _Rows:
    statement = sa.select(table.c.pk.label("number"), time.label("time"))
    return statement if tenant is None else statement.where(is_of_tenant(tenant, table))


def _select_newest(rows: _Rows, order: sa.ColumnElement[Any]) -> _Rows:
    return rows.order_by(order.desc()).limit(NEWEST)


def _select_runs(tenant: str | None) -> Sequence[_Rows]:
    # Two steps of a run may be in one millisecond.
    written = _select_rows(runs, _sum_milliseconds(runs.c.updated_at) + runs.c.event_seq, tenant)
    # A deletion by a person is in the audit log; rows that retention deletes are old, and no list is watched for that.
    return written.where(RUN_IS_OPEN), _select_newest(written, runs.c.pk), *_select_audit(tenant)


def _select_approvals(tenant: str | None) -> Sequence[_Rows]:
    asked = sa.select(waits.c.pk.label("number"), _sum_milliseconds(waits.c.closed_at).label("time"))
    if tenant is None:
        return asked.where(waits.c.closed_at.is_(None)), _select_newest(asked, waits.c.pk)
    # Read the newest waits of all tenants: there is no index that orders those of one tenant.
    newest = (
        sa.select(waits.c.pk, waits.c.run_pk, waits.c.closed_at).order_by(waits.c.pk.desc()).limit(NEWEST).subquery()
    )
    own = sa.select(newest.c.pk.label("number"), _sum_milliseconds(newest.c.closed_at).label("time"))
    is_own = is_of_tenant(tenant, runs)
    return (
        asked.join(runs, runs.c.pk == waits.c.run_pk).where(waits.c.closed_at.is_(None), is_own),
        own.join(runs, runs.c.pk == newest.c.run_pk).where(is_own),
    )


def _select_sessions(tenant: str | None) -> Sequence[_Rows]:
    # The newest of all tenants, as above. Changes of titles by people are in the audit log.
    last = sa.select(sessions.c.pk, sessions.c.tenant, sessions.c.archived_at, sessions.c.ended_at)
    newest = last.order_by(sessions.c.pk.desc()).limit(NEWEST).subquery()
    begun = sa.select(
        newest.c.pk.label("number"), _sum_milliseconds(newest.c.archived_at, newest.c.ended_at).label("time")
    )
    return begun if tenant is None else begun.where(newest.c.tenant == tenant), *_select_audit(tenant)


def _select_jobs(tenant: str | None) -> Sequence[_Rows]:
    ended = _sum_milliseconds(firings.c.settled_at, firings.c.ended_at).label("time")
    newest = sa.select(firings.c.pk, firings.c.job_pk, ended).order_by(firings.c.pk.desc()).limit(NEWEST).subquery()
    slots = sa.select(newest.c.pk.label("number"), newest.c.time)
    if tenant is not None:
        slots = slots.join(jobs, jobs.c.pk == newest.c.job_pk).where(is_of_tenant(tenant, jobs))
    written = _select_rows(jobs, _sum_milliseconds(jobs.c.updated_at), tenant).where(jobs.c.removed_at.is_(None))
    return written, slots, *_select_audit(tenant)


_JUST_SETTLED = sa.text("deliveries.settled_at is not null and deliveries.is_counted = 0")
"""Written as in its partial index: there is no index by time for all tenants."""


def _select_deliveries(tenant: str | None) -> Sequence[_Rows]:
    written = _select_rows(deliveries, _sum_milliseconds(deliveries.c.updated_at), tenant)
    if tenant is None:
        settled = _select_newest(written.where(_JUST_SETTLED), deliveries.c.pk)
    else:
        settled = _select_newest(written.where(deliveries.c.settled_at.is_not(None)), deliveries.c.settled_at)
    # A person who sends an old delivery again leaves an entry in the audit log.
    return _select_newest(written, deliveries.c.pk), settled, *_select_audit(tenant)


def _select_fleet(_tenant: str | None) -> Sequence[_Rows]:
    alive = _select_rows(
        workers, _sum_milliseconds(workers.c.draining_at) + sa.case((workers.c.sandbox.is_(None), 0), else_=1), None
    )
    told = _select_newest(_select_rows(alerts, _sum_milliseconds(alerts.c.recovered_at), None), alerts.c.pk)
    keys = sa.select(key_states.c.epoch.label("number"), _sum_milliseconds(key_states.c.since).label("time"))
    return alive.where(workers.c.state == "alive"), told, keys


def _select_gateway(_tenant: str | None) -> Sequence[_Rows]:
    # Few rows, all of them: a person who is refused leaves no other trace. The state of an account is written with each
    # look at its platform.
    found = _sum_milliseconds(channels.c.looked_at, channels.c.error_at, channels.c.locked_until).label("time")
    listens = sa.select(sa.case((channels.c.lease_token.is_(None), 0), else_=1).label("number"), found)
    let_in = _sum_milliseconds(chat_people.c.paired_at, chat_people.c.expires_at).label("time")
    return listens, sa.select(_sum_milliseconds(chat_people.c.asked_at).label("number"), let_in)


def _select_audit(tenant: str | None) -> Sequence[_Rows]:
    deeds = _select_rows(audit_log, sa.literal(0), None)
    if tenant is not None:
        deeds = deeds.where(audit_log.c.tenant == tenant)  # uses the index by tenant
    return (_select_newest(deeds, audit_log.c.pk),)


_PARTS = {
    ListKind.RUNS: _select_runs,
    ListKind.APPROVALS: _select_approvals,
    ListKind.SESSIONS: _select_sessions,
    ListKind.JOBS: _select_jobs,
    ListKind.DELIVERIES: _select_deliveries,
    ListKind.FLEET: _select_fleet,
    ListKind.AUDIT: _select_audit,
    ListKind.GATEWAY: _select_gateway,
}
