"""The size of a database, how much of it is free or dead, and how to reclaim that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.engine.database import Database
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
            dead = {name: count for name, count in found if name in load_schema().tables}
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
    import sqlite3

    driver = database.engine.raw_connection()
    try:
        driver.cursor().execute("vacuum")
    except sqlite3.Error as error:
        raise UnavailableError(f"the file could not be made smaller: {error}") from error
    finally:
        driver.close()
