"""The encryption keys that the texts of a database need, and how texts are brought under the present key.

Theory of operation. A process records in ``text_keys`` that it encrypts with a key before it does, and renews that
every minute. A key leaves the table when no text is stored under it and no process has renewed it for three minutes. So
the table names every key that is needed, at any moment: a process that lacks one of them does not start, and a running
process keeps a key that its source does not name any more for as long as the table does.

``before_writing`` looks for new keys between transactions: a process that first used a new key in the middle of a
transaction could not record that before.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.observe import log
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.sealing import (
    CLEAR,
    KeySource,
    SealedText,
    TextKeys,
    TextTampered,
    build_text_keys,
    is_stored_by,
    select_stored_text,
)
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.search.index_queue import clear_index
from hermes_worker.store.tables import text_keys as table_of_keys
from hermes_worker.store.whole_schema import load_schema

LOOK_S = 5.0
"""Seconds for which a process may go on with keys that its source does not name any more. A source that is a command
has an interval of its own."""
_SAY_S = 60.0
UNUSED_S = 180.0
"""Seconds after its last renewal after which no process uses a key any more."""
_BATCH = 100


def check_keys(database: Database) -> None:
    """Check that this process has the keys that it needs, and record which key it encrypts with. For a database at this
    version's schema, before anything else is read. Raises ``ConfigurationError``, which names the missing keys."""
    sealer = database.sealer
    missing = load_needed_keys(database) - sealer.keys.ids
    if missing:
        raise ConfigurationError(
            f"texts in the database are encrypted with {_format_keys(missing)}, not given here: add what is missing to "
            "HERMES_ENCRYPTION_KEYS (encryption.keys; 'hermes-worker data encryption status' tells which keys are "
            "which)"
        )
    if sealer.is_on:
        database.before_writing = _Watch(database)


def load_needed_keys(database: Database) -> set[str]:
    """Load the ids of all keys with which texts may be encrypted. Raises ``UnavailableError``."""
    found = set(database.select(sa.select(table_of_keys.c.key_id)).scalars())
    return found - {CLEAR}


def _format_keys(ids: set[str] | frozenset[str]) -> str:
    return f"the key{'s' if len(ids) > 1 else ''} {', '.join(sorted(ids))}"


def record_key_use(database: Database) -> None:
    """Record the key that texts are encrypted with in the transaction of ``database``, where no process did so within
    the last minute: the row is one for all, and a caller's transaction may hold it long."""
    key = database.sealer.keys.first
    if database.sealer.is_on and not any(
        use.key_id == key and use.unused_s < _SAY_S for use in list_key_uses(database)
    ):
        _record_use(database, key)


class _Watch:
    """Keeps the keys of one process up to date. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sealer = database.sealer
        self._lock = threading.Lock()
        self._looking: int | None = None
        """The thread that looks: what it writes comes by here as well."""
        self._look_at = 0.0
        self._say_at = 0.0
        self._complaint = ""

    def __call__(self) -> None:
        now = time.monotonic()
        if now < self._look_at or self._looking == threading.get_ident():
            return
        has_said = self._say_at > 0
        if not self._lock.acquire(blocking=not has_said):
            return  # another thread is checking now
        try:
            self._looking = threading.get_ident()
            self._look_for_keys(self._sealer.source)
            if now >= self._say_at:
                _record_use(self._database, self._sealer.keys.first)
                self._say_at = now + _SAY_S
            self._look_at = now + LOOK_S
        finally:
            self._looking = None
            self._lock.release()

    def _look_for_keys(self, source: KeySource | None) -> None:
        if source is None:
            return
        try:
            found = source.read_if_changed(at_once=False)
        except ConfigurationError as error:
            self._log_once(f"{error}; the keys from before go on being used")
            return
        found, self._sealer.learned = found or self._sealer.learned, None
        if found is not None:
            self._adopt_keys(build_text_keys(found))

    def _adopt_keys(self, new: TextKeys) -> None:
        """Use new keys. A former key that texts still need is kept, and goes on opening them."""
        _record_use(self._database, new.first)
        old = self._sealer.keys
        kept = {name: box for name, box in old.boxes.items() if name in load_needed_keys(self._database) - new.ids}
        self._sealer.use_keys(TextKeys(new.first, MappingProxyType({**kept, **new.boxes})))
        if new.first != old.first:
            log.info("encryption.key_changed", key=new.first, before=old.first)
        if kept:
            self._log_once(
                f"{_format_keys(frozenset(kept))} cannot be taken away yet, because texts need it: "
                "put it back, and run "
                "'hermes-worker data encryption reseal' first"
            )

    def _log_once(self, sentence: str) -> None:
        if sentence != self._complaint:
            log.warning("encryption.key_kept", error=sentence)
        self._complaint = sentence


def _record_use(database: Database, key: str) -> None:
    """Record that texts are encrypted with ``key`` from now on."""
    ours = table_of_keys.c.key_id == key
    with database.write() as connection:
        said = sa.update(table_of_keys).where(ours).values(last_used_at=db_now())
        if connection.execute(said).rowcount == 0:
            new = {"key_id": key, "first_used_at": db_now(), "last_used_at": db_now()}
            connection.execute(build_insert_ignoring(connection, table_of_keys).values(**new))


# --- what is stored how ----------------------------------------------------------------------------------------------


class KeyUse(NamedTuple):
    """A row of ``text_keys``."""

    key_id: str
    unused_s: float
    """Seconds since a process last recorded that it encrypts with the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextKeyStatus:
    """An encryption key, or ``CLEAR``, as this process and the rows know it."""

    key_id: str
    is_current: bool
    is_here: bool
    is_needed: bool
    unused_s: float | None
    """Seconds since a process last recorded that it encrypts with it; ``None`` when none ever did."""

    @property
    def is_key(self) -> bool:
        return self.key_id != CLEAR


@dataclass(frozen=True, slots=True, kw_only=True)
class Resealed:
    """The outcome of one batch of re-encryption."""

    table: str
    changed: int
    tampered: Sequence[str] = ()
    """Sentences about rows that cannot be decrypted, which stay as they are."""


def list_key_uses(database: Database) -> list[KeyUse]:
    """List every key that is needed, and ``CLEAR`` if texts were written in clear. Raises ``UnavailableError``."""
    rows = sa.select(table_of_keys.c.key_id, (db_now() - table_of_keys.c.last_used_at).label("unused_s"))
    found = database.select(rows.order_by(table_of_keys.c.first_used_at)).all()
    return [KeyUse(str(key), float(unused)) for key, unused in found]


def list_key_statuses(database: Database) -> list[TextKeyStatus]:
    """List every key that this process has or that texts need, the current one first, then by name. Where encryption is
    off there is one entry, for texts in clear. Raises ``UnavailableError``."""
    keys = database.sealer.keys
    known = {use.key_id: use.unused_s for use in list_key_uses(database)}
    names = sorted(keys.ids | known.keys() | {keys.first}, key=lambda name: (name != keys.first, name))
    return [
        TextKeyStatus(
            key_id=name,
            is_current=name == keys.first,
            is_here=name in keys.ids | {CLEAR},
            is_needed=name in known,
            unused_s=known.get(name),
        )
        for name in names
    ]


def list_sealed_columns() -> dict[sa.Table, list[sa.Column[str]]]:
    """List all columns that may be encrypted, by table."""
    found = {
        table: [column for column in table.columns if isinstance(column.type, SealedText)]
        for table in load_schema().sorted_tables
    }
    return {table: columns for table, columns in found.items() if columns}


def count_left(database: Database, key: str) -> dict[str, int]:
    """Count by table the rows that hold a text stored otherwise than under ``key``. Reads every text's beginning.
    Raises ``UnavailableError``."""
    counts = {}
    with database.read() as connection:
        for table, columns in list_sealed_columns().items():
            counted = sa.select(sa.func.count()).select_from(table).where(_is_other(columns, key))
            counts[table.name] = int(connection.execute(counted).scalar_one())
    return counts


def _is_other(columns: Sequence[sa.Column[str]], key: str) -> sa.ColumnElement[bool]:
    return sa.or_(*(column.is_not(None) & ~is_stored_by(column, key) for column in columns))


def reencrypt_texts(database: Database) -> Iterator[Resealed]:
    """Store every text under the present key, or in clear if encryption is off, and yield the outcome of each batch.
    Rows that another transaction has locked are left out: check with ``count_left`` and repeat. May be interrupted and
    repeated at any time, and run in several processes at once. Raises ``KeyMissing``, ``UnavailableError``."""
    if database.sealer.keys.first != CLEAR and (cleared := clear_index(database)):
        yield Resealed(table="search_rows", changed=cleared)
    for table, columns in list_sealed_columns().items():
        after: Sequence[object] | None = None
        while True:
            tampered: list[str] = []
            with database.write() as connection:
                rows = _load_page(connection, table, columns, after, database.sealer.keys.first)
                for row in rows:
                    try:
                        _reseal_row(connection, database, table, columns, row)
                    except TextTampered as error:
                        where = ", ".join(map(str, row[: len(table.primary_key.columns)]))
                        tampered.append(f"{table.name} {where}: {error}")
            yield Resealed(table=table.name, changed=len(rows) - len(tampered), tampered=tampered)
            if len(rows) < _BATCH:
                break
            after = rows[-1][: len(table.primary_key.columns)]


def _load_page(
    connection: sa.Connection,
    table: sa.Table,
    columns: Sequence[sa.Column[str]],
    after: Sequence[object] | None,
    key: str,
) -> list[tuple[object, ...]]:
    """Load the next rows that have to be changed: their keys, and their texts as they are stored."""
    keys = list(table.primary_key.columns)
    wanted = sa.select(*keys, *(select_stored_text(column).label(column.name) for column in columns)).where(
        _is_other(columns, key)
    )
    if after is not None:
        place = sa.tuple_(*(sa.literal(value, column.type) for value, column in zip(after, keys, strict=True)))
        wanted = wanted.where(sa.tuple_(*keys) > place)
    # The holder of a row may wait for another one that we hold, so locked rows are skipped and never waited for.
    locked = wanted.order_by(*keys).limit(_BATCH).with_for_update(skip_locked=True, key_share=True)
    return [tuple(row) for row in connection.execute(locked)]


def _reseal_row(
    connection: sa.Connection,
    database: Database,
    table: sa.Table,
    columns: Sequence[sa.Column[str]],
    row: Sequence[object],
) -> None:
    keys = list(table.primary_key.columns)
    changed = {
        column.name: column.type.process_result_value(str(stored), database.engine.dialect)
        for column, stored in zip(columns, row[len(keys) :], strict=True)
        if stored is not None and isinstance(column.type, SealedText)
    }
    ours = (column == value for column, value in zip(keys, row[: len(keys)], strict=True))
    connection.execute(sa.update(table).where(*ours).values(**changed))


def retire_keys(database: Database) -> set[str]:
    """Remove keys from the table that no text needs and no process uses. Returns their ids. Texts that are not under
    the current key are searched for once more. Raises ``UnavailableError``."""
    current = database.sealer.keys.first
    gone = {use.key_id for use in list_key_uses(database) if use.key_id != current and use.unused_s >= UNUSED_S}
    if not gone or any(count_left(database, current).values()):
        return set()
    with database.write() as connection:
        unused = table_of_keys.c.last_used_at <= db_now() - UNUSED_S
        removed = sa.delete(table_of_keys).where(table_of_keys.c.key_id.in_(gone), unused)
        return set(connection.execute(removed.returning(table_of_keys.c.key_id)).scalars())


def rewrite_file(database: Database) -> None:
    """Rewrite SQLite's file and empty its log, in both of which older texts may stand. Other processes wait
    meanwhile."""
    if database.is_sqlite:
        with database.engine.connect() as connection:
            driver = connection.connection.cursor()  # below SQLAlchemy, which would begin a transaction
            driver.execute("vacuum")
            driver.execute("pragma wal_checkpoint(truncate)")
