"""Read what a search leads to: the messages around a place of a transcript, and the sessions that belong together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import columns_for, row_of, rows_of
from hermes_worker.store.owners import owned_by
from hermes_worker.store.runs.runs import SessionNotFound, session_is
from hermes_worker.store.search.due import BODY, STORED
from hermes_worker.store.search.finding import IS_OF_CHILD, begun_only_by
from hermes_worker.store.tables import messages, runs, sessions

_GENERATIONS_MAX = 32
"""How many generations of forks are followed. The number is the original's (Hermes Agent)."""
_SAID = (Role.USER.value, Role.ASSISTANT.value)
_TITLED_MAX = 2_000
"""How many sessions are searched for a title."""


class SessionPlace(NamedTuple):
    """The facts of a session that a reader needs."""

    pk: int
    session_id: str
    title: str | None
    model: str | None
    created_at: float
    last_seq: int


class Said(NamedTuple):
    """A message. ``body`` is its canonical JSON."""

    seq: int
    role: str
    body: str
    at: float


class _TitleFacts(NamedTuple):
    pk: int
    title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReader:
    """The reader, who determines which sessions may be read."""

    tenant: str
    principal: str | None = None
    """Only sessions all of whose runs this principal submitted may be read; ``None`` for all sessions of the tenant."""


class SessionTexts:
    """Reads parts of transcripts. Thread-safe; each method raises ``UnavailableError``."""

    def __init__(self, database: Database, reader: SessionReader, source: str = "api") -> None:
        self._database = database
        self._reader = reader
        self._source = source

    def place(self, reference: str) -> SessionPlace:
        """Load a session. Raises ``SessionNotFound``, also for one that ``reader`` may not read."""
        its = session_is(self._reader.tenant, self._source, reference)
        with self._database.read() as connection:
            row = row_of(connection.execute(self._facts().where(its)), SessionPlace)
        if row is None:
            raise SessionNotFound(f"there is no session {reference!r}")
        return row

    def places(self, pks: Collection[int]) -> dict[int, SessionPlace]:
        """Load the sessions among ``pks`` that may be read."""
        with self._database.read() as connection:
            rows = rows_of(connection.execute(self._facts().where(sessions.c.pk.in_(pks))), SessionPlace)
        return {row.pk: row for row in rows}

    def titled(self, title: str) -> SessionPlace | None:
        """Find the newest session with this title, ignoring case."""
        wanted = title.strip().casefold()
        with self._database.read() as connection:
            titles = newest_titles(connection, *self._allowed())
        pk = next((pk for pk, title in titles if title.casefold() == wanted), None)
        return self.places([pk]).get(pk) if pk is not None else None

    def newest(self, limit: int, *, without: Collection[int] = ()) -> list[SessionPlace]:
        """List sessions that are no forks, newest first."""
        wanted = self._facts().where(sessions.c.forked_from.is_(None), sessions.c.pk.not_in(sorted(without)))
        with self._database.read() as connection:
            return rows_of(connection.execute(wanted.order_by(sessions.c.pk.desc()).limit(limit)), SessionPlace)

    def between(self, pk: int, first: int, last: int) -> list[Said]:
        """List messages by their numbers, both included, in order."""
        return self._messages(pk, messages.c.seq.between(first, last))

    def first(self, pk: int, count: int) -> list[Said]:
        """List the first messages of the user or the model."""
        return self._messages(pk, messages.c.role.in_(_SAID), limit=count)

    def last(self, pk: int, count: int) -> list[Said]:
        """List the last messages of the user or the model, in order."""
        return self._messages(pk, messages.c.role.in_(_SAID), limit=count, is_from_end=True)

    def family(self, pk: int) -> frozenset[int]:
        """Find the family of a session (``family_of``), and the family of the session that delegated its work."""
        with self._database.read() as connection:
            return family_of(connection, pk, has_delegating=True)

    def roots(self, pks: Collection[int]) -> dict[int, int]:
        """Find for each session the one with which its line of forks began."""
        roots = {pk: pk for pk in pks}
        with self._database.read() as connection:
            for _ in range(_GENERATIONS_MAX):
                above = _sources(connection, set(roots.values()))
                if not above:
                    break
                roots = {pk: above.get(root, root) for pk, root in roots.items()}
        return roots

    def _allowed(self) -> list[sa.ColumnElement[bool]]:
        only = begun_only_by(self._reader.principal) if self._reader.principal is not None else []
        return [owned_by(self._reader.tenant, sessions), sa.not_(IS_OF_CHILD), *only]

    def _facts(self) -> sa.Select[tuple[object, ...]]:
        columns = (sessions.c[name] for name in SessionPlace._fields[:-1])
        return sa.select(*columns, sessions.c.message_seq.label("last_seq")).where(*self._allowed())

    def _messages(
        self, pk: int, which: sa.ColumnElement[bool], *, limit: int = 1_000, is_from_end: bool = False
    ) -> list[Said]:
        order = messages.c.seq.desc() if is_from_end else messages.c.seq
        wanted = (
            sa.select(messages.c.seq, messages.c.role, BODY, messages.c.created_at.label("at"))
            .select_from(STORED)
            .where(messages.c.session_pk == pk, which)
            .order_by(order)
            .limit(limit)
        )
        with self._database.read() as connection:
            found = rows_of(connection.execute(wanted), Said)
        return found[::-1] if is_from_end else found


class Asker(NamedTuple):
    """The requester of a search, as far as the rows of a run say."""

    session_pk: int
    principal: str | None
    """The principal who submitted the first run of its chain."""


def asker_of(database: Database, run_id: str) -> Asker | None:
    """Find out for which session and principal a run searches; ``None`` for a run that is gone."""
    root = runs.alias("root")
    wanted = (
        sa.select(runs.c.session_pk, root.c.principal)
        .join(root, root.c.pk == sa.func.coalesce(runs.c.root_pk, runs.c.pk))
        .where(runs.c.run_id == run_id)
    )
    with database.read() as connection:
        return row_of(connection.execute(wanted), Asker)


def _sources(connection: Connection, pks: Collection[int]) -> dict[int, int]:
    """Find the sessions from which these were forked, by their row ids; a fork whose original was deleted names
    itself."""
    fork = sessions.alias("fork")
    wanted = (
        sa.select(fork.c.pk, sessions.c.pk.label("source_pk"))
        .join(sessions, sa.and_(sessions.c.session_id == fork.c.forked_from, sessions.c.tenant == fork.c.tenant))
        .where(fork.c.pk.in_(pks), sessions.c.pk != fork.c.pk)
    )
    return {int(pk): int(source) for pk, source in connection.execute(wanted)}


def newest_titles(connection: Connection, *which: sa.ColumnElement[bool]) -> list[_TitleFacts]:
    """List the newest ``_TITLED_MAX`` of these sessions that have a title, newest first, with their titles alone.
    Titles are compared in Python, because the database may not be able to read them."""
    wanted = sa.select(*columns_for(sessions, _TitleFacts)).where(*which, sessions.c.title.is_not(None))
    return rows_of(connection.execute(wanted.order_by(sessions.c.pk.desc()).limit(_TITLED_MAX)), _TitleFacts)


def family_of(connection: Connection, pk: int, *, has_delegating: bool = False) -> frozenset[int]:
    """Find the family of a session: the session, those from which it was forked, and the forks of all of them."""
    roots, known = {pk}, {pk}
    for _ in range(_GENERATIONS_MAX):
        above = set(_sources(connection, roots).values())
        roots = (above | _delegating(connection, roots) if has_delegating else above) - known
        if not roots:
            break
        known |= roots
    for _ in range(_GENERATIONS_MAX):
        forks = _forks(connection, known) - known
        if not forks:
            break
        known |= forks
    return frozenset(known)


def _delegating(connection: Connection, pks: Collection[int]) -> set[int]:
    """Find the sessions whose runs delegated the runs of these."""
    parent = runs.alias("parent")
    wanted = (
        sa.select(parent.c.session_pk)
        .join(runs, runs.c.parent_pk == parent.c.pk)
        .where(runs.c.session_pk.in_(pks))
        .distinct()
    )
    return set(connection.execute(wanted).scalars())


def _forks(connection: Connection, pks: Collection[int]) -> set[int]:
    fork = sessions.alias("fork")
    of_source = sa.and_(fork.c.forked_from == sessions.c.session_id, fork.c.tenant == sessions.c.tenant)
    wanted = sa.select(fork.c.pk).join(sessions, of_source).where(sessions.c.pk.in_(pks))
    return set(connection.execute(wanted).scalars())
