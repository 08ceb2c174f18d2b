"""How large a database is and how much of it holds nothing, and what gives that back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.engine.database import Database
from hermes_worker.store.tables import metadata

_FREE_BYTES_NOTED = 64 * 1024 * 1024
_FREE_PART_NOTED = 0.25
_DEAD_ROWS_NOTED = 10_000
_DEAD_ROWS = sa.text(
    "select relname, n_dead_tup from pg_stat_user_tables"
    " where n_dead_tup > :noted and n_dead_tup > n_live_tup order by n_dead_tup desc"
)
"""Autovacuum comes at a twentieth (``store.tables``): nobody looks after a table with more dead rows than live ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSize:
    """What a database takes up."""

    total_bytes: int
    free_bytes: int = 0
    """Of SQLite: pages that hold nothing, which later rows fill again."""
    dead_rows: Mapping[str, int] = field(default_factory=dict)
    """Of PostgreSQL: by table, where more rows are dead than alive."""

    @property
    def is_bloated(self) -> bool:
        """It is worth the while to give back what holds nothing."""
        is_hollow = self.free_bytes >= max(_FREE_BYTES_NOTED, _FREE_PART_NOTED * self.total_bytes)
        return is_hollow or bool(self.dead_rows)


def size_of(database: Database) -> DatabaseSize:
    """Look once. Raises ``UnavailableError``."""
    with database.read() as connection:
        if not database.is_sqlite:
            total = connection.execute(sa.text("select pg_database_size(current_database())")).scalar_one()
            found = connection.execute(_DEAD_ROWS, {"noted": _DEAD_ROWS_NOTED})
            dead = {name: count for name, count in found if name in metadata.tables}
            return DatabaseSize(total_bytes=int(total), dead_rows=dead)
        page, pages, free = (
            int(connection.exec_driver_sql(f"pragma {name}").scalar_one())
            for name in ("page_size", "page_count", "freelist_count")
        )
        return DatabaseSize(total_bytes=page * pages, free_bytes=page * free)


def give_back(database: Database) -> None:
    """Make the file of SQLite as small as what it holds, which takes as much space again and lets nobody else write;
    of PostgreSQL free the dead rows of the tables in question, beside which everything goes on. Idempotent.

    Raises ``UnavailableError``: somebody is at work on the file, or there is no space."""
    if not database.is_sqlite:
        with database.read() as connection:
            for table in size_of(database).dead_rows:
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
