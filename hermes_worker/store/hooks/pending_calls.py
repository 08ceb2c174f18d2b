"""Pending calls of observers: a row for each event and hook, written in the transaction of the event.

A worker claims a row as it claims a delivery: with a token, under the lease of its process. The key of a row is the
event's id with the hook's name, so an event that is delivered twice, or taken over, is recorded once. A row whose
worker vanished is due again; after three claims that did not end in order it is given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import CallHook
from hermes_worker.core.hooks import HookCallState, Observed, PendingHookCall, build_event_id, list_pending_calls
from hermes_worker.core.run_events import RunEvent
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import hook_calls, runs
from hermes_worker.store.work_items import WorkItems

_KEPT_S = 7 * 86_400.0


class OwedHookRow(TypedDict):
    run_pk: int
    event_id: str
    hook: str
    event: str
    event_seq: int


class _DueHookRow(OwedHookRow):
    at: float | None
    """Epoch seconds; ``None`` for the time of the statement."""


# --- owing -----------------------------------------------------------------------------------------------------------


def build_hook_rows(
    run: tuple[int, str], last_seq: int, happened: Sequence[RunEvent], observed: Observed, *, is_child: bool
) -> list[OwedHookRow]:
    """Build the rows for what happened to a run after its event ``last_seq``; ``run`` is its row id and its id.
    Pure."""
    return [
        _build_row(run, seq, owed)
        for seq, event in enumerate(happened, start=last_seq + 1)
        for owed in list_pending_calls(event.name, observed, is_child=is_child)
    ]


def _build_row(run: tuple[int, str], seq: int, owed: PendingHookCall) -> OwedHookRow:
    run_pk, run_id = run
    return {
        "run_pk": run_pk,
        "event_id": build_event_id(run_id, seq, owed.event),
        "hook": owed.hook,
        "event": owed.event,
        "event_seq": seq,
    }


def enqueue_hooks(
    connection: Connection, run_id: str, rows: Sequence[OwedHookRow], at: float | None = None
) -> list[Hint]:
    """Insert pending hook calls, due at ``at``, in the caller's transaction. Returns the hints to send. Existing rows
    stay as they are."""
    _INSERT.run_each(connection, [{**row, "at": at} for row in rows])
    return [
        Hint(effect=CallHook(run_id=run_id, event_id=row["event_id"], hook=row["hook"], attempt=1), at=at or 0.0)
        for row in rows
    ]


def enqueue_beginning(connection: Connection, run: tuple[int, str], owed: Sequence[PendingHookCall]) -> list[Hint]:
    """Insert pending hook calls for the beginning of a run, for which there is no event row. Returns the hints to
    send."""
    return enqueue_hooks(connection, run[1], [_build_row(run, 0, one) for one in owed])


def _build_insert() -> Any:
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


_INSERT = Prepared(_build_insert(), takes=_DueHookRow)
"""In a form that both databases understand: SQLite has the same ON CONFLICT clause as PostgreSQL."""


# --- what the sweeper does -------------------------------------------------------------------------------------------


class _DueHookCall(NamedTuple):
    event_id: str
    hook: str
    attempts: int
    hinted_at: float
    run_id: str


_ROWS = WorkItems(
    hook_calls,
    "pk",
    gives=_DueHookCall,
    lost={"state": HookCallState.LOST.value, "reason": "its worker vanished while it ran"},
)
PRUNE_HOOK_CALLS = Prepared(sa.delete(hook_calls).where(hook_calls.c.settled_at < db_now() - _KEPT_S))


def take_back_hook_calls(database: Database) -> list[Hint]:
    """Take back the rows of workers that are gone: due again, or given up. Returns the hints to send. Idempotent. Does
    nothing in an installation without hooks."""
    return _build_hints(_ROWS.take_back(database)) if database.observed else []


def resend_hook_calls(database: Database, *, grace_s: float, before: float) -> list[Hint]:
    """List hints of due rows whose message is lost: hinted before ``before`` (epoch seconds) and longer ago than
    ``grace_s``. A row whose hook no worker has is sent again at growing intervals."""
    return _build_hints(_ROWS.take_lost(database, grace_s=grace_s, before=before)) if database.observed else []


def _build_hints(due: Sequence[_DueHookCall]) -> list[Hint]:
    return [
        Hint(
            effect=CallHook(run_id=row.run_id, event_id=row.event_id, hook=row.hook, attempt=row.attempts + 1),
            at=float(row.hinted_at),
        )
        for row in due
        if row.hinted_at is not None
    ]
