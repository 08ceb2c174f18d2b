"""Databases at the newest schema. Migrating one takes longer than most tests that need one, copying a file does not."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate

_TEMPLATE = "hermes_migrated"
_MAINTENANCE = "postgres"
"""The database that every server has, from which others are made and dropped."""


def bring_up(url: str) -> None:
    """Give the empty database at ``url`` the newest schema: it becomes a copy of one that was migrated before."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if path.exists():
            _migrate(url)
        else:
            shutil.copyfile(template(), path)
    elif parsed.database == _MAINTENANCE:
        _migrate(url)  # a server of one test's own
    else:
        _copy_on_server(parsed)


@cache
def template() -> Path:
    """A migrated SQLite file, to copy. Made once; gone when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "template.db"
    _migrate(f"sqlite:///{path}")  # closing the last connection folds the write-ahead log into the file
    return path


def _copy_on_server(url: sa.URL) -> None:
    """Each server keeps a migrated database of its own to copy."""
    engine = sa.create_engine(url.set(database=_MAINTENANCE), isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        is_there = sa.text("SELECT 1 FROM pg_database WHERE datname = :name")
        if connection.scalar(is_there, {"name": _TEMPLATE}) is None:
            connection.execute(sa.text(f'CREATE DATABASE "{_TEMPLATE}"'))
            _migrate(url.set(database=_TEMPLATE).render_as_string(hide_password=False))
        connection.execute(sa.text(f'DROP DATABASE "{url.database}"'))
        connection.execute(sa.text(f'CREATE DATABASE "{url.database}" TEMPLATE "{_TEMPLATE}" STRATEGY file_copy'))


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()
