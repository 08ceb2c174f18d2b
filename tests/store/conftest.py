"""A migrated store of each test's own, on SQLite and on a real PostgreSQL: copies of one that was migrated once."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from support.postgres import PostgresFarm
from support.store import Store, opened

from hermes_worker.store.database import Database
from hermes_worker.store.migrate import migrate

_TEMPLATE = "hermes_template"


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sqlite") / "template.db"
    _migrated(f"sqlite:///{path}")  # closing the last connection folds the write-ahead log into the file
    return path


@pytest.fixture(scope="session")
def postgres_template(shared_postgres_farm: PostgresFarm) -> PostgresFarm:
    _migrated(shared_postgres_farm.shared.create_database(_TEMPLATE))
    return shared_postgres_farm


def _migrated(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()


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
    with _copy_of_template(postgres_template, f"s_{tmp_path.name}"[:60]) as url, opened(url) as store:
        yield store


@pytest.fixture
def sqlite_store(sqlite_template: Path, tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "store.db"
    shutil.copyfile(sqlite_template, path)
    with opened(f"sqlite:///{path}") as store:
        yield store


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest) -> Store:
    """Once on each kind of database: what the tests of this folder say holds for both."""
    found: Store = request.getfixturevalue("sqlite_store" if request.param == "sqlite" else "postgres_store")
    assert found.database.is_sqlite == (request.param == "sqlite")
    return found
