"""The beginning of a fork's transcript, which is read from the session that it was forked from.

A session that was forked at a step (``features.forks``) has rows of its own from its point on. The rows before it, its
system prompt and its long results stay where they are, and are read from there. When that session is deleted, its forks
take them over first. Only sessions with ``forked_from`` are looked at, so others pay nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.forks import FORK_KEY, ForkTerms
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.row_keys import SessionKey
from hermes_worker.store.tables import messages, session_documents, sessions

_fork = sessions.alias("fork")


class Prefix(NamedTuple):
    """The session from which rows are read, and how many."""

    session_pk: int
    rows: int


class _PrefixRow(NamedTuple):
    session_pk: int
    body: str


class _InheritedPrompt(NamedTuple):
    system_prompt: str


_HAS_TERMS = sa.and_(
    session_documents.c.session_pk == _fork.c.pk,
    session_documents.c.key == FORK_KEY,
)
_OF_SOURCE = sa.and_(sessions.c.session_id == _fork.c.forked_from, sessions.c.tenant == _fork.c.tenant)
_FIND_PREFIX = Prepared(
    sa.select(sessions.c.pk.label("session_pk"), session_documents.c.body)
    .select_from(_fork)
    .join(sessions, _OF_SOURCE)
    .join(session_documents, _HAS_TERMS)
    .where(_fork.c.pk == sa.bindparam("session")),
    takes=SessionKey,
    gives=_PrefixRow,
)
_READ_PROMPT = Prepared(
    sa.select(sessions.c.system_prompt).where(sessions.c.pk == sa.bindparam("session")),
    takes=SessionKey,
    gives=_InheritedPrompt,
)


def find_prefix(connection: Connection, session_pk: int) -> Prefix | None:
    """Find where the beginning of a transcript stands; ``None`` for a session that has all of its rows."""
    row = _FIND_PREFIX.first(connection, {"session": session_pk})
    if row is None or not (rows := ForkTerms.from_json(row.body).rows):
        return None
    return Prefix(row.session_pk, rows)


def is_in_transcript(connection: Connection, session_pk: int) -> sa.ColumnElement[bool]:
    """Build the condition for the rows of ``messages`` that are the transcript of a session, wherever they stand."""
    prefix = find_prefix(connection, session_pk)
    own = messages.c.session_pk == session_pk
    if prefix is None:
        return own
    return sa.or_(own, sa.and_(is_in_transcript(connection, prefix.session_pk), messages.c.seq <= prefix.rows))


def load_system_prompt(connection: Connection, session_pk: int) -> str:
    """Load the system prompt of a session, from the session that it was forked from where it has none of its own."""
    prompt = _READ_PROMPT.one(connection, {"session": session_pk}).system_prompt
    prefix = None if prompt else find_prefix(connection, session_pk)
    return prompt if prefix is None else load_system_prompt(connection, prefix.session_pk)


def take_prefixes_over(connection: Connection, session_pk: int) -> None:
    """Copy to the forks of a session, which is about to be deleted, the rows that they read from it. Forks that are
    being erased get nothing."""
    forks = (
        sa.select(_fork.c.pk, session_documents.c.body)
        .join(sessions, _OF_SOURCE)
        .join(session_documents, _HAS_TERMS)
        .where(sessions.c.pk == session_pk, _fork.c.pk != session_pk, _fork.c.erasure_pk.is_(None))
        .with_for_update(of=_fork)
    )
    for fork_pk, body in connection.execute(forks).all():
        terms = ForkTerms.from_json(body)
        if not terms.rows:
            continue
        prompt = load_system_prompt(connection, int(fork_pk))
        copy_rows(connection, session_pk, int(fork_pk), terms.rows)
        this = sa.update(sessions).where(sessions.c.pk == fork_pk)
        connection.execute(this.values(system_prompt=prompt))
        its = sa.and_(session_documents.c.session_pk == fork_pk, session_documents.c.key == FORK_KEY)
        connection.execute(sa.update(session_documents).where(its).values(body=replace(terms, rows=0).to_json()))


def copy_rows(connection: Connection, source_pk: int, fork_pk: int, last: int) -> None:
    """Copy the transcript of a session up to row ``last``; large texts are shared by their hash."""
    rows = sa.select(
        sa.literal(fork_pk, sessions.c.pk.type),
        messages.c.seq,
        sa.literal(0, messages.c.run_pk.type),
        messages.c.role,
        messages.c.body,
        messages.c.blob_hash,
        messages.c.created_at,
    ).where(is_in_transcript(connection, source_pk), messages.c.seq <= last)
    names = ("session_pk", "seq", "run_pk", "role", "body", "blob_hash", "created_at")
    connection.execute(sa.insert(messages).from_select(names, rows))
