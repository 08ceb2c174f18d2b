"""The store on a connection that a caller lends, inside the caller's own transaction.

Theory of operation. Whatever library the caller uses, SQLAlchemy can talk through the connection that it has:

    SQLAlchemy, SQLModel   the caller's dialect over the caller's pooled connection, whatever the driver
    psycopg, Django        our own dialect over the driver's connection

On it stands an engine of our own, for the events that make texts storable, and a ``Connection`` that nobody commits,
rolls back or closes: SQLAlchemy leaves the driver alone when such an object is dropped. What the store calls a
transaction (``Database.write``) is a savepoint here, so an error of ours leaves the caller's transaction usable, and
the caller's COMMIT decides about everything. Statements on the hot path are prepared for our own driver
(``engine.prepared``); here they go through SQLAlchemy, which knows how each driver wants them.

One thing looks wrong and is right. On SQLite, Python's driver begins a transaction at the first INSERT and not at a
SAVEPOINT, whose RELEASE would then commit; so we send the BEGIN that the driver would have sent.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.engine import Connection
from sqlalchemy.engine.interfaces import Dialect

from hermes_worker.core.errors import HermesError
from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.store.engine.database import Database, FactCache
from hermes_worker.store.engine.prepared import UnpreparedConnection
from hermes_worker.store.engine.sealing import PLAIN, Sealer, seal_with
from hermes_worker.store.engine.stored_texts import make_texts_storable, set_homes

_ENGINE = "hermes_engine"
_CALLS = "hermes_calls"
_AUTOCOMMIT = (
    "the connection is in autocommit mode and in no transaction, so the run could not be undone: begin a transaction "
    "first (psycopg: 'with connection.transaction():', Django: 'with transaction.atomic():', SQLAlchemy: no AUTOCOMMIT)"
)
_CLOSED = "the connection is closed: pass one that is open, inside the transaction that is to submit the run"
_FAILED = "the transaction has failed and takes no more statements: roll it back and submit the run in a new one"


class UnusableTransaction(HermesError):
    """The caller's connection has no transaction in which a run can be submitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """A connection of a caller, ready for the store."""

    connection: Connection
    after_commit: Callable[[Callable[[], object]], object] | None
    """Has a function called once the caller's transaction is committed; ``None`` where the library has no such hook."""
    raises_own: bool
    """Errors reach the caller as those of its driver and not as SQLAlchemy's."""


class LentDatabase(Database):
    """The state database as one transaction of a caller sees it. Use it in the caller's thread, and not after the
    call."""

    def __init__(
        self, lending: Lending, *, observed: Observed = NOT_OBSERVED, sealer: Sealer = PLAIN, homes: Sequence[str] = ()
    ) -> None:
        self._lending = lending
        engine = lending.connection.engine
        seal_with(engine, sealer)
        set_homes(engine, homes)
        self.is_sqlite = engine.dialect.name == "sqlite"
        self.url, self.engine, self.prepares = engine.url, engine, False
        self.sealer, self.homes, self.observed = sealer, tuple(homes), observed
        self.before_writing = None
        self.remembered = FactCache()
        self._connection = lending.connection.execution_options(
            hermes_observed=observed, hermes_remembered=self.remembered
        )

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """The caller's connection for SELECTs, which see what the transaction wrote."""
        with self._raise_errors_of_caller():
            yield self._connection

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A savepoint of the caller's transaction: released at the end of the block, rolled back when it raises."""
        with self._raise_errors_of_caller(), self._connection.begin_nested():
            yield self._connection

    snapshot = read

    statement = write

    def close(self) -> None:
        """Do nothing: the connection is the caller's."""

    @contextmanager
    def _raise_errors_of_caller(self) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            if self._lending.raises_own and error.orig is not None:
                raise error.orig from None
            raise


def lend_connection(target: Any) -> Lending:
    """Make the connection of a caller usable for the store. ``target`` is a ``Connection`` or ``Session`` of SQLAlchemy
    or SQLModel, a ``Connection`` of psycopg 3, or Django's ``connection``. Raises ``UnusableTransaction``."""
    if isinstance(target, orm.Session | orm.scoped_session):
        session = target() if isinstance(target, orm.scoped_session) else target
        with _explain_refusal():
            connection = session.connection()
        return _lend_pooled(connection, lambda call: _call_after_session(session, call))
    if isinstance(target, Connection):
        return _lend_pooled(target, None)
    if hasattr(target, "in_atomic_block") and hasattr(target, "on_commit"):
        return _lend_django(target)
    if _is_of(target, "psycopg", "Connection"):
        return _lend_driver(target, "postgresql+psycopg", None)
    advice = "pass a Connection or Session of SQLAlchemy, a Connection of psycopg 3, or Django's 'connection'"
    if hasattr(target, "run_sync") or _is_of(target, "psycopg", "AsyncConnection"):
        advice = "in async code, 'await hermes_worker.submit_async(...)' with an AsyncSession or AsyncConnection"
    kind = f"{type(target).__module__}.{type(target).__name__}"
    raise UnusableTransaction(f"a run cannot be submitted through a {kind!r}: {advice}")


def _is_of(target: object, module: str, name: str) -> bool:
    """Whether ``target`` is of a class of a library, which is imported already if it is."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(target, kind)


@contextmanager
def _explain_refusal() -> Iterator[None]:
    """SQLAlchemy says itself what is wrong with a transaction, and what to do."""
    try:
        yield
    except sa.exc.UnboundExecutionError as error:
        raise UnusableTransaction(f"{error}: pass 'session.connection(bind_arguments=...)' of our database") from None
    except sa.exc.InvalidRequestError as error:  # closed, rolled back, or over
        raise UnusableTransaction(f"the transaction cannot be used any more: {error}") from None
    except sa.exc.DBAPIError as error:
        raise UnusableTransaction(f"the connection cannot be used: {error.orig}") from None


def _lend_pooled(connection: Connection, after_commit: Any) -> Lending:
    with _explain_refusal():
        if connection.closed:
            raise UnusableTransaction(_CLOSED)
        if not connection.in_transaction():
            connection.begin()  # as the first statement of the caller would
        pooled = connection.connection
    _require_transaction(pooled.dbapi_connection, pooled.driver_connection)
    engine = _find_engine(connection.dialect, connection.engine)
    return Lending(connection=_wrap(engine, pooled), after_commit=after_commit, raises_own=False)


def _lend_django(target: Any) -> Lending:
    target.ensure_connection()
    if target.vendor not in ("postgresql", "sqlite"):
        raise UnusableTransaction(f"{target.vendor!r} is not supported: runs are stored in PostgreSQL or SQLite")
    if target.needs_rollback:
        raise UnusableTransaction(_FAILED)
    if not target.in_atomic_block:
        raise UnusableTransaction(_AUTOCOMMIT)
    if target.vendor == "postgresql" and not _is_of(target.connection, "psycopg", "Connection"):
        raise UnusableTransaction("Django uses psycopg2 here: install psycopg 3 ('pip install psycopg') in its place")
    return _lend_driver(
        target.connection, "sqlite" if target.vendor == "sqlite" else "postgresql+psycopg", target.on_commit
    )


def _lend_driver(driver: Any, kind: str, after_commit: Any) -> Lending:
    _require_transaction(driver, driver)
    return Lending(
        connection=_wrap(_build_engine(kind), _DriverConnection(driver)), after_commit=after_commit, raises_own=True
    )


class _DriverConnection:
    """A driver's connection in the place of one from SQLAlchemy's pool: rows are plain tuples, whatever the caller
    set."""

    is_valid = True

    def __init__(self, driver: Any) -> None:
        self.dbapi_connection = self.driver_connection = driver
        self.info: dict[Any, Any] = {}

    def cursor(self, *_: Any, **__: Any) -> Any:
        if _is_of(self.driver_connection, "psycopg", "Connection"):
            from psycopg import Cursor
            from psycopg.rows import tuple_row

            return Cursor(self.driver_connection, row_factory=tuple_row)
        cursor = self.driver_connection.cursor()
        cursor.row_factory = None
        return cursor


def _require_transaction(dbapi: Any, driver: Any) -> None:
    """Check that what is written can be undone. Raises ``UnusableTransaction``."""
    if _is_of(driver, "psycopg", "Connection") or _is_of(driver, "psycopg", "AsyncConnection"):
        from psycopg.pq import TransactionStatus

        status = driver.info.transaction_status
        if driver.closed or status == TransactionStatus.UNKNOWN:
            raise UnusableTransaction(_CLOSED)
        if status == TransactionStatus.INERROR:
            raise UnusableTransaction(_FAILED)
        if status == TransactionStatus.IDLE and driver.autocommit:
            raise UnusableTransaction(_AUTOCOMMIT)
    elif hasattr(driver, "in_transaction"):
        if not driver.in_transaction and driver.isolation_level is None:
            raise UnusableTransaction(_AUTOCOMMIT)
    elif getattr(dbapi, "autocommit", False) is True:
        raise UnusableTransaction(_AUTOCOMMIT)


def _find_engine(dialect: Dialect, theirs: sa.Engine) -> sa.Engine:
    """The engine for connections of a caller's engine, with its dialect: it lives as long as that one."""
    ours: sa.Engine | None = getattr(dialect, _ENGINE, None)
    if ours is None:
        ours = sa.Engine(theirs.pool, dialect, theirs.url, hide_parameters=True)
        make_texts_storable(ours)
        setattr(dialect, _ENGINE, ours)
    return ours


_engines: dict[str, sa.Engine] = {}


def _build_engine(kind: str) -> sa.Engine:
    """The engine for connections of a driver. It never connects by itself."""
    if kind not in _engines:
        engine = _engines[kind] = sa.create_engine(f"{kind}://", poolclass=sa.NullPool)
        engine.hide_parameters = True
        make_texts_storable(engine)
    return _engines[kind]


def _wrap(engine: sa.Engine, pooled: Any) -> Connection:
    connection = UnpreparedConnection(engine, connection=pooled)
    if engine.dialect.name == "sqlite" and not pooled.driver_connection.in_transaction:
        connection.exec_driver_sql("BEGIN")
    return connection


def _call_after_session(session: orm.Session, call: Callable[[], object]) -> None:
    """Call once when the outermost transaction of ``session`` ends, if it was committed."""
    calls = session.info.get(_CALLS)
    if calls is None:
        calls = session.info[_CALLS] = _SessionCalls([])
        sa.event.listen(session, "after_commit", calls.note_commit)
        sa.event.listen(session, "after_transaction_end", calls.note_end)
    calls.pending.append(call)


@dataclass(slots=True)
class _SessionCalls:
    """What is to be called after the commit of one session."""

    pending: list[Callable[[], object]]
    is_committed: bool = False

    def note_commit(self, session: orm.Session) -> None:
        self.is_committed = not session.in_nested_transaction()

    def note_end(self, session: orm.Session, transaction: Any) -> None:
        if transaction.parent is not None:
            return
        calls, self.pending = self.pending if self.is_committed else [], []
        self.is_committed = False
        for call in calls:
            call()
