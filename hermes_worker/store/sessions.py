"""Sessions as their callers see them: list, open, read, rename, fork.

A session is opened with its first run (``runs.runs.insert_run``) or here, before it has one. A reference to a session
is its id, or a name of the caller's own source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.forks import FORK_KEY
from hermes_worker.core.messages import Role, dump_canonical_json
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.questions import APPROVED_KEY
from hermes_worker.core.short_ids import PREFIXES, AmbiguousId
from hermes_worker.core.sources import SessionLabel, is_session_id, parse_source_kind
from hermes_worker.core.titles import hash_title, number_title
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_one, fetch_row, fetch_rows, select_columns
from hermes_worker.store.engine.sealing import coalesce_texts, select_text_prefix
from hermes_worker.store.owners import SourceRows, is_of_tenant
from hermes_worker.store.prefixes import copy_rows, is_in_transcript, load_system_prompt
from hermes_worker.store.rewinds import Rewind, match_calls_after, record_rewind, take_note
from hermes_worker.store.rows import build_insert_ignoring, insert_messages, store_blob
from hermes_worker.store.runs.runs import (
    SESSION_LABEL,
    NewRun,
    SessionActive,
    SessionNotFound,
    build_session_values,
    create_run_id,
    fill_prompt,
    insert_history,
    require_not_erased,
    session_is,
    to_label,
)
from hermes_worker.store.search.finding import IS_OF_CHILD
from hermes_worker.store.search.index_queue import is_searchable, mark_due
from hermes_worker.store.search.reading import find_family, list_newest_titles
from hermes_worker.store.short_ids import begins_with
from hermes_worker.store.tables import blobs, messages, runs, session_documents, sessions, tool_calls

PAGE_MAX = 200
_TITLES_TRIED = 100
"""Numbers that are tried for the title of a fork; it gets none when all are taken."""
_CANDIDATES_MAX = 5
_PREVIEW_CHARS = 60
_READ_FOR_PREVIEW = 400
CONVERSATION_KEY = "openai.conversation"
"""The key of the session document in which a client of OpenAI's API stores the metadata of a conversation
(``store.kept_conversations``)."""
BRANCHED = "branched"
"""The end reason of a session that was forked."""


class SessionExists(HermesError):
    """The caller has a session of this name already."""


class TitleTaken(HermesError):
    """Another session of the tenant has this title; the message names it."""


class InvalidFork(HermesError):
    """A transcript cannot be cut here; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionTotals:
    """The sums over the runs of a session, as far as they are kept."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    reasoning: int = 0
    nano_usd: int = 0
    unpriced_runs: int = 0
    """Runs that cost more than is known."""
    iterations: int = 0
    tool_calls: int = 0


class SessionPlace(NamedTuple):
    """The place of a session in lists."""

    active_at: float
    """When it was opened, or its last turn began or ended, in epoch seconds."""
    pk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """A session. Times are epoch seconds."""

    label: SessionLabel
    place: SessionPlace
    source: str | None
    """The kind of source that opened it; ``None`` when its first run was deleted."""
    title: str | None
    model: str | None
    """The model chosen for its next turn, else the model of its last run."""
    created_at: float
    last_active: float
    ended_at: float | None
    end_reason: str | None
    message_count: int
    preview: str
    """The beginning of its first message."""
    parent: SessionLabel | None
    """The session from which it was forked, or whose run delegated its work; ``None`` for others."""
    totals: SessionTotals
    is_at_work: bool
    is_of_child: bool
    """Its runs do delegated work."""
    archived_at: float | None
    """Since when it is archived; ``None`` when it is not."""
    asks_model: str | None
    """The model that was chosen for its turns when it was opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageView:
    """A row of a transcript, with its canonical JSON in chat-completions form."""

    seq: int
    role: Role
    body: str
    created_at: float
    tool_name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPage:
    """A query for a page of sessions, the one with the newest activity first."""

    limit: int = 50
    below: SessionPlace | None = None
    """The place of the session that ended the page before, as it was then."""
    before: str | None = None
    """The session that ended the page before; a turn of it since then moves its place."""
    offset: int = 0
    source: str | None = None
    """A kind of source."""
    has_children: bool = False
    """Include sessions of delegated work."""
    is_archived: bool = False
    """List archived sessions, and no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionChanges:
    """Changes to a session; ``None`` leaves a field as it is."""

    title: str | None = None
    end_reason: str | None = None
    is_archived: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOrigin:
    """The history of a session that is imported."""

    parent: str | None = None
    """The name of the session from which it was forked, if that is here as well."""
    ended_at: float | None = None
    end_reason: str | None = None
    moments: Sequence[float | None] = ()
    """When each of its messages was written, in epoch seconds; ``None`` where that is unknown."""


class _SessionFacts(NamedTuple):
    pk: int
    session_id: str
    source: str | None
    name: str | None
    title: str | None
    model: str | None
    forked_from: str | None
    ended_at: float | None
    end_reason: str | None
    archived_at: float | None
    message_seq: int
    created_at: float
    active_run_pk: int | None
    active_at: float

    @property
    def place(self) -> SessionPlace:
        return SessionPlace(active_at=self.active_at, pk=self.pk)


class _MeantSession(NamedTuple):
    """A session that a reference may mean."""

    session_id: str
    session_source: str | None
    session_name: str | None
    title: str | None

    def describe(self, source: str) -> str:
        known_as = to_label(self).choose_reference(source)
        return f"{known_as} ({self.title!r})" if self.title else known_as


class _SessionSum(NamedTuple):
    session_pk: int
    first: int
    last: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    nano_usd: int
    unpriced_runs: int
    iterations: int
    last_active: float
    last_created: float


class _EndRun(NamedTuple):
    pk: int
    model: str
    origin: str | None
    parent_pk: int | None


class _LabelRow(NamedTuple):
    key: int | str
    session_id: str
    source: str | None
    name: str | None


class _MessageFacts(NamedTuple):
    seq: int
    role: str
    body: str
    created_at: float


class _Counted(NamedTuple):
    session_pk: int
    calls: int


class _Beginning(NamedTuple):
    pk: int
    text: str | None


_body = coalesce_texts(messages.c.body, blobs.c.body)
_STORED = messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
_ROWS = sa.select(messages.c.seq, messages.c.role, _body.label("body"), messages.c.created_at).select_from(_STORED)
_beginning = (
    sa.select(select_text_prefix(_body, _READ_FOR_PREVIEW))
    .select_from(_STORED)
    .where(messages.c.session_pk == sessions.c.pk, messages.c.role == Role.USER.value)
    .order_by(messages.c.seq)
    .limit(1)
    .correlate(sessions)
    .scalar_subquery()
)


class Sessions(SourceRows):
    """The sessions of one tenant, as callers from one source mean them. Thread-safe."""

    def list_page(self, wanted: SessionPage) -> list[SessionView]:
        """List a page of sessions. Raises ``SessionNotFound`` for an unknown ``before``."""
        order = sessions.c.active_at.desc(), sessions.c.pk.desc()
        statement = self._select_sessions().order_by(*order).limit(wanted.limit).offset(wanted.offset)
        if wanted.source is not None:
            statement = statement.where(_is_from(wanted.source))
        put_away = sessions.c.archived_at
        statement = statement.where(put_away.is_not(None) if wanted.is_archived else put_away.is_(None))
        if not wanted.has_children:
            statement = statement.where(sa.not_(IS_OF_CHILD))
        with self.database.read() as connection:
            below = wanted.below
            if wanted.before is not None:
                below = self._load_row(connection, wanted.before).place
            if below is not None:
                # Both conditions: a database goes down the index by the first and leaves out equal times by the second.
                statement = statement.where(
                    sessions.c.active_at <= below.active_at,
                    sa.or_(sessions.c.active_at < below.active_at, sessions.c.pk < below.pk),
                )
            return _load_views(connection, fetch_rows(connection.execute(statement), _SessionFacts))

    def get(self, reference: str) -> SessionView:
        """Load a session. Raises ``SessionNotFound``."""
        with self.database.read() as connection:
            return _load_views(connection, [self._load_row(connection, reference)])[0]

    def list_family(self, reference: str) -> list[SessionView]:
        """List the session, those from which it was forked, and the forks of all of them, oldest first. Raises
        ``SessionNotFound``."""
        with self.database.read() as connection:
            wanted = self._select_sessions().where(
                sessions.c.pk.in_(find_family(connection, self._load_row(connection, reference).pk))
            )
            return _load_views(
                connection, fetch_rows(connection.execute(wanted.order_by(sessions.c.pk)), _SessionFacts)
            )

    def find_by_title(self, title: str, *, limit: int = 1) -> list[SessionView]:
        """Find sessions with this title, or forks that are named after it (``title #2``), newest first."""
        with self.database.read() as connection:
            pks = [pk for pk, _ in self._list_titled(connection, title)[:limit]]
            wanted = self._select_sessions().where(sessions.c.pk.in_(pks)).order_by(sessions.c.pk.desc())
            return _load_views(connection, fetch_rows(connection.execute(wanted), _SessionFacts) if pks else [])

    def complete_reference(self, written: str) -> str:
        """Find the one session that ``written`` means, and return how callers from this source name it: an id, a name
        that one source gave, a title, or the beginning of an id or of a name of this source. Of a title's numbered
        forks (``title #2``) the newest is meant. Raises ``SessionNotFound``, ``AmbiguousId`` with the candidates."""
        wanted = sa.select(*SESSION_LABEL, sessions.c.title).order_by(sessions.c.pk.desc()).limit(_CANDIDATES_MAX + 1)
        with self.database.read() as connection:
            for means in self._iterate_meanings(connection, written):
                found = fetch_rows(connection.execute(wanted.where(means)), _MeantSession)
                if len(found) == 1:
                    return to_label(found[0]).choose_reference(self.source)
                if found:
                    named = ", ".join(each.describe(self.source) for each in found[:_CANDIDATES_MAX])
                    more = " and more" if len(found) > _CANDIDATES_MAX else ""
                    raise AmbiguousId(f"{written!r} may mean several sessions: {named}{more}; write its id")
        raise SessionNotFound(f"there is no session {written!r}")

    def _iterate_meanings(self, connection: Connection, written: str) -> Iterator[sa.ColumnElement[bool]]:
        """Yield a condition for each way in which ``written`` may mean sessions, the most exact one first."""
        theirs = is_of_tenant(self.tenant, sessions)
        yield session_is(self.tenant, self.source, written)
        yield theirs & (sessions.c.name == written)
        yield sessions.c.pk.in_(self._find_titled(connection, written))
        if digits := written.lower().removeprefix(PREFIXES["run"]):
            is_named = (sessions.c.source == self.source) & begins_with(sessions.c.name, written)
            yield theirs & (begins_with(sessions.c.session_id, f"{PREFIXES['run']}{digits}") | is_named)

    def _find_titled(self, connection: Connection, title: str) -> list[int]:
        """Find the sessions that a title may mean."""
        found = self._list_titled(connection, title)
        named = [pk for pk, its in found if its == title]
        return named if len(named) > 1 else [pk for pk, _ in found[:1]]

    def _list_titled(self, connection: Connection, title: str) -> list[tuple[int, str]]:
        """List the sessions with this title and the forks that are numbered after it, newest first."""
        numbered = re.compile(rf"{re.escape(title)}(?: #\d{{1,9}})?")
        titles = list_newest_titles(connection, is_of_tenant(self.tenant, sessions), sa.not_(IS_OF_CHILD))
        return [(pk, its) for pk, its in titles if numbered.fullmatch(its)]

    def require(self, reference: str) -> None:
        """Require that the session exists. Raises ``SessionNotFound``."""
        with self.database.read() as connection:
            self._load_row(connection, reference)

    def open(
        self,
        new: NewRun,
        *,
        title: str | None,
        model: str | None,
        kept: Mapping[str, object] | None = None,
        origin: SessionOrigin | None = None,
    ) -> SessionView:
        """Open the session that ``new`` would open, with its history and without a run; ``kept`` is the document of
        ``CONVERSATION_KEY``. Raises ``SessionExists``, ``TitleTaken``."""
        with self.database.write() as connection:
            tools_hash = store_blob(connection, new.tools)
            key = self._require_free_title(connection, title)
            values = {**build_session_values(new, tools_hash), "title": title, "title_key": key, "model": model}
            named = new.session_id if new.session_id is not None and is_session_id(new.session_id) else None
            opened = self._insert_session(connection, {**values, "session_id": named or new.run_id or create_run_id()})
            fill_prompt(connection, opened.pk, new)
            if insert_history(connection, opened.pk, new.spec):
                mark_due(connection, opened.pk)
            if origin is not None:
                self._write_origin(connection, opened.pk, origin)
            if kept is not None:
                document = {"session_pk": opened.pk, "key": CONVERSATION_KEY, "body": dump_canonical_json(kept)}
                connection.execute(sa.insert(session_documents).values(**document))
            record_action(connection, Act.SESSION_OPEN, opened.session_id)
            return _load_views(connection, [self._load_by_pk(connection, opened.pk)])[0]

    def _write_origin(self, connection: Connection, pk: int, origin: SessionOrigin) -> None:
        values: dict[str, Any] = {"ended_at": origin.ended_at, "end_reason": origin.end_reason}
        if origin.parent is not None:
            its = session_is(self.tenant, self.source, origin.parent)
            values["forked_from"] = sa.select(sessions.c.session_id).where(its).scalar_subquery()
        connection.execute(sa.update(sessions).where(sessions.c.pk == pk).values(**values))
        said = [{"at": at, "number": seq} for seq, at in enumerate(origin.moments, start=1) if at is not None]
        if said:
            this = sa.and_(messages.c.session_pk == pk, messages.c.seq == sa.bindparam("number"))
            connection.execute(sa.update(messages).where(this).values(created_at=sa.bindparam("at")), said)

    def change(self, reference: str, changes: SessionChanges) -> SessionView:
        """Change a session. Raises ``SessionNotFound``, ``TitleTaken``."""
        with self.database.write() as connection:
            return self.write_change(connection, reference, changes)

    def write_change(self, connection: Connection, reference: str, changes: SessionChanges) -> SessionView:
        """Change a session in the caller's transaction; otherwise like ``change``."""
        try:
            return self._write_change(connection, reference, changes)
        except sa.exc.IntegrityError:  # another session took the title at this moment
            raise TitleTaken(f"another session is called {changes.title!r}") from None

    def _write_change(self, connection: Connection, reference: str, changes: SessionChanges) -> SessionView:
        values: dict[str, Any] = {}
        if changes.is_archived is not None:
            values["archived_at"] = db_now() if changes.is_archived else None
        if changes.end_reason is not None:
            values |= {"end_reason": changes.end_reason or None, "ended_at": db_now() if changes.end_reason else None}
        found = self._load_row(connection, reference)
        if changes.title is not None:
            key = self._require_free_title(connection, changes.title or None, besides=found.pk)
            values |= {"title": changes.title or None, "title_key": key}
        if values:
            connection.execute(sa.update(sessions).where(sessions.c.pk == found.pk).values(**values))
            record_action(
                connection,
                Act.SESSION_CHANGE,
                found.session_id,
                after={"changed": sorted(set(values) - {"title_key"})},
            )
        return _load_views(connection, [self._load_by_pk(connection, found.pk)])[0]

    def list_messages(self, reference: str, *, after: int = 0, limit: int = 1_000) -> list[MessageView]:
        """List rows numbered above ``after``, in order. Raises ``SessionNotFound``."""
        with self.database.read() as connection:
            of_session = is_in_transcript(connection, self._load_row(connection, reference).pk)
            page = _ROWS.where(of_session, messages.c.seq > after).order_by(messages.c.seq).limit(limit)
            rows = fetch_rows(connection.execute(page), _MessageFacts)
            asking = sa.and_(of_session, messages.c.seq <= after, messages.c.role == Role.ASSISTANT.value)
            lead = fetch_row(
                connection.execute(_ROWS.where(asking).order_by(messages.c.seq.desc()).limit(1)), _MessageFacts
            )
        names: dict[str, str] = _map_tool_names(lead) if lead is not None else {}
        found = []
        for row in rows:
            names |= _map_tool_names(row)
            called = json.loads(row.body).get("tool_call_id") if row.role == Role.TOOL.value else None
            found.append(
                MessageView(
                    seq=row.seq,
                    role=Role(row.role),
                    body=row.body,
                    created_at=row.created_at,
                    tool_name=names.get(str(called)),
                )
            )
        return found

    def fork(
        self, reference: str, *, name: str | None = None, title: str | None = None, last: int | None = None
    ) -> SessionView:
        """Open a session called ``name``, or by its id, that begins with a copy of another session's transcript up to
        row ``last``; ``None`` for all of it that is settled, 0 for nothing of it. Its prompts begin with the same bytes
        (I7), and it works in the same workspace. Raises ``SessionNotFound``, ``SessionExists``, ``TitleTaken``,
        ``InvalidFork`` and, where a run is at work and nothing before it can be copied, ``SessionActive``."""
        with self.database.write() as connection:
            return self.insert_fork(connection, reference, name=name, title=title, last=last)

    def insert_fork(
        self,
        connection: Connection,
        reference: str,
        *,
        name: str | None = None,
        title: str | None = None,
        last: int | None = None,
    ) -> SessionView:
        """Fork a session in the caller's transaction; otherwise like ``fork``."""
        source = self._load_row(connection, reference, is_locked=True)
        require_not_erased(connection, source.pk)
        cut = _find_cut(connection, source, last)
        this = sessions.c.pk == source.pk
        kept = (sessions.c.system_prompt, sessions.c.context_at, sessions.c.tools_hash, sessions.c.workspace)
        prompt, context_at, tools_hash, workspace = connection.execute(sa.select(*kept).where(this)).one()
        called = title or self._find_next_title(connection, source)
        session_id = create_run_id()
        values = {
            "session_id": session_id,
            "tenant": self.tenant,
            "source": self.source,
            "name": name or session_id,
            "system_prompt": prompt or load_system_prompt(connection, source.pk),
            "context_at": context_at,
            "tools_hash": tools_hash,
            "workspace": workspace,
            "title": called,
            "title_key": self._require_free_title(connection, called),
            "model": source.model,
            "forked_from": source.session_id,
            "message_seq": cut,
        }
        opened = self._insert_session(connection, values)
        _copy_rows(connection, source.pk, opened.pk, cut)
        record_rewind(connection, opened.pk, Rewind(calls=match_calls_after(connection, source.pk, cut)))
        if cut == 0 and (note := take_note(connection, opened.pk, 1)):
            insert_messages(connection, opened.pk, 0, note)
            connection.execute(sa.update(sessions).where(sessions.c.pk == opened.pk).values(message_seq=1))
        mark_due(connection, opened.pk)
        copied = {"from": source.session_id, "messages": cut}
        record_action(connection, Act.SESSION_FORK, opened.session_id, after=copied)
        connection.execute(sa.update(sessions).where(this).values(ended_at=db_now(), end_reason=BRANCHED))
        return _load_views(connection, [opened])[0]

    def detach_forks(self, reference: str) -> None:
        """Make the forks of this session independent, so that they are not deleted when it is erased. Raises
        ``SessionNotFound``."""
        with self.database.write() as connection:
            source = self._load_row(connection, reference)
            its = sa.and_(sessions.c.tenant == self.tenant, sessions.c.forked_from == source.session_id)
            connection.execute(sa.update(sessions).where(its).values(forked_from=sessions.c.session_id))

    def _require_free_title(self, connection: Connection, title: str | None, *, besides: int = 0) -> str | None:
        """Return the unique key of a title; ``None`` without a title, and while texts are encrypted. Raises
        ``TitleTaken``."""
        if title is None or not is_searchable(self.database):
            return None
        key = hash_title(title)
        this = sa.and_(sessions.c.tenant == self.tenant, sessions.c.title_key == key, sessions.c.pk != besides)
        owner = connection.execute(sa.select(sessions.c.session_id).where(this)).scalar()
        if owner is not None:
            raise TitleTaken(f"the session {owner!r} is called {title!r}")
        return key

    def _find_next_title(self, connection: Connection, source: _SessionFacts) -> str | None:
        """Return ``base #N`` for a fork of ``base`` or ``base #N-1``, with the first free N; ``None`` when none is
        free."""
        if source.title is None:
            return None
        base = re.sub(r" #\d{1,9}$", "", source.title)
        forks = sa.select(sessions.c.title).where(
            sessions.c.tenant == self.tenant,
            sessions.c.forked_from == source.session_id,
            sessions.c.title.is_not(None),
        )
        named = [source.title, *connection.execute(forks).scalars()]
        numbered = re.compile(rf"{re.escape(base)} #(\d{{1,9}})")
        numbers = [int(found[1]) for title in named if (found := numbered.fullmatch(title))]
        first = max(numbers, default=1) + 1
        titles = {
            hash_title(title): title for title in (number_title(base, n) for n in range(first, first + _TITLES_TRIED))
        }
        its = sa.and_(sessions.c.tenant == self.tenant, sessions.c.title_key.in_(titles))
        taken = set(connection.execute(sa.select(sessions.c.title_key).where(its)).scalars())
        return next((title for key, title in titles.items() if key not in taken), None)

    def _select_sessions(self) -> sa.Select[Any]:
        return sa.select(*select_columns(sessions, _SessionFacts)).where(is_of_tenant(self.tenant, sessions))

    def _load_row(self, connection: Connection, reference: str, *, is_locked: bool = False) -> _SessionFacts:
        wanted = self._select_sessions().where(session_is(self.tenant, self.source, reference))
        found = connection.execute(wanted.with_for_update() if is_locked else wanted)
        row = fetch_row(found, _SessionFacts)
        if row is None:
            raise SessionNotFound(f"there is no session {reference!r}")
        return row

    def _load_by_pk(self, connection: Connection, pk: int) -> _SessionFacts:
        return fetch_one(connection.execute(self._select_sessions().where(sessions.c.pk == pk)), _SessionFacts)

    def _insert_session(self, connection: Connection, values: Mapping[str, Any]) -> _SessionFacts:
        inserted = build_insert_ignoring(connection, sessions).values(**values, created_at=db_now(), active_at=db_now())
        pk = connection.execute(inserted.returning(sessions.c.pk)).scalar()
        if pk is None:
            self._require_free_title(connection, values["title"])  # another session may have taken it at this moment
            raise SessionExists(f"there is a session {values['name']!r} already")
        return self._load_by_pk(connection, int(pk))


def _is_from(kind: str) -> sa.ColumnElement[bool]:
    """Condition that this kind of source opened the session: named sessions store it, and for others their first run
    does."""
    named = sa.or_(sessions.c.source == kind, sessions.c.source.startswith(f"{kind}:", autoescape=True))
    first = sa.exists().where(runs.c.run_id == sessions.c.session_id, runs.c.origin == kind).correlate(sessions)
    return sa.or_(named, sa.and_(sessions.c.source.is_(None), first))


def list_turn_messages(database: Database, run_id: str) -> list[dict[str, Any]]:
    """List the messages that a run added to the transcript, in order, in chat-completions form."""
    its = _ROWS.join(runs, runs.c.pk == messages.c.run_pk).where(
        runs.c.run_id == run_id, messages.c.session_pk == runs.c.session_pk
    )
    rows = fetch_rows(database.select(its.order_by(messages.c.seq)), _MessageFacts)
    return [json.loads(row.body) for row in rows]


# --- what a session looks like ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _RelatedFacts:
    """Facts of other rows about some sessions."""

    sums: dict[int, _SessionSum] = field(default_factory=dict)
    ends: dict[int, _EndRun] = field(default_factory=dict)
    calls: dict[int, int] = field(default_factory=dict)
    beginnings: dict[int, str | None] = field(default_factory=dict)
    parents: dict[int | str, SessionLabel] = field(default_factory=dict)


def _load_views(connection: Connection, rows: Sequence[_SessionFacts]) -> list[SessionView]:
    if not rows:
        return []
    around = _load_related(connection, rows)
    return [_to_view(row, around) for row in rows]


def _load_related(connection: Connection, rows: Sequence[_SessionFacts]) -> _RelatedFacts:
    pks = [row.pk for row in rows]
    found = _RelatedFacts()
    found.sums = {row.session_pk: row for row in fetch_rows(connection.execute(_select_sums(pks)), _SessionSum)}
    edges = {pk for row in found.sums.values() for pk in (row.first, row.last)}
    wanted = sa.select(*select_columns(runs, _EndRun)).where(runs.c.pk.in_(edges))
    found.ends = {row.pk: row for row in fetch_rows(connection.execute(wanted), _EndRun)}
    counted = (
        sa.select(runs.c.session_pk, sa.func.count().label("calls"))
        .select_from(tool_calls.join(runs, runs.c.pk == tool_calls.c.run_pk))
        .where(runs.c.session_pk.in_(pks))
        .group_by(runs.c.session_pk)
    )
    found.calls = {row.session_pk: int(row.calls) for row in fetch_rows(connection.execute(counted), _Counted)}
    begun = sa.select(sessions.c.pk, _beginning.label("text")).where(sessions.c.pk.in_(pks))
    found.beginnings = {row.pk: row.text for row in fetch_rows(connection.execute(begun), _Beginning)}
    found.parents = _load_parents(connection, rows, found.ends.values())
    return found


def _select_sums(pks: Sequence[int]) -> sa.Select[Any]:
    def sum_column(column: sa.ColumnElement[Any], name: str) -> sa.ColumnElement[Any]:
        return sa.cast(sa.func.sum(column), sa.BigInteger()).label(name)

    return (
        sa.select(
            runs.c.session_pk,
            sa.func.min(runs.c.pk).label("first"),
            sa.func.max(runs.c.pk).label("last"),
            sum_column(runs.c.input_tokens, "input"),
            sum_column(runs.c.output_tokens, "output"),
            sum_column(runs.c.cache_read_tokens, "cache_read"),
            sum_column(runs.c.cache_write_tokens, "cache_write"),
            sum_column(runs.c.reasoning_tokens, "reasoning"),
            sum_column(runs.c.cost_nano_usd, "nano_usd"),
            sum_column(sa.case((runs.c.cost_status == CostStatus.UNKNOWN.value, 1), else_=0), "unpriced_runs"),
            sum_column(runs.c.iteration, "iterations"),
            sa.func.max(runs.c.updated_at).label("last_active"),
            sa.func.max(runs.c.created_at).label("last_created"),
        )
        .where(runs.c.session_pk.in_(pks))
        .group_by(runs.c.session_pk)
    )


def _load_parents(
    connection: Connection, rows: Sequence[_SessionFacts], ends: Collection[_EndRun]
) -> dict[int | str, SessionLabel]:
    """Load the sessions from which others come: by their id for forks, by the row id of the parent run for children."""
    of_runs = sa.select(runs.c.pk.label("key"), sessions.c.session_id, sessions.c.source, sessions.c.name)
    of_runs = of_runs.join(sessions, sessions.c.pk == runs.c.session_pk)
    parents = {end.parent_pk for end in ends if end.parent_pk is not None}
    found = fetch_rows(connection.execute(of_runs.where(runs.c.pk.in_(parents))), _LabelRow)
    forked = {row.forked_from for row in rows if row.forked_from is not None}
    its = sa.select(sessions.c.session_id.label("key"), sessions.c.session_id, sessions.c.source, sessions.c.name)
    found += fetch_rows(connection.execute(its.where(sessions.c.session_id.in_(forked))), _LabelRow)
    return {row.key: SessionLabel(id=row.session_id, source=row.source, name=row.name) for row in found}


def _to_view(row: _SessionFacts, around: _RelatedFacts) -> SessionView:
    sums = around.sums.get(row.pk)
    first = around.ends.get(sums.first) if sums else None
    last = around.ends.get(sums.last) if sums else None
    source = row.source or (first.origin if first else None)
    has_ended = row.ended_at is not None and (sums is None or sums.last_created <= row.ended_at)
    return SessionView(
        label=SessionLabel(id=row.session_id, source=row.source, name=row.name),
        place=row.place,
        source=parse_source_kind(source) if source else None,
        title=row.title,
        model=row.model or (last.model if last else None),
        created_at=row.created_at,
        last_active=max(row.created_at, sums.last_active if sums else 0.0),
        ended_at=row.ended_at if has_ended else None,
        end_reason=row.end_reason if has_ended else None,
        message_count=row.message_seq,
        preview=_extract_preview(around.beginnings.get(row.pk)),
        parent=_choose_parent(row, first, around.parents),
        totals=_to_totals(sums, around.calls.get(row.pk, 0)),
        is_at_work=row.active_run_pk is not None,
        is_of_child=first is not None and first.parent_pk is not None,
        archived_at=row.archived_at,
        asks_model=row.model,
    )


def _choose_parent(
    row: _SessionFacts, first: _EndRun | None, known: Mapping[int | str, SessionLabel]
) -> SessionLabel | None:
    if row.forked_from == row.session_id:
        return None
    if row.forked_from is not None:
        return known.get(row.forked_from, SessionLabel(id=row.forked_from))
    return known.get(first.parent_pk) if first is not None and first.parent_pk is not None else None


def _to_totals(sums: _SessionSum | None, calls: int) -> SessionTotals:
    if sums is None:
        return SessionTotals(tool_calls=calls)
    return SessionTotals(
        input=sums.input,
        output=sums.output,
        cache_read=sums.cache_read,
        cache_write=sums.cache_write,
        reasoning=sums.reasoning,
        nano_usd=sums.nano_usd,
        unpriced_runs=sums.unpriced_runs,
        iterations=sums.iterations,
        tool_calls=calls,
    )


_CONTENT = re.compile(r'"(?:content|text)":"((?:[^"\\]|\\[^u]|\\u[0-9a-fA-F]{4})*)')


def _extract_preview(beginning: str | None) -> str:
    """Extract the first words from the beginning of a stored row, which may be cut anywhere."""
    found = _CONTENT.search(beginning or "")
    if found is None:
        return ""
    text = json.loads(f'"{found[1]}"', strict=False)
    line = " ".join(text.split())
    return line if len(line) <= _PREVIEW_CHARS else f"{line[:_PREVIEW_CHARS]}..."


def _map_tool_names(row: _MessageFacts) -> dict[str, str]:
    """Map the ids of the calls in a reply to the names of their tools."""
    if row.role != Role.ASSISTANT.value:
        return {}
    return {str(call["id"]): str(call["function"]["name"]) for call in json.loads(row.body).get("tool_calls") or ()}


# --- forks -----------------------------------------------------------------------------------------------------------


def _find_cut(connection: Connection, source: _SessionFacts, last: int | None) -> int:
    """Find the last row to copy. Raises ``InvalidFork``, ``SessionActive``."""
    of_source = is_in_transcript(connection, source.pk)
    begun = None
    if source.active_run_pk is not None:
        its = sa.select(sa.func.min(messages.c.seq)).where(of_source, messages.c.run_pk == source.active_run_pk)
        begun = connection.execute(its).scalar()
    # The turn of the active run is incomplete until the run ends, so its messages are left out.
    whole = source.message_seq if begun is None else int(begun) - 1
    if last is None:
        if whole == 0 and begun is not None:
            raise SessionActive("a run is at work in this session and no turn of it is over; fork it when that ended")
        return whole
    if last == 0:
        return 0
    if not 1 <= last <= whole:
        raise InvalidFork(f"there is no message {last} in what is over of this session, which has {whole}")
    _require_whole(connection, of_source, last, whole)
    return last


def _require_whole(connection: Connection, of_source: sa.ColumnElement[bool], last: int, whole: int) -> None:
    """Require that no copied call loses its result. Raises ``InvalidFork``."""
    wanted = sa.select(messages.c.role).where(of_source, messages.c.seq == min(last + 1, whole))
    following = connection.execute(wanted).scalar()
    row = fetch_row(connection.execute(_ROWS.where(of_source, messages.c.seq == last)), _MessageFacts)
    asks = row is not None and row.role == Role.ASSISTANT.value and bool(json.loads(row.body).get("tool_calls"))
    if asks or (last < whole and following == Role.TOOL.value):
        raise InvalidFork(f"message {last} is followed by results of tools that belong to it; name the last of them")


def _copy_rows(connection: Connection, source_pk: int, fork_pk: int, cut: int) -> None:
    """Copy the rows, so that neither session needs the other; large texts are shared by their hash. Permissions that a
    person gave, and what a client stored with the conversation, stay with the source."""
    copy_rows(connection, source_pk, fork_pk, cut)
    documents = sa.select(
        sa.literal(fork_pk, sessions.c.pk.type), session_documents.c.key, session_documents.c.body
    ).where(
        session_documents.c.session_pk == source_pk,
        session_documents.c.key.not_in((APPROVED_KEY, CONVERSATION_KEY, FORK_KEY)),
    )
    connection.execute(sa.insert(session_documents).from_select(("session_pk", "key", "body"), documents))
