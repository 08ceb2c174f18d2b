"""Fleets of real workers over servers that a test may break."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.rig import Rig, rig_on

from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults


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
