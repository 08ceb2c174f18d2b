"""The family of a run, for people: its children with their goals, and the calls that were refused to runs below it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import to_usd
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.core.run_views import ChildView, RefusalView
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.engine.sealing import may_contain
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.runs.trees import BELOW
from hermes_worker.store.tables import events, run_inputs, runs

CHILDREN_SHOWN_MAX = 200
_REFUSALS_SHOWN_MAX = 50
_RUNS_AT_ONCE = 100
"""Runs whose events one statement reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyNews:
    """The news of a family since the last look."""

    children: Sequence[ChildView]
    """All of them, as ``Families.children``."""
    refusals: Sequence[RefusalView]
    """The new refusals, oldest first."""
    told: Mapping[int, int]
    """For each run below, by row id, the number of the last event that was looked at."""


class _ChildRow(NamedTuple):
    run_id: str
    child_index: int
    status: str
    cost_nano_usd: int
    cost_status: str | None
    spec: str


class _RefusalRow(NamedTuple):
    run_id: str
    seq: int
    data: str


class _NewRefusal(NamedTuple):
    """A new refusal; the fields are in the order by which refusals are sorted."""

    at: float
    pk: int
    seq: int
    run_id: str
    data: str


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
_REFUSED = '"refused_by"'
_MAY_BE_REFUSED = (events.c.event == RunEventName.TOOL_COMPLETED.value) & may_contain(events.c.data, f"%{_REFUSED}%")
"""Encrypted events cannot be searched in SQL: all of them are read, and the reader decides."""
_COMPLETED = (
    sa.select(events.c.at, runs.c.pk, events.c.seq, runs.c.run_id, events.c.data)
    .join(BELOW, BELOW.c.pk == runs.c.pk)
    .join(events, events.c.run_pk == runs.c.pk)
    .where(_MAY_BE_REFUSED)
    .order_by(events.c.at, runs.c.pk, events.c.seq)
    .limit(_REFUSALS_SHOWN_MAX)
)
_POSITIONS = sa.select(runs.c.pk, runs.c.event_seq).join(BELOW, BELOW.c.pk == runs.c.pk)


class Families(RowStore):
    """Reads what runs delegated. Thread-safe."""

    def list_children(self, run_id: str) -> list[ChildView]:
        """The children of a run, oldest first, at most ``CHILDREN_SHOWN_MAX``. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            rows = fetch_rows(connection.execute(_CHILDREN, {"run": find_run(connection, run_id)}), _ChildRow)
        return [_to_child_view(row) for row in rows]

    def list_refusals(self, run_id: str) -> list[RefusalView]:
        """Calls of runs below that were not allowed, oldest first, at most ``_REFUSALS_SHOWN_MAX``. Raises
        ``RunNotFound``."""
        with self.database.read() as connection:
            rows = _load_first_refusals(connection, find_run(connection, run_id))
        return [_to_refusal_view(_RefusalRow(run_id=row.run_id, seq=row.seq, data=row.data)) for row in rows]

    def load_news(self, run_id: str, told: Mapping[int, int]) -> FamilyNews:
        """Load the children of a run, and the calls refused since ``told``, which is empty at first and then the
        ``told`` of the last news. Events of runs in which nothing happened are not read. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            pk = {"run": find_run(connection, run_id)}
            children = [_to_child_view(row) for row in fetch_rows(connection.execute(_CHILDREN, pk), _ChildRow)]
            if not children:
                return FamilyNews(children=(), refusals=(), told={})
            now = {run_pk: int(event_seq) for run_pk, event_seq in connection.execute(_POSITIONS, pk)}
            spans = [(run, told.get(run, 0), seq) for run, seq in now.items() if seq > told.get(run, 0)]
            rows = [
                row
                for start in range(0, len(spans), _RUNS_AT_ONCE)
                for row in fetch_rows(
                    connection.execute(_select_refusals(spans[start : start + _RUNS_AT_ONCE])), _NewRefusal
                )
            ]
        refused = [
            _to_refusal_view(_RefusalRow(run_id=row.run_id, seq=row.seq, data=row.data))
            for row in sorted(rows)
            if _REFUSED in row.data
        ]
        return FamilyNews(children=children, refusals=refused, told=now)


def _load_first_refusals(connection: Connection, pk: int) -> list[_NewRefusal]:
    found: list[_NewRefusal] = []
    statement = _COMPLETED
    while len(found) < _REFUSALS_SHOWN_MAX:
        page = fetch_rows(connection.execute(statement, {"run": pk}), _NewRefusal)
        found += [row for row in page if _REFUSED in row.data]
        if len(page) < _REFUSALS_SHOWN_MAX:
            break
        last = page[-1]
        place = sa.tuple_(events.c.at, runs.c.pk, events.c.seq)
        statement = _COMPLETED.where(place > sa.tuple_(sa.literal(last.at, sa.Double()), last.pk, last.seq))
    return found[:_REFUSALS_SHOWN_MAX]


def _select_refusals(spans: Sequence[tuple[int, int, int]]) -> sa.Select[Any]:
    """Select the refused calls of several runs, of each after one event number and up to another."""
    places = [(events.c.run_pk == run) & (events.c.seq > after) & (events.c.seq <= to) for run, after, to in spans]
    return (
        sa.select(events.c.at, runs.c.pk, events.c.seq, runs.c.run_id, events.c.data)
        .join(runs, runs.c.pk == events.c.run_pk)
        .where(_MAY_BE_REFUSED, sa.or_(*places))
    )


def _to_child_view(row: _ChildRow) -> ChildView:
    return ChildView(
        run_id=row.run_id,
        index=row.child_index,
        status=RunStatus(row.status),
        goal=_read_first_line(json.loads(row.spec).get("input")),
        cost_usd=to_usd(row.cost_nano_usd) if row.cost_status else None,
        cost_status=CostStatus(row.cost_status) if row.cost_status else None,
    )


def _read_first_line(said: object) -> str:
    return said.strip().partition("\n")[0] if isinstance(said, str) else ""


def _to_refusal_view(row: _RefusalRow) -> RefusalView:
    data = json.loads(row.data)
    return RefusalView(
        run_id=row.run_id,
        seq=row.seq,
        tool=str(data.get("tool")),
        refused_by=str(data.get("refused_by")),
        reason=str(data.get("reason")),
    )
