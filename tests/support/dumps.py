"""Everything that stands in a database file, as text, to look for what must not be there."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def texts_of(path: Path) -> str:
    """The rows of all tables. Not ``iterdump``: it cannot read the virtual tables of the search, whose rows stand in
    tables of their own, which are read here."""
    with closing(sqlite3.connect(path)) as connection:
        tables = connection.execute("select name, sql from sqlite_master where type = 'table'").fetchall()
        real = [name for name, statement in tables if not (statement or "").lower().startswith("create virtual")]
        return "\n".join(str(row) for name in real for row in connection.execute(f'select * from "{name}"'))
