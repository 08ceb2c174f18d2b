"""Tool calls that wait for a task of a server (``core.remote_tasks``): parked as rows, and due again at a set time.

The wait of such a call has the kind ``task`` and stays open until the call is over; its ``request`` is the task, and
``expires_at`` is when the task is to be looked at next. The sweeper makes the call due then. From its first park on a
call is ``pure``: all that it still does is look, and any worker may repeat that. A call that its server answered with
questions keeps its replay class, since it is sent once more (``core.remote_tasks``). When the call was settled
otherwise than by the end of its task, the open row says that the server has to be told (``list_abandoned``).

*Order of locks*: as in ``waits``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.questions import Question
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import SETTLED, CallStatus, WaitKind
from hermes_worker.core.step import apply_event
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.rows import CALL_OF_WAIT, Hint
from hermes_worker.store.runs.call_claims import lock_claimed_run
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.step_plan import StepOutput
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.runs.waits import build_asked_event, insert_wait
from hermes_worker.store.tables import tool_calls, waits

_IS_TASK = waits.c.kind == WaitKind.TASK.value


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedTask:
    """A task whose call is over while the server may still be at work on it."""

    wait_id: int
    task: RemoteTask
    has_ended: bool
    """The server reported the end of the task, so there is nothing to tell it."""


class _AbandonedRow(NamedTuple):
    pk: int
    request: str
    status: str


class RemoteTasks(RowStore):
    """The tasks of one database. Thread-safe; every method raises ``UnavailableError``."""

    def find_task(self, claim: CallClaim) -> RemoteTask | None:
        """Find the task of a claimed call; ``None`` when it has none. Raises ``ValueError``, ``TypeError`` for a row
        that makes no sense."""
        text = self.database.select(sa.select(waits.c.request).where(*_is_task_of(claim))).scalar()
        return None if text is None else RemoteTask.from_json(text)

    def park(self, claim: CallClaim, task: RemoteTask) -> list[Hint]:
        """Let a claimed call wait until its task is to be looked at again, and give the claim up. Safe to repeat: the
        second time the token is gone. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            after = apply_event(loaded.run, ev.CallParked(position=claim.position, waits_for=WaitKind.TASK))
            _upsert_task(connection, claim, task, waits_s=task.interval_s)
            hints = save_step(connection, loaded, after)
            _mark_to_read(connection, claim, task)
            return hints

    def ask(self, claim: CallClaim, task: RemoteTask, question: Question) -> list[Hint]:
        """Let a claimed call wait for a person's answer, which its task needs. Raises ``LeaseLost``."""
        with self.database.write() as connection:
            loaded = lock_claimed_run(connection, claim)
            after = apply_event(loaded.run, ev.CallParked(position=claim.position, waits_for=question.kind))
            _upsert_task(connection, claim, task, waits_s=None)
            is_waiting = after.calls[claim.position].status is CallStatus.WAITING
            events = (
                [build_asked_event(claim, question, insert_wait(connection, claim, question))] if is_waiting else []
            )
            hints = save_step(connection, loaded, after, StepOutput(events=events))
            _mark_to_read(connection, claim, task)
            return hints

    def list_abandoned(self, *, most: int) -> Sequence[AbandonedTask]:
        """List up to ``most`` tasks of calls that are over, the oldest first."""
        over = tool_calls.c.status.in_([status.value for status in SETTLED])
        wanted = (
            sa.select(waits.c.pk, waits.c.request, tool_calls.c.status)
            .select_from(waits.join(tool_calls, CALL_OF_WAIT))
            .where(waits.c.closed_at.is_(None), _IS_TASK, over)
            .order_by(waits.c.pk)
            .limit(most)
        )
        rows = fetch_rows(self.database.select(wanted), _AbandonedRow)
        return [
            AbandonedTask(
                wait_id=row.pk,
                task=RemoteTask.from_json(row.request),
                has_ended=row.status == CallStatus.SUCCEEDED.value,
            )
            for row in rows
        ]

    def close(self, wait_id: int, outcome: str) -> None:
        """Close the row of a task whose call is over and whose server was told. Idempotent."""
        self.database.execute(
            sa.update(waits)
            .where(waits.c.pk == wait_id, _IS_TASK, waits.c.closed_at.is_(None))
            .values(closed_at=db_now(), outcome=outcome)
        )


def _is_task_of(claim: CallClaim) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        waits.c.run_pk == claim.run_pk,
        waits.c.iteration == claim.iteration,
        waits.c.position == claim.position,
        _IS_TASK,
        waits.c.closed_at.is_(None),
    )


def _upsert_task(connection: Connection, claim: CallClaim, task: RemoteTask, *, waits_s: float | None) -> None:
    """Store a task with its call. Also done for a run that is being stopped: its call is over then, and the server has
    to be told."""
    values = {"request": task.to_json(), "expires_at": None if waits_s is None else db_now() + waits_s}
    if connection.execute(sa.update(waits).where(*_is_task_of(claim)).values(values)).rowcount:
        return
    place = {"run_pk": claim.run_pk, "iteration": claim.iteration, "position": claim.position}
    connection.execute(sa.insert(waits).values(**place, **values, kind=WaitKind.TASK.value, opened_at=db_now()))


def _mark_to_read(connection: Connection, claim: CallClaim, task: RemoteTask) -> None:
    """Mark a call as having more to read (``asks`` 0), as for one whose questions were answered. A call without a task
    is sent once more, so its replay class stays."""
    looks_only = {"replay": Replay.PURE.value} if task.task_id else {}
    connection.execute(
        sa.update(tool_calls)
        .where(
            tool_calls.c.run_pk == claim.run_pk,
            tool_calls.c.iteration == claim.iteration,
            tool_calls.c.position == claim.position,
        )
        .values(**looks_only, asks=0)
    )
