"""Statements of the hot path: written in SQLAlchemy Core, compiled once, run on the driver.

Theory of operation. Executing a Core statement costs about three times what the driver needs for the same SQL
(``benchmarks/``). A step of an agent is a dozen small statements, so a ``Prepared`` statement goes this way:

    module import      Prepared(core statement, takes=TypedDict, gives=NamedTuple)     nothing is compiled
    first execution    compile it for the dialect of the connection, compare the names, keep text and positions
    each execution     merge fixed and given values, seal texts, cursor.execute(text, values), make rows

The rest of SQLAlchemy stays in force: the same transactions, the same pool, the same exceptions (``translate_error``
makes them). Values are plain (numbers, text, booleans, ``None``) and rows are plain tuples with named fields. Of
SQLAlchemy's column types two matter here, ``SealedText`` and ``PlacedText``: their values are stored and read as
SQLAlchemy would.

A statement declares what it takes as a ``TypedDict`` and what it gives as a ``NamedTuple``. The type checker holds
callers to both, and the names are compared with those of the statement when it is compiled, so a forgotten parameter is
a ``TypeError`` in the first test and not a wrong row in production.

Three things look wrong and are right. Statements for PostgreSQL are compiled with its own placeholders (``$1``),
because psycopg would search a long statement for Python's in each execution. A PostgreSQL connection never closes a
cursor, and leaves it out for what it executes often (``_ServerStatement``); with SQLite each cursor is closed at once,
because an open one holds a lock. And a value that is ``None`` in the compiled statement counts as a parameter unless
the statement itself says ``None``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Generic, NamedTuple, Never, TypedDict, TypeVar, cast, get_type_hints, overload

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import Dialect

from hermes_worker.core.errors import UnavailableError
from hermes_worker.store.engine.sealing import SealedText
from hermes_worker.store.engine.stored_texts import PlacedText

Takes = TypeVar("Takes", bound=Mapping[str, object])
Gives = TypeVar("Gives", bound=tuple[Any, ...])
First = TypeVar("First", bound=tuple[Any, ...])
Second = TypeVar("Second", bound=tuple[Any, ...])
Third = TypeVar("Third", bound=tuple[Any, ...])
View = TypeVar("View")
Values = dict[str, Any]
"""Parameters of a statement that is put together at run time; their names are passed as ``names``."""


class Nothing(TypedDict):
    """The parameters of a statement that has none."""


class PkRow(NamedTuple):
    pk: int


class Joined(Generic[Gives]):
    """Row type of a join: the first columns make one row, the next another, for two or three tables."""

    @overload
    def __init__(self: Joined[tuple[First, Second]], first: type[First], second: type[Second], /) -> None: ...
    @overload
    def __init__(
        self: Joined[tuple[First, Second, Third]], first: type[First], second: type[Second], third: type[Third], /
    ) -> None: ...
    def __init__(self, *parts: Any) -> None:
        self._fields: tuple[str, ...] = tuple(name for part in parts for name in part._fields)
        self._parts: list[tuple[Any, int, int]] = []
        end = 0
        for part in parts:
            begin, end = end, end + len(part._fields)
            self._parts.append((part._make, begin, end))

    def _make(self, row: Sequence[Any]) -> Any:
        return tuple([make(row[begin:end]) for make, begin, end in self._parts])


class _Compiled:
    """One statement, compiled for one dialect."""

    __slots__ = ("fixed", "keeps_cursor", "opens", "positions", "query", "seals", "sql", "types")

    def __init__(self, statement: Any, dialect: Dialect, takes: Any, gives: Any) -> None:
        self.keeps_cursor = dialect.name == "postgresql"
        """One cursor serves all statements of a connection; of SQLite a cursor holds its lock until it is closed."""
        if self.keeps_cursor:
            # Use the server's own placeholders: psycopg would parse Python's again in each execution of a long
            # statement (0.25 ms for the one that settles a call).
            kind: Any = type(dialect)
            dialect = kind(paramstyle="numeric_dollar")
        compiled = statement.compile(dialect=dialect)
        self.sql: str = compiled.string
        _require_same_names(self.sql, "take", takes, {name for name, bind in compiled.binds.items() if bind.required})
        _require_same_names(self.sql, "give", gives, list_columns(statement))
        self.query: Any = self.sql.encode() if self.keeps_cursor else self.sql
        self.fixed: dict[str, Any] = {
            name: value
            for name, value in compiled.params.items()
            if value is not None or name in _list_explicit(compiled)
        }
        self.positions: Sequence[str] | None = compiled.positiontup
        self.types = [
            _FLOAT8 if isinstance(compiled.binds[name].type, sa.Float) else 0 for name in self.positions or ()
        ]
        """PostgreSQL's numbers of the types of its parameters; 0 where it derives the type from the statement, which it
        does for all but fractions."""
        self.seals = [(name, bind.type) for bind, name in compiled.bind_names.items() if isinstance(bind.type, _KINDS)]
        """Parameters whose values are stored in another form, and the type that does it."""
        returned = getattr(statement, "exported_columns", ())
        self.opens = [(index, column.type) for index, column in enumerate(returned) if isinstance(column.type, _KINDS)]
        """Columns of the result that may stand there in another form, and the type that reads it."""

    def build_parameters(self, values: Mapping[str, Any], dialect: Dialect) -> Any:
        merged = {**self.fixed, **values} if self.fixed else values
        if self.seals:
            merged = dict(merged)
            for name, kind in self.seals:
                if (text := merged.get(name)) is not None:
                    merged[name] = kind.process_bind_param(text, dialect)
        return merged if self.positions is None else [merged[name] for name in self.positions]

    def open_row(self, row: Any, dialect: Dialect) -> Any:
        """Return ``row`` with clear texts; the same object when no text in it has to be decrypted."""
        for index, kind in self.opens:
            value = row[index]
            if value is not None and not kind.is_as_stored(value):
                return self._with_clear_texts(list(row), dialect)
        return row

    def _with_clear_texts(self, values: list[Any], dialect: Dialect) -> tuple[Any, ...]:
        for index, kind in self.opens:
            values[index] = kind.process_result_value(values[index], dialect)
        return tuple(values)

    def get_cursor(self, connection: Connection) -> Any:
        if not self.keeps_cursor:
            return connection.connection.cursor()
        info = connection.info  # belongs to the driver's connection; emptied when that is replaced
        kept = info.get(_KEPT)
        if kept is None:
            kept = info[_KEPT] = _KeptStatements(connection.connection.dbapi_connection)
        return kept.find_cursor(self)

    def release(self, cursor: Any) -> None:
        if not self.keeps_cursor:
            cursor.close()


class _KeptStatements:
    """What the server keeps for one PostgreSQL connection."""

    __slots__ = ("_cursor", "_driver", "_executions", "_statements")

    def __init__(self, driver: Any) -> None:
        from psycopg import RawCursor  # not installed everywhere: SQLite does not need it

        self._driver = driver
        self._cursor = RawCursor(driver)
        self._executions: dict[_Compiled, int] = {}
        self._statements: dict[_Compiled, _ServerStatement] = {}

    def find_cursor(self, compiled: _Compiled) -> Any:
        """Return what executes the statement: the server's own once it was executed often enough, where each statement
        is its own transaction; else a cursor. psycopg has the server forget every statement after a rollback."""
        driver = self._driver
        if not driver.autocommit:
            return self._cursor
        found = self._statements.get(compiled)
        if found is not None:
            return found
        count = self._executions[compiled] = self._executions.get(compiled, 0) + 1
        threshold = driver.prepare_threshold
        if threshold is None or count <= threshold or len(self._statements) >= _KEPT_MAX:
            return self._cursor
        made = self._statements[compiled] = _ServerStatement(
            self._cursor, f"hermes_{len(self._statements)}", compiled.types
        )
        return made


class _ServerStatement:
    """A statement that the server keeps for one connection, used as a cursor.

    psycopg's own cursor finds out anew in each execution what the types of all values and columns are, and keeps a
    statement once for each combination of sizes of numbers; that is a third of what a statement costs the client. Here
    values are sent as text whose types the server derives from the statement.
    """

    __slots__ = (
        "_cursor",
        "_driver",
        "_forgotten",
        "_formats",
        "_has_loaders",
        "_is_kept",
        "_name",
        "_read",
        "_rows",
        "_transformer",
        "_types",
        "rowcount",
    )

    def __init__(self, cursor: Any, name: str, types: Sequence[int]) -> None:
        """Set up a statement that the server will keep as ``name``. ``cursor`` belongs to the connection; ``types`` has
        PostgreSQL's number of the type of each parameter, 0 where the server derives it."""
        from psycopg.adapt import PyFormat, Transformer
        from psycopg.errors import InvalidSqlStatementName
        from psycopg.generators import execute

        self._cursor = cursor
        self._driver = cursor.connection
        self._name = name.encode()
        self._types = types
        self._formats = [PyFormat.TEXT] * len(types)
        self._is_kept = self._has_loaders = False
        self._forgotten: Any = InvalidSqlStatementName
        self._read: Any = execute
        self._transformer = Transformer(self._driver)

    def execute(self, query: bytes, parameters: Sequence[Any]) -> None:
        """Execute a kept statement on this connection. Raises the driver's exceptions."""
        values = self._transformer.dump_sequence(parameters, self._formats)
        try:
            result = self._execute_kept(query, values)
        except self._forgotten:  # nothing was done: the server was told to forget all statements (DISCARD ALL)
            self._is_kept = False
            result = self._execute_kept(query, values)
        self._transformer.set_pgresult(result, set_loaders=not self._has_loaders)
        self._has_loaders = True
        self._rows, self.rowcount = result.ntuples, result.command_tuples or 0

    def _execute_kept(self, query: bytes, values: Sequence[Any]) -> Any:
        if not self._is_kept:
            self._driver.pgconn.send_prepare(self._name, query, self._types)
            self._receive()
            self._is_kept = True
        self._driver.pgconn.send_query_prepared(self._name, values)
        return self._receive()

    def executemany(self, query: bytes, parameters: Sequence[Sequence[Any]]) -> None:
        """Leave it to psycopg, which sends the next without waiting for the one before."""
        self._cursor.executemany(query, parameters)

    def _receive(self) -> Any:
        result = self._driver.wait(self._read(self._driver.pgconn))[-1]
        if result.status not in _SUCCESSES:
            from psycopg.errors import error_from_result

            raise error_from_result(result)
        return result

    def fetchone(self) -> Any:
        row = self._transformer.load_row(0, tuple) if self._rows else None
        self._forget_result()
        return row

    def fetchall(self) -> Any:
        rows = self._transformer.load_rows(0, self._rows, tuple)
        self._forget_result()
        return rows

    def _forget_result(self) -> None:
        """Keep no transcript in memory until the statement is executed again."""
        self._transformer.set_pgresult(None, set_loaders=False)


class UnpreparedConnection(Connection):
    """A connection whose driver may be any: statements on it are executed by SQLAlchemy."""


class _Unprepared:
    """One statement for an ``UnpreparedConnection``, used as a ``_Compiled``."""

    __slots__ = ("query",)

    opens = ()
    sql = "a statement of SQLAlchemy"

    def __init__(self, statement: Any) -> None:
        self.query = statement

    def build_parameters(self, values: Mapping[str, Any], dialect: Dialect) -> Any:
        return dict(values)

    def get_cursor(self, connection: Connection) -> Any:
        return _ResultCursor(connection)

    def release(self, cursor: Any) -> None:
        cursor.close()


class _ResultCursor:
    """The parts of a cursor that prepared statements use, over the result of SQLAlchemy."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def execute(self, query: Any, parameters: Any) -> None:
        result = self._connection.execute(query, parameters)
        self.rowcount = result.rowcount
        self.fetchone, self.fetchall, self.close = result.fetchone, result.fetchall, result.close

    executemany = execute


_KEPT = "hermes_kept"
_KEPT_MAX = 100
"""Statements that the server keeps for one connection, as many as psycopg would have it keep."""
_FLOAT8 = 701
"""The ``oid`` of ``double precision`` in ``pg_type``."""
_SUCCESSES = (1, 2)
"""``PGRES_COMMAND_OK`` and ``PGRES_TUPLES_OK`` of libpq."""
_KINDS = (SealedText, PlacedText)


def _list_explicit(compiled: Any) -> set[str]:
    """The names of the parameters to which the statement itself gives a value, ``None`` included."""
    return {name for name, bind in compiled.binds.items() if not bind.required}


def list_columns(statement: Any) -> tuple[str, ...]:
    """The names of the columns that a statement returns, in order."""
    returned = getattr(statement, "exported_columns", ())
    return tuple(str(column.key) for column in returned)


def _require_same_names(sql: str, verb: str, declared: Collection[str], found: Collection[str]) -> None:
    if declared != found:
        said, really = (", ".join(names) or "nothing" for names in (declared, found))
        raise TypeError(f"a statement {verb}s {really}, and is said to {verb} {said}: {sql}")


class Prepared(Generic[Takes, Gives]):
    """A statement that is executed often. Build it once, at import."""

    __slots__ = ("_by_dialect", "_gives", "_make", "_statement", "_takes")

    @overload
    def __init__(self: Prepared[Nothing, Never], statement: sa.Executable) -> None: ...
    @overload
    def __init__(self: Prepared[Takes, Never], statement: sa.Executable, *, takes: type[Takes]) -> None: ...
    @overload
    def __init__(
        self: Prepared[Nothing, Gives], statement: sa.Executable, *, gives: type[Gives] | Joined[Gives]
    ) -> None: ...
    @overload
    def __init__(self, statement: sa.Executable, *, takes: type[Takes], gives: type[Gives] | Joined[Gives]) -> None: ...
    @overload
    def __init__(
        self: Prepared[Values, Gives],
        statement: sa.Executable,
        *,
        names: Collection[str],
        gives: type[Gives] | Joined[Gives],
    ) -> None: ...
    def __init__(
        self, statement: sa.Executable, *, takes: Any = Nothing, names: Collection[str] | None = None, gives: Any = None
    ) -> None:
        """``takes`` are its parameters, ``gives`` the columns of its rows, both under their own names. ``names`` are
        the parameters of a statement that is put together at run time."""
        self._statement = statement
        self._takes = frozenset(takes.__annotations__ if names is None else names)
        self._gives: tuple[str, ...] = () if gives is None else gives._fields
        self._make: Any = None if gives is None else gives._make
        self._by_dialect: dict[str, _Compiled] = {}

    def first(self, connection: Connection, values: Takes) -> Gives | None:
        """The first row, or ``None``. For a statement that returns rows."""
        compiled = self._compile(connection)
        cursor = self._run(connection, compiled, values)
        found = cursor.fetchone()
        compiled.release(cursor)
        if found is not None and compiled.opens:
            found = compiled.open_row(found, connection.dialect)
        return None if found is None else self._make(found)

    def one(self, connection: Connection, values: Takes) -> Gives:
        """Return the only row of a statement that always finds one. Raises ``LookupError`` when it finds none."""
        found = self.first(connection, values)
        if found is None:
            raise LookupError(f"no row where there is always one, for {dict(values)}")
        return found

    def all(self, connection: Connection, values: Takes) -> list[Gives]:
        """Every row. For a statement that returns rows."""
        compiled = self._compile(connection)
        cursor = self._run(connection, compiled, values)
        found = cursor.fetchall()
        compiled.release(cursor)
        if compiled.opens:
            found = [compiled.open_row(row, connection.dialect) for row in found]
        return [self._make(row) for row in found]

    def run(self, connection: Connection, values: Takes) -> int:
        """Execute and return the number of rows changed."""
        compiled = self._compile(connection)
        cursor = self._run(connection, compiled, values)
        changed = int(cursor.rowcount)
        compiled.release(cursor)
        return changed

    def check(self, dialect: Dialect) -> None:
        """Compile for ``dialect``. Raises ``TypeError`` when the statement takes or gives other names than it
        declares."""
        _Compiled(self._statement, dialect, self._takes, self._gives)

    def run_each(self, connection: Connection, rows: Sequence[Takes]) -> None:
        """Execute once for each of ``rows``; the next is sent without waiting for the one before."""
        if len(rows) == 1:
            self.run(connection, rows[0])
        elif rows:
            self._run_many(connection, self._compile(connection), rows)

    def _compile(self, connection: Connection) -> Any:
        if connection.__class__ is UnpreparedConnection:
            return _Unprepared(self._statement)
        name = connection.dialect.name
        compiled = self._by_dialect.get(name)
        if compiled is None:
            compiled = self._by_dialect[name] = _Compiled(self._statement, connection.dialect, self._takes, self._gives)
        return compiled

    def _run(self, connection: Connection, compiled: Any, values: Mapping[str, Any]) -> Any:
        cursor = compiled.get_cursor(connection)
        try:
            cursor.execute(compiled.query, compiled.build_parameters(values, connection.dialect))
        except Exception as error:
            raise translate_error(connection, compiled.sql, error) from error
        return cursor

    def _run_many(self, connection: Connection, compiled: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        cursor = compiled.get_cursor(connection)
        try:
            cursor.executemany(
                compiled.query, [compiled.build_parameters(values, connection.dialect) for values in rows]
            )
        except Exception as error:
            raise translate_error(connection, compiled.sql, error) from error
        compiled.release(cursor)


def translate_error(connection: Connection, sql: str, error: Exception) -> Exception:
    """Return the driver's exception as SQLAlchemy would have raised it. A dead connection is invalidated."""
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


def fetch_rows(result: sa.Result[Any], row: type[Gives]) -> list[Gives]:
    """Return the rows of a statement that is not prepared. Raises ``TypeError`` when it gives other columns than
    ``row``."""
    make = _find_maker(result, row)
    return [make(found) for found in result]


def fetch_row(result: sa.Result[Any], row: type[Gives]) -> Gives | None:
    """Return the first row of a statement that is not prepared, or ``None``. Raises ``TypeError`` when it gives other
    columns than ``row``."""
    found = result.first()
    return None if found is None else _find_maker(result, row)(found)


def fetch_one(result: sa.Result[Any], row: type[Gives]) -> Gives:
    """Return the only row of a statement that always finds one. Raises ``sqlalchemy.exc.NoResultFound``, and
    ``TypeError`` when it gives other columns than ``row``."""
    return cast(Gives, _find_maker(result, row)(result.one()))


def fetch_views(result: sa.Result[Any], view: type[View], **readers: Callable[[Any], object]) -> list[View]:
    """Return rows as dataclasses whose fields are named like the columns. A field that is annotated as ``bool`` or an
    enum becomes one, and a field ``session`` that is a dataclass is made of the columns ``session_...``; ``readers``
    read other columns. Raises ``TypeError`` when the statement gives other columns than ``view`` has fields."""
    names, known = tuple(result.keys()), _find_readers(cast(Hashable, view)) | readers
    if set(names) != known.keys():
        raise TypeError(f"{view.__name__} has other fields than the columns {', '.join(names)}")
    reads = [(name, known[name]) for name in names]
    return [
        _build_view(
            view,
            {name: None if value is None else read(value) for (name, read), value in zip(reads, found, strict=True)},
        )
        for found in result
    ]


def _build_view(view: type[View], values: Mapping[str, object], prefix: str = "") -> View:
    return view(
        **{
            name: values[prefix + name] if kind is None else _build_view(kind, values, f"{prefix}{name}_")
            for name, kind in _find_parts(cast(Hashable, view)).items()
        }
    )


@cache
def _find_parts(view: Any) -> dict[str, Any]:
    """Find the fields of a dataclass, each with the dataclass that it is, or ``None``."""
    return {name: kind if is_dataclass(kind) else None for name, kind in get_type_hints(view).items()}


@cache
def _find_readers(view: Hashable) -> dict[str, Callable[[Any], object]]:
    readers: dict[str, Callable[[Any], object]] = {}
    for name, kind in get_type_hints(view).items():
        within = _find_readers(cast(Hashable, kind)) if is_dataclass(kind) else {}
        readers |= {f"{name}_{part}": read for part, read in within.items()} or {name: _find_reader(kind)}
    return readers


def _find_reader(kind: Any) -> Callable[[Any], object]:
    is_read = kind is bool or (isinstance(kind, type) and issubclass(kind, Enum))
    return cast(Callable[[Any], object], kind) if is_read else _keep_value


def _keep_value(value: object) -> object:
    return value


def select_view_columns(table: sa.FromClause, view: type) -> list[sa.ColumnElement[Any]]:
    """Select the columns of a table that are called like fields of the dataclass ``view``."""
    return [table.c[name] for name in get_type_hints(view) if name in table.c]


def select_columns(table: sa.FromClause, row: type[tuple[Any, ...]]) -> list[sa.ColumnElement[Any]]:
    """Select the columns of a table that the row type ``row`` names."""
    names: Any = row
    return [table.c[name] for name in names._fields]


def _find_maker(result: sa.Result[Any], row: Any) -> Any:
    if tuple(result.keys()) != row._fields:
        raise TypeError(f"{row.__name__} has other fields than the columns {', '.join(result.keys())}")
    return row._make
