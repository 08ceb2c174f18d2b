"""Fleets of real workers over servers that a test may break."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rig import Rig, WarmZygote, rig_on

from hermes_worker.lab import fleet
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults


_FOLDER = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A fleet costs 3 s of CPU. CI plays each test on one kind of database, half of them on each; ``-m slow`` plays it
    on the other. What one store does and the other does not is found in ``tests/store``, on both."""
    for item in items:
        if item.path.parent == _FOLDER and isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            kind = item.callspec.params.get("database_url")
            if kind is not None and kind != _kind_in_ci(item.originalname):
                item.add_marker("slow")


def _kind_in_ci(test: str) -> str:
    return ("sqlite", "postgresql")[zlib.crc32(test.encode()) % 2]


@pytest.fixture
def warm_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    """The crash lab forks its workers' parent from the warm process as well."""
    monkeypatch.setattr(fleet, "LabZygote", WarmZygote)


@pytest.fixture
def rig(tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """Two model workers and two tools workers; once on each kind of database."""
    with rig_on(tmp_path, database_url=database_url, broker_url=own_valkey.url) as rig:
        yield rig


@pytest.fixture
def postgres_rig(tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    """The same on PostgreSQL only, for what does not depend on the database."""
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url) as rig:
        yield rig
