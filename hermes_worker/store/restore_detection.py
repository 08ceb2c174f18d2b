"""Restores: a database that was set back to an earlier moment, while the world outside was not.

Steps that the rows call due or at work may have been done since, by workers whose rows are gone. So an *epoch* is
marked: every claim is given up, and what must not silently be done twice counts as begun. The sweeper then decides on
it by its usual rules (invariant I5).

A restore cannot be told from a rehearsal of one, in which the original goes on working. So the database is marked as a
*copy*, which may not act outside until an operator says that the original is gone: its deliveries, hooks and jobs wait
as rows, it listens to no chats, and it opens no folder that it shares with the original. Every statement that begins
such an action checks the mark itself (``is_no_copy``), so no process has to be told.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, WaitKind
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.rewinds import forget_permissions, record_restore
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import deliveries, firings, logins, maintenance, tool_calls, waits, workers

_RESTORED = "restored"
_COPY = "copy"
"""The row of ``maintenance`` that says that the original may still be at work."""
_NAME = "a worker of the time after the backup"
_ANSWERED_REMARK = "asked before the database was set back, so it may have been allowed and done since"


class WorkersAlive(HermesError):
    """A worker holds leases in this database, so it cannot be marked as set back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """The result of marking an epoch."""

    claims_given_up: int
    """Workers whose claims are taken away by the next sweep."""
    calls_in_doubt: int
    """``once`` calls that had no result yet: their outcome will be unknown. Calls that wait for a person are not among
    them."""
    deliveries_in_doubt: int
    """Deliveries that are not settled: they are sent with the remark that they may be duplicates."""
    executions_in_doubt: int
    """Scripts of jobs that were due or at work: their outcome is unknown, and they are not run again."""


def mark_epoch(
    database: Database,
    *,
    are_workers_gone: bool = False,
    is_original_gone: bool = False,
    may_have_worked: bool = True,
) -> Epoch:
    """Mark the database as set back. Call it once, before the first worker starts; a second call harms only what has
    become due meanwhile. The database counts as a copy from then on, unless its original is gone. Raises
    ``WorkersAlive`` when a worker renewed its leases a moment ago, unless ``are_workers_gone``. Unless
    ``may_have_worked``, nothing was done since the moment of the backup, so nothing is asked again for it."""
    with database.write() as connection:
        alive = sa.select(workers.c.name).where(workers.c.state == "alive", workers.c.expires_at > db_now()).limit(1)
        name = None if are_workers_gone else connection.execute(alive).scalar()
        if name is not None:
            raise WorkersAlive(f"the worker {name!r} is at work in this database; stop all workers first")
        gone = sa.update(workers).where(workers.c.state == "alive").values(state="stopped")
        given_up = connection.execute(gone).rowcount
        found = Epoch(
            claims_given_up=given_up,
            calls_in_doubt=_mark_calls_in_doubt(connection),
            deliveries_in_doubt=_mark_deliveries_in_doubt(connection),
            executions_in_doubt=_mark_executions_in_doubt(connection),
        )
        if may_have_worked:
            record_restore(connection)
            _add_doubt_to_questions(connection)
        forget_permissions(connection, sa.true())
        connection.execute(sa.update(logins).values(claim=None, claimed_until=None))
        for name in (_RESTORED, *(() if is_original_gone else (_COPY,))):
            connection.execute(build_insert_ignoring(connection, maintenance), {"name": name, "ran_at": 0.0})
            this = maintenance.c.name == name
            connection.execute(sa.update(maintenance).where(this).values(ran_at=db_now()))
    if is_original_gone:
        remove_copy_mark(database)
    return found


def is_no_copy() -> sa.ColumnElement[bool]:
    """Condition for the WHERE of statements that begin an action outside: the database is not marked as a copy."""
    return ~sa.exists(sa.select(maintenance.c.name).where(maintenance.c.name == _COPY))


def is_copy(database: Database) -> bool:
    """Whether the database is marked as a copy. Read at most every half second."""

    def read() -> bool:
        return not database.select(sa.select(is_no_copy())).scalar_one()

    return database.remembered.get(_COPY, read)


def remove_copy_mark(database: Database) -> bool:
    """Remove the mark of a copy, because the original is gone; ``False`` when there was none."""
    gone = database.execute(sa.delete(maintenance).where(maintenance.c.name == _COPY))
    database.remembered.forget()
    return gone > 0


def _mark_calls_in_doubt(connection: Connection) -> int:
    """Claim calls that have not begun for a worker that is gone: the sweeper then treats them like calls whose worker
    vanished. This includes calls that wait for the calls before them, or for an auxiliary call: they may have begun
    since. Returns how many."""
    is_once = tool_calls.c.replay == Replay.ONCE.value
    asked = sa.update(tool_calls).where(is_once, tool_calls.c.asks == 1)
    connection.execute(asked.values(asks=0))
    # Calls that had not begun when the copy was made may have begun since.
    connection.execute(sa.update(tool_calls).where(tool_calls.c.unbegun_token.is_not(None)).values(unbegun_token=None))
    running = sa.select(sa.func.count()).select_from(tool_calls)
    at_work = connection.execute(running.where(is_once, tool_calls.c.lease_owner.is_not(None)))
    doubtful = int(at_work.scalar_one())
    pending = sa.update(tool_calls).where(is_once, tool_calls.c.status == CallStatus.PENDING.value)
    claim = {"status": CallStatus.RUNNING.value, "hinted_at": None, "claimed_at": db_now(), "deadline_at": db_now()}
    return doubtful + connection.execute(pending.values(**claim, **_build_gone_claim(connection))).rowcount


def _mark_deliveries_in_doubt(connection: Connection) -> int:
    unsettled = sa.update(deliveries).where(deliveries.c.settled_at.is_(None))
    return connection.execute(unsettled.values(is_in_doubt=True)).rowcount


def _mark_executions_in_doubt(connection: Connection) -> int:
    held = sa.select(sa.func.count()).select_from(firings).where(firings.c.lease_owner.is_not(None))
    doubtful = int(connection.execute(held).scalar_one())
    due = sa.update(firings).where(firings.c.hinted_at.is_not(None))
    claim = {"execution": "running", "hinted_at": None, "claimed_at": db_now()}
    return doubtful + connection.execute(due.values(**claim, **_build_gone_claim(connection))).rowcount


def _add_doubt_to_questions(connection: Connection) -> None:
    """Have open questions for permission say that they may have been answered since."""
    is_open = sa.and_(waits.c.kind == WaitKind.APPROVAL.value, waits.c.closed_at.is_(None))
    for pk, text in connection.execute(sa.select(waits.c.pk, waits.c.request).where(is_open)).all():
        request = json.loads(text)
        request["description"] = f"{request.get('description', '')}; {_ANSWERED_REMARK}"
        connection.execute(sa.update(waits).where(waits.c.pk == pk).values(request=dump_canonical_json(request)))


def _build_gone_claim(connection: Connection) -> dict[str, object]:
    """The columns of a claim by a worker that has stopped."""
    worker = {"worker_id": secrets.token_hex(16), "name": _NAME, "queues": "", "state": "stopped"}
    made = sa.insert(workers).values(**worker, started_at=db_now(), expires_at=db_now()).returning(workers.c.pk)
    return {"lease_owner": connection.execute(made).scalar_one(), "lease_token": secrets.token_hex(16)}
