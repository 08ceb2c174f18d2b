"""Make child runs when a call is handed to them; as many as the cap has room for begin at once.

A thousand children are written table by table. An only child, which is the usual number, is written in one statement
where the database can: its five rows would cost five round trips, while the parent's claim is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import compute_last_words_s
from hermes_worker.core.effects import Iterate
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.run import STATE_VERSION, RunStatus
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import PkRow, Prepared, Values
from hermes_worker.store.rewinds import pass_to_children
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.rows import (
    ACTIVATE_RUN,
    Hint,
    LoadedRun,
    build_message_rows,
    compute_blob_hash,
    make_storable,
    store_blob,
)
from hermes_worker.store.runs.budgets import create_child_budgets, create_tree_budget, has_limits
from hermes_worker.store.runs.children import started_count
from hermes_worker.store.runs.inputs import build_first_message, build_input_values, insert_specs
from hermes_worker.store.runs.step_statements import INSERT_MESSAGE, build_parameters
from hermes_worker.store.tables import blobs, messages, run_inputs, runs, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class NewChild:
    """A child run to be made. Its deadline is the parent's, or ``spec.wall_s_max`` from now if that is earlier."""

    run_id: str
    spec: RunSpec
    system_prompt: str
    tools: str
    """The tool definitions of its session, as a JSON array."""
    workspace: str


class _ParentKey(RunKey):
    cap: int
    tools: str


class _ParentRow(NamedTuple):
    status: str
    deadline_at: float | None
    idle_s_max: float | None
    attempts_max: int
    iterations_max: int
    tenant: str
    principal: str | None
    priority: int
    place_rank: int | None
    started: int
    tools: str | None
    """The hash, when the definitions are stored already."""
    now: float


_PARENT = Prepared(
    sa.select(
        runs.c.status,
        runs.c.deadline_at,
        runs.c.idle_s_max,
        runs.c.attempts_max,
        runs.c.iterations_max,
        runs.c.tenant,
        runs.c.principal,
        runs.c.priority,
        runs.c.place_rank,
        started_count.scalar_subquery().label("started"),
        sa.select(blobs.c.hash)
        .where(blobs.c.hash == sa.bindparam("tools"), blobs.c.released_at.is_(None))
        .scalar_subquery()
        .label("tools"),
        db_now().label("now"),
    ).where(runs.c.pk == sa.bindparam("run")),
    takes=_ParentKey,
    gives=_ParentRow,
)


def insert_children(
    connection: Connection,
    parent: LoadedRun,
    position: int,
    children: Sequence[NewChild],
    *,
    children_max: int,
    is_budget_shared: bool,
    is_background: bool = False,
) -> list[Hint]:
    """Make the children of a call, and begin as many as the cap of the run has room for. Returns the hints for these.
    The caller holds the parent's row. With ``is_budget_shared`` they draw from the root's budget, and so do all
    descendants of theirs that share in turn. With ``is_background`` their deadline leaves enough of the parent's time
    for the run they begin to answer."""
    if is_budget_shared and parent.parent is None:
        create_tree_budget(connection, parent)
    has_budget = is_budget_shared and (parent.budget_pk is not None or parent.parent is None)
    tools = compute_blob_hash(children[0].tools)
    found = _PARENT.one(connection, {"run": parent.pk, "cap": children_max, "tools": tools})
    places = 0 if found.status == RunStatus.PAUSED.value else max(0, children_max - found.started)
    opened = _build_sessions(connection, children, found)
    siblings = _Siblings(parent=parent, position=position, has_budget=has_budget, is_background=is_background)
    made = [_build_run(child, index, siblings, found, begins=index < places) for index, child in enumerate(children)]
    if len(children) == 1 and places and connection.dialect.name == "postgresql":
        run_pks = [_insert_at_once(connection, children[0], opened[0], made[0])]
    else:
        run_pks = _insert_each(connection, children, opened, made, places)
    pass_to_children(connection, parent.session_pk, (child.run_id for child in children))
    if not has_budget and has_limits(children[0].spec):
        create_child_budgets(connection, list(zip(run_pks, (child.spec for child in children), strict=True)))
    at = float(found.now)
    return [Hint(effect=Iterate(run_id=child.run_id, iteration=1, attempt=1), at=at) for child in children[:places]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Siblings:
    """The common properties of all children of one call."""

    parent: LoadedRun
    position: int
    has_budget: bool
    is_background: bool


def _build_sessions(connection: Connection, children: Sequence[NewChild], found: _ParentRow) -> list[Values]:
    """Build the children's session rows. Tool definitions that are not stored yet are stored by this."""
    hashes = {children[0].tools: found.tools} if found.tools else {}
    hashes |= {text: store_blob(connection, text) for text in {child.tools for child in children} - hashes.keys()}
    return [
        {
            "session_id": child.run_id,
            "tenant": found.tenant,
            "system_prompt": make_storable(child.system_prompt),
            "tools_hash": hashes[child.tools],
            "workspace": child.workspace,
            "created_at": found.now,
        }
        for child in children
    ]


def _build_run(child: NewChild, index: int, siblings: _Siblings, found: _ParentRow, *, begins: bool) -> Values:
    """Build a child's run row, without the reference to its session."""
    parent, iterations_max = siblings.parent, child.spec.iterations_max
    kept_s = compute_last_words_s(parent.wall_s) if siblings.is_background else 0.0
    ends_at = found.deadline_at - kept_s if found.deadline_at is not None else None
    return {
        "run_id": child.run_id,
        "tenant": found.tenant,
        "principal": found.principal,
        "priority": found.priority,
        "place": None if found.place_rank is None else FleetPlace.PART.value,
        "place_rank": found.place_rank,
        "model": child.spec.model,
        "endpoint": child.spec.endpoint,
        "origin": parent.origin,
        "network": parent.network,
        "overrides": parent.overrides,
        "status": RunStatus.QUEUED.value,
        "parent_pk": parent.pk,
        "parent_iteration": parent.run.iteration,
        "parent_position": siblings.position,
        "child_index": index,
        "root_pk": parent.root_pk,
        "depth": parent.depth + 1,
        "is_background": int(siblings.is_background),
        "has_budget": int(siblings.has_budget),
        "state_version": STATE_VERSION,
        "iterations_max": min(iterations_max, found.iterations_max) if siblings.has_budget else iterations_max,
        "attempts_max": found.attempts_max,
        "deadline_at": _choose_earlier(ends_at, found.now + child.spec.wall_s_max),
        "idle_s_max": found.idle_s_max,
        "message_seq": int(begins),
        "hinted_at": found.now if begins else None,
        "created_at": found.now,
        "updated_at": found.now,
    }


def _choose_earlier(deadline_at: float | None, other: float) -> float:
    return other if deadline_at is None else min(deadline_at, other)


def _insert_each(
    connection: Connection, children: Sequence[NewChild], opened: Sequence[Values], made: Sequence[Values], places: int
) -> list[int]:
    """Insert the children table by table; the first ``places`` of them have begun, as their rows say already. Returns
    their row ids."""
    session_pks = _insert_returning(connection, sessions, opened)
    run_pks = _insert_returning(
        connection, runs, [{**row, "session_pk": pk} for row, pk in zip(made, session_pks, strict=True)]
    )
    insert_specs(connection, list(zip(run_pks, (child.spec for child in children), strict=True)))
    begun = list(zip(children, session_pks, run_pks, strict=True))[:places]
    opening = [
        row
        for child, session_pk, run_pk in begun
        for row in build_message_rows(connection, session_pk, run_pk, [build_first_message(child.spec, 1)])
    ]
    INSERT_MESSAGE.run_each(connection, opening)
    ACTIVATE_RUN.run_each(connection, [{"session": session_pk, "run": run_pk} for _, session_pk, run_pk in begun])
    return run_pks


def _insert_returning(connection: Connection, table: sa.Table, rows: Sequence[Values]) -> list[int]:
    if len(rows) == 1:
        # One row is the usual case, for which the prepared statement is cheaper than a bulk insert.
        return [int(_insert_one(table, tuple(rows[0])).one(connection, rows[0]).pk)]
    statement = sa.insert(table).returning(table.c.pk, sort_by_parameter_order=True)
    return [int(pk) for pk in connection.execute(statement, list(rows)).scalars()]


@cache
def _insert_one(table: sa.Table, names: tuple[str, ...]) -> Prepared[Values, PkRow]:
    inserted = sa.insert(table).values(build_parameters(table, "", names)).returning(table.c.pk)
    return Prepared(inserted, names=names, gives=PkRow)


def _insert_at_once(connection: Connection, child: NewChild, opened: Values, made: Values) -> int:
    """Insert one child that has begun, in one statement, and return its row id."""
    [opening] = build_message_rows(connection, 0, 0, [build_first_message(child.spec, 1)])
    values: Values = {
        **{f"session_{name}": value for name, value in opened.items()},
        **{f"run_{name}": value for name, value in made.items()},
        **build_input_values(child.spec),
        **{f"message_{name}": value for name, value in opening.items() if name in _OF_MESSAGE},
    }
    return _build_insert(tuple(opened), tuple(made)).one(connection, values).active_run_pk


class _NewRun(NamedTuple):
    active_run_pk: int


_OF_MESSAGE = ("seq", "role", "body", "blob_hash")


@cache
def _build_insert(of_session: tuple[str, ...], of_run: tuple[str, ...]) -> Prepared[Values, _NewRun]:
    """Build the statement that inserts a child. The session comes first and draws the run's row id as well, so that it
    can name the run as its active one."""
    number = sa.func.nextval(sa.func.pg_get_serial_sequence(runs.name, runs.c.pk.name))
    session = (
        sa.insert(sessions)
        .values(**build_parameters(sessions, "session_", of_session), active_run_pk=number)
        .returning(sessions.c.pk, sessions.c.active_run_pk)
        .cte("session")
    )
    its, run = session.c.pk, session.c.active_run_pk
    rows: Mapping[sa.Table, dict[str, sa.ColumnElement[Any]]] = {
        runs: {"pk": run, "session_pk": its, **build_parameters(runs, "run_", of_run)},
        run_inputs: {"run_pk": run, **build_parameters(run_inputs, "", ("spec", "title"))},
        messages: {
            "session_pk": its,
            "run_pk": run,
            **build_parameters(messages, "message_", _OF_MESSAGE),
            "created_at": db_now(),
        },
    }
    inserts = [
        postgresql.insert(table).from_select(list(values), sa.select(*values.values())).cte(f"new_{table.name}")
        for table, values in rows.items()
    ]
    given = {"session": of_session, "run": of_run, "message": _OF_MESSAGE}
    names = {"spec", "title", *(f"{kind}_{name}" for kind, each in given.items() for name in each)}
    return Prepared(sa.select(run).add_cte(*inserts), names=names, gives=_NewRun)
