"""What observers are owed: a row for each event and hook, written in the transaction of the event.

A worker takes a row as it takes a delivery: a claim with a token, under the term of the process. The key of a row is
the event's id with the hook's name, so whatever is delivered twice, or taken over, is recorded once. A row whose worker
vanished is due again; after three claims that nobody gave up in order it is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import CallHook
from hermes_worker.core.hooks import Observed, OwedCall, event_id, owed_for
from hermes_worker.core.run_events import RunEvent
from hermes_worker.store.engine.database import Database, db_now, db_now_once
from hermes_worker.store.engine.prepared import PkRow, Prepared
from hermes_worker.store.row_keys import LostHintsBounds
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import hook_calls, runs, workers

ATTEMPTS_MAX = 3
_BATCH = 200
_HINTS_COUNTED = 100
_KEPT_S = 7 * 86_400.0


class HookCallState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    """The hook raised, hung or cannot be called."""
    LOST = "lost"
    """Its workers vanished while it ran, as often as is allowed."""


class OwedHookRow(TypedDict):
    run_pk: int
    event_id: str
    hook: str
    event: str
    event_seq: int


class _DueHookRow(OwedHookRow):
    at: float | None
    """``None`` for now."""


# --- owing -----------------------------------------------------------------------------------------------------------


def owed_rows(
    run: tuple[int, str], last_seq: int, happened: Sequence[RunEvent], observed: Observed, *, is_child: bool
) -> list[OwedHookRow]:
    """The rows for what happened to a run after its event ``last_seq``; ``run`` is its number and its id. Pure."""
    return [
        _row(run, seq, owed)
        for seq, event in enumerate(happened, start=last_seq + 1)
        for owed in owed_for(event.name, observed, is_child=is_child)
    ]


def _row(run: tuple[int, str], seq: int, owed: OwedCall) -> OwedHookRow:
    run_pk, run_id = run
    return {
        "run_pk": run_pk,
        "event_id": event_id(run_id, seq, owed.event),
        "hook": owed.hook,
        "event": owed.event,
        "event_seq": seq,
    }


def owe_hooks(connection: Connection, run_id: str, rows: Sequence[OwedHookRow], at: float | None = None) -> list[Hint]:
    """Write the rows, due at ``at``, in the caller's transaction. A row that is there already stays as it is."""
    _OWE.run_each(connection, [{**row, "at": at} for row in rows])
    return [
        Hint(effect=CallHook(run_id=run_id, event_id=row["event_id"], hook=row["hook"], attempt=1), at=at or 0.0)
        for row in rows
    ]


def owe_beginning(connection: Connection, run: tuple[int, str], owed: Sequence[OwedCall]) -> list[Hint]:
    """The same for the beginning of a run, which is none of its events."""
    return owe_hooks(connection, run[1], [_row(run, 0, one) for one in owed])


def _owe() -> Any:
    given = {name: sa.bindparam(name, type_=hook_calls.c[name].type) for name in OwedHookRow.__annotations__}
    tenant = sa.select(runs.c.tenant).where(runs.c.pk == sa.bindparam("run_pk", type_=runs.c.pk.type))
    inserted = postgresql.insert(hook_calls).values(
        **given,
        tenant=tenant.scalar_subquery(),
        state=HookCallState.PENDING.value,
        hinted_at=sa.func.coalesce(sa.bindparam("at", type_=sa.Double()), db_now()),
        created_at=db_now(),
    )
    return inserted.on_conflict_do_nothing(index_elements=["event_id", "hook", "tenant"])


_OWE = Prepared(_owe(), takes=_DueHookRow)
"""In a form that both databases understand."""


# --- what the sweeper does -------------------------------------------------------------------------------------------


class _DueHookCall(NamedTuple):
    event_id: str
    hook: str
    attempts: int
    hinted_at: float
    run_id: str


_RETURNED = (
    hook_calls.c.event_id,
    hook_calls.c.hook,
    hook_calls.c.attempts,
    hook_calls.c.hinted_at,
    sa.select(runs.c.run_id).where(runs.c.pk == hook_calls.c.run_pk).scalar_subquery().label("run_id"),
)
_orphans = (
    sa.select(hook_calls.c.pk)
    .outerjoin(workers, workers.c.pk == hook_calls.c.lease_owner)
    .where(hook_calls.c.lease_owner.is_not(None), sa.or_(workers.c.state.is_(None), workers.c.state != "alive"))
    .limit(_BATCH)
)
_is_given_up = hook_calls.c.attempts >= ATTEMPTS_MAX
_LOSE = Prepared(
    sa.update(hook_calls)
    .where(hook_calls.c.pk.in_(_orphans), hook_calls.c.lease_owner.is_not(None))
    .values(
        state=sa.case((_is_given_up, HookCallState.LOST.value), else_=HookCallState.PENDING.value),
        settled_at=sa.case((_is_given_up, db_now()), else_=None),
        hinted_at=sa.case((_is_given_up, None), else_=db_now()),
        reason="its worker vanished while it ran",
        lease_token=None,
        lease_owner=None,
    )
    .returning(*_RETURNED),
    gives=_DueHookCall,
)
_FIRST_ORPHAN = Prepared(_orphans.limit(1), gives=PkRow)
_wait: sa.ColumnElement[float] = sa.bindparam("grace", type_=sa.Double()) * sa.case(
    (hook_calls.c.hints == 0, 1.0), (hook_calls.c.hints == 1, 2.0), (hook_calls.c.hints < 5, 8.0), else_=60.0
)
_unheard = (
    sa.select(hook_calls.c.pk)
    .where(
        hook_calls.c.hinted_at < sa.bindparam("before", type_=sa.Double()),
        hook_calls.c.hinted_at < db_now_once() - _wait,
    )
    .order_by(hook_calls.c.hinted_at)
    .limit(_BATCH)
)
_FIRST_UNHEARD = Prepared(_unheard.limit(1), takes=LostHintsBounds, gives=PkRow)
_RESEND = Prepared(
    sa.update(hook_calls)
    .where(hook_calls.c.pk.in_(_unheard.with_for_update(skip_locked=True)), hook_calls.c.hinted_at.is_not(None))
    .values(
        hinted_at=db_now(),
        hints=sa.case((hook_calls.c.hints < _HINTS_COUNTED, hook_calls.c.hints + 1), else_=hook_calls.c.hints),
    )
    .returning(*_RETURNED),
    takes=LostHintsBounds,
    gives=_DueHookCall,
)
PRUNE_HOOK_CALLS = Prepared(sa.delete(hook_calls).where(hook_calls.c.settled_at < db_now() - _KEPT_S))


def lose_hook_calls(database: Database) -> list[Hint]:
    """Take back the rows of workers that are gone: due again, or given up. Idempotent. Without hooks in this
    installation nothing is looked at."""
    if not database.observed:
        return []
    with database.read() as connection:
        if _FIRST_ORPHAN.first(connection, {}) is None:
            return []
    with database.statement() as connection:
        return _hints(_LOSE.all(connection, {}))


def resend_hook_calls(database: Database, *, grace_s: float, before: float) -> list[Hint]:
    """Hints of due rows whose message is lost: hinted before ``before`` and longer than the grace ago. A row whose hook
    no worker has is sent again ever more rarely."""
    if not database.observed:
        return []
    values: LostHintsBounds = {"grace": grace_s, "before": before}
    with database.read() as connection:
        if _FIRST_UNHEARD.first(connection, values) is None:
            return []
    with database.statement() as connection:
        return _hints(_RESEND.all(connection, values))


def _hints(due: Sequence[_DueHookCall]) -> list[Hint]:
    return [
        Hint(
            effect=CallHook(run_id=row.run_id, event_id=row.event_id, hook=row.hook, attempt=row.attempts + 1),
            at=float(row.hinted_at),
        )
        for row in due
        if row.hinted_at is not None
    ]
