"""The last turn of a session: where it begins in the transcript, and which tools ran in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.chat_commands import TurnRow, find_last_turn
from hermes_worker.core.messages import Role
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows, select_columns
from hermes_worker.store.runs.runs import session_is
from hermes_worker.store.tables import messages, runs, sessions, tool_calls

_ROWS_MAX = 5_000
"""A turn with more rows cannot be undone."""
_HAPPENED = (CallStatus.SUCCEEDED.value, CallStatus.FAILED.value, CallStatus.UNKNOWN.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastTurn:
    """The last turn of a session."""

    kept: int
    """The number of the row before the turn; 0 when it is the first."""
    effects: Mapping[str, int] = field(default_factory=dict)
    """How often each tool ran in the turn, and in everything that it delegated, in calls that may have changed
    something. Empty for a turn that was copied from another session."""


class _SessionPlace(NamedTuple):
    pk: int
    active_run_pk: int | None


class _RowFacts(NamedTuple):
    seq: int
    role: str
    run_pk: int


def lock_last_turn(connection: Connection, tenant: str, source: str, name: str) -> LastTurn | None:
    """Find the last turn of a session that has no run at work, and lock the session's row; ``None`` when a run is at
    work, or nothing was said."""
    this = sa.select(*select_columns(sessions, _SessionPlace)).where(session_is(tenant, source, name)).with_for_update()
    session = fetch_row(connection.execute(this), _SessionPlace)
    if session is None or session.active_run_pk is not None:
        return None
    wanted = sa.select(*select_columns(messages, _RowFacts)).where(messages.c.session_pk == session.pk)
    newest = fetch_rows(connection.execute(wanted.order_by(messages.c.seq.desc()).limit(_ROWS_MAX)), _RowFacts)
    rows = [TurnRow(seq=row.seq, role=Role(row.role), run_pk=row.run_pk) for row in reversed(newest)]
    first = find_last_turn(rows)
    if first is None:
        return None
    return LastTurn(kept=first - 1, effects=_count_effects(connection, rows[-1].run_pk))


def _count_effects(connection: Connection, run_pk: int) -> Mapping[str, int]:
    its = sa.select(runs.c.pk).where(sa.or_(runs.c.pk == run_pk, runs.c.root_pk == run_pk))
    happened = sa.select(tool_calls.c.name).where(
        tool_calls.c.run_pk.in_(its), tool_calls.c.replay != Replay.PURE.value, tool_calls.c.status.in_(_HAPPENED)
    )
    return Counter(connection.execute(happened).scalars()) if run_pk else {}
