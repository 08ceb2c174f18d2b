"""The live worker processes, and the claims that each of them has at this moment.

Claims are found by their partial indexes, so a look costs what is at work and not what has ever been.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import StepKind
from hermes_worker.schemas.fleet import HeldStepObject, WorkerObject
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.tables import artifact_gatherings, deliveries, firings, hook_calls, runs, tool_calls, workers

HOLDINGS_MAX = 1_000
"""The most steps that are listed, the oldest of the fleet first; all are counted."""


class _WorkerRow(NamedTuple):
    pk: int
    queues: str
    worker_id: str
    name: str
    started_at: float
    expires_at: float
    version: str | None
    slots: int | None
    draining_at: float | None
    sandbox: str | None


_WORKERS = (
    sa.select(*select_columns(workers, _WorkerRow))
    .where(workers.c.state == "alive", workers.c.expires_at > db_now())
    .order_by(workers.c.pk)
)


def _is_claimed(table: sa.Table) -> sa.ColumnElement[bool]:
    return table.c.lease_owner.is_not(None)


_MODEL_STEPS = (
    sa.select(
        runs.c.lease_owner,
        runs.c.run_id,
        runs.c.tenant,
        runs.c.iteration,
        sa.null().label("position"),
        sa.null().label("tool"),
        runs.c.claimed_at,
    )
    .where(_is_claimed(runs))
    .order_by(runs.c.claimed_at)
    .limit(HOLDINGS_MAX)
)
_TOOL_STEPS = (
    sa.select(
        tool_calls.c.lease_owner,
        runs.c.run_id,
        runs.c.tenant,
        tool_calls.c.iteration,
        tool_calls.c.position,
        tool_calls.c.name.label("tool"),
        tool_calls.c.claimed_at,
    )
    .join(runs, runs.c.pk == tool_calls.c.run_pk)
    .where(_is_claimed(tool_calls))
    .order_by(tool_calls.c.claimed_at)
    .limit(HOLDINGS_MAX)
)
_COUNTED: tuple[tuple[StepKind, sa.Table], ...] = (
    ("model", runs),
    ("tool", tool_calls),
    ("delivery", deliveries),
    ("firing", firings),
    ("artifacts", artifact_gatherings),
    ("hook", hook_calls),
)


def load_workers(database: Database) -> list[WorkerObject]:
    """List the live workers of the whole installation, in the order in which they started. Raises
    ``UnavailableError``."""
    with database.snapshot() as connection:
        rows = fetch_rows(connection.execute(_WORKERS), _WorkerRow)
        counts = _count_claims(connection)
        steps = [*_load_steps(connection, "model", _MODEL_STEPS), *_load_steps(connection, "tool", _TOOL_STEPS)]
    steps.sort(key=lambda pair: pair[1].claimed_at)
    return [
        WorkerObject.from_record(
            row,
            queues=[name for name in row.queues.split(",") if name],
            held=dict(counts.get(row.pk, {})),
            steps=[step for owner, step in steps if owner == row.pk],
        )
        for row in rows
    ]


def _count_claims(connection: Connection) -> dict[int, Counter[StepKind]]:
    found: dict[int, Counter[StepKind]] = {}
    for kind, table in _COUNTED:
        counted = (
            sa.select(table.c.lease_owner, sa.func.count()).where(_is_claimed(table)).group_by(table.c.lease_owner)
        )
        for owner, count in connection.execute(counted):
            found.setdefault(int(owner), Counter())[kind] += int(count)
    return found


def _load_steps(connection: Connection, kind: StepKind, statement: sa.Select[Any]) -> list[tuple[int, HeldStepObject]]:
    found = map(dict, connection.execute(statement).mappings())
    return [(step.pop("lease_owner"), HeldStepObject(kind=kind, **step)) for step in found]
