"""Notice that the search index is damaged, and rebuild it from the messages.

The index is derived: everything in it can be read from the transcripts again. So damage to it is no reason to fail. A
search, the indexer or a deletion that meets damage puts an empty index in its place (``rebuild_index``), and the
indexer fills that as after an upgrade. Until then a search says that its result is not complete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import UnavailableError
from hermes_worker.observe import log
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import SEARCH_WORDS, search_due, search_rows, sessions

_SQLITE_CORRUPT = 11
"""The primary code of ``SQLITE_CORRUPT`` and ``SQLITE_CORRUPT_VTAB`` (https://sqlite.org/rescode.html)."""
_CORRUPT_STATES = frozenset({"XX001", "XX002"})
"""``data_corrupted`` and ``index_corrupted`` (PostgreSQL 18, appendix A)."""
_MISSING = ("no such table: search_words", "vtable constructor failed: search_words")
_PARTS = ("data", "idx", "content", "docsize", "config")
"""The parts of an FTS5 table, each a table of its own (https://sqlite.org/fts5.html, section 9)."""

T = TypeVar("T")


def is_index_damage(error: BaseException | None) -> bool:
    """Whether ``error``, or an exception in its chain of causes, reports that a database or an index in it is
    damaged."""
    original = getattr(error, "orig", None)
    if original is None:
        return error is not None and error.__cause__ is not None and is_index_damage(error.__cause__)
    code = getattr(original, "sqlite_errorcode", None)
    if code is not None:
        return code & 0xFF == _SQLITE_CORRUPT or str(original).startswith(_MISSING)
    return getattr(original, "sqlstate", None) in _CORRUPT_STATES


def call_with_repair(database: Database, act: Callable[[], T]) -> T:
    """Call ``act``. If it meets a damaged index, rebuild the index and call it once more. ``act`` must be repeatable.
    Raises ``UnavailableError`` when more than the index is damaged."""
    try:
        return act()
    except Exception as error:
        if not is_index_damage(error):
            raise
    try:
        with database.write() as connection:
            rebuild_index(connection)
        return act()
    except Exception as error:
        if not is_index_damage(error):
            raise
        raise UnavailableError("the database is damaged; stop everything and restore it from a backup") from error


def rebuild_index(connection: Connection) -> None:
    """Replace the index by an empty one, and mark every session as due, in the caller's transaction."""
    if connection.dialect.name == "sqlite":
        _drop_words(connection)
        connection.exec_driver_sql(SEARCH_WORDS)
    connection.execute(sa.delete(search_rows))
    if connection.dialect.name != "sqlite":
        connection.exec_driver_sql("reindex table search_rows")
    mark_all_due(connection)
    log.warning("search.rebuilt")


def mark_all_due(connection: Connection) -> None:
    """Mark every session as due for indexing, each once."""
    connection.execute(sa.delete(search_due))
    every = sa.select(sessions.c.pk).order_by(sessions.c.pk)
    connection.execute(sa.insert(search_due).from_select(["session_pk"], every))


def _drop_words(connection: Connection) -> None:
    """Drop SQLite's virtual table, even when its own module cannot open it any more."""
    try:
        with connection.begin_nested():
            connection.exec_driver_sql("drop table if exists search_words")
            return
    except sa.exc.DBAPIError as error:
        if not is_index_damage(error):
            raise
    # Without its row in the schema, the shadow tables can be dropped like ordinary tables.
    connection.exec_driver_sql("pragma writable_schema = on")
    connection.exec_driver_sql("delete from sqlite_schema where name = 'search_words'")
    connection.exec_driver_sql("pragma writable_schema = reset")
    for part in _PARTS:
        connection.exec_driver_sql(f"drop table if exists search_words_{part}")
