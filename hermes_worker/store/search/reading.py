"""Read what a search leads to: the messages around a place of a transcript, and the sessions that belong together."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.runs.runs import SessionNotFound, session_is
from hermes_worker.store.search.finding import IS_OF_CHILD, build_owner_conditions
from hermes_worker.store.search.index_queue import BODY, STORED
from hermes_worker.store.tables import messages, runs, sessions

_GENERATIONS_MAX = 32
"""How many generations of forks are followed. The number is the original's (Hermes Agent)."""
_SAID = (Role.USER.value, Role.ASSISTANT.value)
_TITLED_MAX = 2_000
"""How many sessions are searched for a title."""


class SessionSummary(NamedTuple):
    """The facts of a session that a reader needs."""

    pk: int
    session_id: str
    title: str | None
    model: str | None
    created_at: float
    last_seq: int


class SaidMessage(NamedTuple):
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

    def load_session(self, reference: str) -> SessionSummary:
        """Load a session. Raises ``SessionNotFound``, also for one that ``reader`` may not read."""
        its = session_is(self._reader.tenant, self._source, reference)
        row = fetch_row(self._database.select(self._select_facts().where(its)), SessionSummary)
        if row is None:
            raise SessionNotFound(f"there is no session {reference!r}")
        return row

    def load_sessions(self, pks: Collection[int]) -> dict[int, SessionSummary]:
        """Load the sessions among ``pks`` that may be read."""
        rows = fetch_rows(self._database.select(self._select_facts().where(sessions.c.pk.in_(pks))), SessionSummary)
        return {row.pk: row for row in rows}

    def find_by_title(self, title: str) -> SessionSummary | None:
        """Find the newest session with this title, ignoring case."""
        wanted = title.strip().casefold()
        with self._database.read() as connection:
            titles = list_newest_titles(connection, *self._build_access_conditions())
        pk = next((pk for pk, title in titles if title.casefold() == wanted), None)
        return self.load_sessions([pk]).get(pk) if pk is not None else None

    def list_newest(self, limit: int, *, without: Collection[int] = ()) -> list[SessionSummary]:
        """List sessions that are no forks, those with the newest activity first."""
        wanted = self._select_facts().where(sessions.c.forked_from.is_(None), sessions.c.pk.not_in(sorted(without)))
        newest = sessions.c.active_at.desc(), sessions.c.pk.desc()
        return fetch_rows(self._database.select(wanted.order_by(*newest).limit(limit)), SessionSummary)

    def list_between(self, pk: int, first: int, last: int) -> list[SaidMessage]:
        """List messages by their numbers, both included, in order."""
        return self._load_messages(pk, messages.c.seq.between(first, last))

    def list_first(self, pk: int, count: int) -> list[SaidMessage]:
        """List the first messages of the user or the model."""
        return self._load_messages(pk, messages.c.role.in_(_SAID), limit=count)

    def list_last(self, pk: int, count: int) -> list[SaidMessage]:
        """List the last messages of the user or the model, in order."""
        return self._load_messages(pk, messages.c.role.in_(_SAID), limit=count, is_from_end=True)

    def find_family(self, pk: int) -> frozenset[int]:
        """Find the family of a session (``find_family``), and the family of the session that delegated its work."""
        with self._database.read() as connection:
            return find_family(connection, pk, has_delegating=True)

    def find_roots(self, pks: Collection[int]) -> dict[int, int]:
        """Find for each session the one with which its line of forks began."""
        roots = {pk: pk for pk in pks}
        with self._database.read() as connection:
            for _ in range(_GENERATIONS_MAX):
                above = _find_sources(connection, set(roots.values()))
                if not above:
                    break
                roots = {pk: above.get(root, root) for pk, root in roots.items()}
        return roots

    def _build_access_conditions(self) -> list[sa.ColumnElement[bool]]:
        only = build_owner_conditions(self._reader.principal) if self._reader.principal is not None else []
        return [is_of_tenant(self._reader.tenant, sessions), sa.not_(IS_OF_CHILD), *only]

    def _select_facts(self) -> sa.Select[tuple[object, ...]]:
        columns = (sessions.c[name] for name in SessionSummary._fields[:-1])
        return sa.select(*columns, sessions.c.message_seq.label("last_seq")).where(*self._build_access_conditions())

    def _load_messages(
        self, pk: int, which: sa.ColumnElement[bool], *, limit: int = 1_000, is_from_end: bool = False
    ) -> list[SaidMessage]:
        order = messages.c.seq.desc() if is_from_end else messages.c.seq
        wanted = (
            sa.select(messages.c.seq, messages.c.role, BODY, messages.c.created_at.label("at"))
            .select_from(STORED)
            .where(messages.c.session_pk == pk, which)
            .order_by(order)
            .limit(limit)
        )
        found = fetch_rows(self._database.select(wanted), SaidMessage)
        return found[::-1] if is_from_end else found


class SearchRequester(NamedTuple):
    """The requester of a search, as far as the rows of a run say."""

    session_pk: int
    principal: str | None
    """The principal who submitted the first run of its chain."""


def find_requester(database: Database, run_id: str) -> SearchRequester | None:
    """Find out for which session and principal a run searches; ``None`` for a run that is gone."""
    root = runs.alias("root")
    wanted = (
        sa.select(runs.c.session_pk, root.c.principal)
        .join(root, root.c.pk == sa.func.coalesce(runs.c.root_pk, runs.c.pk))
        .where(runs.c.run_id == run_id)
    )
    return fetch_row(database.select(wanted), SearchRequester)


def _find_sources(connection: Connection, pks: Collection[int]) -> dict[int, int]:
    """Find the sessions from which these were forked, by their row ids; a fork whose original was deleted names
    itself."""
    fork = sessions.alias("fork")
    wanted = (
        sa.select(fork.c.pk, sessions.c.pk.label("source_pk"))
        .join(sessions, sa.and_(sessions.c.session_id == fork.c.forked_from, sessions.c.tenant == fork.c.tenant))
        .where(fork.c.pk.in_(pks), sessions.c.pk != fork.c.pk)
    )
    return {int(pk): int(source) for pk, source in connection.execute(wanted)}


def list_newest_titles(connection: Connection, *which: sa.ColumnElement[bool]) -> list[_TitleFacts]:
    """List the newest ``_TITLED_MAX`` of these sessions that have a title, newest first, with their titles alone.
    Titles are compared in Python, because the database may not be able to read them."""
    wanted = sa.select(*select_columns(sessions, _TitleFacts)).where(*which, sessions.c.title.is_not(None))
    return fetch_rows(connection.execute(wanted.order_by(sessions.c.pk.desc()).limit(_TITLED_MAX)), _TitleFacts)


def find_family(connection: Connection, pk: int, *, has_delegating: bool = False) -> frozenset[int]:
    """Find the family of a session: the session, those from which it was forked, and the forks of all of them."""
    roots, known = {pk}, {pk}
    for _ in range(_GENERATIONS_MAX):
        above = set(_find_sources(connection, roots).values())
        roots = (above | _find_delegating(connection, roots) if has_delegating else above) - known
        if not roots:
            break
        known |= roots
    for _ in range(_GENERATIONS_MAX):
        forks = _find_forks(connection, known) - known
        if not forks:
            break
        known |= forks
    return frozenset(known)


def _find_delegating(connection: Connection, pks: Collection[int]) -> set[int]:
    """Find the sessions whose runs delegated the runs of these."""
    parent = runs.alias("parent")
    wanted = (
        sa.select(parent.c.session_pk)
        .join(runs, runs.c.parent_pk == parent.c.pk)
        .where(runs.c.session_pk.in_(pks))
        .distinct()
    )
    return set(connection.execute(wanted).scalars())


def _find_forks(connection: Connection, pks: Collection[int]) -> set[int]:
    fork = sessions.alias("fork")
    of_source = sa.and_(fork.c.forked_from == sessions.c.session_id, fork.c.tenant == sessions.c.tenant)
    wanted = sa.select(fork.c.pk).join(sessions, of_source).where(sessions.c.pk.in_(pks))
    return set(connection.execute(wanted).scalars())
