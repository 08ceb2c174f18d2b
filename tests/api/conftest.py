"""A real API server on a real port, over a real database and a real broker. The tests play the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import FAST, KEY, Served, served
from support.api_routes import share_routes
from support.migrated import bring_up
from support.store import Store

from hermes_worker.settings import (
    BrokerSettings,
    DatabaseSettings,
    ModelSettings,
    Secret,
    ServerSettings,
    Settings,
)
from hermes_worker.stream.followers import FollowPolicy

share_routes()


@pytest.fixture
def settings(tmp_path: Path, broker_url: str) -> Settings:
    """An installation with an SQLite file and the scripted model, and a key of its own making."""
    (tmp_path / "home").mkdir()
    bring_up(f"sqlite:///{tmp_path / 'test.db'}")
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

        def start(chosen: Settings | None = None, policy: FollowPolicy = FAST, **more: Any) -> Served:
            chosen = chosen or settings
            if chosen.database_url != settings.database_url:
                bring_up(chosen.database_url)
            return stack.enter_context(served(chosen, policy, **more))

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
