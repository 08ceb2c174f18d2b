"""Say whether a home is a restored copy, in a moment, because every command that looks at a home asks that first."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from hermes_worker.cli.options import format_home_option
from hermes_worker.core.errors import UnavailableError
from hermes_worker.local.paths import has_no_rows
from hermes_worker.settings import Settings


def describe_copy(home: Path) -> str:
    """Write what a copy does not do, and how to end that."""
    return (
        "it delivers nothing, calls no hooks, listens to no chats, fires no jobs and opens no folder outside its home, "
        "because the original may still be at work. When nothing runs there any more, say so: "
        f"'hermes-worker data restore{format_home_option(home)} --original-gone'"
    )


def find_copy_note(settings: Settings) -> str | None:
    """Find what a restored copy does not do; ``None`` where this home is no copy. A database that cannot be opened is
    reported by the command that needs it."""
    if has_no_rows(settings):
        return None
    is_marked = _read_mark(settings.home / "hermes-worker.db") if settings.database.url is None else None
    return describe_copy(settings.home) if (_ask_database(settings) if is_marked is None else is_marked) else None


def _read_mark(path: Path) -> bool | None:
    """Read whether a database file is marked as a copy, without the libraries that make statements (0.5 s); ``None``
    where it cannot be read so. ``store.restore_detection`` says what the mark is."""
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=1)) as connection:
            return connection.execute("select 1 from maintenance where name = 'copy'").fetchone() is not None
    except sqlite3.Error:
        return None


def _ask_database(settings: Settings) -> bool:
    import sqlalchemy as sa

    from hermes_worker.store.build import build_database
    from hermes_worker.store.restore_detection import is_copy

    database = build_database(settings)
    try:
        return is_copy(database)
    except (UnavailableError, sa.exc.SQLAlchemyError):
        return False
    finally:
        database.close()
