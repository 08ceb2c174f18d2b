"""Executions: the script and the skills of a job, run by a worker before there is a run; claimed once and never
repeated.

A script may have effects, so it is not run again when its worker vanished: the execution ends as ``unknown``. What was
collected is left in the firing's row, and a scheduler decides what follows (``store.jobs.jobs``).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.effects import Collect
from hermes_worker.core.errors import LeaseLost
from hermes_worker.store.engine.database import RowStore, db_now, select_db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_row, select_columns
from hermes_worker.store.restore_detection import is_no_copy
from hermes_worker.store.rows import Hint, make_storable
from hermes_worker.store.tables import firings, jobs, workers

_BATCH = 200


class ExecutionState(StrEnum):
    """States of an execution. Terminal states are never left, and ``unknown`` is never tried again."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Its worker vanished, or it was cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionClaim:
    """The right to collect for one firing. Good only while ``token`` is in its row."""

    token: str
    firing_id: int
    job_id: str
    tenant: str
    name: str
    definition: str
    slot: float
    at: float
    """When it was claimed, epoch seconds by the database's clock."""


class _TakenFiring(NamedTuple):
    job_pk: int
    slot: float
    claimed_at: float


class _CollectingJob(NamedTuple):
    job_id: str
    tenant: str
    name: str
    definition: str


class Executions(RowStore):
    """The executions of one database. Thread-safe."""

    def claim(self, firing_id: int, owner: int) -> ExecutionClaim | None:
        """Claim an execution; ``None`` when it is not available. Of any number of workers one gets it, once."""
        token = secrets.token_hex(16)
        with self.database.write() as connection:
            claimed = connection.execute(
                sa.update(firings)
                .where(firings.c.pk == firing_id, firings.c.execution == "pending", firings.c.hinted_at.is_not(None))
                .where(is_no_copy())
                .values(
                    execution=ExecutionState.RUNNING.value,
                    hinted_at=None,
                    lease_token=token,
                    lease_owner=owner,
                    claimed_at=db_now(),
                )
                .returning(*select_columns(firings, _TakenFiring))
            )
            row = fetch_row(claimed, _TakenFiring)
            if row is None:
                return None
            of_firing = sa.select(*select_columns(jobs, _CollectingJob)).where(jobs.c.pk == row.job_pk)
            job = fetch_one(connection.execute(of_firing), _CollectingJob)
        return ExecutionClaim(
            token=token,
            firing_id=firing_id,
            job_id=job.job_id,
            tenant=job.tenant,
            name=job.name,
            definition=job.definition,
            slot=row.slot,
            at=row.claimed_at,
        )

    def is_held(self, claim: ExecutionClaim) -> bool:
        """Whether the claim still holds, so that the result is still wanted."""
        held = sa.select(firings.c.pk).where(firings.c.pk == claim.firing_id, firings.c.lease_token == claim.token)
        return self.database.select(held).first() is not None

    def release(self, claim: ExecutionClaim) -> None:
        """Give back an execution that has not begun, so that it is due again. Raises ``LeaseLost``."""
        again = {"execution": ExecutionState.PENDING.value, "hinted_at": db_now(), "claimed_at": None}
        self._end_claim(claim, again)

    def finish(self, claim: ExecutionClaim, state: ExecutionState, collected: str) -> None:
        """Store what was collected. Raises ``LeaseLost``."""
        self._end_claim(claim, {"execution": state.value, "collected": make_storable(collected)})

    def _end_claim(self, claim: ExecutionClaim, values: Mapping[str, object]) -> None:
        done = self.database.execute(
            sa.update(firings)
            .where(firings.c.pk == claim.firing_id, firings.c.lease_token == claim.token)
            .values(**values, lease_token=None, lease_owner=None)
        )
        if done == 0:
            raise LeaseLost(f"the execution of job {claim.job_id!r} was taken over; nothing was written")

    def find_removed(self, job_ids: Collection[str]) -> list[str]:
        """Return the ids among ``job_ids`` of jobs that were removed and have no execution that is due or at work."""
        at_work = sa.select(firings.c.pk).where(
            firings.c.job_pk == jobs.c.pk, firings.c.execution.in_(("pending", ExecutionState.RUNNING.value))
        )
        removed = sa.select(jobs.c.job_id).where(jobs.c.removed_at.is_not(None), ~at_work.exists())
        return list(self.database.select(removed.where(jobs.c.job_id.in_(list(job_ids)))).scalars())

    # --- what schedulers do ---

    def end_lost(self) -> int:
        """End the executions of workers that are gone. Returns how many. Idempotent."""
        orphans = (
            sa.select(firings.c.pk)
            .outerjoin(workers, workers.c.pk == firings.c.lease_owner)
            .where(firings.c.lease_owner.is_not(None), sa.or_(workers.c.state.is_(None), workers.c.state != "alive"))
            .limit(_BATCH)
        )
        if self.database.select(orphans.limit(1)).first() is None:
            return 0
        return self.database.execute(
            sa.update(firings)
            .where(firings.c.pk.in_(orphans), firings.c.lease_owner.is_not(None))
            .values(
                execution=ExecutionState.UNKNOWN.value,
                lease_token=None,
                lease_owner=None,
                remark="its worker vanished; whether the script took effect is not known",
            )
        )

    def take_overdue(self, older_than_s: float) -> Sequence[Hint]:
        """Return hints of executions that were not claimed within ``older_than_s`` seconds, to be sent again. Their
        hint time is renewed."""
        late = sa.select(firings.c.pk).where(firings.c.hinted_at < select_db_now() - older_than_s).limit(_BATCH)
        if self.database.select(late.limit(1)).first() is None:
            return []
        with self.database.statement() as connection:
            rows = connection.execute(
                sa.update(firings)
                .where(firings.c.pk.in_(late.with_for_update(skip_locked=True)), firings.c.hinted_at.is_not(None))
                .values(hinted_at=db_now())
                .returning(firings.c.pk, firings.c.hinted_at)
            ).all()
        return [build_collect_hint(pk, hinted_at) for pk, hinted_at in rows]


def build_collect_hint(firing_pk: int, at: float) -> Hint:
    return Hint(effect=Collect(run_id=f"firing {firing_pk}", firing_id=firing_pk), at=float(at))
