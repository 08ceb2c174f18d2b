"""A migrated store of each test's own, on SQLite and on a real PostgreSQL: copies of one that was migrated once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.migrated import bring_up
from support.postgres import PostgresFarm
from support.store import Store, opened

_TEMPLATE = "hermes_template"


@pytest.fixture(scope="session")
def postgres_template(shared_postgres_farm: PostgresFarm) -> PostgresFarm:
    bring_up(shared_postgres_farm.shared.create_database(_TEMPLATE))
    return shared_postgres_farm


@contextmanager
def _copy_of_template(farm: PostgresFarm, name: str) -> Iterator[str]:
    with psycopg.connect(farm.shared.url().replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f'create database "{name}" template {_TEMPLATE} strategy file_copy'.encode())
    try:
        yield farm.shared.url(name)
    finally:
        farm.shared.drop_database(name)


@pytest.fixture
def postgres_store(postgres_template: PostgresFarm, tmp_path: Path) -> Iterator[Store]:
    """For what only PostgreSQL can get wrong: many connections writing at once."""
    with _copy_of_template(postgres_template, f"s_{tmp_path.name}"[:60]) as url, opened(url, is_migrated=True) as store:
        yield store


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Store:
    """Once on each kind of database: what the tests of this folder say holds for both."""
    found: Store = request.getfixturevalue("sqlite_store" if request.param == "sqlite" else "postgres_store")
    assert found.database.is_sqlite == (request.param == "sqlite")
    return found
