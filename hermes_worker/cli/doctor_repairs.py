"""The repairs of ``doctor --fix``: each loses nothing that a person could want, and is made at most once."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing

from hermes_worker.local.paths import find_running_stack, has_no_rows
from hermes_worker.settings import Settings
from hermes_worker.settings.server_key import get_key_file_path, is_open_to_others


def _migrate_schema(settings: Settings) -> str | None:
    """Migrate the schema, where ``hermes-worker data migrate`` would."""
    from hermes_worker.store.build import build_database
    from hermes_worker.store.migrate import migrate
    from hermes_worker.store.revisions import find_newest, list_revisions, load_state

    if has_no_rows(settings):
        return None
    with closing(build_database(settings)) as database:
        there = load_state(database)
        if there.is_usable or not (there.found is None or there.found in list_revisions()):
            return None
        migrate(database)
    return f"its schema was {there.found or 'nothing'} and is {find_newest()}"


def _repair_key(settings: Settings) -> str | None:
    if not is_open_to_others(settings):
        return None
    get_key_file_path(settings.home).chmod(0o600)
    return (
        f"others can no longer read {get_key_file_path(settings.home)}; whoever did knows the key: "
        "'doctor' cannot change that"
    )


def _remove_unreadable_files(settings: Settings) -> str | None:
    """Remove files of a broker that no server could read. The rows know what was in them."""
    from hermes_worker.local.valkey import list_set_aside

    unread = list_set_aside(settings.home / "valkey")
    for path in unread:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return f"removed what no broker could read: {', '.join(path.name for path in unread)}" if unread else None


def _remove_left_folders(settings: Settings) -> str | None:
    """Remove folders of processes that are gone, as their locks show."""
    from hermes_worker.tasks.maintenance import remove_left_on_machine

    removed = remove_left_on_machine(settings.home)
    return f"removed {removed} folders of processes that were killed" if removed else None


def _reclaim_space(settings: Settings) -> str | None:
    from hermes_worker.store.whole_database import measure_size, reclaim_space
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return None
    with closing(open_database(settings)) as database:
        before = measure_size(database)
        if not before.is_bloated or (database.is_sqlite and find_running_stack(settings.home) is not None):
            return None
        reclaim_space(database)
        if before.dead_rows:
            return f"freed the dead rows of {', '.join(before.dead_rows)}"
        return f"gave back {(before.total_bytes - measure_size(database).total_bytes) / 1024**2:.1f} MB"


def _rebuild_search(settings: Settings) -> str | None:
    """Delete a damaged search index; the next worker builds a new one from the messages."""
    from hermes_worker.store.search.index_repair import rebuild_index
    from hermes_worker.store.search.indexing import Indexer, find_index_damage
    from hermes_worker.wiring import open_database

    if has_no_rows(settings):
        return None
    with closing(open_database(settings)) as database:
        if find_index_damage(database) is None:
            return None
        with database.write() as connection:
            rebuild_index(connection)
        Indexer(database).index_due(seconds=_INDEXING_S)
    return "made the index of messages anew; workers add what is not in it yet"


_INDEXING_S = 5.0

REPAIRS: tuple[tuple[str, Callable[[Settings], str | None]], ...] = (
    ("database", _migrate_schema),
    ("API", _repair_key),
    ("broker", _remove_unreadable_files),
    ("left", _remove_left_folders),
    ("size", _reclaim_space),
    ("search", _rebuild_search),
)
"""By the subject of the finding: the repair, which returns a sentence about what it did, or ``None`` where nothing was
wrong."""
