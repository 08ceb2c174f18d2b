"""Runs as people, clients and chats see them: read models, which decide nothing."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import to_usd
from hermes_worker.core.chat_signs import CallSign, RunProgress
from hermes_worker.core.messages import Message
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.principals import DEFAULT_TENANT
from hermes_worker.core.priority import Priority
from hermes_worker.core.run import CallStatus, RunKind, RunStatus
from hermes_worker.core.run_events import StoredEvent
from hermes_worker.core.run_views import CallView, RunView
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.store.engine.database import Database, RowStore
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, fetch_views, select_columns, select_view_columns
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.owners import is_of_tenant
from hermes_worker.store.rows import load_messages, to_usage
from hermes_worker.store.runs import steering
from hermes_worker.store.runs.runs import SESSION_LABEL, find_run, run_missing_error, session_is, to_label
from hermes_worker.store.short_ids import complete_id
from hermes_worker.store.tables import (
    RUN_IS_OPEN,
    blobs,
    deleted_runs,
    events,
    messages,
    run_inputs,
    run_tags,
    runs,
    sessions,
    tool_calls,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastStatus:
    """The status and the exit reason of a run that has ended."""

    status: RunStatus
    exit_reason: str


_LAST_EVENT = (
    sa.select(events.c.event)
    .where(events.c.run_pk == runs.c.pk, events.c.seq == runs.c.event_seq)
    .correlate(runs)
    .scalar_subquery()
)
_OUTPUT = (
    sa.select(coalesce_texts(messages.c.body, blobs.c.body))
    .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
    .where(messages.c.session_pk == runs.c.session_pk, messages.c.seq == runs.c.output_seq)
    .correlate(runs)
    .scalar_subquery()
)


class _ViewRow(NamedTuple):
    """What is shown of a run in another form than it is stored, or tells what kind of run it is."""

    pk: int
    run_id: str
    status: str
    steers: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_tokens: int
    refused_attempts: int
    unknown_attempts: int
    unknown_input_tokens: int
    unknown_output_tokens: int
    cost_nano_usd: int
    cost_status: str | None
    doubtful_nano_usd: int
    priority: int
    retry_of_pk: int | None
    parent_pk: int | None
    cause_pk: int | None
    origin: str | None
    failure_message: str | None
    session_id: str
    session_source: str | None
    session_name: str | None
    session_title: str | None
    title: str | None
    last_event: str | None
    output_body: str | None


_AS_STORED = tuple(each.name for each in fields(RunView) if each.name in runs.c and each.name not in _ViewRow._fields)
"""Fields that a run has under the name and with the value of its column."""
_COLUMNS = (*_ViewRow._fields, *_AS_STORED)


class _PlaceRow(NamedTuple):
    session_pk: int
    message_seq: int


class _OfSession(NamedTuple):
    pk: int
    session_pk: int


class _StoredEventRow(NamedTuple):
    seq: int
    at: float
    event: str
    data: str


class NumberedEvent(Protocol):
    """The row of an event."""

    @property
    def seq(self) -> int: ...

    @property
    def at(self) -> float: ...

    @property
    def event(self) -> str: ...

    @property
    def data(self) -> str: ...


_VIEW = (
    sa.select(
        *(runs.c[name] for name in _COLUMNS if name in runs.c),
        *SESSION_LABEL,
        sessions.c.title.label("session_title"),
        run_inputs.c.title,
        _LAST_EVENT.label("last_event"),
        _OUTPUT.label("output_body"),
    )
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .outerjoin(run_inputs, run_inputs.c.run_pk == runs.c.pk)
)


_LISTED = sa.select(
    *(runs.c[name] for name in _COLUMNS if name in runs.c),
    runs.c.session_pk,
    runs.c.event_seq,
    runs.c.output_seq,
)


def _select_page(wanted: sa.Select[Any]) -> sa.Select[Any]:
    """Select the views of the rows of ``_LISTED`` that are ``wanted``, newest first, on PostgreSQL. What belongs to
    them is read as sorted lists of keys and not run by run. From version 17 on the server goes down an index once for
    all keys of a list that stand together, so a page costs about the same however deep the indexes are."""
    page = _materialize(wanted, "page")
    is_in_page = sessions.c.pk == sa.any_(sa.func.array(sa.select(page.c.session_pk).scalar_subquery()))
    of_session = (sessions.c.pk, *SESSION_LABEL, sessions.c.title.label("session_title"))
    within = _materialize(sa.select(*of_session).where(is_in_page), "of_page")
    is_asked = run_inputs.c.run_pk == sa.any_(sa.func.array(sa.select(page.c.pk).scalar_subquery()))
    asked = _materialize(sa.select(run_inputs.c.run_pk, run_inputs.c.title).where(is_asked), "asked")
    last = _group_keys(page.c.event_seq, page.c.pk).subquery()
    told = sa.select(events.c.run_pk, events.c.event.label("last_event"))
    told = told.join(last, (events.c.run_pk == sa.any_(last.c.pks)) & (events.c.seq == last.c.seq))
    ends = _group_keys(page.c.output_seq, page.c.session_pk).subquery()
    body = coalesce_texts(messages.c.body, blobs.c.body).label("output_body")
    said = (
        sa.select(messages.c.session_pk, messages.c.seq, body)
        .join(ends, (messages.c.session_pk == sa.any_(ends.c.pks)) & (messages.c.seq == ends.c.seq))
        .outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
    )
    event, output = _materialize(told, "told"), _materialize(said, "said")
    of_rows = (page, within, asked, event, output)
    return (
        sa.select(*(next(each.c[name] for each in of_rows if name in each.c) for name in _COLUMNS))
        .join(within, within.c.pk == page.c.session_pk)
        .outerjoin(asked, asked.c.run_pk == page.c.pk)
        .outerjoin(event, event.c.run_pk == page.c.pk)
        .outerjoin(output, (output.c.session_pk == page.c.session_pk) & (output.c.seq == page.c.output_seq))
        .order_by(page.c.pk.desc())
    )


def _group_keys(seq: sa.ColumnElement[Any], key: sa.ColumnElement[Any]) -> sa.Select[Any]:
    """Group keys by ``seq``: for each ``seq`` the distinct keys that it stands beside."""
    together: sa.ColumnElement[Any] = sa.func.array_agg(key.distinct(), type_=sa.ARRAY(sa.BigInteger()))
    return sa.select(seq.label("seq"), together.label("pks")).where(seq.is_not(None)).group_by(seq)


def _materialize(rows: sa.Select[Any], name: str) -> sa.CTE:
    return rows.cte(name).prefix_with("materialized")


class Views(RowStore):
    """Read models over one database. Thread-safe."""

    def load_run(self, run_id: str) -> RunView:
        """Load a run. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            found = _read_views(connection.execute(_VIEW.where(runs.c.run_id == run_id)))
            if not found:
                raise run_missing_error(connection, run_id)
            row, view = found[0]
            said = steering.load_pending(connection, row.pk) if row.steers else []
        return replace(view, pending_steer="\n".join(said) if said else None)

    def complete_id(self, written: str, *, tenant: str = DEFAULT_TENANT) -> str:
        """Find the id of the one run of a tenant whose id begins with ``written``, with ``run_`` or without. Raises
        ``AmbiguousId``."""
        with self.database.read() as connection:
            found = complete_id(connection, runs.c.run_id, written, prefix="run_", where=is_of_tenant(tenant, runs))
            if found != written:
                return found
            # The id of a deleted run is completed too, so that the lookup can say that the run was deleted.
            gone = deleted_runs.c.tenant == tenant
            return complete_id(connection, deleted_runs.c.run_id, written, prefix="run_", where=gone)

    def list_runs(
        self,
        *,
        limit: int = 50,
        before: str | None = None,
        status: RunStatus | None = None,
        session_id: str | None = None,
        tenant: str = DEFAULT_TENANT,
        source: str = "api",
    ) -> list[RunView]:
        """List runs of a tenant, newest first. ``before`` is the id of the run that ended the page before.
        ``session_id`` is an id, or what ``source`` calls a session. Raises ``RunNotFound`` for an unknown
        ``before``."""
        is_sqlite = self.database.is_sqlite
        wanted = (
            (_VIEW if is_sqlite else _LISTED).where(is_of_tenant(tenant, runs)).order_by(runs.c.pk.desc()).limit(limit)
        )
        if status is not None:
            wanted = wanted.where(runs.c.status == status.value)
        if session_id is not None:
            named = sa.select(sessions.c.pk).where(session_is(tenant, source, session_id))
            wanted = wanted.where(runs.c.session_pk == named.scalar_subquery())
        with self.database.read() as connection:
            if before is not None:
                wanted = wanted.where(runs.c.pk < find_run(connection, before, tenant))
            found = connection.execute(wanted if is_sqlite else _select_page(wanted))
            return [view for _, view in _read_views(found)]

    def list_calls(self, run_id: str, *, limit: int = 200, only_troubled: bool = False) -> list[CallView]:
        """List the newest ``limit`` tool calls of a run, oldest first. With ``only_troubled`` only calls whose outcome
        is unknown, or that took more than one attempt. Raises ``RunNotFound``."""
        wanted = (tool_calls.c.status == CallStatus.UNKNOWN.value) | (tool_calls.c.attempt > 1)
        with self.database.read() as connection:
            pk = find_run(connection, run_id)
            found = connection.execute(
                sa.select(*select_view_columns(tool_calls, CallView))
                .where(tool_calls.c.run_pk == pk, wanted if only_troubled else sa.true())
                .order_by(tool_calls.c.iteration.desc(), tool_calls.c.position.desc())
                .limit(limit)
            )
            return fetch_views(found, CallView)[::-1]

    def load_transcript(self, run_id: str, *, after: int = 0) -> list[Message]:
        """Every row of the run's session behind ``after`` and up to now, in order. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            found = connection.execute(sa.select(*select_columns(runs, _PlaceRow)).where(runs.c.run_id == run_id))
            row = fetch_row(found, _PlaceRow)
            if row is None:
                raise run_missing_error(connection, run_id)
            return load_messages(connection, row.session_pk, after + 1, row.message_seq)

    def load_tools(self, run_id: str) -> str:
        """The tool definitions of the run's session, as a JSON list. Raises ``RunNotFound``."""
        statement = (
            sa.select(blobs.c.body)
            .select_from(runs)
            .join(sessions, sessions.c.pk == runs.c.session_pk)
            .join(blobs, blobs.c.hash == sessions.c.tools_hash)
            .where(runs.c.run_id == run_id)
        )
        with self.database.read() as connection:
            body: str | None = connection.execute(statement).scalar()
            if body is None:
                raise run_missing_error(connection, run_id)
        return body

    def list_events_after(self, run_id: str, seq: int, *, limit: int = 500) -> list[StoredEvent]:
        """List events numbered above ``seq``, in order, with texts stored by reference filled in. Raises
        ``RunNotFound``."""
        with self.database.read() as connection:
            of_session = sa.select(*select_columns(runs, _OfSession)).where(runs.c.run_id == run_id)
            run = fetch_row(connection.execute(of_session), _OfSession)
            if run is None:
                raise run_missing_error(connection, run_id)
            found = connection.execute(
                sa.select(*select_columns(events, _StoredEventRow))
                .where(events.c.run_pk == run.pk, events.c.seq > seq)
                .order_by(events.c.seq)
                .limit(limit)
            )
            return [load_event(connection, run.session_pk, row) for row in fetch_rows(found, _StoredEventRow)]

    def load_event_seqs(self, run_ids: Collection[str]) -> dict[str, int]:
        """The number of the newest event of each of these runs: one query, however many readers follow them."""
        if not run_ids:
            return {}
        rows = self.database.select(sa.select(runs.c.run_id, runs.c.event_seq).where(runs.c.run_id.in_(run_ids)))
        return {run_id: int(seq) for run_id, seq in rows}

    def load_ends(self, run_ids: Collection[str]) -> dict[str, LastStatus]:
        """Load the ends of the runs among ``run_ids`` that have ended, with one query."""
        if not run_ids:
            return {}
        found = self.database.select(
            sa.select(runs.c.run_id, runs.c.status, runs.c.exit_reason).where(
                runs.c.run_id.in_(run_ids), runs.c.exit_reason.is_not(None)
            )
        )
        return {run_id: LastStatus(status=RunStatus(status), exit_reason=reason) for run_id, status, reason in found}

    def find_owned(self, run_ids: Collection[str], tenant: str) -> set[str]:
        """Return the ids among ``run_ids`` of runs that belong to a tenant, with one query."""
        if not run_ids:
            return set()
        wanted = sa.select(runs.c.run_id).where(runs.c.run_id.in_(run_ids), runs.c.tenant == tenant)
        return set(self.database.select(wanted).scalars())

    def count_calls(self, run_id: str) -> dict[CallStatus, int]:
        """The tool calls of a run by status. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            pk = find_run(connection, run_id)
            rows = connection.execute(
                sa.select(tool_calls.c.status, sa.func.count())
                .where(tool_calls.c.run_pk == pk)
                .group_by(tool_calls.c.status)
            )
            return {CallStatus(status): int(count) for status, count in rows}

    def list_open_run_ids(self, tenant: str) -> list[str]:
        """List the ids of a tenant's runs that have not ended, oldest first."""
        wanted = sa.select(runs.c.run_id).where(RUN_IS_OPEN, is_of_tenant(tenant, runs)).order_by(runs.c.pk)
        return list(self.database.select(wanted).scalars())

    def count_open(self, *, most: int = 10_000) -> dict[str, int]:
        """Count runs that have not ended, by status; at most ``most`` rows are looked at, so the cost is bounded."""
        looked_at = sa.select(runs.c.status).where(RUN_IS_OPEN).limit(most).subquery()
        rows = self.database.select(sa.select(looked_at.c.status, sa.func.count()).group_by(looked_at.c.status))
        return {status: int(count) for status, count in rows}

    def count_all(self) -> dict[str, int]:
        """Runs by status, terminal ones included."""
        rows = self.database.select(sa.select(runs.c.status, sa.func.count()).group_by(runs.c.status)).all()
        return {status: int(count) for status, count in rows}


def load_event(connection: Connection, session_pk: int, row: NumberedEvent) -> StoredEvent:
    """Build an event of its row. The text, reasoning and tool calls of a message that the row only names are read from
    the transcript."""
    data = json.loads(row.data)
    seq = data.get("message_seq")
    if seq is not None:
        found = load_messages(connection, session_pk, seq, seq)
        if found:
            body = json.loads(found[0].body)
            data["text"] = body.get("content") or ""
            for name in ("reasoning", "tool_calls"):
                if body.get(name):
                    data[name] = body[name]
    return StoredEvent(seq=row.seq, at=row.at, name=row.event, data=data)


def _read_views(found: sa.Result[Any]) -> list[tuple[_ViewRow, RunView]]:
    """Read the runs of a statement that gives ``_COLUMNS``, in any order."""
    read = ((_ViewRow._make(row[: len(_ViewRow._fields)]), row) for row in found.columns(*_COLUMNS))
    return [(row, _to_view(row, stored)) for row, stored in read]


def _to_view(row: _ViewRow, stored: object) -> RunView:
    """Build a view. ``stored`` has the columns ``_AS_STORED`` as attributes."""
    return RunView(
        **{name: getattr(stored, name) for name in _AS_STORED},
        run_id=row.run_id,
        session=to_label(row),
        title=row.title or row.session_title,
        kind=_find_kind(row),
        status=RunStatus(row.status),
        usage=to_usage(row),
        cost_usd=to_usd(row.cost_nano_usd) if row.cost_status else None,
        doubtful_cost_usd=to_usd(row.doubtful_nano_usd),
        cost_status=CostStatus(row.cost_status) if row.cost_status else None,
        output=_read_message_text(row.output_body),
        error=row.failure_message,
        priority=Priority(row.priority),
        session_title=row.session_title,
        last_event=row.last_event,
    )


def _find_kind(row: _ViewRow) -> RunKind:
    if row.parent_pk is not None:
        return RunKind.CHILD
    if row.cause_pk is not None:
        return RunKind.REVIEW if row.run_id == row.session_id else RunKind.FOLLOW_UP
    return RunKind.JOB if row.origin == "cron" else RunKind.REQUEST


def has_kind(row: Any, kinds: Collection[RunKind]) -> sa.ColumnElement[bool]:
    """Build the condition that a run has one of these kinds, as ``_find_kind`` and ``RunView.with_tags`` decide.
    ``row`` has the columns ``pk``, ``parent_pk``, ``cause_pk``, ``origin`` and ``run_id`` of runs."""
    opened = sa.exists().where(sessions.c.session_id == row.run_id)
    judges = sa.exists().where(run_tags.c.run_pk == row.pk, run_tags.c.tag == EVALUATION_SOURCE)
    is_first = row.parent_pk.is_(None) & row.cause_pk.is_(None)
    is_request = is_first & (sa.func.coalesce(row.origin, "") != "cron")
    conditions = {
        RunKind.CHILD: row.parent_pk.is_not(None),
        RunKind.REVIEW: row.cause_pk.is_not(None) & opened,
        RunKind.FOLLOW_UP: row.cause_pk.is_not(None) & ~opened,
        RunKind.REQUEST: is_request & ~judges,
        RunKind.JOB: is_first & (row.origin == "cron"),
        RunKind.EVALUATION: is_request & judges,
    }
    return sa.or_(*(conditions[kind] for kind in sorted(kinds)))


def load_views(
    connection: Connection, *conditions: sa.ColumnElement[bool], limit: int
) -> dict[int, tuple[RunView, int | None]]:
    """Load the newest runs for which the conditions hold, by row id, each with the row id of the run that it repeats,
    or ``None``."""
    is_sqlite = connection.dialect.name == "sqlite"
    wanted = (_VIEW if is_sqlite else _LISTED).where(*conditions).order_by(runs.c.pk.desc()).limit(limit)
    found = _read_views(connection.execute(wanted if is_sqlite else _select_page(wanted)))
    return {row.pk: (view, row.retry_of_pk) for row, view in found}


def _read_message_text(body: str | None) -> str | None:
    if body is None:
        return None
    content = json.loads(body).get("content")
    if isinstance(content, list):  # text parts beside the pictures of the current request
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


_CALLS_MAX = 200


def load_progress(database: Database, run_id: str) -> RunProgress:
    """Load the status of a run and its newest calls, in one statement."""
    wanted = (
        sa.select(runs.c.status, tool_calls.c.name, tool_calls.c.status)
        .outerjoin(tool_calls, tool_calls.c.run_pk == runs.c.pk)
        .where(runs.c.run_id == run_id)
        .order_by(tool_calls.c.iteration.desc(), tool_calls.c.position.desc())
        .limit(_CALLS_MAX)
    )
    found = database.select(wanted).all()
    if not found:
        return RunProgress()
    calls = [CallSign(name, CallStatus(status)) for _, name, status in reversed(found) if name is not None]
    return RunProgress(RunStatus(found[0][0]), calls)
