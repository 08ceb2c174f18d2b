"""The run in which a session learns what its background children left, or what became of its processes.

Such a run belongs to the run that caused it (design D16). It draws from the budget of the chain's first run and ends by
that run's deadline. A stop or a pause of any earlier run of the chain holds for it too.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker import __version__
from hermes_worker.core.delegation import build_background_message, derive_delegation_id
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.run import STATE_VERSION, Halt, RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.core.titles import describe_cause
from hermes_worker.observe import log
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_one
from hermes_worker.store.rows import ParentCall
from hermes_worker.store.runs import children
from hermes_worker.store.runs.inputs import insert_specs
from hermes_worker.store.tables import run_inputs, runs, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class CausedTurn:
    """A run that a background answer caused. Its row is written and it has not begun."""

    run_pk: int
    run_id: str
    session_pk: int
    message_seq: int
    """The length of the session's transcript."""
    is_next: bool
    """The session is free and the chain is not paused, so the run begins now; otherwise it waits, without a time
    limit."""
    place: int | None
    """Its place in the shared fleet (``core.fair_share.FleetPlace``), or ``None`` when the run that caused it shares
    none."""


class _OriginRow(NamedTuple):
    pk: int
    run_id: str
    status: str
    root_pk: int | None
    session_pk: int
    tenant: str
    principal: str | None
    model: str
    endpoint: str | None
    origin: str
    network: str | None
    halt: str | None
    attempts_max: int
    deadline_at: float | None
    idle_s_max: float | None
    deliver: str | None
    priority: int
    artifacts: int | None
    overrides: str | None
    place_rank: int | None
    spec: str


class _NextOfSession(NamedTuple):
    active_run_pk: int | None
    message_seq: int


_ORIGIN = (
    sa.select(*(runs.c[name] for name in _OriginRow._fields[:-1]), run_inputs.c.spec)
    .join(run_inputs, run_inputs.c.run_pk == runs.c.pk)
    .where(runs.c.pk == sa.bindparam("run"))
    .with_for_update(of=runs)
)
"""The row is locked, so a stop either finds all runs that this one caused, or is written before another is caused."""
_INHERITED = (
    "session_pk",
    "tenant",
    "principal",
    "model",
    "endpoint",
    "origin",
    "network",
    "halt",
    "attempts_max",
    "deadline_at",
    "idle_s_max",
    "deliver",
    "artifacts",
    "overrides",
    "priority",
    "place_rank",
)
"""Columns of a run that a turn it causes has as well."""
_SESSION = (
    sa.select(sessions.c.active_run_pk, sessions.c.message_seq)
    .where(sessions.c.pk == sa.bindparam("session"))
    .with_for_update()
)


def insert_continuation(connection: Connection, parent: ParentCall) -> CausedTurn | None:
    """Write the run that follows a call whose children have all ended; ``None`` when the run that made the call was
    stopped. It has the policy and the delivery targets of that run, and what is left of its limits. The caller holds
    the call's lock."""
    origin = fetch_one(connection.execute(_ORIGIN, {"run": parent.run_pk}), _OriginRow)
    is_stopped = origin.halt in (Halt.STOPPING.value, Halt.STOPPED.value)
    if is_stopped or origin.status in (RunStatus.CANCELLED.value, RunStatus.STOPPING.value):
        return None
    call_key = f"{origin.run_id}.{parent.iteration}.{parent.position}"
    try:
        asked = RunSpec.from_json(origin.spec)
    except ValueError as error:
        log.error("run.broken", run_id=origin.run_id, error=f"its background result is lost: {error}")
        return None
    spec = replace(
        asked,
        input=build_background_message(call_key, children.load_outcomes(connection, parent)),
        about=describe_cause("Background answer", asked),
        instructions=None,
        history=(),
        program=__version__,
        metadata={**asked.metadata, "delegation_id": derive_delegation_id(call_key), "delegated_by": origin.run_id},
    )
    return _insert_caused_run(connection, origin, spec)


_LOCK = sa.select(runs.c.pk).where(runs.c.pk == sa.bindparam("run")).with_for_update()
_PLACE = sa.select(runs.c.root_pk, runs.c.session_pk).where(runs.c.pk == sa.bindparam("run"))


class _ChainPlace(NamedTuple):
    root_pk: int | None
    session_pk: int


def lock_chain(connection: Connection, run_pk: int) -> int:
    """Lock the first run of the chain that a run belongs to, then that run, then its session, in which a new run is to
    begin. Returns the row id of the chain's first run. The caller holds neither a session nor a budget."""
    found = fetch_one(connection.execute(_PLACE, {"run": run_pk}), _ChainPlace)
    root = run_pk if found.root_pk is None else found.root_pk
    for one in dict.fromkeys((root, run_pk)):
        connection.execute(_LOCK, {"run": one})
    connection.execute(_SESSION, {"session": found.session_pk})
    return root


def insert_message_run(
    connection: Connection, run_pk: int, text: str, metadata: Mapping[str, str]
) -> CausedTurn | None:
    """Write a run of the same session that begins with ``text``; ``None`` when the run ``run_pk`` was stopped. It has
    the policy and the delivery targets of that run, and what is left of its limits. The caller holds the chain
    (``lock_chain``)."""
    origin = fetch_one(connection.execute(_ORIGIN, {"run": run_pk}), _OriginRow)
    is_stopped = origin.halt in (Halt.STOPPING.value, Halt.STOPPED.value)
    if is_stopped or origin.status in (RunStatus.CANCELLED.value, RunStatus.STOPPING.value):
        return None
    try:
        asked = RunSpec.from_json(origin.spec)
    except ValueError as error:
        log.error("run.broken", run_id=origin.run_id, error=f"a message for its session is lost: {error}")
        return None
    spec = replace(
        asked,
        input=text,
        about=describe_cause("Process report", asked),
        instructions=None,
        history=(),
        program=__version__,
        metadata={**asked.metadata, **metadata, "caused_by": origin.run_id},
    )
    return _insert_caused_run(connection, origin, spec)


def _insert_caused_run(connection: Connection, origin: _OriginRow, spec: RunSpec) -> CausedTurn:
    is_paused = origin.halt == Halt.PAUSED.value
    session = fetch_one(connection.execute(_SESSION, {"session": origin.session_pk}), _NextOfSession)
    run_id = f"run_{uuid.uuid4().hex}"
    place = None if origin.place_rank is None else FleetPlace.WAITS.value
    run_pk = connection.execute(
        sa.insert(runs)
        .values(
            run_id=run_id,
            **{name: getattr(origin, name) for name in _INHERITED},
            status=(RunStatus.PAUSED if is_paused else RunStatus.QUEUED).value,
            cause_pk=origin.pk,
            root_pk=origin.root_pk or origin.pk,
            has_budget=1,
            place=place,
            state_version=STATE_VERSION,
            iterations_max=spec.iterations_max,
            created_at=db_now(),
            updated_at=db_now(),
        )
        .returning(runs.c.pk)
    ).scalar_one()
    insert_specs(connection, [(int(run_pk), spec)])
    return CausedTurn(
        run_pk=int(run_pk),
        run_id=run_id,
        session_pk=origin.session_pk,
        message_seq=session.message_seq,
        is_next=session.active_run_pk is None and not is_paused,
        place=place,
    )
