"""Statements of the hot path: written in SQLAlchemy Core, compiled once, run on the driver.

Executing a Core statement costs about three times what the driver needs for the same SQL (``benchmarks/``). A step of
an agent is a dozen small statements, so the ones on that path are compiled when first used with a dialect and then
handed to the driver as text and parameters. They take plain values (numbers, text, ``None``, booleans) and return
plain tuples with named fields; nothing else of SQLAlchemy is given up: same transactions, same pool, same errors.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import Dialect

from hermes_worker.core.errors import UnavailableError


class _Compiled:
    """One statement in one dialect."""

    __slots__ = ("fixed", "keeps_cursor", "positions", "query", "row", "sql")

    def __init__(self, statement: Any, dialect: Dialect) -> None:
        self.keeps_cursor = dialect.name == "postgresql"
        """One cursor serves all statements of a connection; of SQLite a cursor holds its lock until it is closed."""
        if self.keeps_cursor:
            # The server's own placeholders: those of Python psycopg would look for anew in each execution of a long
            # statement (0.25 ms for the one that settles a call).
            kind: Any = type(dialect)
            dialect = kind(paramstyle="numeric_dollar")
        compiled = statement.compile(dialect=dialect)
        self.sql: str = compiled.string
        self.query: Any = self.sql.encode() if self.keeps_cursor else self.sql
        self.fixed: dict[str, Any] = {
            name: value for name, value in compiled.params.items() if value is not None or name in _explicit(compiled)
        }
        self.positions: Sequence[str] | None = compiled.positiontup
        columns = [str(entry.keyname) for entry in getattr(compiled, "_result_columns", ())]
        self.row: Any = namedtuple("Row", columns) if columns else None

    def parameters(self, values: Mapping[str, Any]) -> Any:
        merged = {**self.fixed, **values} if self.fixed else values
        return merged if self.positions is None else [merged[name] for name in self.positions]

    def cursor(self, connection: Connection) -> Any:
        if not self.keeps_cursor:
            return connection.connection.cursor()
        info = connection.info  # of the driver's connection, and emptied when that is replaced
        cursor = info.get(_CURSOR)
        if cursor is None:
            from psycopg import RawCursor  # who uses SQLite does without

            driver: Any = connection.connection.dbapi_connection
            cursor = info[_CURSOR] = RawCursor(driver)
        return cursor

    def release(self, cursor: Any) -> None:
        if not self.keeps_cursor:
            cursor.close()


_CURSOR = "hermes_cursor"


def _explicit(compiled: Any) -> set[str]:
    """Parameters that the statement itself gives a value, ``None`` included."""
    return {name for name, bind in compiled.binds.items() if not bind.required}


class Prepared:
    """A statement that is executed often. Build it once, at import."""

    __slots__ = ("_by_dialect", "_statement")

    def __init__(self, statement: sa.Executable) -> None:
        self._statement = statement
        self._by_dialect: dict[str, _Compiled] = {}

    def first(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """The first row, or ``None``. For a statement that returns rows."""
        compiled = self._compiled(connection)
        cursor = self._run(connection, compiled, values)
        found = cursor.fetchone()
        compiled.release(cursor)
        return None if found is None else compiled.row._make(found)

    def all(self, connection: Connection, values: Mapping[str, Any]) -> list[Any]:
        """Every row. For a statement that returns rows."""
        compiled = self._compiled(connection)
        cursor = self._run(connection, compiled, values)
        found = cursor.fetchall()
        compiled.release(cursor)
        return [compiled.row._make(row) for row in found]

    def run(self, connection: Connection, values: Mapping[str, Any]) -> int:
        """Execute and return the number of rows changed."""
        compiled = self._compiled(connection)
        cursor = self._run(connection, compiled, values)
        changed = int(cursor.rowcount)
        compiled.release(cursor)
        return changed

    def run_each(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
        """Execute once for each of ``rows``, without waiting for one before the next is sent."""
        if len(rows) == 1:
            self.run(connection, rows[0])
        elif rows:
            self._run_many(connection, self._compiled(connection), rows)

    def _compiled(self, connection: Connection) -> _Compiled:
        name = connection.dialect.name
        compiled = self._by_dialect.get(name)
        if compiled is None:
            compiled = self._by_dialect[name] = _Compiled(self._statement, connection.dialect)
        return compiled

    def _run(self, connection: Connection, compiled: _Compiled, values: Mapping[str, Any]) -> Any:
        cursor = compiled.cursor(connection)
        try:
            cursor.execute(compiled.query, compiled.parameters(values))
        except Exception as error:
            raise _translated(connection, compiled.sql, error) from error
        return cursor

    def _run_many(self, connection: Connection, compiled: _Compiled, rows: Sequence[Mapping[str, Any]]) -> None:
        cursor = compiled.cursor(connection)
        try:
            cursor.executemany(compiled.query, [compiled.parameters(values) for values in rows])
        except Exception as error:
            raise _translated(connection, compiled.sql, error) from error
        compiled.release(cursor)


def _translated(connection: Connection, sql: str, error: Exception) -> Exception:
    """The driver's exception as SQLAlchemy would have raised it, and the connection given up when it is dead."""
    dbapi = connection.dialect.loaded_dbapi
    if not isinstance(error, dbapi.Error):
        return error
    if isinstance(error, dbapi.IntegrityError):
        return sa.exc.IntegrityError(sql, None, error)
    if connection.dialect.is_disconnect(error, connection.connection.dbapi_connection, None):
        connection.invalidate(error)
        return UnavailableError(f"the database connection was lost: {type(error).__name__}")
    if isinstance(error, dbapi.OperationalError):
        return sa.exc.OperationalError(sql, None, error)
    return sa.exc.DBAPIError(sql, None, error)
