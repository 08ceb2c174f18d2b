"""A real API server on a real port, over a real database and a real broker. The tests play the workers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from serving import FAST, KEY, Served, served
from support.store import Store

from hermes_worker.api.followers import FollowPolicy
from hermes_worker.settings import (
    BrokerSettings,
    DatabaseSettings,
    ModelSettings,
    Secret,
    ServerSettings,
    Settings,
)
from hermes_worker.store.database import Database
from hermes_worker.store.migrate import migrate


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite database to copy: migrating one takes longer than most tests here."""
    path = tmp_path_factory.mktemp("api") / "migrated.db"
    _migrate(f"sqlite:///{path}")
    return path


def _migrate(url: str) -> None:
    database = Database(url)
    migrate(database)
    database.close()


@pytest.fixture
def settings(tmp_path: Path, broker_url: str, migrated_file: Path) -> Settings:
    """An installation with an SQLite file and the scripted model, without a key."""
    (tmp_path / "home").mkdir()
    shutil.copy(migrated_file, tmp_path / "test.db")
    return Settings(
        home=tmp_path / "home",
        database=DatabaseSettings(url=f"sqlite:///{tmp_path / 'test.db'}"),
        broker=BrokerSettings(url=broker_url),
        model=ModelSettings(provider="scripted"),
        server=ServerSettings(port=0),
    )


@pytest.fixture
def keyed(settings: Settings) -> Settings:
    return replace(settings, server=replace(settings.server, key=Secret(KEY)))


@pytest.fixture
def serve(settings: Settings) -> Iterator[Callable[..., Served]]:
    """Starts servers that end with the test: ``serve()``, ``serve(other_settings)``."""
    with ExitStack() as stack:

        def start(chosen: Settings | None = None, policy: FollowPolicy = FAST) -> Served:
            chosen = chosen or settings
            if chosen.database_url != settings.database_url:
                _migrate(chosen.database_url)
            return stack.enter_context(served(chosen, policy))

        yield start


@pytest.fixture
def api(serve: Callable[..., Served]) -> Served:
    return serve()


@pytest.fixture
def http(api: Served) -> httpx.Client:
    return api.http


@pytest.fixture
def store(api: Served) -> Store:
    """What a worker would do, done by the test."""
    return Store.over(api.client.database)
