"""A home with a store in it, and the command over that home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.store import Store, opened

from hermes_worker.local import process


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    (tmp_path / "home").mkdir()
    with opened(f"sqlite:///{tmp_path / 'home' / 'hermes-worker.db'}") as store:
        yield store


@pytest.fixture
def hermes(tmp_path: Path, store: Store) -> CommandLine:
    # Nobody is there: what is announced is lost, and the rows say what is due.
    return CommandLine(tmp_path / "home", {"HERMES_BROKER_URL": "redis://127.0.0.1:1/0"})


@pytest.fixture(autouse=True)
def untitled(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role that runs in this process would make a worker of it, and agents of all that later tests start."""
    monkeypatch.setattr(process.setproctitle, "setproctitle", lambda title: None)
