"""Conversations that callers continue by repeating what was said in them: where each of them ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa

from hermes_worker.core.messages import Message
from hermes_worker.core.run import TERMINAL, RunStatus
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_rows
from hermes_worker.store.rows import load_messages
from hermes_worker.store.tables import runs, sessions


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationEnd:
    """The end of a session that has no open run."""

    name: str
    run_id: str
    """The id of its newest run."""
    session_pk: int
    message_seq: int
    """The number of its last message."""


class _EndRow(NamedTuple):
    name: str
    run_id: str
    status: str
    session_pk: int
    message_seq: int
    active_run_pk: int | None


_NEWEST = (
    sa.select(sa.func.max(runs.c.pk)).where(runs.c.session_pk == sessions.c.pk).correlate(sessions).scalar_subquery()
)


class Conversations(RowStore):
    """Read models over one database. Thread-safe."""

    def find_ends(self, tenant: str, source: str, names: Sequence[str]) -> dict[str, ConversationEnd | None]:
        """Find the sessions among ``names`` that exist; the value is ``None`` for a session with a run at work."""
        wanted = (
            sa.select(
                sessions.c.name,
                runs.c.run_id,
                runs.c.status,
                runs.c.session_pk,
                sessions.c.message_seq,
                sessions.c.active_run_pk,
            )
            .join(runs, runs.c.pk == _NEWEST)
            .where(sessions.c.tenant == tenant, sessions.c.source == source, sessions.c.name.in_(names))
        )
        rows = fetch_rows(self.database.select(wanted), _EndRow)
        return {row.name: _to_end(row) for row in rows}

    def load_messages(self, end: ConversationEnd) -> list[Message]:
        """Load all messages of the conversation up to its end."""
        with self.database.read() as connection:
            return load_messages(connection, end.session_pk, 1, end.message_seq)


def _to_end(row: _EndRow) -> ConversationEnd | None:
    if row.active_run_pk is not None or RunStatus(row.status) not in TERMINAL:
        return None
    return ConversationEnd(name=row.name, run_id=row.run_id, session_pk=row.session_pk, message_seq=row.message_seq)
