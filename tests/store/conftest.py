"""A migrated store of each test's own, on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.store import Store, opened


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """Once on each kind of database: what the tests of this folder say holds for both."""
    with opened(database_url) as store:
        yield store


@pytest.fixture
def postgres_store(postgres_url: str) -> Iterator[Store]:
    """For what only PostgreSQL can get wrong: many connections writing at once."""
    with opened(postgres_url) as store:
        yield store


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store
