"""Agents' memories as rows: every version of every entry, with its author and its run.

A change locks the memory (a lock of the transaction on PostgreSQL, the one writer on SQLite), reads the current
entries, asks ``features.memory.rules`` and writes new versions. So limits hold for the result, however many write at
once, and a change to an entry that was changed meanwhile is refused with the present text. A change that names the tool
call that asked for it is made once, also when the call's worker vanished and another worker repeats the call.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.features.memory.rules import (
    EntryChange,
    MemoryAction,
    MemoryAuthor,
    MemoryChangeOutcome,
    MemoryEntry,
    MemoryKey,
    MemoryOperation,
    MemoryRefusal,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
    decide_change,
    parse_operations,
)
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import RowStore, db_now
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.rows import make_storable
from hermes_worker.store.tables import memory_versions

_CURRENT, _PAST, _STAGED, _APPROVED, _DECLINED = "current", "past", "staged", "approved", "declined"
_PROPOSE = "propose"
HISTORY_MAX = 500
STAGED_MAX = 100
"""Changes that wait for a person in one memory."""


class MemoryNotFound(HermesError):
    """There is no such entry, version or staged change."""


class MemoryVersionStands(HermesError):
    """The text of this version is the current one; it cannot be removed from the history alone."""


class MemoryView(NamedTuple):
    """A version of an entry. ``at`` is in epoch seconds by the database's clock."""

    number: int
    """Grows with time within an installation."""
    target: str
    entry_id: str
    version: int
    act: str
    """``add``, ``replace``, ``remove``, ``undo``, or ``propose`` for a change that waited for a person."""
    state: str
    """``current``, ``past``, ``staged``, ``approved`` or ``declined``."""
    content: str | None
    """``None`` for an entry that was removed, and for a text that was redacted."""
    author: str
    run_id: str | None
    at: float
    redacted_at: float | None


class _VersionRow(NamedTuple):
    pk: int
    target: str
    entry_id: str
    version: int
    position: int
    content: str | None


_VIEW = sa.select(
    memory_versions.c.pk.label("number"),
    *(memory_versions.c[name] for name in MemoryView._fields[1:]),
)
_ROW = sa.select(*select_columns(memory_versions, _VersionRow))


def load_entries(connection: Connection, tenant: str, profile: str) -> Mapping[MemoryTarget, tuple[MemoryEntry, ...]]:
    """Load both memories of a profile, in one statement."""
    theirs = _is_in_profile(tenant, profile) & (memory_versions.c.state == _CURRENT)
    wanted = _ROW.where(theirs, memory_versions.c.past_at.is_(None)).order_by(*_ORDER)
    rows = fetch_rows(connection.execute(wanted), _VersionRow)
    return {target: tuple(_to_entry(row) for row in rows if row.target == target) for target in MemoryTarget}


class Memories(RowStore):
    """The memories of one database. Thread-safe; every method raises ``UnavailableError``."""

    # --- reading ---

    def load_entries(self, tenant: str, profile: str) -> Mapping[MemoryTarget, tuple[MemoryEntry, ...]]:
        """Load both memories of a profile, in one statement."""
        with self.database.read() as connection:
            return load_entries(connection, tenant, profile)

    def list_current(self, tenant: str, profile: str) -> list[MemoryView]:
        """List the current entries of both memories, and the changes that wait for a person, each with its author and
        time."""
        wanted = _VIEW.where(_is_in_profile(tenant, profile), memory_versions.c.past_at.is_(None)).order_by(*_ORDER)
        return fetch_rows(self.database.select(wanted), MemoryView)

    def list_versions(
        self,
        place: MemoryKey,
        *,
        entry_id: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[MemoryView]:
        """List versions of a memory, or of one entry, the newest first; ``before`` is a version's number, and only
        older ones are returned."""
        wanted = _VIEW.where(_is_in_memory(place)).order_by(memory_versions.c.pk.desc()).limit(min(limit, HISTORY_MAX))
        if entry_id is not None:
            wanted = wanted.where(memory_versions.c.entry_id == entry_id)
        if before is not None:
            wanted = wanted.where(memory_versions.c.pk < before)
        return fetch_rows(self.database.select(wanted), MemoryView)

    # --- changing ---

    def change(
        self, place: MemoryKey, operations: Sequence[MemoryOperation], rules: MemoryRules, author: MemoryAuthor
    ) -> MemoryChangeOutcome:
        """Apply all of ``operations`` or none. Idempotent for an author with a ``call_key``. Raises
        ``MemoryRefused``."""
        with self.database.write() as connection:
            _lock_memory(connection, place)
            if (known := _find_earlier_change(connection, place, author)) is not None:
                return known
            rows = _load_rows(connection, place)
            decision = decide_change(tuple(map(_to_entry, rows)), [_make_storable(one) for one in operations], rules)
            made = _insert_versions(connection, place, rows, decision.changes, author)
            if made:
                _record_change(connection, Act.MEMORY_CHANGE, place, made)
            entries = tuple(map(_to_entry, _load_rows(connection, place)))
            return MemoryChangeOutcome(entries=entries, message=decision.message, changed=made)

    def stage(
        self, place: MemoryKey, operations: Sequence[MemoryOperation], rules: MemoryRules, author: MemoryAuthor
    ) -> MemoryChangeOutcome:
        """Store a change for a person's decision, if it could be made now. Idempotent for an author with a
        ``call_key``. Raises ``MemoryRefused``."""
        with self.database.write() as connection:
            _lock_memory(connection, place)
            if (known := _find_earlier_change(connection, place, author)) is not None:
                return known
            entries = tuple(map(_to_entry, _load_rows(connection, place)))
            kept = [_make_storable(one) for one in operations]
            decide_change(entries, kept, rules)
            waiting = sa.select(sa.func.count()).select_from(memory_versions)
            waiting = waiting.where(_is_in_memory(place), memory_versions.c.state == _STAGED)
            if connection.execute(waiting).scalar_one() >= STAGED_MAX:
                raise MemoryRefused(MemoryRefusal.OVER_LIMIT, "Too many changes wait for a person; make no more.")
            staged_id = _create_id("mst_")
            _insert(
                connection,
                place,
                author,
                {
                    "entry_id": staged_id,
                    "version": 1,
                    "position": 0,
                    "state": _STAGED,
                    "act": _PROPOSE,
                    "content": dump_canonical_json([one.build_document() for one in kept]),
                    "past_at": None,
                },
                ordinal=0,
            )
            return MemoryChangeOutcome(entries=entries, message="The change waits for a person.", staged_id=staged_id)

    def settle_staged(
        self,
        tenant: str,
        staged_id: str,
        rules: Callable[[MemoryTarget], MemoryRules],
        author: MemoryAuthor,
        *,
        approves: bool,
    ) -> MemoryChangeOutcome:
        """Make a staged change, or drop it. A change that cannot be made any more stays staged. Raises
        ``MemoryNotFound``, ``MemoryRefused``."""
        with self.database.write() as connection:
            this = sa.and_(memory_versions.c.tenant == tenant, memory_versions.c.entry_id == staged_id)
            this = sa.and_(this, memory_versions.c.state == _STAGED)
            found = connection.execute(
                sa.select(memory_versions.c.profile, memory_versions.c.target, memory_versions.c.content).where(this)
            ).first()
            if found is None:
                raise MemoryNotFound(f"there is no staged change {staged_id[:40]!r}; 'hermes-worker memory list' shows")
            place = MemoryKey(tenant=tenant, profile=found[0], target=MemoryTarget(found[1]))
            _lock_memory(connection, place)
            ended = _APPROVED if approves else _DECLINED
            if (
                connection.execute(sa.update(memory_versions).where(this).values(**_build_past_columns(ended))).rowcount
                == 0
            ):
                raise MemoryNotFound(f"the staged change {staged_id!r} was settled by somebody else")
            rows = _load_rows(connection, place)
            made: tuple[tuple[str, int], ...] = ()
            if approves:
                operations = parse_operations(json.loads(found[2]))
                decision = decide_change(tuple(map(_to_entry, rows)), operations, rules(place.target))
                made = _insert_versions(connection, place, rows, decision.changes, author)
            _record_change(connection, Act.MEMORY_DECIDE, place, made, staged_id=staged_id, approved=approves)
            entries = tuple(map(_to_entry, _load_rows(connection, place)))
            said = "approved" if approves else "declined"
            return MemoryChangeOutcome(
                entries=entries, message=f"{staged_id} {said}.", changed=made, staged_id=staged_id
            )

    def undo(
        self, place: MemoryKey, rules: MemoryRules, author: MemoryAuthor, *, entry_id: str | None = None
    ) -> MemoryChangeOutcome:
        """Restore an entry to what it was before its last change: ``entry_id``, or the entry that was changed last.
        Undoing that does it again. Raises ``MemoryNotFound``, ``MemoryRefused``."""
        with self.database.write() as connection:
            _lock_memory(connection, place)
            last, before = self._load_last_two(connection, place, entry_id)
            rows = _load_rows(connection, place)
            if last.version > 1 and before is None:
                raise MemoryNotFound(f"what {last.entry_id} was before is not kept any more")
            if before is not None and before.redacted_at is not None:
                raise MemoryNotFound(f"what {last.entry_id} was before was redacted")
            content = None if before is None else before.content
            others = [_to_entry(row) for row in rows if row.entry_id != last.entry_id]
            if content is not None:
                # Check it like an added entry: the same limit of size and the same check of the text.
                try:
                    decide_change(others, [MemoryOperation(action=MemoryAction.ADD, content=content)], rules)
                except MemoryRefused as refused:
                    refused.entries = tuple(map(_to_entry, rows))
                    raise
                if any(one.content == content for one in others):
                    content = None
            made = ((last.entry_id, last.version + 1),)
            position = self._find_position(connection, last)
            _end_current(connection, last.entry_id)
            values = {"entry_id": last.entry_id, "version": last.version + 1, "position": position, "act": "undo"}
            _insert(connection, place, author, {**values, **_build_version_columns(content)}, ordinal=0)
            _record_change(connection, Act.MEMORY_UNDO, place, made)
            entries = tuple(map(_to_entry, _load_rows(connection, place)))
            return MemoryChangeOutcome(entries=entries, message=f"{last.entry_id} is what it was.", changed=made)

    def redact(self, tenant: str, entry_id: str, version: int) -> MemoryView:
        """Empty the text of a past version. Idempotent. Raises ``MemoryNotFound``, ``MemoryVersionStands``."""
        this = sa.and_(memory_versions.c.tenant == tenant, memory_versions.c.entry_id == entry_id)
        this = sa.and_(this, memory_versions.c.version == version)
        with self.database.write() as connection:
            found = fetch_row(connection.execute(_VIEW.where(this).with_for_update()), MemoryView)
            if found is None:
                raise MemoryNotFound(f"there is no version {version} of {entry_id[:40]!r}")
            if found.state in (_CURRENT, _STAGED):
                raise MemoryVersionStands(
                    f"version {version} of {entry_id} is what is remembered; remove or replace the entry first"
                )
            if found.redacted_at is None:
                connection.execute(sa.update(memory_versions).where(this).values(content=None, redacted_at=db_now()))
                after = {"target": found.target, "version": version}
                record_action(connection, Act.MEMORY_REDACT, entry_id, tenant=tenant, after=after)
            view = fetch_row(connection.execute(_VIEW.where(this)), MemoryView)
        return view or found

    def _load_last_two(
        self, connection: Connection, place: MemoryKey, entry_id: str | None
    ) -> tuple[MemoryView, MemoryView | None]:
        """Load the last version of the entry, and the one before where it is kept."""
        theirs = _VIEW.where(_is_in_memory(place), memory_versions.c.act != _PROPOSE)
        if entry_id is not None:
            theirs = theirs.where(memory_versions.c.entry_id == entry_id)
        last = fetch_row(connection.execute(theirs.order_by(memory_versions.c.pk.desc()).limit(1)), MemoryView)
        if last is None:
            raise MemoryNotFound("there is nothing to undo" if entry_id is None else f"there is no {entry_id[:40]!r}")
        this = sa.and_(memory_versions.c.entry_id == last.entry_id, memory_versions.c.version == last.version - 1)
        return last, fetch_row(connection.execute(_VIEW.where(this)), MemoryView)

    def _find_position(self, connection: Connection, last: MemoryView) -> int:
        wanted = sa.select(memory_versions.c.position).where(memory_versions.c.pk == last.number)
        return int(connection.execute(wanted).scalar_one())


# --- parts -----------------------------------------------------------------------------------------------------------

_ORDER = (memory_versions.c.target, memory_versions.c.position, memory_versions.c.pk)


def _is_in_profile(tenant: str, profile: str) -> sa.ColumnElement[bool]:
    return sa.and_(memory_versions.c.tenant == tenant, memory_versions.c.profile == profile)


def _is_in_memory(place: MemoryKey) -> sa.ColumnElement[bool]:
    return sa.and_(_is_in_profile(place.tenant, place.profile), memory_versions.c.target == place.target.value)


def _lock_memory(connection: Connection, place: MemoryKey) -> None:
    """Lock this memory until the transaction ends. On SQLite only one transaction writes at a time anyway."""
    if connection.dialect.name == "postgresql":
        named = f"memory\0{place.tenant}\0{place.profile}\0{place.target.value}"
        key = int.from_bytes(hashlib.sha256(named.encode()).digest()[:8], "big", signed=True)
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(sa.cast(key, sa.BigInteger()))))


def _load_rows(connection: Connection, place: MemoryKey) -> list[_VersionRow]:
    standing = sa.and_(memory_versions.c.past_at.is_(None), memory_versions.c.state == _CURRENT)
    return fetch_rows(connection.execute(_ROW.where(_is_in_memory(place), standing).order_by(*_ORDER)), _VersionRow)


def _to_entry(row: _VersionRow) -> MemoryEntry:
    return MemoryEntry(entry_id=row.entry_id, version=row.version, content=row.content or "")


def _make_storable(operation: MemoryOperation) -> MemoryOperation:
    """Return the operation with texts as the database will return them, so that equal texts compare equal."""
    content = None if operation.content is None else make_storable(operation.content)
    return replace(
        operation, content=content, old_text=None if operation.old_text is None else make_storable(operation.old_text)
    )


def _find_earlier_change(connection: Connection, place: MemoryKey, author: MemoryAuthor) -> MemoryChangeOutcome | None:
    """Find what this very call changed before; ``None`` when it did nothing yet."""
    if author.call_key is None:
        return None
    wanted = sa.select(memory_versions.c.entry_id, memory_versions.c.version, memory_versions.c.act)
    this = sa.and_(memory_versions.c.tenant == place.tenant, memory_versions.c.call_key == author.call_key)
    wanted = wanted.where(this).order_by(memory_versions.c.ordinal)
    made = connection.execute(wanted).all()
    if not made:
        return None
    return MemoryChangeOutcome(
        entries=tuple(map(_to_entry, _load_rows(connection, place))),
        message="This was done before the call was made again.",
        changed=tuple((row[0], int(row[1])) for row in made if row[2] != _PROPOSE),
        is_repeated=True,
        staged_id=next((str(row[0]) for row in made if row[2] == _PROPOSE), None),
    )


def _insert_versions(
    connection: Connection,
    place: MemoryKey,
    rows: Sequence[_VersionRow],
    changes: Sequence[EntryChange],
    author: MemoryAuthor,
) -> tuple[tuple[str, int], ...]:
    """Insert new versions and return their entries and numbers. The memory is locked, so what was read is current."""
    positions = {row.entry_id: row.position for row in rows}
    last = max(positions.values(), default=0)
    made: list[tuple[str, int]] = []
    for ordinal, change in enumerate(changes):
        if change.entry is None:
            last += 1
            entry_id, version, position, act = _create_id("mem_"), 1, last, "add"
        else:
            _end_current(connection, change.entry.entry_id)
            entry_id, version = change.entry.entry_id, change.entry.version + 1
            position, act = positions[entry_id], "remove" if change.content is None else "replace"
        values = {"entry_id": entry_id, "version": version, "position": position, "act": act}
        _insert(connection, place, author, {**values, **_build_version_columns(change.content)}, ordinal=ordinal)
        made.append((entry_id, version))
    return tuple(made)


def _build_version_columns(content: str | None) -> dict[str, object]:
    """The columns of a new version, by its content."""
    if content is None:
        return {"content": None, "state": _PAST, "past_at": db_now()}
    return {"content": content, "state": _CURRENT, "past_at": None}


def _build_past_columns(state: str) -> dict[str, object]:
    return {"state": state, "past_at": db_now()}


def _end_current(connection: Connection, entry_id: str) -> None:
    current = sa.and_(memory_versions.c.entry_id == entry_id, memory_versions.c.state == _CURRENT)
    connection.execute(sa.update(memory_versions).where(current).values(**_build_past_columns(_PAST)))


def _insert(
    connection: Connection, place: MemoryKey, author: MemoryAuthor, values: Mapping[str, object], *, ordinal: int
) -> None:
    connection.execute(
        sa.insert(memory_versions).values(
            tenant=place.tenant,
            profile=place.profile,
            target=place.target.value,
            author=make_storable(author.name)[:200],
            run_id=author.run_id,
            call_key=author.call_key,
            ordinal=ordinal,
            at=db_now(),
            **values,
        )
    )


def _create_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(6)}"


def _record_change(
    connection: Connection, act: Act, place: MemoryKey, made: Sequence[tuple[str, int]], **more: object
) -> None:
    after = {"profile": place.profile, "entries": [f"{entry_id}@{version}" for entry_id, version in made], **more}
    record_action(connection, act, place.target.value, tenant=place.tenant, after=after)
