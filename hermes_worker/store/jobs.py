"""Scheduled jobs and the ledger of their slots.

Everything that becomes of a due slot is one transaction: the ledger's row, the run, and the slot the job waits for
next. The job's row is locked with SKIP LOCKED, so of any number of schedulers one settles a job and the others pass
on; UNIQUE (job, slot) is what makes a second firing impossible, whatever anybody believes. *What* becomes of a slot is
not decided here: the caller hands in a function.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.store.database import Database, db_now
from hermes_worker.store.deliveries import owe
from hermes_worker.store.rows import Hint, insert_ignoring, plain
from hermes_worker.store.runs import NewRun, insert_run, start_held
from hermes_worker.store.tables import firings, jobs, runs

DUE_MAX = 100
"""Jobs that one tick settles; the rest is due at the next."""
_BATCH = 200
_ERROR_CHARS_MAX = 500


class JobNotFound(HermesError):
    """No job has this id or name."""


class AmbiguousJob(HermesError):
    """Several jobs have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job. Times are epoch seconds."""

    pk: int
    job_id: str
    name: str
    definition: str
    state: str
    next_slot: float | None
    next_fire_at: float | None
    completed: int
    consecutive_failures: int
    paused_at: float | None
    paused_reason: str | None
    last_run_at: float | None
    last_status: str | None
    last_error: str | None
    created_at: float
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlace:
    """Where a job stands: the columns that a decision changes."""

    state: str
    next_slot: float | None
    next_fire_at: float | None
    completed: int = 0
    consecutive_failures: int = 0
    paused_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEdit:
    """What a person changed; ``None`` leaves the name or the definition as it is."""

    place: JobPlace
    name: str | None = None
    definition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A row for the ledger."""

    at: float
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTurn:
    """What becomes of a due job. The last of ``slots`` is the one that ``run`` is for."""

    slots: Sequence[Slot]
    place: JobPlace
    run: NewRun | None = None
    waits: bool = False
    notice: str | None = None
    """Sent to ``targets``."""
    targets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A job's run that has ended and was not counted yet."""

    run_id: str
    status: str
    error: str | None
    output_seq: int | None
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAfter:
    """The job after one of its runs ended."""

    place: JobPlace
    status: str
    """``ok``, ``error`` or ``unknown``."""
    error: str | None
    notice: str | None = None
    targets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob:
    """A due job under its lock, and what the decision may ask."""

    row: JobRow
    now: float
    running: int
    waiting: int
    connection: Connection

    def used_since(self, at: float) -> tuple[int, int]:
        """Iterations and tokens of the job's runs that were started since ``at``."""
        tokens = runs.c.input_tokens + runs.c.output_tokens
        row = self.connection.execute(
            sa.select(sa.func.coalesce(sa.func.sum(runs.c.iteration), 0), sa.func.coalesce(sa.func.sum(tokens), 0))
            .select_from(firings.join(runs, runs.c.pk == firings.c.run_pk))
            .where(firings.c.job_pk == self.row.pk, firings.c.settled_at >= at)
        ).one()
        return int(row[0]), int(row[1])

    def was_blocked_since(self, at: float) -> bool:
        """Whether a slot since ``at`` was blocked by the budget."""
        blocked = sa.select(firings.c.pk).where(
            firings.c.job_pk == self.row.pk, firings.c.slot >= at, firings.c.outcome == "blocked_budget"
        )
        return self.connection.execute(blocked.limit(1)).first() is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringView:
    """A row of the ledger as people see it."""

    slot: float
    outcome: str
    reason: str
    settled_at: float
    run_id: str | None
    run_status: str | None
    is_waiting: bool


class Jobs:
    """The jobs of one database. Thread-safe."""

    def __init__(self, database: Database, *, clock: sa.ColumnElement[float] | None = None) -> None:
        """``clock`` is an SQL expression for the current time; only a test has another than the database's."""
        self._database = database
        self._clock = clock if clock is not None else db_now()

    def now(self) -> float:
        """Epoch seconds by the clock that slots are judged by."""
        with self._database.read() as connection:
            return self._now(connection)

    def _now(self, connection: Connection) -> float:
        return float(connection.execute(sa.select(self._clock)).scalar_one())

    def create(self, name: str, definition: str, place: Callable[[str, float], JobPlace]) -> JobRow:
        """Write a new job; ``place`` gets its id and the time."""
        job_id = uuid.uuid4().hex[:12]
        with self._database.write() as connection:
            now = self._now(connection)
            values = {"job_id": job_id, "name": plain(name), "definition": definition, "created_at": now}
            connection.execute(sa.insert(jobs).values(**values, updated_at=now, **_columns(place(job_id, now))))
            return _row(connection.execute(_JOBS.where(jobs.c.job_id == job_id)).one())

    def get(self, reference: str) -> JobRow:
        """By id, or by a name that only one job has, whatever its case. Raises ``JobNotFound``, ``AmbiguousJob``."""
        with self._database.read() as connection:
            return _find(connection, reference)

    def all(self, *, include_disabled: bool = True) -> list[JobRow]:
        """Oldest first."""
        statement = _JOBS if include_disabled else _JOBS.where(jobs.c.state == "scheduled")
        with self._database.read() as connection:
            return [_row(row) for row in connection.execute(statement.order_by(jobs.c.pk))]

    def change(self, reference: str, edit: Callable[[JobRow, float], JobEdit]) -> JobRow:
        """Change a job under its lock. Raises ``JobNotFound``, ``AmbiguousJob`` and what ``edit`` raises."""
        with self._database.write() as connection:
            pk = _find(connection, reference).pk
            row = _row(connection.execute(_JOBS.where(jobs.c.pk == pk).with_for_update()).one())
            now = self._now(connection)
            made = edit(row, now)
            values = _columns(made.place)
            values["paused_at"] = (row.paused_at or now) if made.place.state == "paused" else None
            if made.name is not None:
                values["name"] = plain(made.name)
            if made.definition is not None:
                values["definition"] = made.definition
            connection.execute(sa.update(jobs).where(jobs.c.pk == pk).values(updated_at=now, **values))
            return _row(connection.execute(_JOBS.where(jobs.c.pk == pk)).one())

    def remove(self, reference: str) -> None:
        """Forget a job; its firings are kept. Raises ``JobNotFound``, ``AmbiguousJob``."""
        with self._database.write() as connection:
            pk = _find(connection, reference).pk
            connection.execute(
                sa.update(jobs).where(jobs.c.pk == pk).values(removed_at=db_now(), next_slot=None, next_fire_at=None)
            )

    def history(self, job_pk: int, *, limit: int = 50, before: float | None = None) -> Sequence[FiringView]:
        """The newest slots first; ``before`` is the slot that ended the page before."""
        statement = (
            sa.select(firings, runs.c.run_id, runs.c.status)
            .select_from(firings.outerjoin(runs, runs.c.pk == firings.c.run_pk))
            .where(firings.c.job_pk == job_pk)
            .order_by(firings.c.slot.desc())
            .limit(limit)
        )
        if before is not None:
            statement = statement.where(firings.c.slot < before)
        with self._database.read() as connection:
            return [
                FiringView(
                    slot=row.slot,
                    outcome=row.outcome,
                    reason=row.reason,
                    settled_at=row.settled_at,
                    run_id=row.run_id,
                    run_status=row.status,
                    is_waiting=bool(row.is_waiting),
                )
                for row in connection.execute(statement)
            ]

    # --- what schedulers do ---

    def due(self) -> Sequence[int]:
        """Numbers of jobs that are due, the longest due first. Costs what there is to do."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(jobs.c.pk)
                .where(jobs.c.next_fire_at <= self._clock)
                .order_by(jobs.c.next_fire_at)
                .limit(DUE_MAX)
            )
            return list(rows.scalars())

    def settle(self, pk: int, decide: Callable[[DueJob], JobTurn | None]) -> list[Hint]:
        """Do what ``decide`` says with a due job, in one transaction; nothing when another scheduler has it or had
        it. Safe for any number of schedulers."""
        with self._database.write() as connection:
            found = connection.execute(
                _JOBS.where(jobs.c.pk == pk, jobs.c.next_fire_at <= self._clock).with_for_update(skip_locked=True)
            ).first()
            if found is None:
                return []
            row, now = _row(found), self._now(connection)
            running, waiting = _open_runs(connection, pk)
            turn = decide(DueJob(row=row, now=now, running=running, waiting=waiting, connection=connection))
            return [] if turn is None else _write_turn(connection, row, turn, now)

    def ended(self) -> Sequence[int]:
        """Numbers of firings whose run has ended and was not counted for its job yet."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(firings.c.pk)
                .join(runs, runs.c.pk == firings.c.run_pk)
                .where(
                    sa.text("firings.run_pk is not null and firings.ended_at is null"), runs.c.exit_reason.is_not(None)
                )
                .limit(_BATCH)
            )
            return list(rows.scalars())

    def count_end(self, firing_pk: int, decide: Callable[[JobRow, EndedRun], JobAfter]) -> list[Hint]:
        """Count the end of a run for its job, once, and begin the run that waited for it."""
        with self._database.write() as connection:
            now = self._now(connection)
            counted = connection.execute(
                sa.update(firings)
                .where(firings.c.pk == firing_pk, firings.c.ended_at.is_(None))
                .values(ended_at=now, is_waiting=False)
                .returning(firings.c.job_pk, firings.c.run_pk)
            ).first()
            if counted is None:
                return []
            row = _row(connection.execute(_ALL_JOBS.where(jobs.c.pk == counted.job_pk).with_for_update()).one())
            run = connection.execute(sa.select(runs).where(runs.c.pk == counted.run_pk)).one()
            ended = EndedRun(
                run_id=run.run_id,
                status=run.status,
                error=run.failure_message or (run.exit_reason if run.status != "completed" else None),
                output_seq=run.output_seq,
                now=now,
            )
            after = decide(row, ended)
            return [*_write_after(connection, row, after, now), *_start_next(connection, row.pk)]


def _write_turn(connection: Connection, row: JobRow, turn: JobTurn, now: float) -> list[Hint]:
    hints: list[Hint] = []
    place = _columns(turn.place)
    for slot in turn.slots[:-1]:
        _write_slot(connection, row.pk, slot, now)
    if turn.run is None:
        _write_slot(connection, row.pk, turn.slots[-1], now)
    elif not _is_settled(connection, row.pk, turn.slots[-1].at):
        run_pk, created = insert_run(connection, turn.run)
        _write_slot(connection, row.pk, turn.slots[-1], now, run_pk=run_pk, is_waiting=turn.waits)
        place["last_run_at"] = now
        hints += created.hints
    connection.execute(sa.update(jobs).where(jobs.c.pk == row.pk).values(updated_at=now, **place))
    if turn.notice is not None:
        hints += owe(connection, turn.targets, job_pk=row.pk, body=turn.notice)
    return hints


def _write_slot(
    connection: Connection, job_pk: int, slot: Slot, now: float, *, run_pk: int | None = None, is_waiting: bool = False
) -> None:
    connection.execute(
        insert_ignoring(connection, firings).values(
            job_pk=job_pk,
            slot=slot.at,
            outcome=slot.outcome,
            reason=plain(slot.reason),
            run_pk=run_pk,
            is_waiting=is_waiting,
            settled_at=now,
        )
    )


def _is_settled(connection: Connection, job_pk: int, at: float) -> bool:
    known = sa.select(firings.c.pk).where(firings.c.job_pk == job_pk, firings.c.slot == at)
    return connection.execute(known).first() is not None


def _write_after(connection: Connection, row: JobRow, after: JobAfter, now: float) -> list[Hint]:
    values = _columns(after.place)
    if after.place.state == "paused" and row.state != "paused":
        values["paused_at"] = now
    error = plain(after.error)[:_ERROR_CHARS_MAX] if after.error else None
    connection.execute(
        sa.update(jobs)
        .where(jobs.c.pk == row.pk, jobs.c.removed_at.is_(None))
        .values(updated_at=now, last_status=after.status, last_error=error, **values)
    )
    return owe(connection, after.targets, job_pk=row.pk, body=after.notice) if after.notice is not None else []


def _open_runs(connection: Connection, job_pk: int) -> tuple[int, int]:
    """Runs of the job that are going, and that wait for those."""
    rows = connection.execute(
        sa.select(firings.c.is_waiting)
        .join(runs, runs.c.pk == firings.c.run_pk)
        .where(
            firings.c.job_pk == job_pk,
            sa.text("firings.run_pk is not null and firings.ended_at is null"),
            runs.c.exit_reason.is_(None),
        )
    ).scalars()
    waiting = [bool(is_waiting) for is_waiting in rows]
    return waiting.count(False), waiting.count(True)


def _start_next(connection: Connection, job_pk: int) -> list[Hint]:
    running, waiting = _open_runs(connection, job_pk)
    if running or not waiting:
        return []
    row = connection.execute(
        sa.select(firings.c.pk, firings.c.run_pk)
        .where(firings.c.job_pk == job_pk, firings.c.is_waiting, firings.c.ended_at.is_(None))
        .order_by(firings.c.slot)
        .limit(1)
    ).one()
    connection.execute(sa.update(firings).where(firings.c.pk == row.pk).values(is_waiting=False))
    return start_held(connection, row.run_pk)


def _columns(place: JobPlace) -> dict[str, Any]:
    return {
        "state": place.state,
        "next_slot": place.next_slot,
        "next_fire_at": place.next_fire_at,
        "completed": place.completed,
        "consecutive_failures": place.consecutive_failures,
        "paused_reason": place.paused_reason,
    }


_ALL_JOBS = sa.select(*(jobs.c[name] for name in JobRow.__slots__))
_JOBS = _ALL_JOBS.where(jobs.c.removed_at.is_(None))


def _row(row: Any) -> JobRow:
    return JobRow(**row._mapping)


def _find(connection: Connection, reference: str) -> JobRow:
    row = connection.execute(_JOBS.where(jobs.c.job_id == reference)).first()
    if row is not None:
        return _row(row)
    named = connection.execute(_JOBS.where(sa.func.lower(jobs.c.name) == reference.strip().lower())).all()
    if not named:
        raise JobNotFound(f"there is no job {reference!r}")
    if len(named) > 1:
        ids = ", ".join(row.job_id for row in named)
        raise AmbiguousJob(f"several jobs are called {reference!r}; name one of {ids}")
    return _row(named[0])
