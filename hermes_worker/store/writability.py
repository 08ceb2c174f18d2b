"""Find out by writing whether the database accepts writes."""

from __future__ import annotations

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.tables import maintenance

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
