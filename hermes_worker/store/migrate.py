"""Bring a database to this version's schema."""

from __future__ import annotations

import time
from contextlib import suppress

import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.store.backlog import make_view
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.home_rows import finish_conversion
from hermes_worker.store.revisions import (
    MIGRATIONS,
    SchemaState,
    find_newest,
    format_advice,
    list_revisions,
    load_revision,
    load_state,
    require_current,
)
from hermes_worker.store.tables import schema_revisions
from hermes_worker.store.whole_schema import load_schema

__all__ = ["find_newest", "load_revision", "migrate", "require_current"]

_LOCK = 0x4865726D6573  # "Hermes": one migrator at a time on PostgreSQL
_BUILD_LOCK = _LOCK + 1
_LOCK_PAUSE_S = 0.2
_SHOWN_CHARS = 200
_IS_INVALID = sa.text("select not indisvalid from pg_index where indexrelid = to_regclass(:name)")


def _build_config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def migrate(database: Database) -> str | None:
    """Upgrade to the newest revision; returns the one it came from. Idempotent, safe for several at once.

    A database that is ahead of this code, and that this code works on, stays as it is. Raises ``ConfigurationError``
    when the database is newer than that, comes from an unreleased version, or holds somebody else's tables.
    """
    there = load_state(database)
    before = there.found
    if there.is_usable:
        finish_conversion(database)
        return before
    _refuse_unknown(before, there)
    if before is not None and not database.is_sqlite:
        _build_ahead(database, before)
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(sa.text("select pg_advisory_xact_lock(:key)"), {"key": _LOCK})
            _refuse_other_encodings(connection)
        _refuse_strangers(connection, there)
        config = _build_config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
        make_view(connection)
        _record(connection)
    finish_conversion(database)
    return before


def build_schema(database: Database, revision: str) -> None:
    """Build the schema of an earlier revision in an empty database, for a copy of another one's rows."""
    with database.write() as connection:
        config = _build_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def find_schema_differences(database: Database) -> list[str]:
    """List in what the schema differs from the one that this code is written for."""
    with database.engine.connect() as connection:
        options = {"compare_type": True, "include_name": _is_ours}
        found = compare_metadata(MigrationContext.configure(connection, opts=options), load_schema())
    return [" ".join(str(difference).split())[:_SHOWN_CHARS] for difference in found]


def _is_ours(name: str | None, kind: str, *_: object) -> bool:
    """Whether a table is none of those that SQLite's index of words keeps for itself."""
    return kind != "table" or not (name or "").startswith("search_words")


def _build_ahead(database: Database, before: str) -> None:
    """Build the indexes of coming revisions that say how (``builds_ahead``), while everybody goes on writing.

    That cannot be done in the transaction of the upgrade, which then finds them there. Where a revision on the way
    makes the table or the column, there is nothing to build ahead. Where a process died at it an index without effect
    is left, which is made anew.
    """
    scripts = ScriptDirectory.from_config(_build_config()).walk_revisions()
    coming = [script.module for script in reversed(list(scripts)) if script.revision > before]
    wanted = [each for module in coming for each in getattr(module, "builds_ahead", {}).items()]
    if not wanted:
        return
    with database.engine.connect() as guard:
        # The builder waits for transactions that have a snapshot, so this one must have none: it is not waited for in a
        # statement, nor with parameters, whose portal would keep the snapshot until the next statement.
        while not guard.exec_driver_sql(f"select pg_try_advisory_xact_lock({_BUILD_LOCK})").scalar():
            time.sleep(_LOCK_PAUSE_S)
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            for name, where_and_what in wanted:
                if connection.execute(_IS_INVALID, {"name": name}).scalar():
                    connection.exec_driver_sql(f"drop index concurrently {name}")
                with suppress(sa.exc.ProgrammingError):  # no such table or column yet
                    connection.exec_driver_sql(f"create index concurrently if not exists {name} on {where_and_what}")


def _record(connection: Connection) -> None:
    """Write down what was done here, for code that does not know these revisions."""
    done = set(connection.execute(sa.select(schema_revisions.c.revision)).scalars())
    scripts = {
        script.revision: script.module for script in ScriptDirectory.from_config(_build_config()).walk_revisions()
    }
    new = [
        {"revision": name, "works_with": getattr(module, "works_with", name)}
        for name, module in scripts.items()
        if name not in done
    ]
    if new:
        connection.execute(sa.insert(schema_revisions).values(applied_at=db_now()), new)


def _refuse_other_encodings(connection: Connection) -> None:
    found = connection.scalar(sa.text("show server_encoding"))
    if found != "UTF8":
        raise ConfigurationError(
            f"the database has the encoding {found}, in which not every text can be kept; make one with "
            "CREATE DATABASE hermes ENCODING 'UTF8' TEMPLATE template0"
        )


def _refuse_strangers(connection: Connection, there: SchemaState) -> None:
    found = MigrationContext.configure(connection).get_current_revision()
    _refuse_unknown(found, there)
    theirs = sorted(load_schema().tables.keys() & set(sa.inspect(connection).get_table_names()))
    if found is None and theirs:
        raise ConfigurationError(
            f"the database has a table {theirs[0]!r} that is not ours; give hermes-worker its own database"
        )


def _refuse_unknown(found: str | None, there: SchemaState) -> None:
    """Refuse a database whose revision this version does not know, before anything is changed. ``found`` may be newer
    than ``there``: somebody else may have migrated since."""
    if found is not None and found not in list_revisions():
        what_to_do = format_advice(found, there.works_with)
        raise ConfigurationError(
            f"the database schema is at revision {found!r}, which this version does not work on; {what_to_do}"
        )
