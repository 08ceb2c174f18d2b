"""Due slots of jobs: locked, decided on and written, many in one short transaction.

Everything that follows from a due slot is in one transaction: the ledger's row, the run, and the job's next slot. The
jobs' rows are locked with SKIP LOCKED, so of any number of schedulers one settles a job and the others skip it; UNIQUE
(job, slot) makes a second firing impossible in any case. The number of statements does not depend on how many jobs
there are in a batch: a thousand that are due at eight are twenty batches, not a thousand transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.step import apply_event
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.jobs.executions import ExecutionState, build_collect_hint
from hermes_worker.store.jobs.job_rows import (
    COLLECTED,
    IS_OPEN,
    JOBS,
    STOPPED_FOR_A_LATER_SLOT,
    DueJob,
    JobRow,
    JobTick,
    SettledJobs,
    Slot,
    build_progress_columns,
    count_open_runs,
    to_job_rows_at,
)
from hermes_worker.store.outbox.deliveries import enqueue_deliveries
from hermes_worker.store.rows import Hint, build_insert_ignoring, lock_run, make_storable
from hermes_worker.store.runs.new_runs import insert_runs
from hermes_worker.store.runs.step_writer import save_step
from hermes_worker.store.tables import firings, jobs, runs

_ADVANCE = (
    sa.update(jobs)
    .where(jobs.c.pk == sa.bindparam("job"))
    .values(
        last_run_at=sa.func.coalesce(sa.bindparam("ran_at", type_=sa.Double()), jobs.c.last_run_at),
        definition=sa.func.coalesce(sa.bindparam("written", type_=jobs.c.definition.type), jobs.c.definition),
    )
)
_KNOWN = sa.select(firings.c.job_pk, firings.c.slot).where(
    firings.c.job_pk.in_(sa.bindparam("job_pks", expanding=True)),
    firings.c.slot.in_(sa.bindparam("slots", expanding=True)),
)
_PENDING = {"execution": ExecutionState.PENDING.value}


@dataclass(frozen=True, slots=True, kw_only=True)
class _SettledTick:
    """A locked job and what follows for it."""

    row: JobRow
    tick: JobTick
    is_begun: bool
    """Something starts for its last slot."""


@lru_cache(maxsize=8)
def _build_lock_due(clock: sa.ColumnElement[float]) -> sa.Select[Any]:
    """Build the statement that selects and locks due jobs, with the time by ``clock``. Its parameter ``pks`` names the
    jobs to look at; one that another scheduler has locked is left out."""
    return (
        JOBS.add_columns(clock.label("now"))
        .where(jobs.c.pk.in_(sa.bindparam("pks", expanding=True)), jobs.c.next_fire_at <= clock)
        .with_for_update(skip_locked=True)
    )


def settle_due(
    connection: Connection,
    pks: Sequence[int],
    clock: sa.ColumnElement[float],
    decide: Callable[[DueJob], JobTick | None],
) -> SettledJobs:
    """Do what ``decide`` says with the jobs that are due and that no other scheduler has locked."""
    found, now = to_job_rows_at(connection.execute(_build_lock_due(clock), {"pks": list(pks)}))
    if not found:
        return SettledJobs()
    busy = count_open_runs(connection, [each.pk for each in found])
    ticks = []
    for row in found:
        running, waiting = busy.get(row.pk, (0, 0))
        tick = decide(DueJob(row=row, now=now, running=running, waiting=waiting, connection=connection))
        if tick is not None:
            ticks.append((row, tick))
    return _write_ticks(connection, ticks, now)


def _write_ticks(connection: Connection, ticks: Sequence[tuple[JobRow, JobTick]], now: float) -> SettledJobs:
    if not ticks:
        return SettledJobs()
    known = _find_settled(connection, [(row, tick) for row, tick in ticks if tick.starts])
    begun = [
        _SettledTick(row=row, tick=tick, is_begun=tick.starts and (row.pk, tick.slots[-1].at) not in known)
        for row, tick in ticks
    ]
    settled = SettledJobs()
    for each in begun:
        if each.is_begun and each.tick.cancels:
            settled += _cancel_open(connection, each.row.pk)
    settled += SettledJobs(
        hints=[*_write_slots(connection, begun, now), *_write_collecting_slots(connection, begun, now)]
    )
    connection.execute(
        _ADVANCE.values(updated_at=now), [{"job": each.row.pk, **_build_changes(each, now)} for each in begun]
    )
    for row, tick in ticks:
        if tick.notice is not None:
            settled += SettledJobs(hints=enqueue_deliveries(connection, tick.targets, job_pk=row.pk, body=tick.notice))
    return settled


def _build_changes(each: _SettledTick, now: float) -> dict[str, object]:
    place = build_progress_columns(each.tick.place)
    return {**place, "ran_at": now if each.is_begun else None, "written": each.tick.definition}


def _find_settled(connection: Connection, starting: Sequence[tuple[JobRow, JobTick]]) -> set[tuple[int, float]]:
    """Find slots that have their row already: after a clock went back, or when a person ran a job by hand at this
    moment."""
    if not starting:
        return set()
    last = {row.pk: tick.slots[-1].at for row, tick in starting}
    rows = connection.execute(_KNOWN, {"job_pks": list(last), "slots": list(set(last.values()))})
    return {(job_pk, slot) for job_pk, slot in rows}


def _write_slots(connection: Connection, ticks: Sequence[_SettledTick], now: float) -> list[Hint]:
    """Write every slot for which nothing has to be collected, with its run where there is one."""
    starting = [each for each in ticks if each.is_begun and each.tick.run is not None]
    created = insert_runs(connection, [each.tick.run for each in starting if each.tick.run is not None])
    run_pks = {each.row.pk: run_pk for each, (run_pk, _) in zip(starting, created, strict=True)}
    values = []
    for each in ticks:
        job_pk, ended = each.row.pk, each.tick.slots[:-1] if each.tick.starts else each.tick.slots
        values += [_build_slot_values(job_pk, slot, now) for slot in ended]
        if job_pk in run_pks:
            last = _build_slot_values(job_pk, each.tick.slots[-1], now)
            values.append({**last, "run_pk": run_pks[job_pk], "is_waiting": each.tick.waits})
    if values:
        connection.execute(build_insert_ignoring(connection, firings), values)
    return [hint for _, run in created for hint in run.hints]


def _write_collecting_slots(connection: Connection, ticks: Sequence[_SettledTick], now: float) -> list[Hint]:
    """Write the slots for which workers have to collect something first."""
    collecting = [each for each in ticks if each.is_begun and each.tick.collects]
    hints: list[Hint] = []
    for waits in (False, True):
        rows = [
            {**_build_slot_values(each.row.pk, each.tick.slots[-1], now), **_PENDING, "is_waiting": waits}
            for each in collecting
            if each.tick.waits is waits
        ]
        if not rows:
            continue
        due = None if waits else db_now()
        written = connection.execute(
            sa.insert(firings).values(hinted_at=due).returning(firings.c.pk, firings.c.hinted_at), rows
        )
        hints += [build_collect_hint(pk, hinted_at) for pk, hinted_at in written if hinted_at is not None]
    return hints


def _build_slot_values(job_pk: int, slot: Slot, now: float) -> dict[str, object]:
    return {
        "job_pk": job_pk,
        "slot": slot.at,
        "outcome": slot.outcome,
        "reason": make_storable(slot.reason),
        "run_pk": None,
        "is_waiting": False,
        "settled_at": now,
    }


def _cancel_open(connection: Connection, job_pk: int) -> SettledJobs:
    """Stop the job's runs, and its executions. The caller holds the job."""
    connection.execute(
        sa.update(firings)
        .where(
            firings.c.job_pk == job_pk,
            IS_OPEN,
            firings.c.run_pk.is_(None),
            firings.c.execution.not_in(COLLECTED),
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
    of_job = sa.select(runs.c.pk).join(firings, firings.c.run_pk == runs.c.pk)
    pks = connection.execute(
        of_job.where(firings.c.job_pk == job_pk, IS_OPEN, runs.c.exit_reason.is_(None)).order_by(runs.c.pk)
    ).scalars()
    settled = SettledJobs()
    for loaded in filter(None, (lock_run(connection, pk) for pk in pks.all())):
        after = apply_event(loaded.run, ev.StopRequested())
        hints = [] if after == loaded.run else save_step(connection, loaded, after)
        settled += SettledJobs(hints=hints, stopped=[loaded.run.run_id])
    return settled
