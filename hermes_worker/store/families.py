"""What a run delegated, for people: its children with their goals, and what was refused to any run below it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa

from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.store.database import Database
from hermes_worker.store.runs import find
from hermes_worker.store.tables import events, run_inputs, runs

CHILDREN_SHOWN_MAX = 200
_REFUSALS_SHOWN_MAX = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child run."""

    run_id: str
    index: int
    """Which task of its call, from 0."""
    status: RunStatus
    goal: str
    """The first line of what it was asked."""
    cost_usd: Decimal | None
    """Of itself; ``None`` before its first reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalView:
    """A call of a run below that was not allowed."""

    run_id: str
    seq: int
    """Number of the event in its run."""
    tool: str
    refused_by: str
    reason: str


_CHILDREN = (
    sa.select(
        runs.c.run_id,
        runs.c.child_index,
        runs.c.status,
        runs.c.cost_nano_usd,
        runs.c.cost_status,
        run_inputs.c.spec,
    )
    .join(run_inputs, run_inputs.c.run_pk == runs.c.pk)
    .where(runs.c.parent_pk == sa.bindparam("run"))
    .order_by(runs.c.pk)
    .limit(CHILDREN_SHOWN_MAX)
)
_below = sa.select(runs.c.pk).where(runs.c.parent_pk == sa.bindparam("run")).cte("below", recursive=True)
_deeper = runs.alias("deeper")
_below = _below.union_all(sa.select(_deeper.c.pk).join(_below, _deeper.c.parent_pk == _below.c.pk))
_REFUSALS = (
    sa.select(runs.c.run_id, events.c.seq, events.c.data)
    .join(_below, _below.c.pk == runs.c.pk)
    .join(events, events.c.run_pk == runs.c.pk)
    .where(events.c.event == RunEventName.TOOL_COMPLETED.value, events.c.data.like('%"refused_by"%'))
    .order_by(events.c.at, runs.c.pk, events.c.seq)
    .limit(_REFUSALS_SHOWN_MAX)
)


class Families:
    """Reads what runs delegated. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def children(self, run_id: str) -> list[ChildView]:
        """The children of a run, oldest first, at most ``CHILDREN_SHOWN_MAX``. Raises ``RunNotFound``."""
        with self._database.read() as connection:
            rows = connection.execute(_CHILDREN, {"run": find(connection, run_id)}).all()
        return [_child(row) for row in rows]

    def refusals(self, run_id: str) -> list[RefusalView]:
        """Calls of runs below that were not allowed, oldest first. Raises ``RunNotFound``."""
        with self._database.read() as connection:
            rows = connection.execute(_REFUSALS, {"run": find(connection, run_id)}).all()
        return [_refusal(row) for row in rows]


def _child(row: Any) -> ChildView:
    return ChildView(
        run_id=row.run_id,
        index=row.child_index,
        status=RunStatus(row.status),
        goal=_first_line(json.loads(row.spec).get("input")),
        cost_usd=Decimal(row.cost_nano_usd).scaleb(-9) if row.cost_status else None,
    )


def _first_line(said: Any) -> str:
    return said.strip().partition("\n")[0] if isinstance(said, str) else ""


def _refusal(row: Any) -> RefusalView:
    data = json.loads(row.data)
    return RefusalView(
        run_id=row.run_id,
        seq=row.seq,
        tool=str(data.get("tool")),
        refused_by=str(data.get("refused_by")),
        reason=str(data.get("reason")),
    )
