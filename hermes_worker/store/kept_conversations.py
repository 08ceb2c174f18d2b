"""Sessions as conversations of OpenAI's API: the metadata that a client stores with one, and its rows by place."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.run import TERMINAL
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.owners import TenantRows
from hermes_worker.store.rows import build_insert_ignoring, insert_messages
from hermes_worker.store.runs.runs import SessionActive, SessionNotFound, session_is
from hermes_worker.store.search.index_queue import delete_from_index, mark_due
from hermes_worker.store.sessions import CONVERSATION_KEY
from hermes_worker.store.tables import blobs, messages, runs, session_documents, sessions

_SOURCE = "api"
_METADATA = "metadata"
_IS_DELETED = "is_deleted"


class ItemInUse(HermesError):
    """A row cannot be deleted: a run has begun after it, or another row needs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptConversation:
    """A session as a client of OpenAI's API sees it. Times are epoch seconds."""

    session_pk: int
    session_id: str
    name: str | None
    created_at: float
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemRow:
    """A row of a transcript, with its canonical JSON in chat-completions form."""

    seq: int
    role: Role
    body: str
    is_of_run: bool
    """A run wrote the row; other rows were brought with the conversation."""


class _LastRow(NamedTuple):
    run_pk: int
    role: str


class _ConversationRow(NamedTuple):
    pk: int
    session_id: str
    name: str | None
    created_at: float
    message_seq: int
    active_run_pk: int | None
    document: str | None


class _PlacedRow(NamedTuple):
    seq: int
    role: str
    body: str
    run_pk: int


_of_session = (session_documents.c.session_pk == sessions.c.pk) & (session_documents.c.key == CONVERSATION_KEY)
_KEPT = sa.select(
    sessions.c.pk,
    sessions.c.session_id,
    sessions.c.name,
    sessions.c.created_at,
    sessions.c.message_seq,
    sessions.c.active_run_pk,
    session_documents.c.body.label("document"),
).select_from(sessions.outerjoin(session_documents, _of_session))
_PLACED = sa.select(
    messages.c.seq, messages.c.role, coalesce_texts(messages.c.body, blobs.c.body).label("body"), messages.c.run_pk
).select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))


class KeptConversations(TenantRows):
    """The conversations of one tenant. ``reference`` is the id of a session, or a name that the API's callers gave.
    Thread-safe."""

    def get(self, reference: str) -> KeptConversation:
        """Load a conversation. Raises ``SessionNotFound``, also for one that was deleted as a conversation."""
        with self.database.read() as connection:
            row, document = self._load_row(connection, reference)
        return _to_conversation(row, document)

    def is_deleted(self, reference: str) -> bool:
        """Whether a client deleted the conversation; ``False`` when there is no such session."""
        wanted = _KEPT.where(session_is(self.tenant, _SOURCE, reference))
        row = fetch_row(self.database.select(wanted), _ConversationRow)
        return row is not None and bool(_parse_document(row).get(_IS_DELETED))

    def describe(self, reference: str, metadata: Mapping[str, str]) -> KeptConversation:
        """Replace the metadata. Idempotent. Raises ``SessionNotFound``."""
        with self.database.write() as connection:
            row, _ = self._load_row(connection, reference, is_locked=True)
            document = {_METADATA: dict(metadata)}
            _write_document(connection, row.pk, document)
            record_action(connection, Act.SESSION_CHANGE, row.session_id, after={"changed": [_METADATA]})
        return _to_conversation(row, document)

    def delete(self, reference: str) -> list[str]:
        """Mark the session as no conversation any more; it stays a session. Returns the ids of its runs that have not
        ended, newest first. Raises ``SessionNotFound``."""
        with self.database.write() as connection:
            row, _ = self._load_row(connection, reference, is_locked=True)
            _write_document(connection, row.pk, {_IS_DELETED: True})
            record_action(connection, Act.SESSION_CHANGE, row.session_id, after={"changed": ["conversation"]})
            ended = [status.value for status in TERMINAL]
            open_runs = sa.select(runs.c.run_id).where(runs.c.session_pk == row.pk, runs.c.status.not_in(ended))
            return list(connection.execute(open_runs.order_by(runs.c.pk.desc())).scalars())

    def append(self, reference: str, brought: Sequence[Mapping[str, object]]) -> list[ItemRow]:
        """Append rows in chat-completions form to the transcript; the next turn sends them. What was sent already stays
        in front of them (I7). Raises ``SessionNotFound``, and ``SessionActive`` while a run is at work, whose rows come
        next. Not idempotent."""
        with self.database.write() as connection:
            row, _ = self._load_row(connection, reference, is_locked=True)
            _require_idle(row)
            rows = [
                Message(seq=seq, role=Role(str(each["role"])), body=dump_canonical_json(dict(each)))
                for seq, each in enumerate(brought, start=row.message_seq + 1)
            ]
            if rows:
                insert_messages(connection, row.pk, 0, rows)
                _set_length(connection, row, row.message_seq + len(rows))
                mark_due(connection, row.pk)
        return [ItemRow(seq=each.seq, role=each.role, body=each.body, is_of_run=False) for each in rows]

    def delete_item(self, reference: str, seq: int) -> None:
        """Delete row ``seq`` if it is the last, was brought by a client, and no turn has begun after it, so that no
        model was sent it. Raises ``SessionNotFound``, ``SessionActive``, ``ItemInUse``."""
        with self.database.write() as connection:
            row, _ = self._load_row(connection, reference, is_locked=True)
            _require_idle(row)
            here = (messages.c.session_pk == row.pk) & (messages.c.seq == seq)
            its = fetch_row(connection.execute(sa.select(*select_columns(messages, _LastRow)).where(here)), _LastRow)
            if its is None or seq != row.message_seq or its.run_pk != 0 or its.role == Role.TOOL.value:
                raise ItemInUse(f"row {seq} is not to be taken back")
            delete_from_index(connection, row.pk, beyond=seq - 1)
            connection.execute(sa.delete(messages).where(here))
            _set_length(connection, row, seq - 1)

    def list_items(self, session_pk: int, *, start: int | None, is_ascending: bool, limit: int) -> list[ItemRow]:
        """List rows from number ``start`` on, in ascending or descending order; ``None`` starts with the first of that
        order."""
        wanted = _PLACED.where(messages.c.session_pk == session_pk)
        if start is not None:
            wanted = wanted.where(messages.c.seq >= start if is_ascending else messages.c.seq <= start)
        wanted = wanted.order_by(messages.c.seq if is_ascending else messages.c.seq.desc()).limit(limit)
        return [_to_item_row(row) for row in fetch_rows(self.database.select(wanted), _PlacedRow)]

    def find_reply_before(self, session_pk: int, seq: int) -> ItemRow | None:
        """Find the last row of the assistant before row ``seq``."""
        its = sa.and_(messages.c.session_pk == session_pk, messages.c.seq < seq)
        wanted = _PLACED.where(its, messages.c.role == Role.ASSISTANT.value).order_by(messages.c.seq.desc()).limit(1)
        row = fetch_row(self.database.select(wanted), _PlacedRow)
        return None if row is None else _to_item_row(row)

    def _load_row(
        self, connection: Connection, reference: str, *, is_locked: bool = False
    ) -> tuple[_ConversationRow, dict[str, object]]:
        wanted = _KEPT.where(session_is(self.tenant, _SOURCE, reference))
        found = connection.execute(wanted.with_for_update(of=sessions) if is_locked else wanted)
        row = fetch_row(found, _ConversationRow)
        document = {} if row is None else _parse_document(row)
        if row is None or document.get(_IS_DELETED):
            raise SessionNotFound(f"there is no session {reference!r}")
        return row, document


def _require_idle(row: _ConversationRow) -> None:
    if row.active_run_pk is not None:
        raise SessionActive(f"a run is at work in {row.name or row.session_id!r}")


def _set_length(connection: Connection, row: _ConversationRow, length: int) -> None:
    connection.execute(sa.update(sessions).where(sessions.c.pk == row.pk).values(message_seq=length))
    record_action(connection, Act.SESSION_CHANGE, row.session_id, after={"changed": ["items"]})


def build_document(metadata: Mapping[str, str]) -> dict[str, object]:
    """Build the document that ``Sessions.open`` stores with a conversation."""
    return {_METADATA: dict(metadata)}


def _parse_document(row: _ConversationRow) -> dict[str, object]:
    return dict(json.loads(row.document)) if row.document is not None else {}


def _write_document(connection: Connection, session_pk: int, document: Mapping[str, object]) -> None:
    values = {"session_pk": session_pk, "key": CONVERSATION_KEY, "body": dump_canonical_json(document)}
    inserted = build_insert_ignoring(connection, session_documents).values(**values).returning(session_documents.c.key)
    if connection.execute(inserted).first() is None:
        here = (session_documents.c.session_pk == session_pk) & (session_documents.c.key == CONVERSATION_KEY)
        connection.execute(sa.update(session_documents).where(here).values(body=values["body"]))


def _to_conversation(row: _ConversationRow, document: Mapping[str, object]) -> KeptConversation:
    return KeptConversation(
        session_pk=row.pk,
        session_id=row.session_id,
        name=row.name,
        created_at=row.created_at,
        metadata=_parse_metadata(document),
    )


def _parse_metadata(document: Mapping[str, object]) -> dict[str, str]:
    found = document.get(_METADATA)
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, Mapping) else {}


def _to_item_row(row: _PlacedRow) -> ItemRow:
    return ItemRow(seq=row.seq, role=Role(row.role), body=row.body, is_of_run=row.run_pk != 0)
