"""The material of a run's prompts: the beginning of the session, the transcript, and which of its rows are replies of
the run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.messages import Message, Role
from hermes_worker.core.run import RunStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row
from hermes_worker.store.prefixes import load_system_prompt
from hermes_worker.store.rows import load_messages
from hermes_worker.store.runs.runs import run_missing_error
from hermes_worker.store.tables import blobs, messages, runs, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptMaterial:
    """Everything that the prompts of one run are made of."""

    model: str
    is_open: bool
    system_prompt: str
    tools: str
    """A JSON list."""
    rows: Sequence[Message]
    """The transcript of the session up to the end of the run."""
    replies: Sequence[int]
    """The numbers of the transcript's rows that are replies of this run, in order."""


class _PromptRow(NamedTuple):
    pk: int
    session_pk: int
    message_seq: int
    model: str
    status: str
    system_prompt: str
    tools: str


def load_prompt_material(database: Database, run_id: str) -> PromptMaterial:
    """Load the material of a run's prompts. Raises ``RunNotFound``, ``UnavailableError``."""
    statement = (
        sa.select(
            runs.c.pk,
            runs.c.session_pk,
            runs.c.message_seq,
            runs.c.model,
            runs.c.status,
            sessions.c.system_prompt,
            blobs.c.body.label("tools"),
        )
        .select_from(runs)
        .join(sessions, sessions.c.pk == runs.c.session_pk)
        .join(blobs, blobs.c.hash == sessions.c.tools_hash)
        .where(runs.c.run_id == run_id)
    )
    with database.read() as connection:
        row = fetch_row(connection.execute(statement), _PromptRow)
        if row is None:
            raise run_missing_error(connection, run_id)
        said = (messages.c.session_pk == row.session_pk) & (messages.c.run_pk == row.pk)
        replies = sa.select(messages.c.seq).where(said, messages.c.role == Role.ASSISTANT.value)
        return PromptMaterial(
            model=row.model,
            is_open=not RunStatus(row.status).is_terminal,
            system_prompt=row.system_prompt or load_system_prompt(connection, row.session_pk),
            tools=row.tools,
            rows=load_messages(connection, row.session_pk, 1, row.message_seq),
            replies=list(connection.execute(replies.order_by(messages.c.seq)).scalars()),
        )
