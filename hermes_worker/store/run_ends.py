"""What is told of runs that are over, and whose run a run is, for those who follow chains of runs from outside."""

from __future__ import annotations

from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import RUN_IS_UNCOUNTED, runs

_MOST = 500
_root, _parent, _cause = runs.alias("root"), runs.alias("parent"), runs.alias("cause")


class RunEnd(NamedTuple):
    """A run that is over and not counted yet. Times are epoch seconds; ids are null for a run without such a run."""

    pk: int
    run_id: str
    root_id: str | None
    parent_id: str | None
    cause_id: str | None
    model: str
    status: str
    exit_reason: str
    failure_kind: str | None
    iteration: int
    input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    created_at: float
    finished_at: float


_OWN = tuple(name for name in RunEnd._fields if name not in ("root_id", "parent_id", "cause_id"))
_ENDS = (
    sa.select(
        runs.c.pk,
        runs.c.run_id,
        _root.c.run_id.label("root_id"),
        _parent.c.run_id.label("parent_id"),
        _cause.c.run_id.label("cause_id"),
        *(runs.c[name] for name in _OWN[2:]),
    )
    .outerjoin(_root, _root.c.pk == runs.c.root_pk)
    .outerjoin(_parent, _parent.c.pk == runs.c.parent_pk)
    .outerjoin(_cause, _cause.c.pk == runs.c.cause_pk)
    .where(RUN_IS_UNCOUNTED)
    .order_by(runs.c.pk)
    .limit(_MOST)
)


def uncounted_ends(database: Database) -> list[RunEnd]:
    """The oldest runs that are over and that ``statistics`` has not counted. Raises ``UnavailableError``."""
    with database.read() as connection:
        return [RunEnd(*row) for row in connection.execute(_ENDS)]


def root_of(database: Database, run_id: str) -> str:
    """The id of the first run of the chain that a run belongs to: its own, where nothing caused it. Raises
    ``UnavailableError``."""
    with database.read() as connection:
        found = connection.execute(
            sa.select(_root.c.run_id)
            .select_from(runs.join(_root, _root.c.pk == runs.c.root_pk))
            .where(runs.c.run_id == run_id)
        ).scalar_one_or_none()
    return run_id if found is None else str(found)
