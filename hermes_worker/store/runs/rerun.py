"""The submission of a run that ended, so that it can be submitted again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import HermesError
from hermes_worker.core.run import RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row
from hermes_worker.store.outbox.deliveries import parse_targets
from hermes_worker.store.runs.inputs import load_spec
from hermes_worker.store.runs.runs import run_missing_error
from hermes_worker.store.tables import runs, sessions


class NotRepeatable(HermesError):
    """The run cannot be repeated: it has not ended, it was not submitted by a caller, or its input cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierSubmission:
    """The submission of an earlier run."""

    tenant: str
    session_id: str
    spec: RunSpec
    deliver: tuple[str, ...]


class _RepeatedRun(NamedTuple):
    pk: int
    status: str
    root_pk: int | None
    deliver: str | None
    tenant: str
    session_id: str


_ASKED = (
    sa.select(runs.c.pk, runs.c.status, runs.c.root_pk, runs.c.deliver, runs.c.tenant, sessions.c.session_id)
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(runs.c.run_id == sa.bindparam("run_id"))
)


def load_submission(database: Database, run_id: str) -> EarlierSubmission:
    """Load the submission of a run that ended. Raises ``RunNotFound``, ``NotRepeatable``."""
    with database.read() as connection:
        row = fetch_row(connection.execute(_ASKED, {"run_id": run_id}), _RepeatedRun)
        if row is None:
            raise run_missing_error(connection, run_id)
        if row.root_pk is not None:
            raise NotRepeatable(f"run {run_id!r} belongs to the run that caused it: retry that one")
        if not RunStatus(row.status).is_terminal:
            raise NotRepeatable(f"run {run_id!r} has not ended ({row.status}): stop it first, or wait for its end")
        try:
            spec = load_spec(connection, row.pk)
        except ValueError:
            raise NotRepeatable(f"the stored input of run {run_id!r} cannot be read") from None
    return EarlierSubmission(
        tenant=row.tenant,
        session_id=row.session_id,
        spec=spec,
        deliver=tuple(parse_targets(row.deliver)) if row.deliver else (),
    )
