from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database


def forget_sessions(home: Path, tenant: str, over: Callable[[Collection[str]], Collection[str]]) -> int:
    folder = home / "greetings" / tenant
    gone = list(over([path.name for path in folder.iterdir()])) if folder.exists() else []
    for name in gone:
        (folder / name).unlink()
    return len(gone)


def begin_serving(settings: Settings, database: Database) -> None:
    (settings.home / "greetings.ready").touch()
