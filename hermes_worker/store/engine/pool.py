"""A pool of connections for single statements, which stay wrapped between two uses.

Theory of operation. SQLAlchemy's pool hands out driver connections and wraps each of them anew, with a finalizer and a
dozen objects; on the client that costs as much as some of our statements. A connection in AUTOCOMMIT mode holds nothing
between two statements, so this pool keeps the wrapped ``Connection`` and gives the one that was used last to the next
caller. SQLAlchemy still opens and closes them.

    caller ──► _idle.pop() ──► use ──► _idle.append()          no lock: both are atomic in CPython
                   │ empty                    │
                   ▼                          ▼ somebody waits, or ``clear`` was called
            _open_or_wait: under the lock     notify one waiter, or close the connection
            open < size: open another
            else: wait for a return, at most ``patience_s``

``_open`` counts connections that exist, in use or idle. A waiter looks into ``_idle`` again before each wait, and while
``_waiting`` is not zero every return notifies, so a connection that comes back between the two is found.

Two things look wrong and are right. A connection is closed after any exception of the block, even one that has nothing
to do with the database: a cursor may be half read, and opening another is cheap beside finding out. And ``clear`` does
not touch connections in use: it raises the generation, and each of them is closed when it comes back.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.observe import record_duration


class ConnectionPool:
    """A pool of at most ``size`` open connections of ``engine``, whose isolation level is AUTOCOMMIT. Thread-safe."""

    def __init__(self, engine: sa.Engine, *, size: int, patience_s: float) -> None:
        self._engine = engine
        self._size = size
        self._patience_s = patience_s
        self._idle: list[Connection] = []
        self._returned = threading.Condition(threading.Lock())
        self._waiting = 0
        self._open = 0
        self._generation = 0

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        """Lend one connection to one thread for the block. It is closed when the block raises anything.

        Raises ``sqlalchemy.exc.TimeoutError`` when no connection comes back in time, and what ``Engine.connect``
        raises.
        """
        try:
            connection = self._idle.pop()  # atomic, and so is ``append``
        except IndexError:
            connection = self._open_or_wait()
        generation = self._generation
        try:
            yield connection
            if connection.in_transaction():
                connection.rollback()  # SQLAlchemy's own begin; the server has begun nothing
        except BaseException:
            self._close(connection)
            raise
        if generation != self._generation:
            self._close(connection)
            return
        self._idle.append(connection)
        if self._waiting:
            with self._returned:
                self._returned.notify()

    @property
    def open(self) -> int:
        """The number of connections that are open, in use or not."""
        return self._open

    @property
    def idle(self) -> int:
        """The number of open connections that are not in use."""
        return len(self._idle)

    def clear(self) -> None:
        """Close idle connections now, and those in use when they come back."""
        self._generation += 1
        with contextlib.suppress(IndexError):
            while True:
                self._close(self._idle.pop())

    def _open_or_wait(self) -> Connection:
        began = time.monotonic()
        deadline = began + self._patience_s
        with self._returned:
            self._waiting += 1
            try:
                while self._open >= self._size:
                    with contextlib.suppress(IndexError):
                        return self._idle.pop()
                    if not self._returned.wait(deadline - time.monotonic()):
                        raise sa.exc.TimeoutError(f"none of {self._size} connections came back in {self._patience_s} s")
                self._open += 1
            finally:
                self._waiting -= 1
                record_duration("pool.waited", time.monotonic() - began)
        try:
            return self._engine.connect()
        except BaseException:
            self._forget_one()
            raise

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(sa.exc.SQLAlchemyError):  # the pool drops it whether closing works or not
            connection.close()
        self._forget_one()

    def _forget_one(self) -> None:
        with self._returned:
            self._open -= 1
            self._returned.notify()
