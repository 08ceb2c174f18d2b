"""Deletion in short transactions: children before parents, and what a kept row needs stays.

Every function may be interrupted anywhere and called again. What a transaction deletes, and what it checks first, is
under the lock of one row: the first run of a chain, or the session. So two processes that delete at the same time do
not wait for each other, and none deletes what a request just began to use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.run_events import TERMINAL_EVENTS
from hermes_worker.features.retention.fact_rows import is_in_chains, is_needed_firing
from hermes_worker.store.artifacts.gatherings import delete_artifacts
from hermes_worker.store.engine.database import Database, db_now, select_db_now
from hermes_worker.store.engine.prepared import fetch_rows, select_columns
from hermes_worker.store.prefixes import take_prefixes_over
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.search.index_queue import delete_from_index
from hermes_worker.store.tables import (
    artifact_gatherings,
    artifacts,
    auxiliary_calls,
    blobs,
    budgets,
    deleted_responses,
    deleted_runs,
    deliveries,
    events,
    firings,
    idempotency_keys,
    inbound_files,
    messages,
    processes,
    run_inputs,
    run_tags,
    runs,
    sessions,
    steers,
    tool_calls,
    tree_events,
    waits,
)

_RUNS_AT_ONCE = 200
_ROWS_AT_ONCE = 5_000
_RELEASED_FOR_S = 3600.0
"""Seconds for which a blob without references stays: longer than any transaction takes that is about to refer to it."""
_MANY: Sequence[tuple[sa.Table, sa.Column[Any]]] = (
    (auxiliary_calls, auxiliary_calls.c.run_pk),
    (tool_calls, tool_calls.c.run_pk),
    (tree_events, tree_events.c.run_pk),
    (events, events.c.run_pk),
)
"""Rows of which a run may have very many, by the column that names it."""
_FEW: Sequence[sa.Column[Any]] = (
    waits.c.run_pk,
    steers.c.run_pk,
    deliveries.c.run_pk,
    idempotency_keys.c.run_pk,
    run_inputs.c.run_pk,
    run_tags.c.run_pk,
    deleted_responses.c.run_pk,
    budgets.c.root_pk,
    artifact_gatherings.c.run_pk,
    inbound_files.c.run_pk,
    processes.c.run_pk,
)


class _GoingRun(NamedTuple):
    pk: int
    run_id: str
    tenant: str


def delete_chain(
    database: Database, root_pk: int, may_go: Callable[[Connection], bool], *, erasure_pk: int | None = None
) -> int:
    """Delete a chain, its last runs first. Returns how many runs were deleted. ``may_go`` is asked again under the lock
    of the first run, in every transaction. Does nothing when another process is deleting the chain. ``erasure_pk`` is
    the erasure that causes the deletion, for the tombstones."""
    deleted = 0
    while True:
        with database.write() as connection:
            locked = sa.select(runs.c.pk).where(runs.c.pk == root_pk).with_for_update(skip_locked=True)
            if connection.execute(locked).first() is None or not may_go(connection):
                return deleted
            # A child's number is above its parent's.
            wanted = sa.select(*select_columns(runs, _GoingRun)).where(is_in_chains([root_pk]))
            last = connection.execute(wanted.order_by(runs.c.pk.desc()).limit(_RUNS_AT_ONCE))
            rows = fetch_rows(last, _GoingRun)
            if _delete_runs(connection, rows, erasure_pk):
                deleted += len(rows)


def _delete_runs(connection: Connection, rows: Sequence[_GoingRun], erasure_pk: int | None) -> bool:
    """Delete runs with everything that belongs to them. Returns False when there is more of that than one transaction
    deletes."""
    pks = [row.pk for row in rows]
    for table, run_pk in _MANY:
        if _delete_some(connection, table, run_pk.in_(pks)) == _ROWS_AT_ONCE:
            return False
    connection.execute(sa.delete(firings).where(firings.c.run_pk.in_(pks), sa.not_(is_needed_firing())))
    delete_artifacts(connection, artifacts.c.run_pk.in_(pks))
    release_contents(connection, inbound_files.c.run_pk.in_(pks))
    for run_pk in _FEW:
        connection.execute(sa.delete(run_pk.table).where(run_pk.in_(pks)))
    connection.execute(sa.delete(runs).where(runs.c.pk.in_(pks)))
    tombstones = [{"run_id": row.run_id, "tenant": row.tenant, "erasure_pk": erasure_pk} for row in rows]
    connection.execute(build_insert_ignoring(connection, deleted_runs).values(deleted_at=db_now()), tombstones)
    return True


def _delete_some(connection: Connection, table: sa.Table, where: sa.ColumnElement[bool]) -> int:
    key = sa.tuple_(*table.primary_key.columns)
    some = sa.select(*table.primary_key.columns).where(where).limit(_ROWS_AT_ONCE)
    return connection.execute(sa.delete(table).where(key.in_(some))).rowcount


def release_contents(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    """Release the contents of files that people sent, and remove the references to them."""
    for column in (inbound_files.c.content_hash, inbound_files.c.picture_hash):
        named = sa.select(column).where(which, column.is_not(None))
        connection.execute(sa.update(blobs).where(blobs.c.hash.in_(named)).values(released_at=db_now()))
        connection.execute(sa.update(inbound_files).where(which, column.is_not(None)).values({column: None}))


def delete_events(connection: Connection, run_pks: Sequence[int]) -> int:
    """Delete the events of runs that have ended, except their end and their last event, so that streams still come to
    an end. Returns how many."""
    kept = sa.or_(
        events.c.event.in_([event.value for event in TERMINAL_EVENTS]),
        events.c.seq == sa.select(runs.c.event_seq).where(runs.c.pk == events.c.run_pk).scalar_subquery(),
    )
    count = connection.execute(sa.delete(events).where(events.c.run_pk.in_(run_pks), sa.not_(kept))).rowcount
    has_event = sa.exists().where(events.c.run_pk == tree_events.c.run_pk, events.c.seq == tree_events.c.event_seq)
    connection.execute(sa.delete(tree_events).where(tree_events.c.run_pk.in_(run_pks), sa.not_(has_event)))
    return count


def select_old_events(run_pks: Sequence[int]) -> sa.Select[Any]:
    """Select how many events ``delete_events`` would delete."""
    last = sa.select(runs.c.event_seq).where(runs.c.pk == events.c.run_pk).scalar_subquery()
    return sa.select(sa.func.count()).where(
        events.c.run_pk.in_(run_pks),
        events.c.event.not_in([event.value for event in TERMINAL_EVENTS]),
        events.c.seq != last,
    )


def delete_session(database: Database, session_pk: int, may_go: Callable[[Connection], bool]) -> bool:
    """Delete a session that has no run left, in one transaction. Returns whether that was done. A request that wants to
    continue the session waits, and then finds it gone, never in part."""
    with database.write() as connection:
        this = sa.select(sessions.c.tools_hash).where(sessions.c.pk == session_pk)
        tools_hash = connection.execute(this.with_for_update(skip_locked=True)).scalar()
        has_runs = sa.select(runs.c.pk).where(runs.c.session_pk == session_pk).limit(1)
        if tools_hash is None or connection.execute(has_runs).first() is not None or not may_go(connection):
            return False
        take_prefixes_over(connection, session_pk)
        of_session = messages.c.session_pk == session_pk
        named = sa.select(messages.c.blob_hash).where(of_session, messages.c.blob_hash.is_not(None))
        released = sa.or_(blobs.c.hash.in_(named), blobs.c.hash == tools_hash)
        connection.execute(sa.update(blobs).where(released).values(released_at=db_now()))
        delete_from_index(connection, session_pk)
        connection.execute(sa.delete(messages).where(of_session))
        connection.execute(sa.delete(sessions).where(sessions.c.pk == session_pk))
        return True


_IS_USED = sa.or_(
    sa.exists().where(messages.c.blob_hash == blobs.c.hash),
    sa.exists().where(sessions.c.tools_hash == blobs.c.hash),
    sa.exists().where(artifacts.c.blob_hash == blobs.c.hash),
    sa.exists().where(inbound_files.c.content_hash == blobs.c.hash),
    sa.exists().where(inbound_files.c.picture_hash == blobs.c.hash),
)
_WAS_RELEASED = blobs.c.released_at < select_db_now() - _RELEASED_FOR_S


def delete_blobs(database: Database, most: int, *, released_before: float | None = None) -> tuple[int, int]:
    """Delete texts that were released an hour ago and have no references; those in use are kept. Looks at ``most``
    texts. Returns how many it looked at, and how many it deleted. ``released_before`` (epoch seconds, inclusive)
    replaces the hour, where the caller knows that every transaction from before then has ended."""
    was_released = _WAS_RELEASED if released_before is None else blobs.c.released_at <= released_before
    with database.write() as connection:
        some = sa.select(blobs.c.hash).where(was_released).order_by(blobs.c.released_at).limit(most)
        hashes = connection.execute(some.with_for_update(skip_locked=True)).scalars().all()
        if not hashes:
            return 0, 0
        these = blobs.c.hash.in_(hashes)
        connection.execute(sa.update(blobs).where(these, _IS_USED).values(released_at=None))
        gone = sa.delete(blobs).where(these, blobs.c.released_at.is_not(None), sa.not_(_IS_USED))
        return len(hashes), connection.execute(gone).rowcount


def count_unused_blobs(connection: Connection) -> int:
    """Count how many texts ``delete_blobs`` would delete in all."""
    wanted = sa.select(sa.func.count()).select_from(blobs).where(_WAS_RELEASED, sa.not_(_IS_USED))
    return int(connection.execute(wanted).scalar_one())
