"""The coming slots of jobs."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from hermes_worker.store.jobs.job_rows import JobRow
from scheduler.definition import JobSpec
from scheduler.jobs import to_instant
from scheduler.policy import JobStatus
from scheduler.schedule import iterate_slots


@dataclass(frozen=True, slots=True, kw_only=True)
class ComingSlot:
    """A slot that is not settled yet."""

    at: float
    """Epoch seconds."""
    job_id: str
    name: str


def list_coming_slots(jobs: Iterable[JobRow], *, now: float, until: float) -> Iterator[ComingSlot]:
    """List the slots of scheduled jobs up to ``until``, the next one first. Overdue ones count."""
    return heapq.merge(*(_list_slots_of_job(row, now, until) for row in jobs), key=lambda slot: (slot.at, slot.job_id))


def _list_slots_of_job(row: JobRow, now: float, until: float) -> Iterator[ComingSlot]:
    if row.state != JobStatus.SCHEDULED.value or row.next_slot is None:
        return
    spec = JobSpec.from_json(row.definition)
    left = None if spec.times is None else max(0, spec.times - row.completed)
    first = to_instant(row.next_slot)
    later = (slot.timestamp() for slot in iterate_slots(spec.parse_schedule_at(now), first))
    every = (at for part in ((row.next_slot,), later) for at in part)
    for at in islice(takewhile(lambda at: at <= until, every), left):
        yield ComingSlot(at=at, job_id=row.job_id, name=row.name)
