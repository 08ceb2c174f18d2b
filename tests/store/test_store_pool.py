"""The pool of connections for single statements."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.store import Store

from hermes_worker.store.engine.pool import ConnectionPool


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[sa.Engine]:
    engine = sa.create_engine(
        f"sqlite:///{tmp_path / 'pool.db'}",
        isolation_level="AUTOCOMMIT",
        connect_args={"check_same_thread": False},
        pool_size=2,
        max_overflow=0,
        pool_timeout=0.1,
    )
    yield engine
    engine.dispose()


@pytest.fixture
def pool(engine: sa.Engine) -> ConnectionPool:
    return ConnectionPool(engine, size=2, patience_s=0.1)


def test_the_connection_that_came_back_last_is_used_next(pool: ConnectionPool) -> None:
    with pool.connection() as first:
        with pool.connection() as second:
            assert second is not first
        with pool.connection() as again:
            assert again is second


def test_nobody_waits_for_ever(pool: ConnectionPool) -> None:
    with (
        pool.connection(),
        pool.connection(),
        pytest.raises(sa.exc.TimeoutError, match="none of 2 connections"),
        pool.connection(),
    ):
        pass


def test_whoever_waits_gets_what_comes_back(engine: sa.Engine) -> None:
    patient = ConnectionPool(engine, size=1, patience_s=30)
    got: list[object] = []

    def take() -> None:
        with patient.connection() as connection:
            got.append(connection)

    waiter = threading.Thread(target=take)
    with patient.connection() as only:
        waiter.start()
        while not patient._waiting:
            pass
    waiter.join()
    assert got == [only]
    patient.clear()


def test_a_connection_on_which_something_failed_is_not_used_again(pool: ConnectionPool) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), pool.connection() as broken:
            raise ZeroDivisionError
    with pool.connection() as connection:
        assert connection is not broken
        assert connection.execute(sa.text("select 1")).scalar_one() == 1


def test_clearing_reaches_connections_in_use_as_well(pool: ConnectionPool) -> None:
    with pool.connection() as idle:
        pass
    with pool.connection() as in_use:
        assert in_use is idle
        with pool.connection() as other:
            pass
        pool.clear()
        assert other.closed
        assert not in_use.closed
    assert in_use.closed
    with pool.connection() as fresh:
        assert fresh not in (in_use, other)


def test_a_server_that_went_away_costs_one_error_not_one_for_each_connection(postgres_store: Store) -> None:
    database = postgres_store.database
    with database.read() as first, database.read() as second:
        pids = [c.execute(sa.text("select pg_backend_pid()")).scalar_one() for c in (first, second)]
    with database.write() as connection:
        connection.execute(sa.text("select pg_terminate_backend(pid) from unnest(:pids) as pid"), {"pids": pids})
    failures = 0
    for _ in range(3):
        try:
            database.read_clock()
        except Exception as error:
            assert "database" in str(error)
            failures += 1
    assert failures == 1
