"""Whether the database takes what is written to it, found out by writing."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.rows import insert_ignoring
from hermes_worker.store.tables import maintenance

_ROW = "writability"


def require_writable(database: Database) -> None:
    """Write one small row. Raises ``UnavailableError`` when the database is away, full or read-only: reading it would
    not tell. Idempotent."""
    with database.write() as connection:
        touched = connection.execute(
            sa.update(maintenance).where(maintenance.c.name == _ROW).values(ran_at=db_now())
        ).rowcount
        if not touched:
            row = {"name": _ROW, "ran_at": 0.0, "hold_until": 0.0}
            connection.execute(insert_ignoring(connection, maintenance), row)
