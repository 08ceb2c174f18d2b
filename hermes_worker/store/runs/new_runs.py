"""Insert many runs that begin at the same moment with a few statements: what a scheduler does at eight o'clock.

One run costs nine statements (``store.runs.runs.insert_run``), and a hundred of them nine hundred round trips. Runs
that each open a conversation of their own have nothing to ask the database first, so their rows are written table by
table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.effects import build_first_effect
from hermes_worker.core.run import STATE_VERSION, RunStatus
from hermes_worker.core.sources import is_session_id
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.rows import ACTIVATE_RUN, Hint, build_insert_ignoring, build_message_rows, store_blob
from hermes_worker.store.runs import budgets, sharing
from hermes_worker.store.runs.inputs import build_first_message, insert_specs
from hermes_worker.store.runs.runs import (
    Created,
    NewRun,
    build_place_values,
    build_session_values,
    build_submission_values,
    create_run_id,
    fill_prompt,
    insert_run,
    insert_tags,
    record_submissions,
)
from hermes_worker.store.runs.step_statements import INSERT_MESSAGE, MessageRow
from hermes_worker.store.tables import runs, sessions

_INSERT_RUNS = (
    sa.insert(runs)
    .values(
        status=RunStatus.QUEUED.value,
        state_version=STATE_VERSION,
        deadline_at=db_now() + sa.bindparam("wall_s", type_=sa.Double()),
        # A number plus NULL is NULL: a held run is not due.
        hinted_at=db_now() + sa.bindparam("due_in_s", type_=sa.Double()),
        created_at=db_now(),
        updated_at=db_now(),
    )
    .returning(runs.c.pk, runs.c.session_pk, runs.c.hinted_at)
)


class _InsertedRun(NamedTuple):
    pk: int
    session_pk: int
    hinted_at: float | None


def insert_runs(connection: Connection, news: Sequence[NewRun]) -> list[tuple[int, Created]]:
    """Insert runs in the caller's transaction, in the order given. Returns what ``insert_run`` returns for each. Raises
    the errors of ``Runs.create``."""
    news = [new if new.run_id is not None else replace(new, run_id=create_run_id()) for new in news]
    opened = _open_sessions(connection, [new for new in news if _opens_session(new)])
    fresh: dict[int, NewRun] = {}
    others: list[NewRun] = []
    for new in news:
        session_pk = opened.get(new.run_id)
        if session_pk is None:
            others.append(new)  # the conversation exists already, or needs more checks
        else:
            fresh[session_pk] = new
    written = _begin_runs(connection, fresh) if fresh else {}
    written.update((id(new), insert_run(connection, new)) for new in others)
    record_submissions(connection, [(new, written[id(new)][1]) for new in news])
    return [written[id(new)] for new in news]


def _opens_session(new: NewRun) -> bool:
    is_new_name = new.session_id is None or not is_session_id(new.session_id)
    is_plain = not (new.spec.history or new.is_put_off or new.deadline)
    return is_new_name and new.idempotency_key is None and is_plain


def _open_sessions(connection: Connection, news: Sequence[NewRun]) -> dict[str | None, int]:
    """Insert the sessions that runs open. Returns their row ids by the name of the session; sessions that exist already
    are left out."""
    if not news:
        return {}
    # In one order, so that two schedulers that are the first to need these do not wait for each other.
    hashes = {tools: store_blob(connection, tools) for tools in sorted({new.tools for new in news})}
    rows = connection.execute(
        build_insert_ignoring(connection, sessions)
        .values(created_at=db_now(), active_at=db_now())
        .returning(sessions.c.session_id, sessions.c.pk),
        [{"session_id": new.run_id, **build_session_values(new, hashes[new.tools])} for new in news],
    )
    opened = {session_id: int(pk) for session_id, pk in rows}
    for new in news:
        if new.blocks is not None and new.run_id in opened:
            fill_prompt(connection, opened[new.run_id], new)
    return opened


def _begin_runs(connection: Connection, fresh: Mapping[int, NewRun]) -> dict[int, tuple[int, Created]]:
    """Insert and begin runs, given by the row id of the session each opens. Returns the results by the identity of
    their request."""
    run_ids = {session_pk: str(new.run_id) for session_pk, new in fresh.items()}
    is_shared = sharing.is_shared(connection)
    values = [_build_run_values(session_pk, run_ids[session_pk], new, is_shared) for session_pk, new in fresh.items()]
    rows = fetch_rows(connection.execute(_INSERT_RUNS, values), _InsertedRun)
    specs = [(int(row.pk), fresh[row.session_pk].spec) for row in rows]
    insert_specs(connection, specs)
    insert_tags(connection, [(int(row.pk), fresh[row.session_pk]) for row in rows])
    begun = [row for row in rows if row.hinted_at is not None]
    if begun:
        INSERT_MESSAGE.run_each(
            connection,
            [
                each
                for row in begun
                for each in _build_opening_messages(connection, row.session_pk, row.pk, fresh[row.session_pk])
            ],
        )
        ACTIVATE_RUN.run_each(connection, [{"session": row.session_pk, "run": row.pk} for row in begun])
    limited = [
        (int(row.pk), fresh[row.session_pk].spec) for row in rows if budgets.has_limits(fresh[row.session_pk].spec)
    ]
    if limited:
        budgets.create_budgets(connection, limited)
    written = {}
    for row in rows:
        new, run_id = fresh[row.session_pk], run_ids[row.session_pk]
        hints = [] if row.hinted_at is None else [_build_hint(run_id, new, row.hinted_at)]
        created = Created(
            run_id=run_id,
            session_id=new.session_id or run_id,
            hints=hints,
            was_replayed=False,
            is_held=is_shared and not new.is_held,
        )
        written[id(new)] = (int(row.pk), created)
    return written


def _build_run_values(session_pk: int, run_id: str, new: NewRun, is_shared: bool) -> dict[str, object]:
    spec = new.spec
    waits = new.is_held or is_shared
    places = build_place_values(new, begins=not new.is_held) if is_shared else {"place": None, "place_rank": None}
    return {
        **places,
        "run_id": run_id,
        "session_pk": session_pk,
        **build_submission_values(new),
        "has_budget": int(budgets.has_limits(spec)),
        "message_seq": 0 if waits else 1,
        "wall_s": spec.wall_s_max,
        "due_in_s": None if waits else 0.0,
        "prepares": 1 if new.prepares else None,
    }


def _build_opening_messages(connection: Connection, session_pk: int, run_pk: int, new: NewRun) -> list[MessageRow]:
    return build_message_rows(connection, session_pk, run_pk, [build_first_message(new.spec, 1)])


def _build_hint(run_id: str, new: NewRun, at: float) -> Hint:
    return Hint(effect=build_first_effect(run_id, prepares=new.prepares), at=float(at))
