"""The queue of the search index: which sessions are due for indexing, and which messages have to leave the index
(``store.search.indexing`` has the theory)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.core.search_queries import WORDS_MADE_BY, extract_text, fold_text, make_words
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.engine.sealing import CLEAR, coalesce_texts
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.search.index_repair import is_index_damage, mark_all_due, rebuild_index
from hermes_worker.store.tables import blobs, maintenance, messages, runs, search_due, search_rows, sessions

FORGOTTEN = "search_forgotten"
"""The row of ``maintenance`` that says that something was deleted from SQLite's index and may be left in its files."""
SEARCHED_ROLES = (Role.USER, Role.ASSISTANT, Role.TOOL)


class IndexedBody(NamedTuple):
    """A message that stands in the index, with its row id there."""

    pk: int
    tenant: str
    role: str
    body: str


STORED = messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
BODY = coalesce_texts(messages.c.body, blobs.c.body).label("body")
_ITS_MESSAGE = sa.and_(messages.c.session_pk == search_rows.c.session_pk, messages.c.seq == search_rows.c.seq)
INDEXED_BODIES = sa.select(search_rows.c.pk, sessions.c.tenant, messages.c.role, BODY).select_from(
    search_rows.join(STORED, _ITS_MESSAGE).join(sessions, sessions.c.pk == search_rows.c.session_pk)
)
"""Selects the messages in the index, as ``IndexedBody``."""


def mark_due(connection: Connection, session_pk: int) -> None:
    """Mark a session as due, because it has messages that no run wrote."""
    connection.execute(sa.insert(search_due).values(session_pk=session_pk))


def mark_due_of_runs(connection: Connection, run_pks: Sequence[int]) -> None:
    """Mark the sessions of these runs as due for indexing."""
    theirs = sa.select(runs.c.session_pk).where(runs.c.pk.in_(run_pks)).distinct()
    connection.execute(sa.insert(search_due).from_select(["session_pk"], theirs))


def delete_from_index(connection: Connection, session_pk: int, *, beyond: int = 0) -> None:
    """Delete a session's messages above number ``beyond`` from the index, in the transaction that deletes the messages,
    before it does."""
    here = sa.and_(search_rows.c.session_pk == session_pk, search_rows.c.seq > beyond)
    if connection.dialect.name == "sqlite":
        _delete_words(connection, here)
    connection.execute(sa.delete(search_rows).where(here))


def _delete_words(connection: Connection, which: sa.ColumnElement[bool]) -> None:
    rows = fetch_rows(connection.execute(INDEXED_BODIES.where(which)), IndexedBody)
    gone = [
        ("delete", row.pk, " ".join(words))
        for row in rows
        if (words := build_index_words(row.tenant, Role(row.role), row.body))
    ]
    if not gone:
        return
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("insert into search_words (search_words, rowid, words) values (?, ?, ?)", gone)
        _mark_deleted(connection)
    except sa.exc.DBAPIError as error:
        if not is_index_damage(error):
            raise
        rebuild_index(connection)  # the new index is empty


def _mark_deleted(connection: Connection) -> None:
    connection.execute(build_insert_ignoring(connection, maintenance), {"name": FORGOTTEN, "ran_at": 0.0})
    connection.execute(sa.update(maintenance).where(maintenance.c.name == FORGOTTEN).values(ran_at=db_now()))


def clear_index(database: Database) -> int:
    """Empty the index, and have all sessions indexed again when texts are in clear. Returns how many messages it
    had."""
    with database.write() as connection:
        if not is_searchable(database):
            # Title keys are deterministic hashes, from which titles could be guessed.
            keyed = sa.update(sessions).where(sessions.c.title_key.is_not(None))
            connection.execute(keyed.values(title_key=None))
        if connection.execute(sa.select(search_rows.c.pk).limit(1)).first() is None:
            return 0
        mark_all_due(connection)
        if database.is_sqlite:
            connection.exec_driver_sql("insert into search_words (search_words) values ('delete-all')")
        return connection.execute(sa.delete(search_rows)).rowcount


def is_made_by_other_rules() -> sa.ColumnElement[bool]:
    """Condition that the index has words that another version made, or none at all yet."""
    return ~sa.exists(sa.select(maintenance.c.name).where(maintenance.c.name == WORDS_MADE_BY))


def refresh_index(database: Database) -> None:
    """Empty the index when another version made its words, and have all sessions indexed again. Idempotent."""
    if not database.select(sa.select(is_made_by_other_rules())).scalar():
        return
    clear_index(database)
    with database.write() as connection:
        connection.execute(build_insert_ignoring(connection, maintenance), {"name": WORDS_MADE_BY, "ran_at": 0.0})


def is_searchable(database: Database) -> bool:
    """Whether texts are in clear, so that they may be indexed."""
    return database.sealer.keys.first == CLEAR


def build_index_words(tenant: str, role: Role, body: str) -> list[str]:
    """The index words of a message, with words for its tenant and its role; empty when nothing in it can be searched
    for."""
    words = make_words(fold_text(extract_text(body))) if role in SEARCHED_ROLES else []
    return [build_tenant_word(tenant), build_role_word(role), *words] if words else []


def build_tenant_word(tenant: str) -> str:
    """The index word of a tenant, which occurs in no text, because it begins with a dot."""
    return f".t-{tenant}"


def build_role_word(role: Role) -> str:
    return f".r-{role.value}"
