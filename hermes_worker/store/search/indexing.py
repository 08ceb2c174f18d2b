"""Add messages to a search index beside the transcripts, without delaying any step.

Theory of operation. No step writes to the index. The transaction that counts ended runs (``store.statistics``) marks
their sessions as *due*, and so does code that adds messages without a run. An *indexer* takes due sessions, oldest
first, makes the words of their new messages outside of any transaction, and adds them in a short one, which also
removes the marks that it found. A session's rows in ``search_rows`` are the beginning of its transcript without a gap,
so their last number says where to go on. A killed indexer leaves either all of a batch or nothing, and of two at once
the second finds the rows there. A transcript has gaps only while a run is at work; that run's end marks the session as
due again.

An index finds *candidates*, newest first; the text of each candidate decides whether it matches and how often
(``core.search_queries.count_hits``). So both databases give the same messages in the same order, and words of deleted
rows find nothing.

SQLite's index stores no texts. To delete from it, its words are made again from the texts, which must therefore still
be there (``due.forget``). Deleted words stay in its files until they are merged: the indexer does that, in small parts.

*Where texts are encrypted nothing is indexed*, because words, or hashes of them that are the same every time, would
reveal what texts hold. What had been indexed is dropped. A search then reads the newest messages and says that it did
not read the others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.search.index_queue import (
    BODY,
    FORGOTTEN,
    INDEXED_BODIES,
    STORED,
    IndexedBody,
    build_index_words,
    clear_index,
    is_made_by_other_rules,
    is_searchable,
    refresh_index,
)
from hermes_worker.store.search.index_repair import call_with_repair, is_index_damage, rebuild_index
from hermes_worker.store.tables import maintenance, messages, search_due, search_rows, sessions

_DUE_AT_ONCE = 40
_MESSAGES_AT_ONCE = 200
_CHARS_AT_ONCE = 400_000
"""Characters of one batch, so that its transaction stays short."""
_MERGED_PAGES = 200
_TURN = "search"
_SAMPLES = 20
"""Messages that ``find_index_damage`` looks for in the index."""


class _DueSession(NamedTuple):
    pk: int
    session_pk: int


class _UnindexedRow(NamedTuple):
    session_pk: int
    session_id: str
    tenant: str
    seq: int
    role: str
    body: str
    place: int


class _IndexedRow(NamedTuple):
    pk: int
    session_pk: int
    seq: int


class Indexer:
    """Adds messages to the index. Thread-safe; several indexers at once are harmless, and do some of their work
    twice."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._is_checked = False

    def claim_interval(self, interval_s: float) -> bool:
        """Claim this interval. Returns True when there is work and no process looked in this interval: one process of a
        fleet indexes at a time, so a large fleet causes no more load than a small one. Raises ``UnavailableError``."""
        has_work = sa.or_(sa.exists(sa.select(search_due.c.pk)), is_made_by_other_rules())
        if not is_searchable(self._database):
            keyed = sa.select(sessions.c.pk).where(sessions.c.title_key.is_not(None))
            has_work = sa.or_(sa.exists(sa.select(search_rows.c.pk)), sa.exists(keyed))
        is_left = sa.exists(sa.select(maintenance.c.name).where(maintenance.c.name == FORGOTTEN))
        if not self._database.select(sa.select(sa.or_(has_work, is_left))).scalar():
            return False
        with self._database.write() as connection:
            connection.execute(build_insert_ignoring(connection, maintenance), {"name": _TURN, "ran_at": 0.0})
            due = sa.and_(maintenance.c.name == _TURN, maintenance.c.ran_at <= db_now() - interval_s)
            return connection.execute(sa.update(maintenance).where(due).values(ran_at=db_now())).rowcount == 1

    def index_due(
        self, seconds: float = 0.25, *, pause_s: float = 0.02, is_over: Callable[[], bool] = lambda: False
    ) -> int:
        """Index due messages for up to ``seconds``, with a pause after each batch. Returns how many messages were
        indexed. One statement when nothing is due. Idempotent. Raises ``UnavailableError``."""
        if not is_searchable(self._database):
            clear_index(self._database)
            return 0
        self._check_once()
        ends_at = time.monotonic() + seconds
        added = 0
        while (batch := self.index_batch()) is not None:
            added += batch
            if time.monotonic() >= ends_at or is_over():
                return added
            time.sleep(pause_s)
        return added

    def _check_once(self) -> None:
        """Once in the life of a process, rebuild an index that another version made, or that has lost entries: damage
        without an error would not be noticed otherwise."""
        if self._is_checked:
            return
        call_with_repair(self._database, partial(refresh_index, self._database))
        if call_with_repair(self._database, partial(_count_lost, self._database)):
            with self._database.write() as connection:
                rebuild_index(connection)
        self._is_checked = True

    def index_batch(self) -> int | None:
        """Index one batch. Returns how many messages it had, or ``None`` when nothing is due. A damaged index is
        rebuilt. Raises ``UnavailableError``."""
        return call_with_repair(self._database, self._index_batch_once)

    def _index_batch_once(self) -> int | None:
        with self._database.read() as connection:
            due = self._list_due(connection)
            rows = _load_new_rows(connection, sorted({row.session_pk for row in due})) if due else []
        if not due:
            return 0 if merge_deleted(self._database) else None
        first = _take_batch(rows)
        whole = list(_iterate_without_gaps(first))
        found = [(row, build_index_words(row.tenant, Role(row.role), row.body)) for row in whole]
        unread = {row.session_pk for row in rows[len(first) :]}
        if len(rows) == _MESSAGES_AT_ONCE:
            unread |= {row.session_pk for row in due if row.session_pk >= rows[-1].session_pk}
        # Messages behind a gap cannot be indexed until the run that is writing there has ended.
        unread -= {row.session_pk for row in first} - {row.session_pk for row in whole}
        done = [row.pk for row in due if row.session_pk not in unread]
        with self._database.write() as connection:
            added = _add_rows(connection, found)
            connection.execute(sa.delete(search_due).where(search_due.c.pk.in_(done)))
        return added

    def _list_due(self, connection: Connection) -> list[_DueSession]:
        wanted = sa.select(search_due.c.pk, search_due.c.session_pk).order_by(search_due.c.pk).limit(_DUE_AT_ONCE)
        return fetch_rows(connection.execute(wanted), _DueSession)


def merge_deleted(database: Database) -> bool:
    """Merge a part of SQLite's index, if something was deleted from it. Returns whether anything was merged."""
    if not database.is_sqlite:
        return False
    deleted = sa.select(maintenance.c.ran_at).where(maintenance.c.name == FORGOTTEN)
    at = database.select(deleted).scalar()
    if at is None:
        return False
    with database.write() as connection:
        before = connection.exec_driver_sql("select total_changes()").scalar_one()
        merge = "insert into search_words (search_words, rank) values ('merge', ?)"
        connection.exec_driver_sql(merge, (-_MERGED_PAGES,))
        # By SQLite's manual, fewer than two changes mean that nothing was left to do.
        if connection.exec_driver_sql("select total_changes()").scalar_one() - before < 2:
            this = sa.and_(maintenance.c.name == FORGOTTEN, maintenance.c.ran_at == at)
            connection.execute(sa.delete(maintenance).where(this))
    return True


def _load_new_rows(connection: Connection, session_pks: Sequence[int]) -> list[_UnindexedRow]:
    """Load the rows of these sessions that are not indexed, session by session in order."""
    last = sa.select(sa.func.max(search_rows.c.seq)).where(search_rows.c.session_pk == sessions.c.pk)
    earlier = messages.alias("earlier")
    first = sa.select(sa.func.min(earlier.c.seq) - 1).where(earlier.c.session_pk == sessions.c.pk)
    # The transcript of a fork begins with rows of another session.
    behind = sa.func.coalesce(last.scalar_subquery(), first.scalar_subquery(), 0)
    wanted = (
        sa.select(
            messages.c.session_pk,
            sessions.c.session_id,
            sessions.c.tenant,
            messages.c.seq,
            messages.c.role,
            BODY,
            (messages.c.seq - behind).label("place"),
        )
        .select_from(STORED.join(sessions, sessions.c.pk == messages.c.session_pk))
        .where(sessions.c.pk.in_(session_pks), messages.c.seq > behind)
        .order_by(messages.c.session_pk, messages.c.seq)
        .limit(_MESSAGES_AT_ONCE)
    )
    return fetch_rows(connection.execute(wanted), _UnindexedRow)


def _take_batch(rows: Sequence[_UnindexedRow]) -> Sequence[_UnindexedRow]:
    """Take as many rows as make up a batch, and at least one."""
    chars = 0
    for number, row in enumerate(rows):
        chars += len(row.body)
        if number and chars > _CHARS_AT_ONCE:
            return rows[:number]
    return rows


def _iterate_without_gaps(rows: Sequence[_UnindexedRow]) -> Iterator[_UnindexedRow]:
    """Yield the rows up to the first gap of each session, where a run is still at work."""
    for _, its in groupby(rows, key=lambda row: row.session_pk):
        for number, row in enumerate(its, start=1):
            if row.place != number:
                break
            yield row


def _add_rows(connection: Connection, found: Sequence[tuple[_UnindexedRow, Sequence[str]]]) -> int:
    """Index rows that still exist and are not indexed yet. Returns how many messages."""
    pks = {row.session_pk for row, _ in found}
    # Compare the ids: the row id of a deleted session may belong to a new session by now.
    known = sa.select(sessions.c.pk, sessions.c.session_id).where(sessions.c.pk.in_(pks))
    ids = {int(pk): name for pk, name in connection.execute(known.with_for_update(read=True, key_share=True))}
    words = {(row.session_pk, row.seq): its for row, its in found if ids.get(row.session_pk) == row.session_id}
    if not words:
        return 0
    if connection.dialect.name == "sqlite":
        return _add_to_sqlite(connection, words)
    places = list(words)
    # Words contain no quotes, so each can be quoted without escaping.
    texts_of_all = [" ".join(f"'{word}'" for word in words[place]) or None for place in places]
    arguments = {"pks": [pk for pk, _ in places], "seqs": [seq for _, seq in places], "texts": texts_of_all}
    return int(connection.execute(_ADD_TO_POSTGRESQL, arguments).rowcount)


def _add_to_sqlite(connection: Connection, words: Mapping[tuple[int, int], Sequence[str]]) -> int:
    values = [{"session_pk": session_pk, "seq": seq} for session_pk, seq in words]
    inserted = build_insert_ignoring(connection, search_rows).values(values)
    returned = inserted.returning(search_rows.c.pk, search_rows.c.session_pk, search_rows.c.seq)
    added = fetch_rows(connection.execute(returned), _IndexedRow)
    texts = [(row.pk, " ".join(its)) for row in added if (its := words[row.session_pk, row.seq])]
    if texts:
        connection.exec_driver_sql("insert into search_words (rowid, words) values (?, ?)", texts)
    return len(added)


_ADD_TO_POSTGRESQL = sa.text(
    "insert into search_rows (session_pk, seq, words) "
    "select session_pk, seq, cast(words as tsvector) from "
    "unnest(cast(:pks as bigint[]), cast(:seqs as integer[]), cast(:texts as text[])) as new (session_pk, seq, words) "
    "on conflict do nothing"
)


def count_indexed(database: Database) -> Counter[str]:
    """Count the indexed messages, and the marks of due sessions; for operators."""
    with database.read() as connection:
        rows = connection.execute(sa.select(sa.func.count()).select_from(search_rows)).scalar_one()
        due = connection.execute(sa.select(sa.func.count()).select_from(search_due)).scalar_one()
    return Counter(indexed=int(rows), due=int(due))


def find_index_damage(database: Database) -> str | None:
    """Look for damage to the index. Returns a sentence, or ``None``. Reads SQLite's index whole. Raises
    ``UnavailableError`` for any other trouble."""
    if not is_searchable(database):
        return None
    try:
        if database.is_sqlite:
            with database.write() as connection:
                connection.exec_driver_sql("insert into search_words (search_words) values ('integrity-check')")
        lost = _count_lost(database)
    except Exception as error:
        if is_index_damage(error):
            return "the index that messages are searched by is damaged"
        raise
    return f"the index that messages are searched by lacks {lost} of the newest messages" if lost else None


def _count_lost(database: Database) -> int:
    """Count how many of the newest messages of the index are not found by their words."""
    with database.read() as connection:
        newest = INDEXED_BODIES.order_by(search_rows.c.pk.desc()).limit(_SAMPLES)
        return sum(not _is_found(connection, row) for row in fetch_rows(connection.execute(newest), IndexedBody))


def _is_found(connection: Connection, row: IndexedBody) -> bool:
    words = build_index_words(row.tenant, Role(row.role), row.body)
    if not words:
        return True
    if connection.dialect.name == "sqlite":
        wanted = "select 1 from search_words where search_words match ? and rowid = ?"
        return connection.exec_driver_sql(wanted, (f'"{words[-1]}"', row.pk)).first() is not None
    has_words = sa.and_(search_rows.c.pk == row.pk, search_rows.c.words.is_not(None))
    return connection.execute(sa.select(search_rows.c.pk).where(has_words)).first() is not None
