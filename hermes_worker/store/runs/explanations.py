"""Load the facts around a run for ``core.explanations``: in one snapshot, and few of them. Counts stop where a larger
number would say no more."""

from __future__ import annotations

import json
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.client_tools import IS_CLIENTS
from hermes_worker.core.explanations import (
    AHEAD_COUNTED_MAX,
    Explanation,
    HolderFacts,
    QuestionFacts,
    RunFacts,
    TaskFacts,
    explain_run,
    find_queue,
    is_step_suspect,
)
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.run import WaitKind
from hermes_worker.core.status_reason import MODEL_QUEUE, StandingFacts
from hermes_worker.store.engine.database import Database, RowStore
from hermes_worker.store.engine.prepared import fetch_one, fetch_rows
from hermes_worker.store.rows import CALL_OF_WAIT
from hermes_worker.store.runs.admission import explain_held
from hermes_worker.store.runs.permits import WAITS_FOR_PERMIT
from hermes_worker.store.runs.status_reasons import load_facts
from hermes_worker.store.tables import deliveries, firings, hook_calls, runs, tool_calls, waits, workers

_parent = runs.alias("parent")
_sibling = runs.alias("sibling")


class _AroundRow(NamedTuple):
    tenant: str
    principal: str | None
    permit: str | None
    place: int | None
    place_rank: int | None
    exit_reason: str | None
    failure_message: str | None
    deadline_at: float | None
    exhausted: str | None
    child_index: int | None
    siblings: int
    parent_ended_at: float | None
    hooks_owed: int
    deliveries_open: int


class _HoldingRow(NamedTuple):
    name: str
    claimed_at: float | None
    expires_at: float
    state: str


class _WaitingQuestion(NamedTuple):
    pk: int
    kind: str
    name: str
    opened_at: float
    expires_at: float | None
    request: str


_SIBLINGS = (
    sa.select(sa.func.count())
    .where(
        _sibling.c.parent_pk == runs.c.parent_pk,
        _sibling.c.parent_iteration == runs.c.parent_iteration,
        _sibling.c.parent_position == runs.c.parent_position,
    )
    .correlate(runs)
    .scalar_subquery()
)
_IS_LEFT_ALONE = sa.and_(
    _parent.c.status.in_(("completed", "failed", "cancelled", "expired", "stopping")),
    # As the sweeper finds orphans (``store.runs.children``).
    sa.or_(runs.c.is_background == 0, _parent.c.status.in_(("cancelled", "stopping"))),
)
_AROUND = (
    sa.select(
        runs.c.tenant,
        runs.c.principal,
        runs.c.permit,
        runs.c.place,
        runs.c.place_rank,
        runs.c.exit_reason,
        runs.c.failure_message,
        runs.c.deadline_at,
        runs.c.exhausted,
        runs.c.child_index,
        sa.case((runs.c.parent_pk.is_(None), 0), else_=_SIBLINGS).label("siblings"),
        sa.case((_IS_LEFT_ALONE, sa.func.coalesce(_parent.c.finished_at, _parent.c.updated_at))).label(
            "parent_ended_at"
        ),
        sa.select(sa.func.count())
        .where(hook_calls.c.run_pk == runs.c.pk, hook_calls.c.settled_at.is_(None))
        .correlate(runs)
        .scalar_subquery()
        .label("hooks_owed"),
        sa.select(sa.func.count())
        .where(deliveries.c.run_pk == runs.c.pk, deliveries.c.settled_at.is_(None))
        .correlate(runs)
        .scalar_subquery()
        .label("deliveries_open"),
    )
    .outerjoin(_parent, _parent.c.pk == runs.c.parent_pk)
    .where(runs.c.pk == sa.bindparam("run"))
)


def _select_holder(table: sa.Table, run_pk: sa.Column[int]) -> sa.Select[tuple[str, float | None, float, str]]:
    return (
        sa.select(workers.c.name, table.c.claimed_at, workers.c.expires_at, workers.c.state)
        .join(workers, workers.c.pk == table.c.lease_owner)
        .where(run_pk == sa.bindparam("run"), table.c.lease_owner.is_not(None))
    )


_HOLDERS = (
    _select_holder(runs, runs.c.pk),
    _select_holder(tool_calls, tool_calls.c.run_pk).order_by(tool_calls.c.claimed_at),
)
_WAITS = (
    sa.select(waits.c.pk, waits.c.kind, tool_calls.c.name, waits.c.opened_at, waits.c.expires_at, waits.c.request)
    .join(tool_calls, CALL_OF_WAIT)
    .where(waits.c.run_pk == sa.bindparam("run"), waits.c.closed_at.is_(None))
    .order_by(waits.c.pk)
    .limit(100)
)
_QUESTIONS = _WAITS.where(waits.c.kind != WaitKind.TASK.value)
_TASKS = _WAITS.where(tool_calls.c.waits_for == WaitKind.TASK.value, waits.c.kind == WaitKind.TASK.value)


class Explanations(RowStore):
    """Says why the runs of one database are where they are. Thread-safe; reads only."""

    def explain_run(self, run_id: str) -> Explanation:
        """Explain why a run is where it is. Raises ``RunNotFound``, ``UnavailableError``."""
        with self.database.read() as connection:
            pk, seen = load_facts(connection, run_id)
            return explain_run(_load_facts(self.database, connection, pk, run_id, seen))


def _load_facts(database: Database, connection: Connection, pk: int, run_id: str, seen: StandingFacts) -> RunFacts:
    around = fetch_one(connection.execute(_AROUND, {"run": pk}), _AroundRow)
    is_held = around.place == FleetPlace.HELD.value
    held = explain_held(database, connection, around.tenant, around.principal) if is_held else None
    is_over = seen.status.is_terminal
    return RunFacts(
        run_id=run_id,
        standing=seen,
        tenant=around.tenant,
        exit_reason=around.exit_reason,
        failure=around.failure_message,
        deadline_at=None if is_over else around.deadline_at,
        is_held=is_held,
        waits_for_permit=around.permit == WAITS_FOR_PERMIT,
        held_behind=_count_held_before(connection, pk, around) if is_held else None,
        places=held.places if held else None,
        tenant_at_work=held.at_work if held else None,
        limit=held.limit.value if held and held.limit else None,
        limited_key=held.key_id if held and held.key_id else None,
        child_number=None if around.child_index is None else around.child_index + 1,
        siblings=around.siblings,
        parent_ended_at=around.parent_ended_at,
        ahead=None if is_over else _count_ahead(connection, seen),
        holder=None if is_over else _load_holder(connection, pk, seen.now),
        questions=() if is_over else _load_questions(connection, pk),
        tasks=() if is_over else _load_tasks(connection, pk),
        exhausted=around.exhausted,
        hooks_owed=around.hooks_owed,
        deliveries_open=around.deliveries_open,
    )


def _count_held_before(connection: Connection, pk: int, around: _AroundRow) -> int:
    """Count the held runs of the tenant that get a place before this one, up to ``AHEAD_COUNTED_MAX``."""
    rank = runs.c.place_rank
    is_before = sa.or_(rank < around.place_rank, sa.and_(rank == around.place_rank, runs.c.pk < pk))
    few = sa.select(runs.c.pk).where(sa.text("place = 0"), runs.c.tenant == around.tenant, is_before)
    counted = sa.select(sa.func.count()).select_from(few.limit(AHEAD_COUNTED_MAX).subquery())
    return int(connection.execute(counted).scalar_one())


def _load_holder(connection: Connection, pk: int, now: float) -> HolderFacts | None:
    for statement in _HOLDERS:
        found = fetch_rows(connection.execute(statement, {"run": pk}), _HoldingRow)
        if found:
            row = found[0]
            is_alive = row.state == "alive" and row.expires_at > now
            return HolderFacts(worker=row.name, since=row.claimed_at, lease_until=row.expires_at, is_alive=is_alive)
    return None


def _load_questions(connection: Connection, pk: int) -> list[QuestionFacts]:
    return [
        QuestionFacts(
            wait_id=row.pk,
            kind=WaitKind(row.kind),
            tool=row.name,
            opened_at=row.opened_at,
            expires_at=row.expires_at,
            is_clients=bool(json.loads(row.request).get(IS_CLIENTS)),
        )
        for row in fetch_rows(connection.execute(_QUESTIONS, {"run": pk}), _WaitingQuestion)
    ]


def _load_tasks(connection: Connection, pk: int) -> list[TaskFacts]:
    found = []
    for row in fetch_rows(connection.execute(_TASKS, {"run": pk}), _WaitingQuestion):
        task = RemoteTask.from_json(row.request)
        found.append(
            TaskFacts(
                tool=row.name,
                source=task.source,
                begun_at=task.begun_at,
                looks_at=row.expires_at,
                failures=task.failures,
            )
        )
    return found


def _count_ahead(connection: Connection, seen: StandingFacts) -> int | None:
    """Count the steps that became due in the same queue before the next step of this run; ``None`` when it waits in
    none."""
    queue = find_queue(seen)
    since = min((call.since for call in seen.calls if call.since is not None), default=None) if seen.calls else None
    since = since if since is not None else seen.due_since
    if queue is None or since is None:
        return None
    tables = (runs, tool_calls) if queue == MODEL_QUEUE else (runs, tool_calls, firings, hook_calls)
    return min(
        AHEAD_COUNTED_MAX,
        sum(_count_due_before(connection, table, queue, since, is_apart=is_step_suspect(seen)) for table in tables),
    )


def _count_due_before(connection: Connection, table: sa.Table, queue: str, since: float, *, is_apart: bool) -> int:
    wanted = sa.select(sa.literal(1).label("one")).where(table.c.hinted_at.is_not(None), table.c.hinted_at < since)
    if "deaths" in table.c:
        wanted = wanted.where(table.c.deaths.is_not(None) if is_apart else table.c.deaths.is_(None))
    elif is_apart:
        return 0
    if table is runs:
        wants_preparing = sa.and_(runs.c.prepares.is_not(None), runs.c.iteration == 0)
        wanted = wanted.where(sa.not_(wants_preparing) if queue == MODEL_QUEUE else wants_preparing)
    if table is tool_calls:
        wanted = wanted.where(sa.func.coalesce(tool_calls.c.asks, 0) == (1 if queue == MODEL_QUEUE else 0))
    few = wanted.limit(AHEAD_COUNTED_MAX).subquery()
    return int(connection.execute(sa.select(sa.func.count()).select_from(few)).scalar_one())
