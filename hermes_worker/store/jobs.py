"""Scheduled jobs and the ledger of their slots.

Everything that becomes of a due slot is one transaction: the ledger's row, the run, and the slot the job waits for
next. The job's row is locked with SKIP LOCKED, so of any number of schedulers one settles a job and the others pass
on; UNIQUE (job, slot) is what makes a second firing impossible, whatever anybody believes. *What* becomes of a slot is
not decided here: the caller hands in a function.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import Message, Role, canonical_json
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.step import apply
from hermes_worker.store.database import Database, db_now, db_now_once
from hermes_worker.store.deliveries import owe
from hermes_worker.store.executions import ExecutionState, collect_hint
from hermes_worker.store.rows import Hint, insert_ignoring, insert_messages, lock_run, plain, read_messages
from hermes_worker.store.runs import NewRun, insert_run, start_held
from hermes_worker.store.tables import firings, jobs, runs, sessions
from hermes_worker.store.transitions import save

DUE_MAX = 100
"""Jobs that one tick settles; the rest is due at the next."""
_BATCH = 200
_ERROR_CHARS_MAX = 500
STOPPED_FOR_A_LATER_SLOT = "stopped for a later slot"
_NANO = Decimal(1_000_000_000)
_IS_OPEN = sa.text("firings.ended_at is null and (firings.run_pk is not null or firings.execution is not null)")
"""As the partial index ``ix_firings_open`` has it (``tables.OPEN_FIRING``)."""


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
    collects: bool = False
    """A worker collects what the run needs before there is one."""
    waits: bool = False
    cancels: bool = False
    """Stop what the job is doing."""
    definition: str | None = None
    """To replace the job's with."""
    notice: str | None = None
    """Sent to ``targets``."""
    targets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What a transaction leaves to be told to others."""

    hints: Sequence[Hint] = ()
    stopped: Sequence[str] = ()
    """Runs that were asked to stop."""

    def __add__(self, other: Settled) -> Settled:
        return Settled(hints=[*self.hints, *other.hints], stopped=[*self.stopped, *other.stopped])


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """A job's run that has ended and was not counted yet."""

    run_id: str
    status: str
    error: str | None
    output: str | None
    """The answer."""
    now: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What a worker collected for a firing, and what the decision about it may ask."""

    row: JobRow
    state: ExecutionState
    document: str | None
    """As the worker left it; ``None`` when it left nothing."""
    remark: str | None
    slot: float
    now: float
    connection: Connection

    def latest_answer(self, job_id: str) -> str | None:
        """What the latest run of a job answered that had an answer."""
        return latest_answer(self.connection, job_id)

    def used_since(self, at: float) -> DayUse:
        return _used_since(self.connection, self.row.pk, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followup:
    """What becomes of what was collected: a run, or the end."""

    remark: str | None = None
    run: NewRun | None = None
    after: JobAfter | None = None
    """Set exactly when there is no run."""
    body: str | None = None
    """Sent to ``targets``."""
    targets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUse:
    """What the runs of a job and all they delegated used."""

    iterations: int
    tokens: int
    cost_usd: Decimal
    is_cost_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAfter:
    """The job after one of its runs ended."""

    place: JobPlace
    status: str
    """``ok``, ``error`` or ``unknown``."""
    error: str | None
    notice: str | None = None
    targets: Sequence[str] = ()
    owes_note: bool = False
    """The run's answer has to be written into a session (``pay_note``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob:
    """A due job under its lock, and what the decision may ask."""

    row: JobRow
    now: float
    running: int
    waiting: int
    connection: Connection

    def used_since(self, at: float) -> DayUse:
        """What the job's runs used that were started since ``at``."""
        return _used_since(self.connection, self.row.pk, at)

    def latest_answer(self, job_id: str) -> str | None:
        """What the latest run of a job answered that had an answer."""
        return latest_answer(self.connection, job_id)

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
    execution: str | None
    """How far a worker is with the job's script or skills; ``None`` for a job without."""
    remark: str | None
    ended_at: float | None


class Jobs:
    """The jobs of one database. Thread-safe."""

    def __init__(self, database: Database, *, clock: sa.ColumnElement[float] | None = None) -> None:
        """``clock`` is an SQL expression for the current time; only a test has another than the database's."""
        self._database = database
        self._clock = clock if clock is not None else db_now_once()

    def now(self) -> float:
        """Epoch seconds by the clock that slots are judged by."""
        with self._database.read() as connection:
            return self._now(connection)

    def _now(self, connection: Connection) -> float:
        return float(connection.execute(sa.select(self._clock)).scalar_one())

    def create(self, name: str, definition: str, place: Callable[[str, float], JobPlace]) -> JobRow:
        """Write a new job; ``place`` gets its id and the time. Raises what ``place`` raises."""
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
                    execution=row.execution,
                    remark=row.remark,
                    ended_at=row.ended_at,
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

    def settle(self, pk: int, decide: Callable[[DueJob], JobTurn | None]) -> Settled:
        """Do what ``decide`` says with a due job, in one transaction; nothing when another scheduler has it or had
        it. Safe for any number of schedulers."""
        with self._database.write() as connection:
            found = connection.execute(
                _JOBS.where(jobs.c.pk == pk, jobs.c.next_fire_at <= self._clock).with_for_update(skip_locked=True)
            ).first()
            if found is None:
                return Settled()
            row, now = _row(found), self._now(connection)
            running, waiting = _open_runs(connection, pk)
            turn = decide(DueJob(row=row, now=now, running=running, waiting=waiting, connection=connection))
            return Settled() if turn is None else _write_turn(connection, row, turn, now)

    def ended(self) -> Sequence[tuple[int, bool]]:
        """Firings whose run has ended, or for which a worker has collected what it could, and that were not counted
        yet: their numbers, and whether there is a run."""
        is_collected = sa.and_(firings.c.run_pk.is_(None), firings.c.execution.in_(_COLLECTED))
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(firings.c.pk, firings.c.run_pk)
                .outerjoin(runs, runs.c.pk == firings.c.run_pk)
                .where(_IS_OPEN, sa.or_(runs.c.exit_reason.is_not(None), is_collected))
                .limit(_BATCH)
            )
            return [(row.pk, row.run_pk is not None) for row in rows]

    def count_end(self, firing_pk: int, decide: Callable[[JobRow, EndedRun], JobAfter]) -> list[Hint]:
        """Count the end of a run for its job, once, and begin the run that waited for it."""
        with self._database.write() as connection:
            row = _lock_job_of(connection, firing_pk)
            now = self._now(connection)
            counted = connection.execute(
                sa.update(firings)
                .where(firings.c.pk == firing_pk, firings.c.ended_at.is_(None), firings.c.run_pk.is_not(None))
                .values(ended_at=now, is_waiting=False)
                .returning(firings.c.run_pk)
            ).first()
            if counted is None:
                return []
            run = connection.execute(sa.select(runs).where(runs.c.pk == counted.run_pk)).one()
            ended = EndedRun(
                run_id=run.run_id,
                status=run.status,
                error=run.failure_message or (run.exit_reason if run.status != "completed" else None),
                output=_text_at(connection, run.session_pk, run.output_seq),
                now=now,
            )
            after = decide(row, ended)
            if after.owes_note:
                connection.execute(sa.update(firings).where(firings.c.pk == firing_pk).values(owes_note=True))
            return [*_write_after(connection, row, after, now), *_start_next(connection, row.pk)]

    def follow_up(self, firing_pk: int, decide: Callable[[Collected], Followup]) -> list[Hint]:
        """Do what ``decide`` says with what a worker collected: begin the run, or end the firing. Once."""
        with self._database.write() as connection:
            row = _lock_job_of(connection, firing_pk)
            now = self._now(connection)
            firing = connection.execute(
                sa.select(firings).where(
                    firings.c.pk == firing_pk,
                    firings.c.ended_at.is_(None),
                    firings.c.run_pk.is_(None),
                    firings.c.execution.in_(_COLLECTED),
                )
            ).first()
            if firing is None:
                return []
            collected = Collected(
                row=row,
                state=ExecutionState(firing.execution),
                document=firing.collected,
                remark=firing.remark,
                slot=firing.slot,
                now=now,
                connection=connection,
            )
            return _write_followup(connection, row, firing_pk, decide(collected), now)

    def unpaid_notes(self) -> Sequence[int]:
        """Firings whose answer still has to be written into a session."""
        with self._database.read() as connection:
            rows = connection.execute(
                sa.select(firings.c.pk).where(firings.c.owes_note).order_by(firings.c.pk).limit(_BATCH)
            )
            return list(rows.scalars())

    def pay_note(self, firing_pk: int, compose: Callable[[JobRow, str], tuple[str, str] | None]) -> bool:
        """Write a firing's answer into a session, as something the user said; ``compose`` gives the session's id and
        the text. False while a run is at work there: it will be offered again. A session that is not there any more
        is forgotten. Once, whoever does it."""
        with self._database.write() as connection:
            row = _lock_job_of(connection, firing_pk)
            firing = connection.execute(
                sa.select(firings).where(firings.c.pk == firing_pk, firings.c.owes_note)
            ).first()
            if firing is None:
                return True
            composed = compose(row, _answer_of(connection, firing) or "")
            if composed is not None and not _append_note(connection, *composed, run_pk=firing.run_pk or 0):
                return False
            connection.execute(sa.update(firings).where(firings.c.pk == firing_pk).values(owes_note=False))
            return True


_COLLECTED = (ExecutionState.COMPLETED.value, ExecutionState.FAILED.value, ExecutionState.UNKNOWN.value)


def _lock_job_of(connection: Connection, firing_pk: int) -> JobRow:
    """Locked before the firing, by everybody who writes both."""
    job_pk = sa.select(firings.c.job_pk).where(firings.c.pk == firing_pk).scalar_subquery()
    return _row(connection.execute(_ALL_JOBS.where(jobs.c.pk == job_pk).with_for_update()).one())


def _write_turn(connection: Connection, row: JobRow, turn: JobTurn, now: float) -> Settled:
    settled = Settled()
    place = _columns(turn.place)
    for slot in turn.slots[:-1]:
        _write_slot(connection, row.pk, slot, now)
    slot = turn.slots[-1]
    if turn.run is None and not turn.collects:
        _write_slot(connection, row.pk, slot, now)
    elif not _is_settled(connection, row.pk, slot.at):
        settled = _cancel_open(connection, row.pk) if turn.cancels else Settled()
        settled += Settled(hints=_start(connection, row, turn, slot, now))
        place["last_run_at"] = now
    if turn.definition is not None:
        place["definition"] = turn.definition
    connection.execute(sa.update(jobs).where(jobs.c.pk == row.pk).values(updated_at=now, **place))
    if turn.notice is not None:
        settled += Settled(hints=owe(connection, turn.targets, job_pk=row.pk, body=turn.notice))
    return settled


def _start(connection: Connection, row: JobRow, turn: JobTurn, slot: Slot, now: float) -> Sequence[Hint]:
    """Write the slot with its run, or with what a worker has to collect first."""
    if turn.run is not None:
        run_pk, created = insert_run(connection, turn.run)
        _write_slot(connection, row.pk, slot, now, run_pk=run_pk, is_waiting=turn.waits)
        return created.hints
    pending = {"execution": ExecutionState.PENDING.value, "hinted_at": None if turn.waits else db_now()}
    _write_slot(connection, row.pk, slot, now, is_waiting=turn.waits, **pending)
    if turn.waits:
        return []
    written = connection.execute(
        sa.select(firings.c.pk, firings.c.hinted_at).where(firings.c.job_pk == row.pk, firings.c.slot == slot.at)
    ).one()
    return [collect_hint(written.pk, written.hinted_at)]


def _write_slot(connection: Connection, job_pk: int, slot: Slot, now: float, **values: Any) -> None:
    ledger_row = {"job_pk": job_pk, "slot": slot.at, "outcome": slot.outcome, "reason": plain(slot.reason)}
    connection.execute(
        insert_ignoring(connection, firings).values(**{**ledger_row, "is_waiting": False, "settled_at": now, **values})
    )


def _is_settled(connection: Connection, job_pk: int, at: float) -> bool:
    known = sa.select(firings.c.pk).where(firings.c.job_pk == job_pk, firings.c.slot == at)
    return connection.execute(known).first() is not None


def _cancel_open(connection: Connection, job_pk: int) -> Settled:
    """Stop the job's runs, and what is being collected for them. The caller holds the job."""
    connection.execute(
        sa.update(firings)
        .where(
            firings.c.job_pk == job_pk,
            _IS_OPEN,
            firings.c.run_pk.is_(None),
            firings.c.execution.not_in(_COLLECTED),
        )
        .values(
            execution=ExecutionState.UNKNOWN.value,
            hinted_at=None,
            lease_token=None,
            lease_owner=None,
            is_waiting=False,
            remark=STOPPED_FOR_A_LATER_SLOT,
        )
    )
    open_runs = sa.select(runs.c.pk).join(firings, firings.c.run_pk == runs.c.pk)
    pks = connection.execute(
        open_runs.where(firings.c.job_pk == job_pk, _IS_OPEN, runs.c.exit_reason.is_(None)).order_by(runs.c.pk)
    ).scalars()
    settled = Settled()
    for pk in pks.all():
        loaded = lock_run(connection, pk)
        assert loaded is not None
        after = apply(loaded.run, ev.StopRequested())
        hints = [] if after == loaded.run else save(connection, loaded, after)
        settled += Settled(hints=hints, stopped=[loaded.run.run_id])
    return settled


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


def _write_followup(connection: Connection, row: JobRow, firing_pk: int, followup: Followup, now: float) -> list[Hint]:
    change = sa.update(firings).where(firings.c.pk == firing_pk)
    remark = plain(followup.remark) if followup.remark is not None else None
    hints = owe(connection, followup.targets, job_pk=row.pk, body=followup.body) if followup.body is not None else []
    if followup.run is not None:
        run_pk, created = insert_run(connection, followup.run)
        connection.execute(change.values(run_pk=run_pk, remark=remark))
        return [*hints, *created.hints]
    assert followup.after is not None
    owes_note = followup.after.owes_note
    connection.execute(change.values(ended_at=now, is_waiting=False, remark=remark, owes_note=owes_note))
    return [*hints, *_write_after(connection, row, followup.after, now), *_start_next(connection, row.pk)]


def _open_runs(connection: Connection, job_pk: int) -> tuple[int, int]:
    """Runs of the job that are going, and that wait for those. What is being collected for one counts as one."""
    rows = connection.execute(
        sa.select(firings.c.is_waiting)
        .outerjoin(runs, runs.c.pk == firings.c.run_pk)
        .where(firings.c.job_pk == job_pk, _IS_OPEN, sa.or_(firings.c.run_pk.is_(None), runs.c.exit_reason.is_(None)))
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
    begun = sa.update(firings).where(firings.c.pk == row.pk).values(is_waiting=False)
    if row.run_pk is not None:
        connection.execute(begun)
        return start_held(connection, row.run_pk)
    at = connection.execute(begun.values(hinted_at=db_now()).returning(firings.c.hinted_at)).scalar_one()
    return [collect_hint(row.pk, at)]


def _used_since(connection: Connection, job_pk: int, at: float) -> DayUse:
    used = (runs.c.iteration, _TOKENS.label("tokens"), runs.c.cost_nano_usd, runs.c.cost_status)
    since = (firings.c.job_pk == job_pk, firings.c.run_pk.is_not(None), firings.c.settled_at >= at)
    own = sa.select(*used).join(firings, firings.c.run_pk == runs.c.pk).where(*since)
    delegated = sa.select(*used).join(firings, firings.c.run_pk == runs.c.root_pk).where(*since)
    every = sa.union_all(own, delegated.where(runs.c.root_pk.is_not(None))).subquery()
    is_unknown = sa.case((every.c.cost_status == CostStatus.UNKNOWN.value, 1), else_=0)
    row = connection.execute(
        sa.select(*(sa.func.coalesce(sa.func.sum(part), 0) for part in (*list(every.c)[:3], is_unknown)))
    ).one()
    return DayUse(
        iterations=int(row[0]), tokens=int(row[1]), cost_usd=Decimal(int(row[2])) / _NANO, is_cost_known=not row[3]
    )


_TOKENS = runs.c.input_tokens + runs.c.output_tokens + runs.c.cache_read_tokens + runs.c.cache_write_tokens


def latest_answer(connection: Connection, job_id: str) -> str | None:
    """What the latest run of a job answered that had an answer: the answer alone, not what led to it."""
    has_answer = sa.and_(runs.c.status == "completed", runs.c.output_seq.is_not(None))
    is_script = sa.and_(firings.c.run_pk.is_(None), firings.c.execution == ExecutionState.COMPLETED.value)
    firing = connection.execute(
        sa.select(firings)
        .join(jobs, jobs.c.pk == firings.c.job_pk)
        .outerjoin(runs, runs.c.pk == firings.c.run_pk)
        .where(jobs.c.job_id == job_id, sa.or_(has_answer, is_script))
        .order_by(firings.c.slot.desc())
        .limit(1)
    ).first()
    return _answer_of(connection, firing) if firing is not None else None


def _answer_of(connection: Connection, firing: Any) -> str | None:
    if firing.run_pk is None:
        script = json.loads(firing.collected or "{}").get("script") or {}
        return str(script.get("stdout") or "") or None
    run = connection.execute(sa.select(runs.c.session_pk, runs.c.output_seq).where(runs.c.pk == firing.run_pk)).one()
    return _text_at(connection, run.session_pk, run.output_seq)


def _text_at(connection: Connection, session_pk: int, seq: int | None) -> str | None:
    rows = read_messages(connection, session_pk, seq, seq) if seq is not None else ()
    content = json.loads(rows[0].body).get("content") if rows else None
    return content if isinstance(content, str) else None


def _append_note(connection: Connection, session_id: str, text: str, *, run_pk: int) -> bool:
    """Whether the note is written, or never can be; false while a run has the session's turn."""
    session = connection.execute(
        sa.select(sessions.c.pk, sessions.c.active_run_pk, sessions.c.message_seq)
        .where(sessions.c.session_id == session_id)
        .with_for_update()
    ).first()
    if session is None:
        return True
    if session.active_run_pk is not None:
        return False
    seq = session.message_seq + 1
    body = canonical_json({"role": "user", "content": plain(text)})
    insert_messages(connection, session.pk, run_pk, [Message(seq=seq, role=Role.USER, body=body)])
    connection.execute(sa.update(sessions).where(sessions.c.pk == session.pk).values(message_seq=seq))
    return True


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
