"""Rows of 0.1, which name paths below the home absolutely, are written relative to it.

Where the home was then is what the rows say themselves: a session that named no directory was given one called like
the session, below ``workspaces``. So an archive of an older version can be restored anywhere. Rows are changed a few at
a time, each by compare-and-set, while others work; a second time finds nothing to do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.home_paths import (
    ELSEWHERE,
    JOB_DIRECTORY,
    WORKSPACE_ROOT,
    find_former_home,
    find_path_in_home,
    to_stored_document,
)
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.sealing import KeyMissing, select_stored_text
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import jobs, maintenance, sessions

_BATCH = 500
_DONE = "paths_related"
"""The row of ``maintenance`` that says that no old rows are left."""
_WORKSPACES, _SCRIPTS = "workspaces/", "scripts"
"""Where below a home agents and scripts may work."""


class _OldSession(NamedTuple):
    pk: int
    session_id: str
    tenant: str
    stored: str
    root: str


def finish_conversion(database: Database) -> None:
    """Do what revision 0266 leaves to be done, unless it was done. Idempotent, safe for several at once."""
    if database.select(sa.select(maintenance.c.name).where(maintenance.c.name == _DONE)).first():
        return
    convert_rows(database)
    with database.statement() as connection:
        connection.execute(build_insert_ignoring(connection, maintenance), {"name": _DONE, "ran_at": 0.0})


def convert_rows(database: Database) -> int:
    """Write the paths of old rows relative to the home; returns how many rows were changed. Idempotent."""
    homes = {
        home for row in _list_old_sessions(database) if (home := find_former_home(row.root, row.tenant, row.session_id))
    }
    known = (*database.homes, *sorted(homes - set(database.homes)))
    changed = sum(_convert_session(database, row, known) for row in _list_old_sessions(database))
    return changed + _convert_jobs(database, known)


def _list_old_sessions(database: Database) -> Iterator[_OldSession]:
    """Sessions whose workspace is a directory of the machine that has the home, named absolutely."""
    stored = select_stored_text(sessions.c.workspace)
    wanted = sa.select(sessions.c.pk, sessions.c.session_id, sessions.c.tenant, stored.label("stored"))
    wanted = wanted.where(stored.not_like("%/./%"), sessions.c.pk > sa.bindparam("after"))
    after = 0
    while True:
        rows = database.select(wanted.order_by(sessions.c.pk).limit(_BATCH), {"after": after}).all()
        for pk, session_id, tenant, text in rows:
            document = json.loads(text)
            root = document.get(WORKSPACE_ROOT)
            if root and document.get("kind") not in ELSEWHERE:
                yield _OldSession(pk, session_id, tenant, text, root)
        if len(rows) < _BATCH:
            return
        after = rows[-1][0]


def _convert_session(database: Database, row: _OldSession, homes: Sequence[str]) -> int:
    home = _find_home(row.root, homes)
    if home is None:
        return 0
    text = to_stored_document(row.stored, WORKSPACE_ROOT, (home,))
    this = sa.update(sessions).where(sessions.c.pk == row.pk, select_stored_text(sessions.c.workspace) == row.stored)
    return database.execute(this.values(workspace=sa.literal(text, sa.Text())))


def _convert_jobs(database: Database, homes: Sequence[str]) -> int:
    """A job whose directory is below a home that was works below the one that is."""
    stored, changed = select_stored_text(jobs.c.definition), 0
    pks = database.select(sa.select(jobs.c.pk)).scalars().all()
    for pk in pks:
        with database.write() as connection:
            this = jobs.c.pk == pk
            try:
                found = connection.execute(sa.select(jobs.c.definition, stored).where(this)).first()
            except KeyMissing:
                continue  # a job that cannot be read cannot be fired either; a restore looks once more
            document = json.loads(found[0]) if found is not None else {}
            home = _find_home(document.get(JOB_DIRECTORY) or "", homes)
            if found is None or home is None or not database.homes:
                continue
            below = document[JOB_DIRECTORY][len(home) + 1 :]
            text = json.dumps({**document, JOB_DIRECTORY: f"{database.homes[0]}/{below}"})
            update = sa.update(jobs).where(this, stored == found[1]).values(definition=text)
            changed += connection.execute(update).rowcount
    return changed


def _find_home(path: str, homes: Sequence[str]) -> str | None:
    """The one of ``homes`` below which agents or scripts worked at ``path``."""
    for home in homes:
        below = find_path_in_home(path, (home,))
        if below is not None and (below.startswith(_WORKSPACES) or below.split("/")[0] == _SCRIPTS):
            return home
    return None
