"""Databases at the newest schema. Migrating one takes longer than most tests that need one, copying a file does not."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from contextlib import closing
from functools import cache
from pathlib import Path

import psycopg
import sqlalchemy as sa

from hermes_worker.store.engine.database import Database
from hermes_worker.store.migrate import migrate

_TEMPLATE = "hermes_migrated"
_MAINTENANCE = "postgres"
"""The database that every server has, from which others are made and dropped."""


def bring_up(url: str) -> None:
    """Give the database at ``url`` the newest schema: an empty one becomes a copy of one that was migrated before."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        path = Path(parsed.database or "")
        if path.exists():
            _migrate(url)
        else:
            shutil.copyfile(template(), path)
    elif parsed.database == _MAINTENANCE:
        _migrate(url)  # a server of one test's own
    elif not _is_migrated(url):
        server_url = parsed.set(database=_MAINTENANCE).render_as_string(hide_password=False)
        _execute(parsed, f'DROP DATABASE "{parsed.database}"')
        copy_template(server_url, str(parsed.database))


@cache
def template() -> Path:
    """A migrated SQLite file, to copy. Made once; gone when the process ends."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-template-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = directory / "template.db"
    _migrate(f"sqlite:///{path}")  # closing the last connection folds the write-ahead log into the file
    return path


def copy_template(server_url: str, name: str) -> None:
    """Make the database ``name`` at the newest schema on the server of the database at ``server_url``."""
    _execute(
        sa.make_url(server_url), f'CREATE DATABASE "{name}" TEMPLATE "{find_template(server_url)}" STRATEGY file_copy'
    )


@cache
def find_template(server_url: str) -> str:
    """Return the name of the migrated database that the server keeps to be copied; it is made when first asked for."""
    url = sa.make_url(server_url)
    if not _execute(url, f"SELECT 1 FROM pg_database WHERE datname = '{_TEMPLATE}'"):
        _execute(url, f'CREATE DATABASE "{_TEMPLATE}"')
        _migrate(url.set(database=_TEMPLATE).render_as_string(hide_password=False))
    return _TEMPLATE


def _execute(url: sa.URL, statement: str) -> bool:
    """Execute a statement on the server of ``url``, outside a transaction, and tell whether it returned a row."""
    address = url.set(drivername="postgresql", database=_MAINTENANCE).render_as_string(hide_password=False)
    with closing(psycopg.connect(address, autocommit=True)) as connection:
        answer = connection.execute(statement.encode())
        return answer.description is not None and answer.fetchone() is not None


def _is_migrated(url: str) -> bool:
    """Whether the database was handed out with the newest schema, as ``postgres_url`` is."""
    address = sa.make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(psycopg.connect(address)) as connection:
        found = connection.execute("SELECT to_regclass('alembic_version') IS NOT NULL").fetchone()
        return bool(found and found[0])


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()
