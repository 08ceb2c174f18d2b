"""The tool calls of one run for people: what was asked for, what came back, and how often each was tried."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.errors import HermesError
from hermes_worker.core.run import CallStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.rows import load_messages
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.tables import runs, tool_calls, workers


class CallNotFound(HermesError):
    """The run made no such call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEntry:
    """A tool call. Times are epoch seconds."""

    iteration: int
    position: int
    name: str
    replay: str
    """``pure``, ``keyed`` or ``once``: whether it may run again."""
    status: CallStatus
    waits_for: str | None
    attempts: int
    """How often the call was begun; each attempt after the first took it over from a worker that was lost."""
    deaths: int
    """How many workers died while they held the call."""
    claimed_at: float | None
    settled_at: float | None
    worker: str | None
    """The name of the worker that holds the call; ``None`` when none does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInFull:
    """A call with its texts."""

    entry: CallEntry
    tool_call_id: str
    arguments: str
    """JSON, as the model wrote it."""
    changed_arguments: str | None
    """JSON of the arguments that it ran with, when a person or a rewriter changed the model's; else ``None``."""
    result: str | None
    """The result as the model reads it; ``None`` before the call is settled."""


class _EntryRow(NamedTuple):
    iteration: int
    position: int
    name: str
    replay: str
    status: str
    waits_for: str | None
    attempt: int
    deaths: int | None
    claimed_at: float | None
    settled_at: float | None
    worker: str | None


class _TextRow(NamedTuple):
    result_seq: int
    approved_arguments: str | None
    rewritten_arguments: str | None


class _FirstSeq(NamedTuple):
    session_pk: int
    first_seq: int


_ENTRY = sa.select(
    *(tool_calls.c[name] for name in _EntryRow._fields if name != "worker"), workers.c.name.label("worker")
).outerjoin(workers, workers.c.pk == tool_calls.c.lease_owner)
"""``tool_calls.name`` comes first, so the label of the worker's name does not collide with it."""


class Ledger:
    """The calls of the runs in one database. Thread-safe; reads only."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def list_calls(self, run_id: str, *, after: tuple[int, int] | None = None, limit: int = 100) -> list[CallEntry]:
        """List calls in their order, after the one with iteration and position ``after``. Raises ``RunNotFound``."""
        with self._database.read() as connection:
            wanted = _ENTRY.where(tool_calls.c.run_pk == find_run(connection, run_id))
            if after is not None:
                iteration, position = after
                is_later = (tool_calls.c.iteration == iteration) & (tool_calls.c.position > position)
                wanted = wanted.where(sa.or_(tool_calls.c.iteration > iteration, is_later))
            ordered = wanted.order_by(tool_calls.c.iteration, tool_calls.c.position).limit(limit)
            return [_to_entry(row) for row in fetch_rows(connection.execute(ordered), _EntryRow)]

    def load_call(self, run_id: str, iteration: int, position: int) -> CallInFull:
        """Load one call with its arguments and its result. Raises ``RunNotFound``, ``CallNotFound``."""
        with self._database.read() as connection:
            pk = find_run(connection, run_id)
            here = (
                (tool_calls.c.run_pk == pk)
                & (tool_calls.c.iteration == iteration)
                & (tool_calls.c.position == position)
            )
            entry = fetch_row(connection.execute(_ENTRY.where(here)), _EntryRow)
            texts = fetch_row(
                connection.execute(sa.select(*(tool_calls.c[name] for name in _TextRow._fields)).where(here)), _TextRow
            )
            if entry is None or texts is None:
                raise CallNotFound(f"run {run_id!r} made no call {iteration}/{position}")
            asked, result = _load_reply_and_result(connection, pk, iteration, texts.result_seq)
        request = asked[position] if position < len(asked) else {}
        return CallInFull(
            entry=_to_entry(entry),
            tool_call_id=str(request.get("id", "")),
            arguments=str(request.get("function", {}).get("arguments", "")),
            changed_arguments=texts.approved_arguments or texts.rewritten_arguments,
            result=result if entry.settled_at is not None else None,
        )


def _load_reply_and_result(
    connection: Connection, pk: int, iteration: int, result_seq: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Load the calls of the model's reply of an iteration, and the result at place ``result_seq``, or ``None``."""
    place = fetch_row(
        connection.execute(
            sa.select(runs.c.session_pk, sa.func.min(tool_calls.c.result_seq).label("first_seq"))
            .join(tool_calls, tool_calls.c.run_pk == runs.c.pk)
            .where(runs.c.pk == pk, tool_calls.c.iteration == iteration)
            .group_by(runs.c.session_pk)
        ),
        _FirstSeq,
    )
    assert place is not None
    reply = load_messages(connection, place.session_pk, place.first_seq - 1, place.first_seq - 1)
    told = load_messages(connection, place.session_pk, result_seq, result_seq)
    asked = json.loads(reply[0].body).get("tool_calls") or [] if reply else []
    return asked, _content_of(told[0].body) if told else None


def _content_of(body: str) -> str:
    content = json.loads(body).get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _to_entry(row: _EntryRow) -> CallEntry:
    return CallEntry(
        iteration=row.iteration,
        position=row.position,
        name=row.name,
        replay=row.replay,
        status=CallStatus(row.status),
        waits_for=row.waits_for,
        attempts=row.attempt,
        deaths=row.deaths or 0,
        claimed_at=row.claimed_at,
        settled_at=row.settled_at,
        worker=row.worker,
    )
