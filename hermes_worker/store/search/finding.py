"""Search in transcripts: the one way to query messages by their text (``store.search.indexing`` has the theory)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Role
from hermes_worker.core.search_queries import (
    IndexFilter,
    Query,
    WantedWord,
    build_filters,
    build_snippet,
    count_hits,
    extract_text,
    fold_text,
    parse_query,
)
from hermes_worker.core.sources import SessionLabel, parse_source_kind
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.owners import SourceRows, is_of_tenant
from hermes_worker.store.runs.runs import SessionNotFound, session_is
from hermes_worker.store.search.index_queue import (
    BODY,
    SEARCHED_ROLES,
    STORED,
    build_role_word,
    build_tenant_word,
    is_searchable,
)
from hermes_worker.store.search.index_repair import call_with_repair
from hermes_worker.store.tables import messages, runs, search_due, search_rows, sessions

FOUND_MAX = 100
"""The most messages that one search returns."""
_MATCHES_MAX = 300
"""How many of the newest matches are sorted. The number is the original's (Hermes Agent)."""
_CANDIDATES_MAX = 3_000
_CANDIDATES_AT_ONCE = 300
_LATER_CANDIDATES_AT_ONCE = 900
_BEHIND_ALL = 2**62
_READ_SEALED_MAX = 5_000
"""Messages that are read, newest first, where there is no index."""


class SearchOrder(StrEnum):
    """The order in which a search returns messages."""

    HITS = "hits"
    """Messages with the most hits first; of equal ones, the newest."""
    NEWEST = "newest"
    OLDEST = "oldest"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSearch:
    """A query for messages of a tenant."""

    text: str
    """The query text (``core.search_queries.parse_query``)."""
    roles: tuple[Role, ...] = (Role.USER, Role.ASSISTANT)
    order: SearchOrder = SearchOrder.HITS
    limit: int = 20
    """The most results, up to ``FOUND_MAX``."""
    session: str | None = None
    """Search in this session only: in all of it, indexed or not."""
    without_sessions: frozenset[int] = frozenset()
    """Row ids of sessions that are left out."""
    principal: str | None = None
    """Search only in sessions all of whose runs this principal submitted."""
    has_children: bool = False
    """Search in sessions of delegated work, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundMessage:
    """A message that matches. ``at`` in epoch seconds."""

    session: SessionLabel
    session_pk: int
    source: str | None
    title: str | None
    model: str | None
    seq: int
    role: Role
    at: float
    hits: int
    snippet: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """The messages that were found, in the requested order."""

    found: tuple[FoundMessage, ...] = ()
    is_complete: bool = True
    """Whether nothing was left out: neither older matches of a very common word, nor what is not indexed yet."""


class _Candidate(NamedTuple):
    """A message that may match. Thousands are read for one search, so columns that are only displayed are not read with
    them."""

    session_pk: int
    seq: int
    role: str
    body: str
    at: float


class _FoundSession(NamedTuple):
    pk: int
    session_id: str
    source: str | None
    name: str | None
    title: str | None
    model: str | None


_CANDIDATES = sa.select(messages.c.session_pk, messages.c.seq, messages.c.role, BODY, messages.c.created_at.label("at"))
_SESSIONS = sa.select(
    sessions.c.pk, sessions.c.session_id, sessions.c.source, sessions.c.name, sessions.c.title, sessions.c.model
)


class Search(SourceRows):
    """The messages of one tenant, as callers from one source name its sessions. Thread-safe."""

    def find(self, wanted: MessageSearch) -> SearchResult:
        """Find the messages that match; none when the query is empty. When the index turns out to be damaged, it is
        rebuilt, and the result is not complete. Raises ``SessionNotFound``, ``UnavailableError``."""
        return call_with_repair(self.database, partial(self._search_once, wanted))

    def _search_once(self, wanted: MessageSearch) -> SearchResult:
        query = parse_query(wanted.text)
        with self.database.read() as connection:
            if wanted.session is not None:
                only = self._find_session_pk(connection, wanted.session)
            if query is None:
                return SearchResult()
            if wanted.session is not None:
                pages = self._iterate_unindexed(connection, wanted, messages.c.session_pk == only, _CANDIDATES_MAX)
            elif is_searchable(self.database):
                pages = self._iterate_indexed(connection, wanted, query)
            else:
                pages = self._iterate_unindexed(connection, wanted, sa.true(), _READ_SEALED_MAX)
            matches, is_complete = _find_matches(query, pages)
            if is_complete and wanted.session is None and is_searchable(self.database):
                is_complete = connection.execute(sa.select(search_due.c.pk).limit(1)).first() is None
            return SearchResult(found=self._build_results(connection, query, matches, wanted), is_complete=is_complete)

    def _find_session_pk(self, connection: Connection, reference: str) -> int:
        its = sa.select(sessions.c.pk).where(
            is_of_tenant(self.tenant, sessions), session_is(self.tenant, self.source, reference)
        )
        pk = connection.execute(its).scalar()
        if pk is None:
            raise SessionNotFound(f"there is no session {reference!r}")
        return int(pk)

    def _build_session_conditions(self, wanted: MessageSearch) -> list[sa.ColumnElement[bool]]:
        """Build the conditions for the sessions to search in."""
        found: list[sa.ColumnElement[bool]] = [is_of_tenant(self.tenant, sessions)]
        if wanted.without_sessions:
            found.append(sessions.c.pk.not_in(sorted(wanted.without_sessions)))
        if wanted.principal is not None and wanted.session is None:
            found += build_owner_conditions(wanted.principal)
        if not wanted.has_children and wanted.session is None:
            found.append(sa.not_(IS_OF_CHILD))
        return found

    def _iterate_indexed(
        self, connection: Connection, wanted: MessageSearch, query: Query
    ) -> Iterator[tuple[Sequence[_Candidate], bool]]:
        """Yield pages of candidates from the index, newest first, and whether each page is the last."""
        text = build_index_query(connection.dialect.name, self.tenant, wanted.roles, build_filters(query))
        place = sa.and_(messages.c.session_pk == search_rows.c.session_pk, messages.c.seq == search_rows.c.seq)
        # Session by session, of the candidates only. A join leaves both databases a choice that they make badly: SQLite
        # began with all sessions of the tenant and PostgreSQL put them all into a hash, once for every page. The offset
        # keeps PostgreSQL from making a join of it.
        its = sa.select(sessions.c.pk).where(
            sessions.c.pk == messages.c.session_pk, *self._build_session_conditions(wanted)
        )
        is_wanted = sa.exists(its.offset(0).correlate(messages))
        found = _CANDIDATES.select_from(search_rows.join(STORED, place)).where(_has_role(wanted), is_wanted)
        for pks, is_last in _iterate_candidates(connection, text):
            page = found.where(search_rows.c.pk.in_(pks)).order_by(search_rows.c.pk.desc())
            rows = connection.execute(page) if pks else ()
            yield ([_Candidate(*row) for row in rows], is_last)

    def _iterate_unindexed(
        self, connection: Connection, wanted: MessageSearch, which: sa.ColumnElement[bool], most: int
    ) -> Iterator[tuple[Sequence[_Candidate], bool]]:
        """Yield pages of candidates without an index: the newest messages of the newest sessions, and whether each page
        is the last."""
        from_ = STORED.join(sessions, sessions.c.pk == messages.c.session_pk)
        place = sa.tuple_(messages.c.session_pk, messages.c.seq)
        asked = _CANDIDATES.select_from(from_).where(which, _has_role(wanted), *self._build_session_conditions(wanted))
        asked = asked.order_by(messages.c.session_pk.desc(), messages.c.seq.desc()).limit(_CANDIDATES_AT_ONCE)
        before: tuple[int, int] | None = None
        for _ in range(0, most, _CANDIDATES_AT_ONCE):
            here = asked if before is None else asked.where(place < sa.tuple_(*map(sa.literal, before)))
            rows = [_Candidate(*row) for row in connection.execute(here)]
            is_last = len(rows) < _CANDIDATES_AT_ONCE
            yield rows, is_last
            if is_last:
                return
            before = (rows[-1].session_pk, rows[-1].seq)

    def _build_results(
        self, connection: Connection, query: Query, matches: Sequence[tuple[int, _Candidate]], wanted: MessageSearch
    ) -> tuple[FoundMessage, ...]:
        newest = sorted(matches, key=lambda each: (each[1].at, each[1].session_pk, each[1].seq), reverse=True)
        if wanted.order is SearchOrder.OLDEST:
            newest.reverse()
        elif wanted.order is SearchOrder.HITS:
            newest.sort(key=lambda each: -each[0])
        first = newest[: min(wanted.limit, FOUND_MAX)]
        theirs = self._load_sessions(connection, {row.session_pk for _, row in first})
        origins = _load_origins(connection, {each.session_id for each in theirs.values() if each.source is None})
        return tuple(
            _build_result(query, count, row, theirs[row.session_pk], origins)
            for count, row in first
            if row.session_pk in theirs
        )

    def _load_sessions(self, connection: Connection, pks: Collection[int]) -> dict[int, _FoundSession]:
        """Load the sessions of results, without those that were deleted meanwhile: another tenant may have their row
        ids by now."""
        if not pks:
            return {}
        theirs = _SESSIONS.where(sessions.c.pk.in_(sorted(pks)), is_of_tenant(self.tenant, sessions))
        return {row.pk: row for row in fetch_rows(connection.execute(theirs), _FoundSession)}


def _has_role(wanted: MessageSearch) -> sa.ColumnElement[bool]:
    return messages.c.role.in_([role.value for role in wanted.roles])


_IS_REVIEW = sa.and_(runs.c.cause_pk.is_not(None), runs.c.run_id == sessions.c.session_id)
IS_OF_CHILD = (
    sa.exists()
    .where(runs.c.session_pk == sessions.c.pk, sa.or_(runs.c.parent_pk.is_not(None), _IS_REVIEW))
    .correlate(sessions)
)
"""Condition that another run opened the session, for delegated work or for a review."""


def build_owner_conditions(principal: str) -> list[sa.ColumnElement[bool]]:
    """Build the conditions for sessions that have runs, all of which this principal submitted."""
    its = runs.c.session_pk == sessions.c.pk
    others = sa.or_(runs.c.principal.is_(None), runs.c.principal != principal)
    return [sa.exists().where(its).correlate(sessions), ~sa.exists().where(its, others).correlate(sessions)]


def _find_matches(
    query: Query, pages: Iterator[tuple[Sequence[_Candidate], bool]]
) -> tuple[list[tuple[int, _Candidate]], bool]:
    """Find the newest messages that match, with their hits, and whether these are all."""
    found: list[tuple[int, _Candidate]] = []
    is_last = False
    for rows, is_last in pages:
        for row in rows:
            count = count_hits(query, fold_text(extract_text(row.body)))
            if count:
                found.append((count, row))
        if len(found) >= _MATCHES_MAX:
            return found[:_MATCHES_MAX], is_last and len(found) == _MATCHES_MAX
    return found, is_last


def _iterate_candidates(connection: Connection, text: str) -> Iterator[tuple[list[int], bool]]:
    """Yield row ids of the index, newest first, page by page, and whether each page is the last. The pages after the
    first are fetched with one query: PostgreSQL often finds and sorts all candidates to return a part of them, and
    would do so for every page. A search that needs more than one page mostly needs many, so later pages are longer."""
    before = _BEHIND_ALL
    for most, at_once in (
        (_CANDIDATES_AT_ONCE, _CANDIDATES_AT_ONCE),
        (_CANDIDATES_MAX - _CANDIDATES_AT_ONCE, _LATER_CANDIDATES_AT_ONCE),
    ):
        pks = list_indexed_rows(connection, text, most, before=before)
        has_more = len(pks) == most
        for first in range(0, len(pks) or 1, at_once):
            page = pks[first : first + at_once]
            yield page, not has_more and first + len(page) == len(pks)
        if not has_more:
            return
        before = pks[-1]


def list_indexed_rows(connection: Connection, text: str, limit: int, *, before: int = _BEHIND_ALL) -> list[int]:
    """List row ids of the index that match ``text``, a query of ``build_index_query``, newest first."""
    if connection.dialect.name == "sqlite":
        asked = "select rowid from search_words where search_words match ? and rowid < ? order by rowid desc limit ?"
        return list(connection.exec_driver_sql(asked, (text, before, limit)).scalars())
    # A literal, so that PostgreSQL can estimate how many rows have these words, which contain no quotes.
    query = sa.cast(sa.bindparam("query", text, sa.Text(), literal_execute=True), _TSQUERY)
    asked_rows = sa.select(search_rows.c.pk).where(search_rows.c.words.op("@@")(query), search_rows.c.pk < before)
    return list(connection.execute(asked_rows.order_by(search_rows.c.pk.desc()).limit(limit)).scalars())


class _TsQuery(sa.types.UserDefinedType[str]):
    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return "tsquery"


_TSQUERY = _TsQuery()


class _QuerySyntax(NamedTuple):
    """The query syntax of one kind of index."""

    quote: str
    prefix: str
    both: str
    any_of: str
    without: str


_SPELLINGS = {
    "sqlite": _QuerySyntax('"', " *", " AND ", " OR ", " NOT "),
    "postgresql": _QuerySyntax("'", ":*", " & ", " | ", " & !"),
}


def build_index_query(dialect: str, tenant: str, roles: Collection[Role], filters: Sequence[IndexFilter]) -> str:
    """Build the query text for a kind of index."""
    spelling = _SPELLINGS[dialect]

    def spell_word(wanted: WantedWord) -> str:
        return f"{spelling.quote}{wanted.word}{spelling.quote}{spelling.prefix if wanted.is_prefix else ''}"

    def group(each: IndexFilter) -> str:
        found = f"({spelling.both.join(map(spell_word, each.all_of))})"
        if each.none_of:
            found = f"({found}{spelling.without}({spelling.any_of.join(map(spell_word, each.none_of))}))"
        return found

    parts = [spell_word(WantedWord(build_tenant_word(tenant)))]
    if not set(roles) >= set(SEARCHED_ROLES):
        parts.append(f"({spelling.any_of.join(spell_word(WantedWord(build_role_word(role))) for role in roles)})")
    parts.append(f"({spelling.any_of.join(map(group, filters))})")
    return spelling.both.join(parts)


def _load_origins(connection: Connection, session_ids: Collection[str]) -> dict[str, str | None]:
    """Load the kinds of sources of sessions without names: the first run of such a session has the session's id."""
    if not session_ids:
        return {}
    wanted = sa.select(runs.c.run_id, runs.c.origin).where(runs.c.run_id.in_(sorted(session_ids)))
    return {str(run_id): origin for run_id, origin in connection.execute(wanted)}


def _build_result(
    query: Query, count: int, row: _Candidate, session: _FoundSession, origins: dict[str, str | None]
) -> FoundMessage:
    source = session.source or origins.get(session.session_id)
    return FoundMessage(
        session=SessionLabel(id=session.session_id, source=session.source, name=session.name),
        session_pk=row.session_pk,
        source=parse_source_kind(source) if source else None,
        title=session.title,
        model=session.model,
        seq=row.seq,
        role=Role(row.role),
        at=row.at,
        hits=count,
        snippet=build_snippet(query, extract_text(row.body)),
    )
