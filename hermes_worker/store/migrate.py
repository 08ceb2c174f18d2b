"""Bring a database to this version's schema."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.store.engine.database import Database
from hermes_worker.store.revisions import MIGRATIONS, advice, newest, require_current, revision
from hermes_worker.store.tables import metadata

__all__ = ["migrate", "newest", "require_current", "revision"]

_LOCK = 0x4865726D6573  # "Hermes": one migrator at a time on PostgreSQL


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def migrate(database: Database) -> str | None:
    """Upgrade to the newest revision; returns the one it came from. Idempotent, safe for several at once.

    Raises ``ConfigurationError`` when the database is newer than this code or holds somebody else's tables.
    """
    before = revision(database)
    if before == newest():
        return before
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
        _refuse_strangers(connection)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return before


def _refuse_strangers(connection: Connection) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise ConfigurationError(
            f"the database schema is at revision {found!r}, which this version does not know; {advice(found)}"
        )
    theirs = sorted(metadata.tables.keys() & set(sa.inspect(connection).get_table_names()))
    if found is None and theirs:
        raise ConfigurationError(
            f"the database has a table {theirs[0]!r} that is not ours; give hermes-worker its own database"
        )
