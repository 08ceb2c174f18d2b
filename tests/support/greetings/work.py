"""It has no table: it deletes no rows of its own, and counts one for each session that the database has."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import sqlalchemy as sa

from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database


def prune_rows(database: Database, *, acts: bool) -> int:
    with database.read() as connection:
        return int(connection.execute(sa.text("SELECT COUNT(*) FROM sessions")).scalar_one())


def forget_sessions(home: Path, tenant: str, over: Callable[[Collection[str]], Collection[str]]) -> int:
    folder = home / "greetings" / tenant
    gone = list(over([path.name for path in folder.iterdir()])) if folder.exists() else []
    for name in gone:
        (folder / name).unlink()
    return len(gone)


def begin_serving(settings: Settings, database: Database) -> None:
    (settings.home / "greetings.ready").touch()
