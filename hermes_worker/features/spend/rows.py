"""The cost of runs, summed from their rows by day, model, tenant, job or session.

Each run counts once, on the day on which it was accepted, with what it used itself. A run that another run caused
counts for the job and the session in which its tree began, and otherwise for itself. Deleted runs and evaluations are
not in it. What is unknown is never zero: runs whose cost is not known in full are counted apart, and so is what their
calls may have cost beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import to_usd
from hermes_worker.core.messages import Usage
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.rows import to_usage
from hermes_worker.store.runs.listing import find_pk_near
from hermes_worker.store.tables import firings, jobs, runs, sessions

_DAY_S = 86_400
GROUPS_MAX = 1_000


class SpendBy(StrEnum):
    """The dimension by which costs are grouped."""

    DAY = "day"
    MODEL = "model"
    TENANT = "tenant"
    JOB = "job"
    SESSION = "session"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendQuery:
    """A query for costs: which runs, and how they are grouped. Times in epoch seconds."""

    by: SpendBy
    after: float
    """Accepted at this moment or later."""
    before: float
    """Accepted before this moment."""
    tenant: str | None
    """Only runs of this tenant; ``None`` for those of all tenants."""
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SpendRow:
    """The cost of the runs of one group."""

    key: str | None
    """A day (``2026-11-25``, UTC), a model, a tenant, the id of a job or of a session; ``None`` for runs without a
    job."""
    name: str | None
    """The name of a job; the title of a session, or how callers call it; ``None`` for other groups."""
    runs: int
    usage: Usage
    cost_usd: Decimal | None
    """The known cost; ``None`` when nothing is known."""
    doubtful_cost_usd: Decimal
    """US dollars that may have been billed beside the known cost, at most."""
    unknown_runs: int
    """Runs whose cost is not known in full."""
    unpriced_calls: int


class _SpendSums(NamedTuple):
    key: str | int | None
    """A day since 1970, a name, or the number of a row."""
    runs: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_tokens: int
    refused_attempts: int
    unknown_attempts: int
    unknown_input_tokens: int
    unknown_output_tokens: int
    cost_nano_usd: int
    doubtful_nano_usd: int
    unpriced_calls: int
    known_runs: int
    unknown_runs: int


_SUMMED = [name for name in _SpendSums._fields if name in runs.c]
# Whole days since 1970: both databases cut towards zero, and no run is older.
_day = sa.cast(sa.func.floor(runs.c.created_at / _DAY_S), sa.Integer())
_roots = runs.alias("roots")
_root_pk = sa.func.coalesce(runs.c.root_pk, runs.c.pk)
_KEYS: dict[SpendBy, sa.ColumnElement[Any]] = {
    SpendBy.DAY: _day,
    SpendBy.MODEL: runs.c.model,
    SpendBy.TENANT: runs.c.tenant,
    SpendBy.JOB: firings.c.job_pk,
    SpendBy.SESSION: sa.func.coalesce(_roots.c.session_pk, runs.c.session_pk),
}
"""The key of each grouping. A run that another run caused belongs to the job and the session in which its tree
began."""


def load_spend(database: Database, wanted: SpendQuery) -> list[SpendRow]:
    """Load the groups: days newest first, other groups by falling cost. Raises ``UnavailableError``."""
    with database.read() as connection:
        key = _KEYS[wanted.by]
        statement = sa.select(
            key.label("key"),
            sa.func.count().label("runs"),
            *(sa.cast(sa.func.sum(runs.c[name]), sa.BigInteger()).label(name) for name in _SUMMED),
            sa.func.count(sa.case((_is_priced, 1))).label("known_runs"),
            sa.func.count(sa.case((_is_unknown, 1))).label("unknown_runs"),
        )
        if wanted.by is SpendBy.JOB:
            statement = statement.outerjoin(firings, firings.c.run_pk == _root_pk)
        if wanted.by is SpendBy.SESSION:
            statement = statement.outerjoin(_roots, _roots.c.pk == _root_pk)
        if wanted.tenant is not None:
            statement = statement.where(is_of_tenant(wanted.tenant, runs))
        statement = statement.where(
            runs.c.pk >= find_pk_near(connection, wanted.after, is_after=True),
            runs.c.pk <= find_pk_near(connection, wanted.before, is_after=False),
            runs.c.created_at >= wanted.after,
            runs.c.created_at < wanted.before,
            runs.c.origin.is_distinct_from(EVALUATION_SOURCE),
        )
        cost = sa.func.sum(runs.c.cost_nano_usd).desc()
        order = [key.desc()] if wanted.by is SpendBy.DAY else [cost, key]
        found = connection.execute(statement.group_by(key).order_by(*order).limit(wanted.limit))
        sums = fetch_rows(found, _SpendSums)
        names = _load_names(connection, wanted.by, [row.key for row in sums if row.key is not None])
    return [_to_spend_row(row, *names.get(row.key, _format_plain_name(wanted.by, row.key))) for row in sums]


_is_priced = sa.or_(
    runs.c.cost_nano_usd > 0,
    runs.c.cost_status.in_([each.value for each in CostStatus if each is not CostStatus.UNKNOWN]),
)
_is_unknown = sa.or_(
    runs.c.cost_status == CostStatus.UNKNOWN.value,
    runs.c.doubtful_nano_usd > 0,
    runs.c.unpriced_calls > 0,
    runs.c.unknown_attempts > 0,
)


class _JobName(NamedTuple):
    pk: int
    job_id: str
    name: str


class _SessionName(NamedTuple):
    pk: int
    session_id: str
    session_name: str | None
    title: str | None


def _load_names(
    connection: Connection, by: SpendBy, pks: Sequence[str | int]
) -> dict[str | int | None, tuple[str | None, str | None]]:
    """Load the id and the name of jobs or sessions by row id."""
    if not pks:
        return {}
    if by is SpendBy.JOB:
        wanted = sa.select(jobs.c.pk, jobs.c.job_id, jobs.c.name).where(jobs.c.pk.in_(pks))
        return {row.pk: (row.job_id, row.name) for row in fetch_rows(connection.execute(wanted), _JobName)}
    if by is SpendBy.SESSION:
        labels = (sessions.c.pk, sessions.c.session_id, sessions.c.name.label("session_name"), sessions.c.title)
        named = connection.execute(sa.select(*labels).where(sessions.c.pk.in_(pks)))
        return {row.pk: (row.session_id, row.title or row.session_name) for row in fetch_rows(named, _SessionName)}
    return {}


def _format_plain_name(by: SpendBy, key: str | int | None) -> tuple[str | None, str | None]:
    if by is SpendBy.DAY:
        return datetime.fromtimestamp(int(key or 0) * _DAY_S, UTC).date().isoformat(), None
    return None if key is None or by in (SpendBy.JOB, SpendBy.SESSION) else str(key), None


def _to_spend_row(row: _SpendSums, key: str | None, name: str | None) -> SpendRow:
    return SpendRow(
        key=key,
        name=name,
        runs=row.runs,
        usage=to_usage(row),
        cost_usd=to_usd(row.cost_nano_usd) if row.known_runs else None,
        doubtful_cost_usd=to_usd(row.doubtful_nano_usd),
        unknown_runs=row.unknown_runs,
        unpriced_calls=row.unpriced_calls,
    )
