"""Whether a connection pooler stands between us and PostgreSQL, and what becomes of prepared statements there.

A pooler in transaction mode gives a connection of the server to one client for a transaction and then to another.
PgBouncer before 1.21 passes on the names of prepared statements as they are, so a client that executes its ``_pg3_7``
may execute another client's: we must not start behind one when statements are prepared. PgBouncer from 1.21 gives them
names of its own and keeps track (``max_prepared_statements``). In session mode nothing of this matters.
"""

from __future__ import annotations

import uuid
from contextlib import ExitStack
from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.store.engine.database import Database

_ROUNDS = 10
_NAME_OF_OURS = "_pg3_"
"""The beginning of the names that psycopg gives to prepared statements."""
REFUSAL = (
    "a connection pooler in transaction mode stands before the database and mixes up prepared statements (PgBouncer "
    "before 1.21, or max_prepared_statements 0): set HERMES_DATABASE_PREPARED_STATEMENTS=false "
    "(database.prepared_statements) for every process, or bring PgBouncer up to date"
)


class Pooler(StrEnum):
    """The kinds of poolers between this process and the database's server."""

    NONE = "no pooler"
    SESSION = "a pooler in session mode"
    KEEPS = "a pooler in transaction mode that keeps prepared statements"
    FORGETS = "a pooler in transaction mode that keeps no prepared statements"


def require_statements_kept(database: Database) -> None:
    """Check that no pooler mixes up our prepared statements; costs one query where there is no pooler. Raises
    ``ConfigurationError`` when one would, and ``UnavailableError``."""
    if database.prepares and detect_pooler(database) is Pooler.FORGETS:
        raise ConfigurationError(REFUSAL)


def detect_pooler(database: Database) -> Pooler:
    """Find out with two connections what stands between us and the server. Changes nothing: a statement that the look
    prepares is deallocated again. Raises ``UnavailableError``."""
    if database.is_sqlite:
        return Pooler.NONE
    with database.read() as first:
        driver: Any = first.connection.dbapi_connection
        if _read_backend_pid(first) == driver.info.backend_pid:
            return Pooler.NONE
        names_are_ours = _passes_names_on(driver)
        with database.read() as second:
            if not _is_shared(first, second):
                return Pooler.SESSION
    return Pooler.FORGETS if names_are_ours else Pooler.KEEPS


def _read_backend_pid(connection: sa.Connection) -> int:
    """Return the process id of the server that a transaction reached. The number that a pooler tells its clients when
    they connect is its own."""
    return int(connection.exec_driver_sql("select pg_backend_pid()").scalar_one())


def _passes_names_on(driver: Any) -> bool:
    """Whether the server knows a prepared statement by the name that psycopg gave it."""
    from psycopg import errors

    looked_for = f"select '{uuid.uuid4().hex}'"  # the driver remembers the statement, whose name is removed below
    with ExitStack() as stack:
        stack.callback(setattr, driver, "prepare_threshold", driver.prepare_threshold)
        driver.prepare_threshold = 1
        try:
            with driver.transaction():
                driver.execute(looked_for, prepare=True)
                known = "select name from pg_prepared_statements where statement = %s"
                found = driver.execute(known, [looked_for], prepare=False).fetchall()
                ours = [name for (name,) in found if name.startswith(_NAME_OF_OURS)]
                for name in ours:
                    driver.execute(f'deallocate "{name}"')
        except errors.DuplicatePreparedStatement:
            return True  # another client's, on the same connection of the server
        return bool(ours)


def _is_shared(first: sa.Connection, second: sa.Connection) -> bool:
    """Whether transactions of one connection reach different server connections, or two connections reach the same
    one."""
    seen = set()
    for _ in range(_ROUNDS):
        seen.add(_read_backend_pid(first))
        if len(seen) > 1 or _read_backend_pid(second) in seen:
            return True
    return False
