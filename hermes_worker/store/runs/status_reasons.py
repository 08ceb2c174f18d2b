"""The facts about where a run stands, read from the rows (``core.status_reason`` decides what they mean)."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.run import CallStatus, RunStatus, WaitKind
from hermes_worker.core.run_events import RunEventName
from hermes_worker.core.status_reason import CallFacts, StandingFacts, StatusReason, decide_status_reason
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.runs.runs import RunNotFound
from hermes_worker.store.tables import events, runs, sessions, tool_calls, workers

_SETTLED = tuple(status.value for status in CallStatus if status.is_settled)
_ENDED = tuple(status.value for status in RunStatus if status.is_terminal)
_active = runs.alias("active")
_parent = runs.alias("parent")


class _RunRow(NamedTuple):
    """A run, its session's run at work, its parent and the worker that holds its model call."""

    pk: int
    status: str
    iteration: int
    attempt: int
    deaths: int | None
    hinted_at: float | None
    claimed_at: float | None
    lease_token: str | None
    resume_at: float | None
    worker: str | None
    active_run: str | None
    parent_run: str | None
    not_before: float | None
    prepares: int | None
    now: float


class _CallRow(NamedTuple):
    name: str
    status: str
    segment: int
    deaths: int | None
    asks: int | None
    claimed_at: float | None
    hinted_at: float | None
    worker: str | None


_RUN = (
    sa.select(
        runs.c.pk,
        runs.c.status,
        runs.c.iteration,
        runs.c.attempt,
        runs.c.deaths,
        runs.c.hinted_at,
        runs.c.claimed_at,
        runs.c.lease_token,
        runs.c.resume_at,
        workers.c.name.label("worker"),
        sa.case((_active.c.pk != runs.c.pk, _active.c.run_id)).label("active_run"),
        _parent.c.run_id.label("parent_run"),
        runs.c.not_before,
        runs.c.prepares,
        db_now().label("now"),
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .outerjoin(workers, workers.c.pk == runs.c.lease_owner)
    .outerjoin(_active, _active.c.pk == sessions.c.active_run_pk)
    .outerjoin(_parent, _parent.c.pk == runs.c.parent_pk)
    .where(runs.c.run_id == sa.bindparam("run_id"))
)
_CALLS = (
    sa.select(
        tool_calls.c.name,
        tool_calls.c.status,
        tool_calls.c.segment,
        tool_calls.c.deaths,
        tool_calls.c.asks,
        tool_calls.c.claimed_at,
        tool_calls.c.hinted_at,
        workers.c.name.label("worker"),
    )
    .outerjoin(workers, workers.c.pk == tool_calls.c.lease_owner)
    .where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iteration"),
        tool_calls.c.status.not_in(_SETTLED),
    )
    .order_by(tool_calls.c.position)
)
_CHILDREN = sa.select(
    sa.func.count(), sa.func.coalesce(sa.func.sum(sa.case((runs.c.status.in_(_ENDED), 1), else_=0)), 0)
).where(runs.c.parent_pk == sa.bindparam("run"), runs.c.parent_iteration == sa.bindparam("iteration"))
_TASKS = sa.select(sa.func.count()).where(
    tool_calls.c.run_pk == sa.bindparam("run"),
    tool_calls.c.iteration == sa.bindparam("iteration"),
    tool_calls.c.waits_for == WaitKind.TASK.value,
)
_WAITING = (
    sa.select(events.c.data)
    .where(events.c.run_pk == sa.bindparam("run"), events.c.event == RunEventName.WAITING.value)
    .order_by(events.c.seq.desc())
    .limit(1)
)
_QUEUES = sa.select(workers.c.queues).where(workers.c.state == "alive", workers.c.expires_at > db_now())


def load_facts(connection: Connection, run_id: str) -> tuple[int, StandingFacts]:
    """Load the row id of a run and the facts about where it stands. Raises ``RunNotFound``."""
    row = fetch_row(connection.execute(_RUN, {"run_id": run_id}), _RunRow)
    if row is None:
        raise RunNotFound(f"there is no run {run_id!r}")
    return row.pk, _to_facts(connection, row)


class Standings(RowStore):
    """Answers why a run is where it is. Thread-safe; reads only."""

    def find_standing(self, run_id: str) -> StatusReason:
        """Explain why a run is where it is. Raises ``RunNotFound``, ``UnavailableError``."""
        with self.database.read() as connection:
            return decide_status_reason(load_facts(connection, run_id)[1])


def _to_facts(connection: Connection, row: _RunRow) -> StandingFacts:
    status = RunStatus(row.status)
    facts: dict[str, Any] = {
        "status": status,
        "now": row.now,
        "due_since": row.hinted_at,
        "asking_since": row.claimed_at if row.lease_token is not None else None,
        "worker": row.worker,
        "attempt": row.attempt,
        "is_suspect": row.deaths is not None,
        "resume_at": row.resume_at,
        "active_run": row.active_run,
        "parent_run": row.parent_run,
        "not_before": row.not_before,
        "wants_preparing": row.prepares is not None and row.iteration == 0,
    }
    if status.is_terminal:
        return StandingFacts(**facts)
    where = {"run": row.pk, "iteration": row.iteration}
    if status is RunStatus.WAITING_FOR_CAPACITY:
        facts["waits_because"] = _parse_reason(connection.execute(_WAITING, {"run": row.pk}).scalar())
    if status is RunStatus.WAITING_FOR_CHILDREN:
        facts["children_total"], facts["children_ended"] = connection.execute(_CHILDREN, where).one()
        facts["tasks"] = connection.execute(_TASKS, where).scalar_one()
    consumed = connection.execute(_QUEUES).scalars()
    return StandingFacts(
        **facts,
        calls=_load_calls(connection, where),
        queues=frozenset(queue for queues in consumed for queue in queues.split(",")),
    )


def _load_calls(connection: Connection, where: dict[str, int]) -> list[CallFacts]:
    """The open calls of the segment that may run now."""
    found = fetch_rows(connection.execute(_CALLS, where), _CallRow)
    first = min((call.segment for call in found), default=0)
    return [
        CallFacts(
            name=call.name,
            status=CallStatus(call.status),
            since=call.claimed_at if call.status == CallStatus.RUNNING.value else call.hinted_at,
            worker=call.worker,
            is_suspect=call.deaths is not None,
            asks=call.asks == 1,
        )
        for call in found
        if call.segment == first
    ]


def _parse_reason(data: str | None) -> str | None:
    reason = json.loads(data).get("reason") if data else None
    return reason if isinstance(reason, str) else None
