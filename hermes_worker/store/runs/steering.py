"""Steering: a user's messages to a run at work, kept as rows until a batch of tool calls is over, then appended to its
last result.

They never become rows of the transcript, so the roles still alternate and the prompt keeps its bytes: the text is
stored with the result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.messages import Message, Role, dump_canonical_json
from hermes_worker.core.notices import append_steer
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Prepared
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.rows import make_storable
from hermes_worker.store.tables import runs, steers


def insert_text(connection: Connection, run_pk: int, text: str) -> None:
    """Store a steering text. The caller holds the run's lock and adds an event."""
    connection.execute(sa.insert(steers).values(run_pk=run_pk, text=make_storable(text), created_at=db_now()))
    connection.execute(sa.update(runs).where(runs.c.pk == run_pk).values(steers=runs.c.steers + 1))


class _SteerRow(NamedTuple):
    text: str


_PENDING = Prepared(
    sa.select(steers.c.text)
    .where(steers.c.run_pk == sa.bindparam("run"), steers.c.message_seq.is_(None))
    .order_by(steers.c.pk),
    takes=RunKey,
    gives=_SteerRow,
)


def load_pending(connection: Connection, run_pk: int) -> list[str]:
    """Load the steering texts of a run that no result contains yet, in order."""
    return [row.text for row in _PENDING.all(connection, {"run": run_pk})]


def mark_included(connection: Connection, run_pk: int, seq: int) -> None:
    """Record that the result at ``seq`` contains all pending texts of a run. The caller holds the run's lock."""
    connection.execute(
        sa.update(steers).where(steers.c.run_pk == run_pk, steers.c.message_seq.is_(None)).values(message_seq=seq)
    )
    connection.execute(sa.update(runs).where(runs.c.pk == run_pk).values(steers=0))


def append_steers(written: Sequence[Message], said: Sequence[str]) -> list[Message]:
    """Append steering texts to the last tool result among ``written``, if there is one. Of calls that ran side by side
    that is the result that came last: the others are stored already."""
    return _change_content(written, find_last_result(written), lambda content: append_steer(content, "\n".join(said)))


def append_note(written: Sequence[Message], note: str) -> list[Message]:
    """Append a note to the last tool result among ``written``, if there is one."""
    return _change_content(written, find_last_result(written), lambda content: f"{content}\n\n{note}")


def find_last_result(written: Sequence[Message]) -> int | None:
    """The place of the last tool result among ``written``; ``None`` when there is none."""
    return max((row.seq for row in written if row.role is Role.TOOL), default=None)


def _change_content(written: Sequence[Message], seq: int | None, change: Callable[[str], str]) -> list[Message]:
    return [_with_content(row, change) if row.seq == seq else row for row in written]


def _with_content(row: Message, change: Callable[[str], str]) -> Message:
    body = json.loads(row.body)
    content = body["content"]
    body["content"] = change(content if isinstance(content, str) else json.dumps(content))
    return Message(seq=row.seq, role=row.role, body=dump_canonical_json(body))
