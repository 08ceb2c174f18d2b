"""The ends of runs for observers outside (logs, traces, metrics), and the chain that a run belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import NANO
from hermes_worker.core.run import RunStatus
from hermes_worker.core.trace_ids import derive_trace_id
from hermes_worker.observe import log
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import RUN_IS_UNCOUNTED, runs, sessions

_MOST = 500
_root, _parent, _cause = runs.alias("root"), runs.alias("parent"), runs.alias("cause")


class RunEnd(NamedTuple):
    """A run that is over and not counted yet. Times are epoch seconds; an id is ``None`` when there is no such run."""

    pk: int
    run_id: str
    root_id: str | None
    parent_id: str | None
    cause_id: str | None
    session_id: str
    model: str
    status: str
    exit_reason: str
    failure_kind: str | None
    iteration: int
    input_tokens: int
    output_tokens: int
    cost_nano_usd: int
    cost_status: str | None
    """Whether ``cost_nano_usd`` is the whole cost (``core.pricing.CostStatus``); ``None`` before the first model
    call."""
    created_at: float
    finished_at: float


class RunChain(NamedTuple):
    """What a run belongs to."""

    root_id: str
    """The first run of its chain: itself when no other run caused it."""
    session_id: str | None
    """``None`` for something that is called like a run and is none."""


def log_end(end: RunEnd) -> None:
    """Write the one line of a run's end: a warning for a run that failed, with the kind of its failure. The provider's
    words are not logged, because they may quote a prompt; ``runs show`` has them."""
    say = log.warning if end.status == RunStatus.FAILED else log.info
    say(
        "run.finished",
        run_id=end.run_id,
        status=end.status,
        reason=end.exit_reason,
        failure=end.failure_kind,
        duration_s=round(max(0.0, end.finished_at - end.created_at), 3),
        iterations=end.iteration,
        input_tokens=end.input_tokens,
        output_tokens=end.output_tokens,
        cost_usd=end.cost_nano_usd / NANO,
        cost_status=end.cost_status,
        model=end.model,
        trace_id=f"{derive_trace_id(end.root_id or end.run_id):032x}",
    )


_OWN = tuple(name for name in RunEnd._fields if name not in ("root_id", "parent_id", "cause_id", "session_id"))
_ENDS = (
    sa.select(
        runs.c.pk,
        runs.c.run_id,
        _root.c.run_id.label("root_id"),
        _parent.c.run_id.label("parent_id"),
        _cause.c.run_id.label("cause_id"),
        sessions.c.session_id,
        *(runs.c[name] for name in _OWN[2:]),
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .outerjoin(_root, _root.c.pk == runs.c.root_pk)
    .outerjoin(_parent, _parent.c.pk == runs.c.parent_pk)
    .outerjoin(_cause, _cause.c.pk == runs.c.cause_pk)
    .order_by(runs.c.pk)
)


def list_uncounted_ends(database: Database) -> list[RunEnd]:
    """Read the oldest runs that are over and that ``statistics`` has not counted. Raises ``UnavailableError``."""
    return [RunEnd(*row) for row in database.select(_ENDS.where(RUN_IS_UNCOUNTED).limit(_MOST))]


def load_ends(connection: Connection, pks: Sequence[int]) -> list[RunEnd]:
    """Read how the runs with these numbers ended, in the caller's transaction. All of them must be over."""
    return [RunEnd(*row) for row in connection.execute(_ENDS.where(runs.c.pk.in_(pks)))]


def load_chain(database: Database, run_id: str) -> RunChain:
    """Load what a run belongs to. Raises ``UnavailableError``."""
    found = database.select(
        sa.select(sa.func.coalesce(_root.c.run_id, runs.c.run_id), sessions.c.session_id)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .outerjoin(_root, _root.c.pk == runs.c.root_pk)
        .where(runs.c.run_id == run_id)
    ).one_or_none()
    return RunChain(run_id, None) if found is None else RunChain(*found)
