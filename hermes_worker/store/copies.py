"""A consistent copy of an SQLite database that others are writing to."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from hermes_worker.core.errors import ConfigurationError


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
