"""Resolve references to sessions: the one place where ids and names of all sources are looked up."""

from __future__ import annotations

from typing import Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.runs.runs import SESSION_LABEL, SessionNotFound, session_is, to_label
from hermes_worker.store.tables import deleted_runs, runs, sessions

HOW_SHOWN: Final = "'hermes-worker sessions list' (GET /api/sessions) shows what sessions are called"


class _ReferredSession(NamedTuple):
    pk: int
    session_id: str
    session_source: str | None
    session_name: str | None


class _SessionOfRun(NamedTuple):
    session_id: str
    session_source: str | None
    session_name: str | None


def find_session(connection: Connection, tenant: str, source: str, reference: str) -> tuple[int, str]:
    """Find the row id and the id of the session that ``reference`` means: an id, a name that callers from ``source``
    gave, or a name that exactly one other source gave. Raises ``SessionNotFound``."""
    wanted = sa.select(sessions.c.pk, *SESSION_LABEL)
    row = fetch_row(connection.execute(wanted.where(session_is(tenant, source, reference))), _ReferredSession)
    if row is not None:
        return row.pk, row.session_id
    is_called_so = sa.and_(sessions.c.tenant == tenant, sessions.c.name == reference)
    found = fetch_rows(
        connection.execute(wanted.where(is_called_so).order_by(sessions.c.pk).limit(2)), _ReferredSession
    )
    if len(found) == 1:
        return found[0].pk, found[0].session_id
    if found:
        several = ", ".join(f"{row.session_id} of {row.session_source!r}" for row in found)
        raise SessionNotFound(f"several sessions are called {reference!r} ({several}): name one by its id")
    raise SessionNotFound(_explain_not_found(connection, tenant, source, reference))


def _explain_not_found(connection: Connection, tenant: str, source: str, reference: str) -> str:
    within = sa.select(*SESSION_LABEL).join(runs, runs.c.session_pk == sessions.c.pk)
    its = within.where(runs.c.run_id == reference, runs.c.tenant == tenant)
    if (row := fetch_row(connection.execute(its), _SessionOfRun)) is not None:
        return f"{reference!r} is a run, of the session {to_label(row).choose_reference(source)!r}: name that session"
    gone = sa.select(sa.literal(1)).where(deleted_runs.c.run_id == reference, deleted_runs.c.tenant == tenant)
    if connection.execute(gone).first() is not None:
        return f"the session {reference!r} was deleted before; nothing of it is left to name"
    return f"there is no session {reference!r} of the tenant {tenant!r}; {HOW_SHOWN}"
