"""The repairs of ``doctor --fix``: each loses nothing that a person could want, and is made at most once."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from hermes_worker.local.paths import has_no_rows, running_stack
from hermes_worker.settings import Settings
from hermes_worker.settings.server_key import is_open_to_others, key_file


def _schema(settings: Settings) -> str | None:
    """Migrate the schema, where ``hermes-worker migrate`` would."""
    from hermes_worker.store.migrate import migrate
    from hermes_worker.store.revisions import known, newest, state
    from hermes_worker.wiring import database_of

    if has_no_rows(settings):
        return None
    database = database_of(settings)
    try:
        there = state(database)
        if there.is_usable or not (there.found is None or there.found in known()):
            return None
        migrate(database)
    finally:
        database.close()
    return f"its schema was {there.found or 'nothing'} and is {newest()}"


def _key(settings: Settings) -> str | None:
    if not is_open_to_others(settings):
        return None
    key_file(settings.home).chmod(0o600)
    return (
        f"others can no longer read {key_file(settings.home)}; whoever did knows the key: 'doctor' cannot change that"
    )


def _set_aside(settings: Settings) -> str | None:
    """Remove files of a broker that no server could read. The rows know what was in them."""
    from hermes_worker.local.valkey import data_set_aside

    unread = data_set_aside(settings.home / "valkey")
    for path in unread:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return f"removed what no broker could read: {', '.join(path.name for path in unread)}" if unread else None


def _left(settings: Settings) -> str | None:
    """Remove folders of processes that are gone, as their locks show."""
    from hermes_worker.tasks.upkeep import remove_left

    removed = remove_left(settings.home)
    return f"removed {removed} folders of processes that were killed" if removed else None


def _space(settings: Settings) -> str | None:
    from hermes_worker.store.sizes import give_back, size_of
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return None
    database = open_database(settings)
    try:
        before = size_of(database)
        if not before.is_bloated or (database.is_sqlite and running_stack(settings.home) is not None):
            return None
        give_back(database)
        if before.dead_rows:
            return f"freed the dead rows of {', '.join(before.dead_rows)}"
        return f"gave back {(before.total_bytes - size_of(database).total_bytes) / 1024**2:.1f} MB"
    finally:
        database.close()


def _search(settings: Settings) -> str | None:
    """Delete a damaged search index; the next worker builds a new one from the messages."""
    from hermes_worker.store.search.indexing import Indexer, find_index_damage
    from hermes_worker.store.search.repairing import rebuild_index
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return None
    database = open_database(settings)
    try:
        if find_index_damage(database) is None:
            return None
        with database.write() as connection:
            rebuild_index(connection)
        Indexer(database).look(seconds=_INDEXING_S)
    finally:
        database.close()
    return "made the index of messages anew; workers add what is not in it yet"


_INDEXING_S = 5.0

REPAIRS: tuple[tuple[str, Callable[[Settings], str | None]], ...] = (
    ("database", _schema),
    ("API", _key),
    ("broker", _set_aside),
    ("left", _left),
    ("size", _space),
    ("search", _search),
)
"""By the subject of the finding: the repair, which returns a sentence about what it did, or ``None`` where nothing was
wrong."""
