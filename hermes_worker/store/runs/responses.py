"""Runs as responses of OpenAI's API: the request, the messages of the turn, and whether they were deleted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.client_tools import Handovers
from hermes_worker.core.messages import Message, Role
from hermes_worker.core.run_views import RunView
from hermes_worker.core.spec import RunSpec
from hermes_worker.store.access.audit import Act, record_action
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.rows import build_insert_ignoring
from hermes_worker.store.runs.client_calls import load_handovers
from hermes_worker.store.runs.inputs import CorruptInput, load_spec
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.runs.views import Views
from hermes_worker.store.tables import blobs, deleted_responses, messages, runs, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnRecord:
    """A run with its request and the messages that it wrote."""

    view: RunView
    spec: RunSpec
    said: list[Message]
    """The rows that the run wrote, in order, the user's message first."""
    handovers: Handovers = field(default_factory=Handovers)
    tools: str = "[]"
    """The tool definitions of its session, when its request brought some; else an empty list."""


BROUGHT_TOOLS = "tools"
"""The key under which a submission echoes that its request brought tools of its client."""
_TOOLS = (
    sa.select(blobs.c.body)
    .join(sessions, sessions.c.tools_hash == blobs.c.hash)
    .join(runs, runs.c.session_pk == sessions.c.pk)
    .where(runs.c.pk == sa.bindparam("run"))
)


class _SaidRow(NamedTuple):
    seq: int
    role: str
    body: str


class Responses:
    """Read models over one database, and the mark of what was deleted. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._views = Views(database)

    def load_turn(self, run_id: str) -> TurnRecord:
        """Load a run with its request and its messages. Raises ``RunNotFound``, ``CorruptInput``."""
        view = self._views.load_run(run_id)
        wanted = (
            sa.select(messages.c.seq, messages.c.role, coalesce_texts(messages.c.body, blobs.c.body).label("body"))
            .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
            .join(runs, (runs.c.session_pk == messages.c.session_pk) & (runs.c.pk == messages.c.run_pk))
            .where(runs.c.run_id == run_id)
            .order_by(messages.c.seq)
        )
        with self._database.read() as connection:
            rows = fetch_rows(connection.execute(wanted), _SaidRow)
            try:
                pk = find_run(connection, run_id)
                spec = load_spec(connection, pk)
            except ValueError as error:
                raise CorruptInput(f"the stored input of {run_id!r} cannot be read: {error}") from error
            handovers = load_handovers(connection, pk)
            has_tools = bool(spec.echo.get(BROUGHT_TOOLS))
            stored = str(connection.execute(_TOOLS, {"run": pk}).scalar_one()) if has_tools else "[]"
        said = [Message(seq=row.seq, role=Role(row.role), body=row.body) for row in rows]
        return TurnRecord(view=view, spec=spec, said=said, handovers=handovers, tools=stored)

    def is_deleted(self, run_id: str) -> bool:
        """Whether its caller deleted it as a response."""
        wanted = sa.select(deleted_responses.c.run_pk).join(runs, runs.c.pk == deleted_responses.c.run_pk)
        return self._database.select(wanted.where(runs.c.run_id == run_id)).first() is not None

    def delete(self, run_id: str) -> None:
        """Mark the run as deleted as a response; it stays a run. Idempotent. Raises ``RunNotFound``."""
        with self._database.write() as connection:
            pk = find_run(connection, run_id)
            connection.execute(
                build_insert_ignoring(connection, deleted_responses).values(run_pk=pk, deleted_at=db_now())
            )
            record_action(connection, Act.RESPONSE_DELETE, run_id)
