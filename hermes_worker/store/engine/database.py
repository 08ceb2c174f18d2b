"""One engine, two kinds of transaction, and the database's clock.

SQLite has one writer at a time, and its busy handler is unfair: writers of one process take turns under a lock of
our own, and every write transaction begins IMMEDIATE so that it cannot fail half-way for want of the write lock.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from hermes_worker.core.errors import ConfigurationError, HermesError, UnavailableError
from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.store.engine.pool import ConnectionPool
from hermes_worker.store.engine.prepared import translate_error
from hermes_worker.store.engine.sealing import CLEAR, PLAIN, KeyMissing, Sealer, seal_with
from hermes_worker.store.engine.stored_texts import make_texts_storable, set_homes

_SQLITE_BUSY_TIMEOUT_MS = 20_000
_SQLITE_PAGE_BYTES = 8192
"""Twice the default. Of tool results of 2 KB, which are common, one fits into a page of 4 KB and nearly half stays
empty: 1.97 bytes on disk for a byte of transcript instead of 1.40, for 10 % more CPU."""
_POOL_WAIT_S = 30
_UNACKNOWLEDGED_MS = 30_000
"""A server that vanished without a word is given up after this. Keepalives do not do it: they are not sent while a
statement waits to be acknowledged, and the kernel would repeat that for a quarter of an hour."""
_PREPARED_AFTER = 5
"""Executions after which psycopg has a statement prepared; its own default."""


class db_now(FunctionElement[float]):
    """Epoch seconds by the database's clock, now (not at the start of the transaction)."""

    inherit_cache = True
    type = sa.Double()
    name = "db_now"


@compiles(db_now, "postgresql")
def _now_postgresql(element: db_now, compiler: Any, **kw: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS double precision)"


@compiles(db_now, "sqlite")
def _now_sqlite(element: db_now, compiler: Any, **kw: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


def select_db_now() -> sa.ScalarSelect[float]:
    """``db_now``, evaluated once for the whole statement. Use it in conditions on times: PostgreSQL regards the bare
    function as one that changes from row to row, so it would look at every row of an index instead of only the part
    that is due."""
    return sa.select(db_now()).scalar_subquery()


T = TypeVar("T")


class FactCache:
    """Facts of the whole installation that seldom change, read at most every ``every_s`` seconds. Thread-safe."""

    def __init__(self, every_s: float = 0.5) -> None:
        self.every_s = every_s
        self._facts: dict[str, tuple[float, Any]] = {}

    def get(self, name: str, read: Callable[[], T]) -> T:
        """Return the fact ``name``: the remembered one if it is younger than ``every_s`` seconds, else what ``read``
        returns now."""
        known = self._facts.get(name)
        now = time.monotonic()
        if known is None or now - known[0] >= self.every_s:
            known = self._facts[name] = (now, read())
        fact: T = known[1]
        return fact

    def forget(self) -> None:
        """Have every fact read again, because this process has changed some."""
        self._facts.clear()


_IDLE_LIMIT = "idle_in_transaction_session_timeout"
_IS_POOLED = "hermes_is_pooled"


class Database:
    """The state database. Thread-safe; build it after a fork, not before."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 10,
        prepares: bool = True,
        observed: Observed = NOT_OBSERVED,
        sealer: Sealer = PLAIN,
        homes: Sequence[str] = (),
    ) -> None:
        """``url`` is an SQLAlchemy URL (``postgresql+psycopg://`` or ``sqlite:///``). On PostgreSQL ``pool_size``
        connections at most are opened for transactions, and as many for single statements; ``prepares`` says whether
        the server keeps statements prepared for them. ``observed`` says which hooks are owed a call for what is
        written, ``sealer`` how texts are encrypted, ``homes`` where the home is (``stored_texts.set_homes``).

        Raises ``ConfigurationError`` for another kind of database. Nothing is connected yet.
        """
        parsed = sa.make_url(url)
        if parsed.get_backend_name() == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        elif parsed.get_backend_name() != "sqlite":
            raise ConfigurationError(
                f"HERMES_DATABASE_URL: {parsed.get_backend_name()!r} is not supported; use postgresql:// or sqlite:///"
            )
        self.is_sqlite = parsed.get_backend_name() == "sqlite"
        self.url = parsed
        self.prepares = prepares
        self._write_lock: AbstractContextManager[Any] = threading.RLock() if self.is_sqlite else nullcontext()
        options = _build_engine_options(self.is_sqlite, pool_size, prepares=prepares)
        self.engine = sa.create_engine(parsed, **options)
        if self.is_sqlite:
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)
        self._autocommit = self.engine if self.is_sqlite else _build_autocommit_engine(parsed, options)
        for engine in self.engines:
            make_texts_storable(engine)
            seal_with(engine, sealer)
            set_homes(engine, homes)
            engine.hide_parameters = sealer.is_on  # keep parameters out of error texts
        self.sealer = sealer
        self.homes = tuple(homes)
        self.before_writing: Callable[[], None] | None = None
        """Called before every transaction that may write; ``None`` for nothing. ``store.text_keys`` sets it."""
        self._singles = ConnectionPool(self._autocommit, size=pool_size, patience_s=_POOL_WAIT_S)
        self.observed = observed
        self.remembered = FactCache()
        self._writer = self.engine.execution_options(
            hermes_write=True, hermes_observed=observed, hermes_remembered=self.remembered
        )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Connection for SELECTs, each of which sees what is committed when it runs. Raises ``UnavailableError``."""
        connections = self.engine.connect if self.is_sqlite else self._singles.connection
        with self._translate_errors(), connections() as connection:
            yield connection

    def select(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> sa.Result[*tuple[Any, ...]]:
        """Run a SELECT by itself and return its rows, all of them read. Raises ``UnavailableError``."""
        with self.read() as connection:
            return connection.execute(statement, values).freeze()()

    def execute(self, statement: sa.Executable, values: Mapping[str, Any] | None = None) -> int:
        """Run a statement that is its own transaction; return how many rows it changed. Raises ``UnavailableError``."""
        with self.statement() as connection:
            return connection.execute(statement, values).rowcount

    @contextmanager
    def snapshot(self) -> Iterator[Connection]:
        """Connection for SELECTs that all see what was committed when the first of them ran. Raises
        ``UnavailableError``."""
        with self._translate_errors(), self.engine.connect() as connection:
            if not self.is_sqlite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction: committed at the end of the block, rolled back when it raises.

        Raises ``UnavailableError`` when the server went away; the outcome of a COMMIT is then unknown, and the
        caller finds out by repeating its compare-and-set.
        """
        if self.before_writing is not None:
            self.before_writing()
        with self._translate_errors(), self._write_lock, self._writer.begin() as connection:
            yield connection

    @staticmethod
    def get_observed(connection: Connection) -> Observed:
        """Return ``observed`` of the database to which the transaction of ``connection`` belongs."""
        observed: Observed = connection.get_execution_options().get("hermes_observed", NOT_OBSERVED)
        return observed

    @staticmethod
    def get_remembered(connection: Connection) -> FactCache:
        """Return ``remembered`` of the database to which the transaction of ``connection`` belongs."""
        remembered: FactCache = connection.get_execution_options()["hermes_remembered"]
        return remembered

    def statement(self) -> AbstractContextManager[Connection]:
        """Connection for a single statement that is its own transaction; it saves the round trips of BEGIN and COMMIT.
        Raises ``UnavailableError``."""
        if self.is_sqlite:
            return self.write()
        if self.before_writing is not None:
            self.before_writing()
        return self.read()

    def end_idle_transactions(self, after_s: float) -> None:
        """Have the server end a transaction in which this process does nothing for ``after_s`` seconds: a process
        frozen in the middle of one would hold its locks until it is continued. Call it before the first transaction.
        Does nothing on SQLite, which cannot."""
        if self.is_sqlite:
            return
        limit_ms = int(after_s * 1000)

        def limit_session(connection: Any, record: Any) -> None:
            """Limit a new connection, unless it leads to a pooler: several clients share its session, so each
            transaction is limited there instead."""
            mine = f"pg_backend_pid() = {connection.info.backend_pid}"
            limited = f"set_config('{_IDLE_LIMIT}', '{limit_ms}', false)"
            found = connection.execute(f"select case when {mine} then {limited} end").fetchone()
            connection.commit()
            record.info[_IS_POOLED] = found[0] is None

        def limit_transaction(connection: Connection) -> None:
            if connection.info.get(_IS_POOLED):
                connection.exec_driver_sql(f"set local {_IDLE_LIMIT} = {limit_ms}")

        sa.event.listen(self.engine, "connect", limit_session)
        sa.event.listen(self.engine, "begin", limit_transaction)
        self.engine.dispose()

    def read_clock(self) -> float:
        """Epoch seconds by the database's clock."""
        with self.read() as connection:
            return float(connection.execute(sa.select(db_now())).scalar_one())

    def truncate_log(self, *, wait_s: float = 0.0) -> bool:
        """Write SQLite's write-ahead log into its file and cut it to nothing, so that no deleted text is left in it.
        Returns False when another connection still reads or writes after ``wait_s`` seconds: the caller has to try
        again. PostgreSQL recycles its log by itself."""
        if not self.is_sqlite:
            return True
        with self._translate_errors(), self.engine.connect() as connection:
            driver = connection.connection.cursor()  # below SQLAlchemy, which would begin a transaction
            driver.execute(f"pragma busy_timeout={round(wait_s * 1000)}")
            try:
                driver.execute("pragma wal_checkpoint(truncate)")
                is_busy = driver.fetchall()[0][0]
            except sqlite3.OperationalError:
                return False
            finally:
                driver.execute(f"pragma busy_timeout={_SQLITE_BUSY_TIMEOUT_MS}")
        return bool(is_busy == 0)

    def count_connections(self) -> tuple[int, int]:
        """Return how many connections of this process are open, and how many of them are in use."""
        pool = self.engine.pool
        assert isinstance(pool, sa.pool.QueuePool)
        used = pool.checkedout()
        singles = (0, 0) if self.is_sqlite else (self._singles.open, self._singles.idle)
        return pool.checkedin() + used + singles[0], used + singles[0] - singles[1]

    def close(self) -> None:
        self._singles.clear()
        for engine in self.engines:
            engine.dispose()

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn "the server is gone" into ``UnavailableError``; defects and broken constraints pass as they are."""
        try:
            yield
        except sa.exc.TimeoutError as error:
            raise UnavailableError(f"the database did not answer: {_read_first_line(error)}") from error
        except (sa.exc.OperationalError, sa.exc.InterfaceError) as error:
            if _is_disk_full(error.orig):
                raise UnavailableError(
                    f"the database cannot write; make room on its disk: {_read_first_line(error)}"
                ) from error
            self._discard_connections()
            raise UnavailableError(
                f"{_find_advice(error) or 'the database did not answer'}: {_read_first_line(error)}"
            ) from error
        except KeyMissing:
            raise  # the connection is still usable
        except UnavailableError:
            self._discard_connections()
            raise
        except sa.exc.DBAPIError as error:
            if advice := _find_advice(error):
                self._discard_connections()
                raise UnavailableError(f"{advice}: {_read_first_line(error)}") from error
            if error.connection_invalidated:
                self._discard_connections()
                raise UnavailableError(f"the database connection was lost: {_read_first_line(error)}") from error
            raise

    def _discard_connections(self) -> None:
        """Drop all open connections: when one of them is dead, so are the others."""
        if not self.is_sqlite:
            self.close()

    @property
    def engines(self) -> set[sa.Engine]:
        """Every engine statements run on."""
        return {self.engine, self._autocommit}


class RowStore:
    """The statements about rows of one kind, in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database


def _build_autocommit_engine(url: sa.URL, options: dict[str, Any]) -> sa.Engine:
    """Build an engine with AUTOCOMMIT connections of its own: switching a connection to and fro costs as much as most
    statements on it. Such connections hold nothing that would have to be reset between two uses."""
    return sa.create_engine(url, isolation_level="AUTOCOMMIT", pool_reset_on_return=None, **options)


def _build_engine_options(is_sqlite: bool, pool_size: int, *, prepares: bool) -> dict[str, Any]:
    options: dict[str, Any] = {
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": _POOL_WAIT_S,
        "pool_use_lifo": True,
    }
    if is_sqlite:
        options["connect_args"] = {"timeout": _SQLITE_BUSY_TIMEOUT_MS / 1000, "check_same_thread": False}
    else:
        options["connect_args"] = {
            "connect_timeout": 5,
            "keepalives": 1,
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            "tcp_user_timeout": _UNACKNOWLEDGED_MS,
            "application_name": "hermes-worker",
            "client_encoding": "utf8",
            "prepare_threshold": _PREPARED_AFTER if prepares else None,
        }
    return options


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, below
    cursor = connection.cursor()
    busy = f"busy_timeout={_SQLITE_BUSY_TIMEOUT_MS}"
    size = f"page_size={_SQLITE_PAGE_BYTES}"  # of a new file; an old one keeps its own
    # Some builds of SQLite leave what was deleted in the free parts of the file.
    for pragma in (size, "journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "secure_delete=ON", busy):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    begin = "BEGIN IMMEDIATE" if connection.get_execution_options().get("hermes_write", False) else "BEGIN"
    driver: Any = connection.connection.dbapi_connection
    try:
        driver.execute(begin)  # to go through SQLAlchemy takes twenty times as long, and a step begins six transactions
    except sqlite3.Error as error:
        raise translate_error(connection, begin, error) from error


_NO_STATEMENTS_KEPT = (
    "a pooler between us and the database does not keep prepared statements; set "
    "HERMES_DATABASE_PREPARED_STATEMENTS=false (database.prepared_statements) for every process"
)
_ADVICE: Mapping[str, str] = {
    "25006": (
        "the database is a read-only standby; it works again once it is promoted, or name the primary as well in "
        "HERMES_DATABASE_URL (postgresql://a:5432,b:5432/hermes)"
    ),
    "26000": _NO_STATEMENTS_KEPT,
    "42P05": _NO_STATEMENTS_KEPT,
}
"""What to do about an error, by its SQLSTATE (PostgreSQL 18, appendix A). None of these errors is a defect of the
statement."""
_SQLITE_READONLY = (
    "the database can be read and not written: give this user the right to write the file and its directory, and look "
    "whether its disk was mounted read-only"
)


def _find_advice(error: sa.exc.DBAPIError) -> str | None:
    name = str(getattr(error.orig, "sqlite_errorname", None) or getattr(error.orig, "sqlstate", None))
    return _SQLITE_READONLY if name.startswith("SQLITE_READONLY") else _ADVICE.get(name)


_DISK_TROUBLE = frozenset({"SQLITE_FULL", "SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "53100"})


def _is_disk_full(error: BaseException | None) -> bool:
    """Whether the disk or a quota is full: SQLite says so by the error's name, PostgreSQL by its code."""
    return bool(_DISK_TROUBLE & {getattr(error, "sqlite_errorname", None), getattr(error, "sqlstate", None)})


def _read_first_line(error: Exception) -> str:
    original = getattr(error, "orig", None) or error
    return str(original).strip().splitlines()[0] if str(original).strip() else type(original).__name__


class TextsInClear(HermesError):
    """Texts are not encrypted, so a key would be readable in the database."""


def require_encryption(database: Database, what: str, otherwise: str = "") -> None:
    """Require that texts are encrypted. ``what`` names what would be stored in clear, and ``otherwise`` what else can
    be done. Raises ``TextsInClear``."""
    if database.sealer.keys.first == CLEAR:
        raise TextsInClear(
            f"texts in the database are not encrypted, so a {what} would lie there in clear: set HERMES_ENCRYPTION_"
            f"KEYS first (docs/encryption.md){otherwise}"
        )
