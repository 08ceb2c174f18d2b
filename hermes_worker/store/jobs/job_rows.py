"""Jobs and their firings as values, and the reads that the other modules of jobs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.store.engine.prepared import fetch_one, fetch_row, select_columns
from hermes_worker.store.jobs.executions import ExecutionState
from hermes_worker.store.rows import Hint, load_messages
from hermes_worker.store.runs.runs import NewRun
from hermes_worker.store.tables import firings, jobs, runs

STOPPED_FOR_A_LATER_SLOT = "stopped for a later slot"
_NANO = Decimal(1_000_000_000)
IS_OPEN = sa.text("firings.ended_at is null and (firings.run_pk is not null or firings.execution is not null)")
"""Written as in the partial index ``ix_firings_open`` (``tables.OPEN_FIRING``)."""
COLLECTED = (ExecutionState.COMPLETED.value, ExecutionState.FAILED.value, ExecutionState.UNKNOWN.value)
"""States of executions that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job. Times are epoch seconds."""

    pk: int
    job_id: str
    tenant: str
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
class JobProgress:
    """The state of a job: the columns that a decision changes."""

    state: str
    next_slot: float | None
    next_fire_at: float | None
    completed: int = 0
    consecutive_failures: int = 0
    paused_reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A slot for the ledger."""

    at: float
    outcome: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTick:
    """The decision about a due job. The last of ``slots`` is the one that ``run`` is for."""

    slots: Sequence[Slot]
    place: JobProgress
    run: NewRun | None = None
    collects: bool = False
    """A worker collects what the run needs before there is one."""
    waits: bool = False
    cancels: bool = False
    """Stop the job's open runs."""
    definition: str | None = None
    """Replaces the job's definition; ``None`` leaves it."""
    notice: str | None = None
    """Text that is delivered to ``targets``."""
    targets: Sequence[str] = ()

    @property
    def starts(self) -> bool:
        return self.run is not None or self.collects


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledJobs:
    """The results of a transaction that other processes have to hear of."""

    hints: Sequence[Hint] = ()
    stopped: Sequence[str] = ()
    """Runs that were asked to stop."""

    def __add__(self, other: SettledJobs) -> SettledJobs:
        return SettledJobs(hints=[*self.hints, *other.hints], stopped=[*self.stopped, *other.stopped])


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
class _LockedJob:
    """A job whose row is locked, with what a decision about it may read."""

    row: JobRow
    now: float
    connection: Connection

    def load_latest_answer(self, job_id: str) -> str | None:
        """Load the latest answer of a job of the same tenant; ``None`` when none of its runs had one."""
        return load_latest_answer(self.connection, self.row.tenant, job_id)

    def load_use_since(self, at: float) -> DayUse:
        """Load what the job's runs used that were started since ``at`` (epoch seconds)."""
        return load_use_since(self.connection, self.row.pk, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected(_LockedJob):
    """The output of a worker's collection for a firing, with what the decision about it may read."""

    state: ExecutionState
    document: str | None
    """JSON, as the worker left it; ``None`` when it left nothing."""
    remark: str | None
    slot: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Followup:
    """The decision about a collection: a run, or the end."""

    then: NewRun | JobAfter
    remark: str | None = None
    body: str | None = None
    """Text that is delivered to ``targets``."""
    targets: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DayUse:
    """The use by the runs of a job and everything they delegated."""

    iterations: int
    tokens: int
    cost_usd: Decimal
    is_cost_known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAfter:
    """The job after one of its runs ended."""

    place: JobProgress
    status: str
    """``ok``, ``error`` or ``unknown``."""
    error: str | None
    notice: str | None = None
    targets: Sequence[str] = ()
    owes_note: bool = False
    """The run's answer has to be written into a session (``write_note``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DueJob(_LockedJob):
    """A locked due job, with what the decision may read."""

    running: int
    waiting: int

    def was_blocked_since(self, at: float) -> bool:
        """Whether a slot since ``at`` was blocked by the budget."""
        blocked = sa.select(firings.c.pk).where(
            firings.c.job_pk == self.row.pk, firings.c.slot >= at, firings.c.outcome == "blocked_budget"
        )
        return self.connection.execute(blocked.limit(1)).first() is not None


def load_use_since(connection: Connection, job_pk: int, at: float) -> DayUse:
    used = (runs.c.iteration, _TOKENS.label("tokens"), _NANO_USD.label("nano_usd"), runs.c.unpriced_calls)
    since = (firings.c.job_pk == job_pk, firings.c.run_pk.is_not(None), firings.c.settled_at >= at)
    own = sa.select(*used).join(firings, firings.c.run_pk == runs.c.pk).where(*since)
    delegated = sa.select(*used).join(firings, firings.c.run_pk == runs.c.root_pk).where(*since)
    every = sa.union_all(own, delegated.where(runs.c.root_pk.is_not(None))).subquery()
    row = connection.execute(sa.select(*(sa.func.coalesce(sa.func.sum(part), 0) for part in every.c))).one()
    return DayUse(
        iterations=int(row[0]), tokens=int(row[1]), cost_usd=Decimal(int(row[2])) / _NANO, is_cost_known=not row[3]
    )


_TOKENS = (
    runs.c.input_tokens
    + runs.c.output_tokens
    + runs.c.cache_read_tokens
    + runs.c.cache_write_tokens
    + runs.c.unknown_input_tokens
    + runs.c.unknown_output_tokens
)
_NANO_USD = runs.c.cost_nano_usd + runs.c.doubtful_nano_usd
"""Counted as the budgets of runs count: attempts of unknown outcome are included."""


def load_latest_answer(connection: Connection, tenant: str, job_id: str) -> str | None:
    """Load the latest answer of a job's runs or scripts, without the messages before it; ``None`` when none had one."""
    has_answer = sa.and_(runs.c.status == "completed", runs.c.output_seq.is_not(None))
    is_script = sa.and_(firings.c.run_pk.is_(None), firings.c.execution == ExecutionState.COMPLETED.value)
    answered = connection.execute(
        sa.select(firings.c.run_pk, firings.c.collected)
        .join(jobs, jobs.c.pk == firings.c.job_pk)
        .outerjoin(runs, runs.c.pk == firings.c.run_pk)
        .where(jobs.c.job_id == job_id, jobs.c.tenant == tenant, sa.or_(has_answer, is_script))
        .order_by(firings.c.slot.desc())
        .limit(1)
    )
    firing = fetch_row(answered, _FiringRow)
    return load_answer(connection, firing) if firing is not None else None


class FiringAnswer(Protocol):
    """The columns of a firing on which its answer depends."""

    @property
    def run_pk(self) -> int | None: ...

    @property
    def collected(self) -> str | None: ...


class _AnswerRow(NamedTuple):
    session_pk: int
    output_seq: int | None


class _FiringRow(NamedTuple):
    run_pk: int | None
    collected: str | None


def load_answer(connection: Connection, firing: FiringAnswer) -> str | None:
    if firing.run_pk is None:
        script = json.loads(firing.collected or "{}").get("script") or {}
        return str(script.get("stdout") or "") or None
    answered = sa.select(*select_columns(runs, _AnswerRow)).where(runs.c.pk == firing.run_pk)
    run = fetch_one(connection.execute(answered), _AnswerRow)
    rows = load_messages(connection, run.session_pk, run.output_seq, run.output_seq) if run.output_seq else ()
    return read_message_text(rows[0].body) if rows else None


def read_message_text(body: str | None) -> str | None:
    """The text of a stored message; ``None`` when there is none."""
    content = json.loads(body).get("content") if body is not None else None
    return content if isinstance(content, str) else None


def build_progress_columns(place: JobProgress) -> dict[str, object]:
    return {
        "state": place.state,
        "next_slot": place.next_slot,
        "next_fire_at": place.next_fire_at,
        "completed": place.completed,
        "consecutive_failures": place.consecutive_failures,
        "paused_reason": place.paused_reason,
    }


ALL_JOBS = sa.select(*(jobs.c[name] for name in JobRow.__slots__))
JOBS = ALL_JOBS.where(jobs.c.removed_at.is_(None))


def to_job_rows(result: sa.Result[Any]) -> list[JobRow]:
    """Build the jobs that ``JOBS`` or ``ALL_JOBS`` found. Raises ``TypeError`` when a statement gives other columns."""
    return [JobRow(**dict(found)) for found in result.mappings()]


def to_first_job(result: sa.Result[Any]) -> JobRow | None:
    """Build the first job that ``JOBS`` or ``ALL_JOBS`` found; ``None`` when there is none."""
    return next(iter(to_job_rows(result)), None)


def to_job_rows_at(result: sa.Result[Any]) -> tuple[list[JobRow], float]:
    """Build the jobs of a statement that gives the time as well, as ``now``; without a job the time is 0."""
    found = [dict(each) for each in result.mappings()]
    times = [float(each.pop("now")) for each in found]
    return [JobRow(**each) for each in found], max(times, default=0.0)


def count_open_runs(connection: Connection, job_pks: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Count by job its runs that are going, and those that wait for them. A firing that is being collected for counts
    as one. Jobs without any are left out."""
    rows = connection.execute(
        sa.select(firings.c.job_pk, firings.c.is_waiting)
        .outerjoin(runs, runs.c.pk == firings.c.run_pk)
        .where(firings.c.job_pk.in_(job_pks), IS_OPEN, sa.or_(firings.c.run_pk.is_(None), runs.c.exit_reason.is_(None)))
    )
    found: dict[int, tuple[int, int]] = {}
    for job_pk, is_waiting in rows:
        running, waiting = found.get(job_pk, (0, 0))
        found[job_pk] = (running, waiting + 1) if is_waiting else (running + 1, waiting)
    return found
