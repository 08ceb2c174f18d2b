"""The ends of a job's work, each counted once: of runs, of what workers collected, and of answers that sessions are to
be told."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.sources import CHAT_SOURCE
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_row, fetch_rows, select_columns
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.jobs.executions import ExecutionState, build_collect_hint
from hermes_worker.store.jobs.job_rows import (
    ALL_JOBS,
    COLLECTED,
    IS_OPEN,
    Collected,
    EndedRun,
    Followup,
    JobAfter,
    JobRow,
    build_progress_columns,
    count_open_runs,
    load_answer,
    read_message_text,
    to_first_job,
    to_job_rows_at,
)
from hermes_worker.store.outbox.deliveries import enqueue_deliveries
from hermes_worker.store.rows import Hint, insert_messages, make_storable
from hermes_worker.store.runs.runs import NewRun, begin_held, insert_run, session_is
from hermes_worker.store.search.index_queue import mark_due
from hermes_worker.store.tables import blobs, chats, firings, jobs, messages, runs, sessions

_LATER = re.compile(r"(?P<key>.+)~[0-9]{1,9}", re.DOTALL)
"""The name of a later conversation of a chat."""

_ERROR_CHARS_MAX = 500

_ENDED = (
    sa.select(firings.c.pk, firings.c.run_pk)
    .outerjoin(runs, runs.c.pk == firings.c.run_pk)
    .where(
        IS_OPEN,
        sa.or_(
            runs.c.exit_reason.is_not(None),
            sa.and_(firings.c.run_pk.is_(None), firings.c.execution.in_(COLLECTED)),
        ),
    )
    .limit(sa.bindparam("most"))
)


class _ResultRow(NamedTuple):
    firing_pk: int
    job_pk: int
    run_id: str
    status: str
    exit_reason: str | None
    failure_message: str | None
    body: str | None


class _CollectedRow(NamedTuple):
    execution: str
    collected: str | None
    remark: str | None
    slot: float
    now: float


class _OwingRow(NamedTuple):
    run_pk: int | None
    collected: str | None


class _FirstRow(NamedTuple):
    pk: int
    run_pk: int | None


class _NotedRow(NamedTuple):
    pk: int
    active_run_pk: int | None
    message_seq: int


_RESULT = (
    sa.select(
        firings.c.pk.label("firing_pk"),
        firings.c.job_pk,
        runs.c.run_id,
        runs.c.status,
        runs.c.exit_reason,
        runs.c.failure_message,
        coalesce_texts(messages.c.body, blobs.c.body).label("body"),
    )
    .join(runs, runs.c.pk == firings.c.run_pk)
    .outerjoin(messages, sa.and_(messages.c.session_pk == runs.c.session_pk, messages.c.seq == runs.c.output_seq))
    .outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
    .order_by(firings.c.slot)
)
_WRITE_AFTER = (
    sa.update(jobs)
    .where(jobs.c.pk == sa.bindparam("job"), jobs.c.removed_at.is_(None))
    .values(paused_at=sa.func.coalesce(sa.bindparam("paused", type_=sa.Double()), jobs.c.paused_at))
)


def list_ended(connection: Connection, most: int) -> Sequence[tuple[int, bool]]:
    """List firings whose run has ended, or for which a worker has collected, and that were not counted yet: their row
    ids, and whether there is a run."""
    rows = connection.execute(_ENDED, {"most": most})
    return [(pk, run_pk is not None) for pk, run_pk in rows]


def count_ended_runs(
    connection: Connection,
    firing_pks: Sequence[int],
    clock: sa.ColumnElement[float],
    decide: Callable[[JobRow, EndedRun], JobAfter],
) -> list[Hint]:
    """Count the ends of runs for their jobs, each once, and begin the runs that waited for them. Returns the hints to
    send. Firings whose job another scheduler has locked are left for the next look."""
    of_firings = sa.select(firings.c.job_pk).where(firings.c.pk.in_(firing_pks), firings.c.ended_at.is_(None))
    locked = connection.execute(
        ALL_JOBS.add_columns(clock.label("now")).where(jobs.c.pk.in_(of_firings)).with_for_update(skip_locked=True)
    )
    found, now = to_job_rows_at(locked)
    if not found:
        return []
    rows = {each.pk: each for each in found}
    counted = connection.execute(
        sa.update(firings)
        .where(
            firings.c.pk.in_(firing_pks),
            firings.c.job_pk.in_(rows),
            firings.c.ended_at.is_(None),
            firings.c.run_pk.is_not(None),
        )
        .values(ended_at=now, is_waiting=False)
        .returning(firings.c.pk)
    )
    afters = _decide_ends(connection, counted.scalars().all(), rows, now, decide)
    return [*_write_afters(connection, afters, rows, now), *_start_next(connection, list(rows))]


def _decide_ends(
    connection: Connection,
    firing_pks: Sequence[int],
    rows: dict[int, JobRow],
    now: float,
    decide: Callable[[JobRow, EndedRun], JobAfter],
) -> list[tuple[JobRow, JobAfter]]:
    """Decide on each end, with the job as the end before it left the job."""
    current = dict(rows)
    afters, owing = [], []
    for result in fetch_rows(connection.execute(_RESULT.where(firings.c.pk.in_(firing_pks))), _ResultRow):
        row = current[result.job_pk]
        after = decide(row, _to_ended_run(result, now))
        afters.append((row, after))
        place = after.place
        current[row.pk] = replace(
            row, last_status=after.status, **{name: getattr(place, name) for name in type(place).__slots__}
        )
        if after.owes_note:
            owing.append(result.firing_pk)
    if owing:
        connection.execute(sa.update(firings).where(firings.c.pk.in_(owing)).values(owes_note=True))
    return afters


def _to_ended_run(result: _ResultRow, now: float) -> EndedRun:
    return EndedRun(
        run_id=result.run_id,
        status=result.status,
        error=result.failure_message or (result.exit_reason if result.status != "completed" else None),
        output=read_message_text(result.body),
        now=now,
    )


def follow_up(
    connection: Connection, firing_pk: int, clock: sa.ColumnElement[float], decide: Callable[[Collected], Followup]
) -> list[Hint]:
    """Do what ``decide`` says with what a worker collected: begin the run, or end the firing. Once. Returns the hints
    to send."""
    row = _lock_job(connection, firing_pk)
    if row is None:
        return []
    found = connection.execute(
        sa.select(firings.c.execution, firings.c.collected, firings.c.remark, firings.c.slot, clock.label("now")).where(
            firings.c.pk == firing_pk,
            firings.c.ended_at.is_(None),
            firings.c.run_pk.is_(None),
            firings.c.execution.in_(COLLECTED),
        )
    )
    firing = fetch_row(found, _CollectedRow)
    if firing is None:
        return []
    collected = Collected(
        row=row,
        state=ExecutionState(firing.execution),
        document=firing.collected,
        remark=firing.remark,
        slot=firing.slot,
        now=float(firing.now),
        connection=connection,
    )
    return _write_followup(connection, collected, firing_pk, decide(collected))


def list_notes_due(connection: Connection, most: int) -> Sequence[int]:
    """List firings whose answer still has to be written into a session."""
    rows = connection.execute(sa.select(firings.c.pk).where(firings.c.owes_note).order_by(firings.c.pk).limit(most))
    return list(rows.scalars())


def write_note(
    connection: Connection, firing_pk: int, compose: Callable[[JobRow, str], tuple[str, str] | None]
) -> bool:
    """Write a firing's answer into a session, as something the user said; ``compose`` returns the session's id and the
    text. Returns False while a run is at work there: the firing stays due. A session that is gone is forgotten. Written
    once, even when several processes try."""
    row = _lock_job(connection, firing_pk)
    if row is None:
        return False
    owing = sa.select(*select_columns(firings, _OwingRow)).where(firings.c.pk == firing_pk, firings.c.owes_note)
    firing = fetch_row(connection.execute(owing), _OwingRow)
    if firing is None:
        return True
    composed = compose(row, load_answer(connection, firing) or "")
    if composed is not None and not _append_note(connection, row.tenant, *composed, run_pk=firing.run_pk or 0):
        return False
    connection.execute(sa.update(firings).where(firings.c.pk == firing_pk).values(owes_note=False))
    return True


def _lock_job(connection: Connection, firing_pk: int) -> JobRow | None:
    """Lock the job of a firing; always before the firing itself. ``None`` when another scheduler has it."""
    job_pk = sa.select(firings.c.job_pk).where(firings.c.pk == firing_pk).scalar_subquery()
    return to_first_job(connection.execute(ALL_JOBS.where(jobs.c.pk == job_pk).with_for_update(skip_locked=True)))


def _write_afters(
    connection: Connection, afters: Sequence[tuple[JobRow, JobAfter]], rows: dict[int, JobRow], now: float
) -> list[Hint]:
    """Write what the ends of runs mean for their jobs. The last end of a job decides its state."""
    changes: dict[int, dict[str, object]] = {}
    hints: list[Hint] = []
    for row, after in afters:
        is_pausing = after.place.state == "paused" and rows[row.pk].state != "paused"
        changes[row.pk] = {
            **build_progress_columns(after.place),
            "job": row.pk,
            "last_status": after.status,
            "last_error": make_storable(after.error)[:_ERROR_CHARS_MAX] if after.error else None,
            "paused": now if is_pausing else None,
        }
        if after.notice is not None:
            hints += enqueue_deliveries(connection, after.targets, job_pk=row.pk, body=after.notice)
    if changes:
        connection.execute(_WRITE_AFTER.values(updated_at=now), list(changes.values()))
    return hints


def _write_followup(connection: Connection, collected: Collected, firing_pk: int, followup: Followup) -> list[Hint]:
    row, now = collected.row, collected.now
    change = sa.update(firings).where(firings.c.pk == firing_pk)
    remark = make_storable(followup.remark) if followup.remark is not None else None
    hints = (
        enqueue_deliveries(connection, followup.targets, job_pk=row.pk, body=followup.body)
        if followup.body is not None
        else []
    )
    if isinstance(then := followup.then, NewRun):
        run_pk, created = insert_run(connection, then)
        connection.execute(change.values(run_pk=run_pk, remark=remark))
        return [*hints, *created.hints]
    connection.execute(change.values(ended_at=now, is_waiting=False, remark=remark, owes_note=then.owes_note))
    hints += _write_afters(connection, [(row, then)], {row.pk: row}, now)
    return [*hints, *_start_next(connection, [row.pk])]


def _start_next(connection: Connection, job_pks: Sequence[int]) -> list[Hint]:
    """Begin the runs that wait for jobs whose earlier runs have all ended."""
    hints: list[Hint] = []
    for job_pk, (running, waiting) in count_open_runs(connection, job_pks).items():
        if waiting and not running:
            hints += _start_first(connection, job_pk)
    return hints


def _start_first(connection: Connection, job_pk: int) -> list[Hint]:
    first = connection.execute(
        sa.select(*select_columns(firings, _FirstRow))
        .where(firings.c.job_pk == job_pk, firings.c.is_waiting, firings.c.ended_at.is_(None))
        .order_by(firings.c.slot)
        .limit(1)
    )
    row = fetch_one(first, _FirstRow)
    begun = sa.update(firings).where(firings.c.pk == row.pk).values(is_waiting=False)
    if row.run_pk is not None:
        connection.execute(begun)
        return begin_held(connection, row.run_pk)
    at = connection.execute(begun.values(hinted_at=db_now()).returning(firings.c.hinted_at)).scalar_one()
    return [build_collect_hint(row.pk, at)]


def _append_note(connection: Connection, tenant: str, session_id: str, text: str, *, run_pk: int) -> bool:
    """Write a note into a session. Returns True when it is written, or never can be; False while the session has an
    active run."""
    present = _find_present_session(connection, tenant, session_id)
    found = connection.execute(
        sa.select(*select_columns(sessions, _NotedRow))
        .where(sessions.c.session_id == present, sessions.c.tenant == tenant)
        .with_for_update()
    )
    session = fetch_row(found, _NotedRow)
    if session is None:
        return True
    if session.active_run_pk is not None:
        return False
    seq = session.message_seq + 1
    body = dump_canonical_json({"role": "user", "content": make_storable(text)})
    insert_messages(connection, session.pk, run_pk, [Message(seq=seq, role=Role.USER, body=body)])
    connection.execute(sa.update(sessions).where(sessions.c.pk == session.pk).values(message_seq=seq))
    mark_due(connection, session.pk)
    return True


def _find_present_session(connection: Connection, tenant: str, session_id: str) -> str:
    """Find the id of the chat's present conversation for an earlier session of it: people begin new conversations, and
    the job stays attached. Returns ``session_id`` itself when it belongs to no chat, or nothing was said in the new
    conversation yet."""
    this = (sessions.c.session_id == session_id) & (sessions.c.tenant == tenant)
    named = sa.select(sessions.c.name).where(this, sessions.c.source == CHAT_SOURCE)
    name = connection.execute(named).scalar()
    if name is None:
        return session_id
    later = _LATER.fullmatch(name)
    key = name if later is None else later["key"]
    its = (chats.c.session_key == key) & (chats.c.tenant == tenant)
    generation = connection.execute(sa.select(chats.c.generation).where(its).limit(1)).scalar()
    if not generation:
        return session_id
    present = session_is(tenant, CHAT_SOURCE, f"{key}~{generation}")
    return connection.execute(sa.select(sessions.c.session_id).where(present)).scalar() or session_id
