"""A database as a whole: whether it takes writes, copies of its file, its size, and how to reclaim what is free."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.core.errors import ConfigurationError, UnavailableError
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import maintenance
from hermes_worker.store.whole_schema import load_schema

_FREE_BYTES_NOTED = 64 * 1024 * 1024
_FREE_PART_NOTED = 0.25
_DEAD_ROWS_NOTED = 10_000
_DEAD_ROWS = sa.text(
    "select relname, n_dead_tup from pg_stat_user_tables"
    " where n_dead_tup > :noted and n_dead_tup > n_live_tup order by n_dead_tup desc"
)
"""Autovacuum runs at a twentieth (``store.tables``), so it does not work on a table with more dead rows than live
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSize:
    """The space that a database takes up."""

    total_bytes: int
    free_bytes: int = 0
    """For SQLite: bytes in empty pages, which later rows fill again."""
    dead_rows: Mapping[str, int] = field(default_factory=dict)
    """For PostgreSQL: dead rows by table, for tables with more dead rows than live ones."""

    @property
    def is_bloated(self) -> bool:
        """Whether the database holds so much empty space that reclaiming it is worth while."""
        is_hollow = self.free_bytes >= max(_FREE_BYTES_NOTED, _FREE_PART_NOTED * self.total_bytes)
        return is_hollow or bool(self.dead_rows)


def measure_size(database: Database) -> DatabaseSize:
    """Measure the size of a database. Raises ``UnavailableError``."""
    with database.read() as connection:
        if not database.is_sqlite:
            total = connection.execute(sa.text("select pg_database_size(current_database())")).scalar_one()
            found = connection.execute(_DEAD_ROWS, {"noted": _DEAD_ROWS_NOTED})
            ours = load_schema().tables
            dead = {name: count for name, count in found if name in ours}
            return DatabaseSize(total_bytes=int(total), dead_rows=dead)
        page, pages, free = (
            int(connection.exec_driver_sql(f"pragma {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
        return DatabaseSize(total_bytes=page * pages, free_bytes=page * free)


def reclaim_space(database: Database) -> None:
    """Reclaim empty space. SQLite's file is rewritten, which needs as much space again and keeps other writers out
    meanwhile; PostgreSQL vacuums the tables in question while work goes on. Idempotent. Raises ``UnavailableError``
    when the file is in use, or there is no space."""
    if not database.is_sqlite:
        with database.read() as connection:
            for table in measure_size(database).dead_rows:
                connection.exec_driver_sql(f'vacuum (analyze) "{table}"')
        return
    driver = database.engine.raw_connection()
    try:
        driver.cursor().execute("vacuum")
    except sqlite3.Error as error:
        raise UnavailableError(f"the file could not be made smaller: {error}") from error
    finally:
        driver.close()


def copy_sqlite(source: Path, target: Path) -> None:
    """Copy what is committed at this moment into a new file, readable by its owner only. Writers go on meanwhile: in
    WAL mode a reader stops no writer (https://www.sqlite.org/backup.html). Raises ``ConfigurationError`` for a file
    that is no database."""
    target.touch(mode=0o600, exist_ok=False)
    try:
        with (
            closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True, timeout=20.0)) as reading,
            closing(sqlite3.connect(target)) as writing,
        ):
            reading.backup(writing)  # all pages in one step: in several it would begin again at each write
            writing.execute("pragma journal_mode=delete")
    except sqlite3.DatabaseError as error:
        raise ConfigurationError(f"the database {str(source)!r} cannot be copied: {error}") from error


def require_intact(path: Path) -> None:
    """Check the integrity of a database file. Raises ``ConfigurationError`` for a file that is no database, or is
    damaged."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("pragma quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        found = str(error)
    if found != "ok":
        raise ConfigurationError(f"the database in the archive is damaged: {found}")


def merge_journal(path: Path) -> None:
    """Write the journal of a database into its file, if there is one and it can be read: the file alone is complete
    then."""
    if path.exists():
        with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(path, timeout=20.0)) as connection:
            connection.execute("pragma journal_mode=delete")


_ROW = "writability"


def require_writable(database: Database) -> None:
    """Write one small row, because reading would not show that the database is full or read-only. Idempotent. Raises
    ``UnavailableError``."""
    with database.write() as connection:
        touched = connection.execute(
            sa.update(maintenance).where(maintenance.c.name == _ROW).values(ran_at=db_now())
        ).rowcount
        if not touched:
            row = {"name": _ROW, "ran_at": 0.0, "hold_until": 0.0}
            connection.execute(build_insert_ignoring(connection, maintenance), row)
