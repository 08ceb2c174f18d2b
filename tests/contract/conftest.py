"""A strict server and a store for each test, and no waiting between attempts for those who ask."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from strict_server import StrictServer
from support.store import Store, opened

from hermes_worker.core.recovery import retry


@pytest.fixture
def no_time_for_short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "compute_backoff_s", lambda *_, **__: 0.0)


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer() as running:
        yield running


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as opened_store:
        yield opened_store
