"""A migrated store for each test, on SQLite and on a real PostgreSQL, empty when it gets it.

Of SQLite every test has a file of its own. On PostgreSQL to copy and drop a database takes longer than most tests take,
so they share one, whose rows are deleted after each. Who changes the schema, or looks at what the server says about its
tables, asks for a database of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.emptying import emptied_database
from support.migrated import copy_template
from support.postgres import PostgresFarm
from support.store import Store, opened

from hermes_worker.store.engine.database import Database


@pytest.fixture(scope="session")
def shared_postgres_database(shared_postgres_farm: PostgresFarm) -> Iterator[Database]:
    """With its connections, which have seen every statement before."""
    with shared_postgres_farm.migrated_database() as url, opened(url, is_migrated=True) as store:
        yield store.database


@pytest.fixture
def postgres_store(shared_postgres_database: Database) -> Iterator[Store]:
    """For what only PostgreSQL can get wrong: many connections writing at once."""
    with emptied_database(shared_postgres_database):
        yield Store.over(shared_postgres_database)


@pytest.fixture
def own_postgres_store(shared_postgres_farm: PostgresFarm, tmp_path: Path) -> Iterator[Store]:
    """In a database that nobody has used before and nobody will use again."""
    server, name = shared_postgres_farm.shared, f"s_{tmp_path.name}"[:60]
    copy_template(server.build_url(), name)
    try:
        with opened(server.build_url(name), is_migrated=True) as store:
            yield store
    finally:
        server.drop_database(name)


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Store:
    """Once on each kind of database: what the tests of this folder say holds for both."""
    return _of_kind(request, "postgres_store")


@pytest.fixture(params=["sqlite", "postgresql"])
def own_store(request: pytest.FixtureRequest) -> Store:
    """Like ``store``, in a database of the test's own."""
    return _of_kind(request, "own_postgres_store")


def _of_kind(request: pytest.FixtureRequest, on_postgres: str) -> Store:
    found: Store = request.getfixturevalue("sqlite_store" if request.param == "sqlite" else on_postgres)
    assert found.database.is_sqlite == (request.param == "sqlite")
    return found
