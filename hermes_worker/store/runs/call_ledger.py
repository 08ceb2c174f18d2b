"""The ledger of one run: its tool calls for people, what was asked for, what came back, and how often each was tried.

Theory of operation. Nothing is written for the ledger. What it says of a call stands in three rows that the steps of
the run wrote anyway, and the ledger joins them each time it is read. Reply 8 of a session asked for two calls:

    messages     seq 8    assistant   tool_calls: [0] read_file {"path": "a"}   [1] terminal {"command": "make"}
                 seq 9    tool        the result of [0]
                 seq 10   (reserved)  for the result of [1]
    tool_calls   iteration 3   position 0   result_seq 9     succeeded   attempt 1   lease_owner NULL
                 iteration 3   position 1   result_seq 10    running     attempt 2   lease_owner 5
    workers      pk 5   name "host:4711"

The places of results are reserved when the reply is written, in the order of its calls. So the reply stands at
``result_seq - position - 1``, and no row of a call has to name it. The call's row repeats no text: arguments come from
the reply, unless a person (``approved_arguments``) or a rewriter (``rewritten_arguments``) changed them, and the result
comes from its message, once the call is settled. The attempt is counted by the claim: call 1 above was taken over once,
and ``deaths`` counts the losses in which a death is held against it (``core.step``).

A row that is gone leaves a gap and no error: without the reply the arguments are empty, and a call that no worker holds
names none. Texts are as stored; secrets in results were hidden before they were written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa

from hermes_worker.core.call_descriptions import describe_call
from hermes_worker.core.deferred_tools import find_written_arguments
from hermes_worker.core.errors import HermesError
from hermes_worker.core.rewind import are_equal
from hermes_worker.core.run import WaitKind
from hermes_worker.store.engine.database import RowStore
from hermes_worker.store.engine.prepared import fetch_row, fetch_rows
from hermes_worker.store.recorded_calls import load_texts
from hermes_worker.store.runs.runs import find_run
from hermes_worker.store.tables import runs, tool_calls, waits, workers


class CallNotFound(HermesError):
    """The run made no such call."""


class LedgerRow(NamedTuple):
    """A tool call. Times are epoch seconds."""

    session_pk: int
    result_seq: int
    iteration: int
    position: int
    name: str
    replay: str
    """``pure``, ``keyed`` or ``once``: whether it may run again."""
    status: str
    waits_for: str | None
    attempt: int
    """How often the call was begun; each attempt after the first took it over from a worker that was lost."""
    deaths: int | None
    """How many workers died while they held the call."""
    claimed_at: float | None
    settled_at: float | None
    approved_arguments: str | None
    rewritten_arguments: str | None
    worker: str | None
    """The name of the worker that holds the call; ``None`` when none does."""
    is_denied: bool
    """A person did not allow it, or nobody answered in time."""

    @property
    def changed_arguments(self) -> str | None:
        """JSON of the arguments that it ran with, when a person or a rewriter changed the model's; else ``None``."""
        return self.approved_arguments or self.rewritten_arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedRequest:
    """A call with its texts."""

    row: LedgerRow
    request: Mapping[str, Any]
    """The call as the model's reply asked for it; empty where the reply is gone."""
    result: str | None = None
    """The result as the model reads it; ``None`` before the call is settled, and in lists."""

    @property
    def changed_arguments(self) -> str | None:
        """JSON of the arguments that it ran with, where they differ from the model's; else ``None``."""
        function, changed = self.request.get("function"), self.row.changed_arguments
        if changed and function and are_equal(changed, find_written_arguments(function, self.row.name)):
            return None
        return changed

    @property
    def about(self) -> str:
        """The arguments of the call in words, not redacted."""
        function = self.request.get("function")
        ran_with = self.row.changed_arguments or (find_written_arguments(function, self.row.name) if function else "")
        return describe_call(self.row.name, ran_with) if ran_with else ""


_DENIED = sa.exists().where(
    waits.c.run_pk == tool_calls.c.run_pk,
    waits.c.iteration == tool_calls.c.iteration,
    waits.c.position == tool_calls.c.position,
    waits.c.kind == WaitKind.APPROVAL.value,
    waits.c.outcome.in_(("deny", "expired")),
)
_ENTRY = (
    sa.select(
        runs.c.session_pk,
        *(tool_calls.c[name] for name in LedgerRow._fields if name not in ("session_pk", "worker", "is_denied")),
        workers.c.name.label("worker"),
        _DENIED.label("is_denied"),
    )
    .join(runs, runs.c.pk == tool_calls.c.run_pk)
    .outerjoin(workers, workers.c.pk == tool_calls.c.lease_owner)
)
"""``tool_calls.name`` comes first, so the label of the worker's name does not collide with it."""


class Ledger(RowStore):
    """The calls of the runs in one database. Thread-safe; reads only."""

    def list_calls(
        self, run_id: str, *, after: tuple[int, int] | None = None, limit: int = 100
    ) -> list[RecordedRequest]:
        """List calls in their order, after the one with iteration and position ``after``. Raises ``RunNotFound``."""
        with self.database.read() as connection:
            wanted = _ENTRY.where(tool_calls.c.run_pk == find_run(connection, run_id))
            if after is not None:
                iteration, position = after
                is_later = (tool_calls.c.iteration == iteration) & (tool_calls.c.position > position)
                wanted = wanted.where(sa.or_(tool_calls.c.iteration > iteration, is_later))
            ordered = wanted.order_by(tool_calls.c.iteration, tool_calls.c.position).limit(limit)
            rows = fetch_rows(connection.execute(ordered), LedgerRow)
            texts = load_texts(connection, {_find_reply(row) for row in rows})
        return [RecordedRequest(row=row, request=_read_request(texts, row)) for row in rows]

    def load_call(self, run_id: str, iteration: int, position: int) -> RecordedRequest:
        """Load one call with its arguments and its result. Raises ``RunNotFound``, ``CallNotFound``."""
        with self.database.read() as connection:
            here = (
                (tool_calls.c.run_pk == find_run(connection, run_id))
                & (tool_calls.c.iteration == iteration)
                & (tool_calls.c.position == position)
            )
            row = fetch_row(connection.execute(_ENTRY.where(here)), LedgerRow)
            if row is None:
                raise CallNotFound(f"run {run_id!r} made no call {iteration}/{position}")
            result_at = (row.session_pk, row.result_seq)
            texts = load_texts(connection, {_find_reply(row), result_at})
        result = texts.get(result_at)
        return RecordedRequest(
            row=row,
            request=_read_request(texts, row),
            result=_read_content(result) if result is not None and row.settled_at is not None else None,
        )


def _find_reply(row: LedgerRow) -> tuple[int, int]:
    """Find the place of the model's reply that asked for a call: results stand behind it in the order of calls."""
    return row.session_pk, row.result_seq - row.position - 1


def _read_request(texts: Mapping[tuple[int, int], str], row: LedgerRow) -> dict[str, Any]:
    """Read a call as the model's reply asked for it; empty where the reply is gone."""
    asked = json.loads(texts.get(_find_reply(row), "{}")).get("tool_calls") or []
    return asked[row.position] if row.position < len(asked) else {}


def _read_content(body: str) -> str:
    content = json.loads(body).get("content")
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
