"""Scheduled jobs and the ledger of their slots, for people and schedulers.

*What* follows from a slot, or from an end, is not decided in the store: the caller passes a function. How it is written
is in ``store.jobs.slots`` and ``store.jobs.job_ends``.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now, select_db_now
from hermes_worker.store.engine.prepared import fetch_views, select_view_columns
from hermes_worker.store.jobs import job_ends, slots
from hermes_worker.store.jobs.job_rows import (
    JOBS,
    Collected,
    DueJob,
    EndedRun,
    Followup,
    JobAfter,
    JobProgress,
    JobRow,
    JobTick,
    SettledJobs,
    build_progress_columns,
    to_first_job,
    to_job_rows,
)
from hermes_worker.store.restore_detection import is_no_copy
from hermes_worker.store.rows import Hint, build_insert_ignoring, make_storable
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.short_ids import complete_id
from hermes_worker.store.tables import budgets, deliveries, firings, jobs, maintenance, runs, sessions, tenants

DUE_MAX = 500
"""Jobs that one look returns; the rest is due at the next."""
ENDED_MAX = 200
"""Ends that one look returns."""


class JobNotFound(HermesError):
    """No job has this id or name."""


class AmbiguousJob(HermesError):
    """Several jobs have this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEdit:
    """A person's change to a job; ``None`` leaves the name or the definition as it is."""

    place: JobProgress
    name: str | None = None
    definition: str | None = None


_TEXTS = frozenset({"name", "prompt", "origin"})
"""Fields with texts of people, of which the audit log holds only a digest."""


def _describe_job(row: JobRow) -> dict[str, object]:
    """Describe a job for the audit log, without texts and addresses of people."""
    facts: dict[str, object] = {"name": row.name, "state": row.state, **json.loads(row.definition)}
    targets = facts.get("deliver")
    if isinstance(targets, list):
        facts["deliver"] = [f"{str(target).partition(':')[0]}:{_compute_digest(target)}" for target in targets]
    texts = {name: _compute_digest(facts[name]) for name in _TEXTS & facts.keys() if facts[name] is not None}
    return {name: value for name, value in {**facts, **texts}.items() if value is not None}


def _compute_digest(value: object) -> str:
    return hashlib.sha256(dump_canonical_json(value).encode("utf-8")).hexdigest()[:12]


def _find_difference(
    before: Mapping[str, object], after: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Return the values that differ, before and after."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in changed}, {name: after.get(name) for name in changed}


class ChainLimits(NamedTuple):
    """The limits of a chain of runs; ``None`` is not limited."""

    iterations: int | None = None
    tokens: int | None = None
    nano_usd: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiringView:
    """A slot of the ledger for people."""

    slot: float
    outcome: str
    reason: str
    settled_at: float
    run_id: str | None
    run_status: str | None
    is_waiting: bool
    execution: str | None
    """The state of the job's script or skills; ``None`` for a job without."""
    remark: str | None
    ended_at: float | None


SCHEDULER_NOTED_EVERY_S = 30.0
_SCHEDULER_GONE_AFTER_S = 4 * SCHEDULER_NOTED_EVERY_S
_IS_SCHEDULER = maintenance.c.name == "scheduler"


class Jobs:
    """The jobs of one tenant; the methods for schedulers work on the jobs of all tenants. Thread-safe."""

    def __init__(
        self, database: Database, tenant: str = DEFAULT_TENANT, *, clock: sa.ColumnElement[float] | None = None
    ) -> None:
        """``clock`` is an SQL expression for the current time; only a test has another than the database's."""
        self._database = database
        self._tenant = tenant
        self._theirs = JOBS.where(jobs.c.tenant == tenant)
        self._clock = clock if clock is not None else select_db_now()
        disabled = sa.select(tenants.c.name).where(tenants.c.disabled_at.is_not(None))
        is_due = sa.and_(jobs.c.next_fire_at <= self._clock, jobs.c.tenant.not_in(disabled), is_no_copy())
        due = sa.select(jobs.c.pk).where(is_due)
        self._due = due.order_by(jobs.c.next_fire_at).limit(sa.bindparam("most"))

    def for_tenant(self, tenant: str) -> Jobs:
        """The jobs of another tenant of the same database."""
        return Jobs(self._database, tenant, clock=self._clock)

    def record_scheduler(self) -> None:
        """Record that a scheduler is at work; each scheduler calls it every ``SCHEDULER_NOTED_EVERY_S`` seconds."""
        with self._database.write() as connection:
            connection.execute(build_insert_ignoring(connection, maintenance), {"name": "scheduler", "ran_at": 0.0})
            connection.execute(sa.update(maintenance).where(_IS_SCHEDULER).values(ran_at=db_now()))

    def has_scheduler(self) -> bool:
        """Whether a scheduler was at work a moment ago: without one no job begins."""
        is_fresh = maintenance.c.ran_at > db_now() - _SCHEDULER_GONE_AFTER_S
        return bool(self._database.select(sa.select(sa.exists().where(_IS_SCHEDULER, is_fresh))).scalar())

    def read_clock(self) -> float:
        """Read the clock by which slots are judged, in epoch seconds."""
        with self._database.read() as connection:
            return self._read_clock(connection)

    def _read_clock(self, connection: Connection) -> float:
        return float(connection.execute(sa.select(self._clock)).scalar_one())

    def create(self, name: str, definition: str, place: Callable[[str, float], JobProgress]) -> JobRow:
        """Insert a new job; ``place`` is called with its id and the time. Raises what ``place`` raises."""
        job_id = uuid.uuid4().hex[:12]
        with self._database.write() as connection:
            now = self._read_clock(connection)
            values = {"job_id": job_id, "tenant": self._tenant, "name": make_storable(name), "definition": definition}
            times = {"created_at": now, "updated_at": now}
            connection.execute(sa.insert(jobs).values(**values, **times, **build_progress_columns(place(job_id, now))))
            [row] = to_job_rows(connection.execute(JOBS.where(jobs.c.job_id == job_id)))
            record_action(connection, Act.JOB_CREATE, job_id, tenant=self._tenant, after=_describe_job(row))
            return row

    def get(self, reference: str) -> JobRow:
        """Load a job by id, or by a name that only one job has, ignoring case. Raises ``JobNotFound``,
        ``AmbiguousJob``."""
        with self._database.read() as connection:
            return self._load_by_reference(connection, reference)

    def complete_reference(self, written: str) -> str:
        """Find the id of the one job that ``written`` means: an id, also of a job that was removed, a name, or the
        beginning of an id. Raises ``JobNotFound``, ``AmbiguousJob`` and ``AmbiguousId`` with the candidates."""
        with self._database.read() as connection:
            its = sa.and_(jobs.c.tenant == self._tenant, jobs.c.job_id == written)
            if connection.execute(sa.select(jobs.c.pk).where(its)).first() is not None:
                return written
            kept = sa.and_(jobs.c.removed_at.is_(None), jobs.c.tenant == self._tenant)
            named = sa.and_(kept, sa.func.lower(jobs.c.name) == written.strip().lower())
            begun = written
            if connection.execute(sa.select(jobs.c.pk).where(named).limit(1)).first() is None:
                begun = complete_id(connection, jobs.c.job_id, written, where=kept)
            return self._load_by_reference(connection, begun).job_id

    def list_jobs(self, *, include_disabled: bool = True) -> list[JobRow]:
        """List the jobs, oldest first."""
        statement = self._theirs if include_disabled else self._theirs.where(jobs.c.state == "scheduled")
        return to_job_rows(self._database.select(statement.order_by(jobs.c.pk)))

    def change(self, reference: str, edit: Callable[[JobRow, float], JobEdit]) -> JobRow:
        """Change a job under its lock. Raises ``JobNotFound``, ``AmbiguousJob`` and what ``edit`` raises."""
        with self._database.write() as connection:
            pk = self._load_by_reference(connection, reference).pk
            row = to_first_job(connection.execute(JOBS.where(jobs.c.pk == pk).with_for_update()))
            if row is None:
                raise JobNotFound(f"there is no job {reference!r} any more")
            now = self._read_clock(connection)
            made = edit(row, now)
            values = build_progress_columns(made.place)
            values["paused_at"] = (row.paused_at or now) if made.place.state == "paused" else None
            if made.name is not None:
                values["name"] = make_storable(made.name)
            if made.definition is not None:
                values["definition"] = made.definition
            connection.execute(sa.update(jobs).where(jobs.c.pk == pk).values(updated_at=now, **values))
            [edited] = to_job_rows(connection.execute(JOBS.where(jobs.c.pk == pk)))
            before, after = _find_difference(_describe_job(row), _describe_job(edited))
            record_action(connection, Act.JOB_CHANGE, row.job_id, tenant=self._tenant, before=before, after=after)
            return edited

    def remove(self, reference: str) -> None:
        """Remove a job; its firings are kept. Raises ``JobNotFound``, ``AmbiguousJob``."""
        with self._database.write() as connection:
            row = self._load_by_reference(connection, reference)
            pk = row.pk
            record_action(connection, Act.JOB_REMOVE, row.job_id, tenant=self._tenant, before=_describe_job(row))
            connection.execute(
                sa.update(jobs).where(jobs.c.pk == pk).values(removed_at=db_now(), next_slot=None, next_fire_at=None)
            )

    def list_firings(self, job_pk: int, *, limit: int = 50, before: float | None = None) -> Sequence[FiringView]:
        """List the firings of a job, the newest slots first; ``before`` is the slot that ended the page before."""
        statement = (
            sa.select(*select_view_columns(firings, FiringView), runs.c.run_id, runs.c.status.label("run_status"))
            .select_from(firings.outerjoin(runs, runs.c.pk == firings.c.run_pk))
            .where(firings.c.job_pk == job_pk)
            .order_by(firings.c.slot.desc())
            .limit(limit)
        )
        if before is not None:
            statement = statement.where(firings.c.slot < before)
        return fetch_views(self._database.select(statement), FiringView)

    def find_delivery_error(self, job_pk: int) -> str | None:
        """Find why the output of a job's latest run did not arrive everywhere; ``None`` when it did, or still may."""
        latest = (
            sa.select(firings.c.run_pk)
            .where(firings.c.job_pk == job_pk, firings.c.run_pk.is_not(None))
            .order_by(firings.c.slot.desc())
            .limit(1)
        )
        failed = sa.select(deliveries.c.error).where(
            deliveries.c.run_pk == latest.scalar_subquery(), deliveries.c.state.in_(("failed", "abandoned"))
        )
        errors = self._database.select(failed.order_by(deliveries.c.pk)).scalars()
        return "; ".join(error or "it failed" for error in errors) or None

    def find_session_id(self, source: str, reference: str) -> str | None:
        """Find the id of the session that a caller from ``source`` means; ``None`` when there is none."""
        wanted = sa.select(sessions.c.session_id).where(session_is(self._tenant, source, reference))
        return self._database.select(wanted).scalar()

    def list_answer_targets(self, session_id: str) -> Sequence[str]:
        """List the targets to which the answer of the run at work in a session is delivered."""
        at_work = sa.select(runs.c.deliver).join(sessions, sessions.c.active_run_pk == runs.c.pk)
        stored = self._database.select(at_work.where(sessions.c.session_id == session_id)).scalar()
        return json.loads(stored) if stored else []

    def load_chain_limits(self, session_id: str) -> ChainLimits:
        """Load the limits of the chain of the run at work in a session."""
        chain = sa.func.coalesce(runs.c.root_pk, runs.c.pk)
        iterations = sa.func.coalesce(budgets.c.iterations_max, runs.c.iterations_max)
        at_work = sessions.join(runs, sessions.c.active_run_pk == runs.c.pk)
        limits = sa.select(iterations, budgets.c.tokens_max, budgets.c.nano_usd_max)
        limits = limits.select_from(at_work.outerjoin(budgets, budgets.c.root_pk == chain))
        limits = limits.where(sessions.c.session_id == session_id)
        row = self._database.select(limits).first()
        return ChainLimits(*row) if row is not None else ChainLimits()

    # --- what schedulers do ---

    def list_due(self) -> Sequence[int]:
        """List the row ids of due jobs, the longest due first. Costs what there is to do. The jobs of disabled tenants
        are due when these are enabled again."""
        return list(self._database.select(self._due, {"most": DUE_MAX}).scalars())

    def list_tenants(self, pks: Sequence[int]) -> Sequence[str]:
        """List the tenants of these jobs, each once."""
        found = sa.select(jobs.c.tenant).where(jobs.c.pk.in_(pks)).distinct()
        return list(self._database.select(found).scalars())

    def list_tenants_of_firing(self, firing_pk: int) -> Sequence[str]:
        """List the tenant of a firing's job; empty when there is no such firing."""
        of_firing = sa.select(firings.c.job_pk).where(firings.c.pk == firing_pk)
        return list(self._database.select(sa.select(jobs.c.tenant).where(jobs.c.pk.in_(of_firing))).scalars())

    def settle(self, pks: Sequence[int], decide: Callable[[DueJob], JobTick | None]) -> SettledJobs:
        """Do what ``decide`` says with due jobs, in one transaction; jobs that another scheduler has or had are
        skipped. Safe for any number of schedulers."""
        with self._database.write() as connection:
            return slots.settle_due(connection, pks, self._clock, decide)

    def list_ended(self) -> Sequence[tuple[int, bool]]:
        """List firings whose run has ended, or for which a worker has collected, and that were not counted yet: their
        row ids, and whether there is a run."""
        with self._database.read() as connection:
            return job_ends.list_ended(connection, ENDED_MAX)

    def count_ended_runs(self, firing_pks: Sequence[int], decide: Callable[[JobRow, EndedRun], JobAfter]) -> list[Hint]:
        """Count the ends of runs for their jobs, each once, and begin the runs that waited for them."""
        with self._database.write() as connection:
            return job_ends.count_ended_runs(connection, firing_pks, self._clock, decide)

    def follow_up(self, firing_pk: int, decide: Callable[[Collected], Followup]) -> list[Hint]:
        """Do what ``decide`` says with what a worker collected: begin the run, or end the firing. Once."""
        with self._database.write() as connection:
            return job_ends.follow_up(connection, firing_pk, self._clock, decide)

    def list_notes_due(self) -> Sequence[int]:
        """List firings whose answer still has to be written into a session."""
        with self._database.read() as connection:
            return job_ends.list_notes_due(connection, ENDED_MAX)

    def write_note(self, firing_pk: int, compose: Callable[[JobRow, str], tuple[str, str] | None]) -> bool:
        """Write a firing's answer into a session, as something the user said; ``compose`` returns the session's id and
        the text. Returns False while a run is at work there: the firing stays due. A session that is gone is forgotten.
        Written once, even when several processes try."""
        with self._database.write() as connection:
            return job_ends.write_note(connection, firing_pk, compose)

    def _load_by_reference(self, connection: Connection, reference: str) -> JobRow:
        row = to_first_job(connection.execute(self._theirs.where(jobs.c.job_id == reference)))
        if row is not None:
            return row
        is_named = sa.func.lower(jobs.c.name) == reference.strip().lower()
        named = to_job_rows(connection.execute(self._theirs.where(is_named)))
        if not named:
            raise JobNotFound(f"there is no job {reference!r}")
        if len(named) > 1:
            ids = ", ".join(row.job_id for row in named)
            raise AmbiguousJob(f"several jobs are called {reference!r}; name one of {ids}")
        return named[0]
