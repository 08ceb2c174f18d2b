"""The state of a fleet: the totals of its rows, and its open rows, read in one snapshot.

Every statement is led by a partial index of open rows, or reads a table of few rows (workers of the last day, jobs).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.store.backlog import QueueBacklog, read_backlog
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.runs.admission import PlacesReading, load_places
from hermes_worker.store.statistics import Totals, load_totals
from hermes_worker.store.tables import RUN_IS_OPEN, channels, deliveries, jobs, key_states, runs, waits, workers


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetReading:
    """The rows of all tenants, at one moment of the database's clock."""

    totals: Totals
    """Counters that only grow (``store.statistics``)."""
    backlog: tuple[QueueBacklog, ...]
    runs: Mapping[str, int]
    """Open runs, by status."""
    workers: Mapping[str, int]
    """Worker processes by state; those that are gone are counted for a day."""
    places: PlacesReading
    """The places of the fleet, where tenants share it."""
    waits: Mapping[str, int]
    """Open questions to people, by kind."""
    jobs: Mapping[str, int]
    """Jobs by state, without removed ones."""
    deliveries_put_off: int
    """Deliveries whose next attempt is not due yet."""
    keys: Mapping[str, int]
    """Provider keys that failed at some time, by condition."""
    gateway_accounts: Mapping[str, int]
    """Accounts of gateways, by state; those without a gateway are counted for a day."""
    job_overdue_s: float
    """Seconds for which the longest overdue job waits for a scheduler; 0 when none is due."""


def load_fleet(database: Database) -> FleetReading:
    """Read the state of the fleet. Raises ``UnavailableError``."""
    with database.snapshot() as connection:
        due_at, now = connection.execute(_MOST_OVERDUE).one()
        return FleetReading(
            totals=load_totals(connection),
            runs=_load_numbers(connection, _OPEN_RUNS),
            workers=_load_numbers(connection, _WORKERS),
            places=load_places(database, connection),
            waits=_load_numbers(connection, _OPEN_WAITS),
            jobs=_load_numbers(connection, _JOBS),
            keys=_load_numbers(connection, _KEYS),
            gateway_accounts=_load_numbers(connection, _GATEWAY_ACCOUNTS),
            deliveries_put_off=connection.execute(_PUT_OFF).scalar_one(),
            job_overdue_s=0.0 if due_at is None else max(0.0, now - due_at),
            backlog=tuple(read_backlog(database)),
        )


def _load_numbers(connection: Connection, statement: sa.Select[Any]) -> dict[str, int]:
    return {row[0]: row[1] for row in connection.execute(statement)}


_OPEN_RUNS = sa.select(runs.c.status, sa.func.count()).where(RUN_IS_OPEN).group_by(runs.c.status)
_WORKERS = sa.select(workers.c.state, sa.func.count()).group_by(workers.c.state)
_OPEN_WAITS = sa.select(waits.c.kind, sa.func.count()).where(waits.c.closed_at.is_(None)).group_by(waits.c.kind)
_JOBS = sa.select(jobs.c.state, sa.func.count()).where(jobs.c.removed_at.is_(None)).group_by(jobs.c.state)
_KEYS = sa.select(key_states.c.condition, sa.func.count()).group_by(key_states.c.condition)
_ACCOUNT_STATE = sa.case(
    (sa.func.coalesce(channels.c.lease_until, 0) <= db_now(), "unheld"),
    (channels.c.error.is_not(None), "failing"),
    else_="listening",
)
_GATEWAY_ACCOUNTS = (
    sa.select(_ACCOUNT_STATE, sa.func.count())
    .where(channels.c.mode != "webhook", channels.c.looked_at > db_now() - 86_400)
    .group_by(_ACCOUNT_STATE)
)
_PUT_OFF = (
    sa.select(sa.func.count())
    .select_from(deliveries)
    .where(deliveries.c.not_before.is_not(None), deliveries.c.is_preview == 0)
)
_MOST_OVERDUE = sa.select(
    sa.select(sa.func.min(jobs.c.next_fire_at)).where(jobs.c.next_fire_at.is_not(None)).scalar_subquery(), db_now()
)
