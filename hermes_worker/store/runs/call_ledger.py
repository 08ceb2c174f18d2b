"""The tool calls of one run for people: what was asked for, what came back, and how often each was tried."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from hermes_worker.core.call_descriptions import describe_call
from hermes_worker.core.deferred_tools import find_written_arguments
from hermes_worker.core.errors import HermesError
from hermes_worker.core.run import CallStatus
from hermes_worker.store.engine.database import Database
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.recorded_calls import load_texts
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
    about: str = ""
    """Its arguments in words, not redacted."""


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
    session_pk: int
    result_seq: int
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
    approved_arguments: str | None
    rewritten_arguments: str | None
    worker: str | None

    @property
    def changed_arguments(self) -> str | None:
        return self.approved_arguments or self.rewritten_arguments


_ENTRY = (
    sa.select(
        runs.c.session_pk,
        *(tool_calls.c[name] for name in _EntryRow._fields if name not in ("session_pk", "worker")),
        workers.c.name.label("worker"),
    )
    .join(runs, runs.c.pk == tool_calls.c.run_pk)
    .outerjoin(workers, workers.c.pk == tool_calls.c.lease_owner)
)
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
            rows = fetch_rows(connection.execute(ordered), _EntryRow)
            texts = load_texts(connection, {_find_reply(row) for row in rows})
        return [_to_entry(row, _read_request(texts, row)) for row in rows]

    def load_call(self, run_id: str, iteration: int, position: int) -> CallInFull:
        """Load one call with its arguments and its result. Raises ``RunNotFound``, ``CallNotFound``."""
        with self._database.read() as connection:
            here = (
                (tool_calls.c.run_pk == find_run(connection, run_id))
                & (tool_calls.c.iteration == iteration)
                & (tool_calls.c.position == position)
            )
            row = fetch_row(connection.execute(_ENTRY.where(here)), _EntryRow)
            if row is None:
                raise CallNotFound(f"run {run_id!r} made no call {iteration}/{position}")
            result_at = (row.session_pk, row.result_seq)
            texts = load_texts(connection, {_find_reply(row), result_at})
        request, result = _read_request(texts, row), texts.get(result_at)
        return CallInFull(
            entry=_to_entry(row, request),
            tool_call_id=str(request.get("id", "")),
            arguments=str(request.get("function", {}).get("arguments", "")),
            changed_arguments=row.changed_arguments,
            result=_content_of(result) if result is not None and row.settled_at is not None else None,
        )


def _find_reply(row: _EntryRow) -> tuple[int, int]:
    """Find the place of the model's reply that asked for a call: results stand behind it in the order of calls."""
    return row.session_pk, row.result_seq - row.position - 1


def _read_request(texts: Mapping[tuple[int, int], str], row: _EntryRow) -> dict[str, Any]:
    """Read a call as the model's reply asked for it; empty where the reply is gone."""
    asked = json.loads(texts.get(_find_reply(row), "{}")).get("tool_calls") or []
    return asked[row.position] if row.position < len(asked) else {}


def _content_of(body: str) -> str:
    content = json.loads(body).get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def _to_entry(row: _EntryRow, request: Mapping[str, Any]) -> CallEntry:
    function = request.get("function")
    ran_with = row.changed_arguments or (find_written_arguments(function, row.name) if function else "")
    return CallEntry(
        about=describe_call(row.name, ran_with) if ran_with else "",
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
