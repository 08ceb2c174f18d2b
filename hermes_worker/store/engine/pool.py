"""Connections for single statements, kept open and checked out.

SQLAlchemy's pool hands out driver connections and wraps each anew, with a finalizer and a dozen objects, which costs
as much as some of our statements do on the client. Connections in autocommit mode hold nothing between two statements,
so here they stay wrapped, and whoever needs one takes the one that was used last. SQLAlchemy still opens and closes
them.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.observe import took


class ConnectionPool:
    """At most ``size`` open connections of ``engine``, whose isolation level is AUTOCOMMIT. Thread-safe."""

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
        """One connection, for one thread. It is closed when the block raises, whatever that was.

        Raises ``sqlalchemy.exc.TimeoutError`` when none comes back in time, and what ``Engine.connect`` raises.
        """
        try:
            connection = self._idle.pop()  # atomic, and so is ``append``
        except IndexError:
            connection = self._open_or_wait()
        generation = self._generation
        try:
            yield connection
            if connection.in_transaction():
                connection.rollback()  # what SQLAlchemy begins by itself; the server has begun nothing
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
        """Connections that are open, in use or not."""
        return self._open

    @property
    def idle(self) -> int:
        """Those of them that nobody uses."""
        return len(self._idle)

    def clear(self) -> None:
        """Close what is idle, now, and what is in use when it comes back."""
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
                took("pool.waited", time.monotonic() - began)
        try:
            return self._engine.connect()
        except BaseException:
            self._gone()
            raise

    def _close(self, connection: Connection) -> None:
        with contextlib.suppress(sa.exc.SQLAlchemyError):  # it is given up, dead or alive
            connection.close()
        self._gone()

    def _gone(self) -> None:
        with self._returned:
            self._open -= 1
            self._returned.notify()
