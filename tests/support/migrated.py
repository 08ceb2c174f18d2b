"""Databases at the newest schema. Migrating one takes longer than most tests that need one, copying a file does not."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.store.database import Database
from hermes_worker.store.migrate import migrate


def bring_up(url: str) -> None:
    """Give the database at ``url`` the newest schema; a new SQLite file is a copy of one that was migrated before."""
    parsed = sa.make_url(url)
    path = Path(parsed.database or "")
    if parsed.get_backend_name() == "sqlite" and not path.exists():
        shutil.copyfile(template(), path)
        return
    _migrate(url)


@cache
def template() -> Path:
    """A migrated SQLite file, to copy. Made once; gone when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "template.db"
    _migrate(f"sqlite:///{path}")  # closing the last connection folds the write-ahead log into the file
    return path


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()
