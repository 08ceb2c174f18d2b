"""The rows of a step, and how they are written: the hottest statements of the product.

A step writes the run, a message, an event or two, the calls. Statement by statement, with BEGIN and COMMIT, that is
half a dozen round trips, each of which costs both sides more than its row does. On PostgreSQL data-modifying CTEs
write the same rows in one statement, which can be its own transaction. The update of the run comes first, and the rest
is selected from what it returns: when the run has moved, nothing is written at all. SQLite has no round trips to save,
and no data-modifying CTEs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypedDict

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.engine import Connection

from hermes_worker.core.run import CallStatus
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Prepared, Values
from hermes_worker.store.row_keys import HeldCallKey
from hermes_worker.store.tables import events, messages, runs, session_documents, tool_calls

ROWS_MAX = 4
"""The most rows of one kind in one statement. Each combination of row counts is a statement of its own, compiled and
prepared separately, so the number has to be small."""


class RunStepValues(TypedDict):
    """Parameters for the update of a run: the claim and the event number that were read, and the new values."""

    run: int
    seen_event_seq: int
    seen_token: str | None
    new_status: str
    new_iteration: int
    new_refunds: int
    new_attempt: int
    new_deaths: int | None
    new_recovery: str | None
    new_memory: str | None
    new_call_count: int
    new_resume_at: float | None
    new_token: str | None
    is_due: bool
    new_message_seq: int
    new_event_seq: int
    input: int
    output: int
    cache_read: int
    cache_write: int
    reasoning: int
    estimated: int
    refused_attempts: int
    unknown_attempts: int
    unknown_input: int
    unknown_output: int
    cost_nano_usd: int
    doubtful_nano_usd: int
    unpriced_calls: int
    new_cost_status: str | None


class SettledCall(HeldCallKey):
    """The claim on a tool call, and the status with which it is settled."""

    call_status: str


class MessageRow(TypedDict):
    session_pk: int
    seq: int
    run_pk: int
    role: str
    body: str | None
    blob_hash: str | None


class EventRow(TypedDict):
    run_pk: int
    seq: int
    at: float | None
    """Epoch seconds; ``None`` for the time of the statement."""
    event: str
    data: str


class NewCallRow(TypedDict):
    run_pk: int
    iteration: int
    position: int
    name: str
    replay: str
    segment: int
    timeout_s: float
    result_seq: int
    is_due: bool


class DocumentRow(TypedDict):
    session_pk: int
    key: str
    body: str


class Written(NamedTuple):
    updated_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    messages: Sequence[MessageRow] = ()
    events: Sequence[EventRow] = ()
    calls: Sequence[NewCallRow] = ()
    documents: Sequence[DocumentRow] = ()
    blobs: Sequence[tuple[str, str]] = ()
    """Bodies too long for their rows, each with its hash. The caller writes them, before the rows."""

    def __bool__(self) -> bool:
        return bool(self.messages or self.events or self.calls or self.documents or self.blobs)

    def split(self, most: int) -> tuple[NewRows, NewRows]:
        """Split into up to ``most`` rows of each kind and the rest. Blobs always go into the rest."""
        if not self.blobs and max(map(len, (self.messages, self.events, self.calls, self.documents))) <= most:
            return self, NO_ROWS
        first = NewRows(
            messages=self.messages[:most],
            events=self.events[:most],
            calls=self.calls[:most],
            documents=self.documents[:most],
        )
        left = NewRows(
            messages=self.messages[most:],
            events=self.events[most:],
            calls=self.calls[most:],
            documents=self.documents[most:],
            blobs=self.blobs,
        )
        return first, left


NO_ROWS = NewRows()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The part of a step that one statement on PostgreSQL writes: the run, at most one settled call, and a few new
    rows."""

    run: RunStepValues
    settled_call: SettledCall | None = None
    """The claim on the call that the step settles; its token is ``None`` when no worker holds it. When the claim is
    lost, the whole step writes nothing."""
    rows: NewRows = NO_ROWS
    """At most ``ROWS_MAX`` rows of each kind, and no blobs."""


def write_step(connection: Connection, step: Step, more: NewRows = NO_ROWS) -> float | None:
    """Write all of ``step``, and ``more`` rows, and return when, by the database's clock; ``None`` when the run has
    moved or the claim on the call is lost. A caller that gets ``None`` must roll back, if there is a transaction to
    roll back."""
    if connection.dialect.name == "postgresql":
        at = _write_at_once(connection, step)
        if at is not None and more:
            _write_each(connection, more)
        return at
    if step.settled_call is not None and SETTLE_CALL.run(connection, step.settled_call) == 0:
        return None
    written = _UPDATE_RUN.first(connection, step.run)
    if written is None:
        return None
    _write_each(connection, _merge_rows(step.rows, more) if more else step.rows)
    return float(written.updated_at)


def _write_each(connection: Connection, rows: NewRows) -> None:
    _INSERT_CALL.run_each(connection, rows.calls)
    INSERT_MESSAGE.run_each(connection, rows.messages)
    INSERT_EVENT.run_each(connection, rows.events)
    _WRITE_DOCUMENT.run_each(connection, rows.documents)


def _merge_rows(first: NewRows, more: NewRows) -> NewRows:
    return NewRows(
        messages=[*first.messages, *more.messages],
        events=[*first.events, *more.events],
        calls=[*first.calls, *more.calls],
        documents=[*first.documents, *more.documents],
    )


def _write_at_once(connection: Connection, step: Step) -> float | None:
    kinds = (step.rows.messages, step.rows.events, step.rows.calls, step.rows.documents)
    values: Values = {**step.run, **(step.settled_call or {})}
    for kind, rows in zip(_KINDS, kinds, strict=True):
        for number, row in enumerate(rows):
            prefix = f"{kind}{number}_"
            values.update([(prefix + name, value) for name, value in row.items()])
    statement = _build_statement(step.settled_call is not None, *map(len, kinds))
    written = statement.first(connection, values)
    return None if written is None else float(written.updated_at)


def _build_run_update() -> sa.Update:
    gives_up = sa.bindparam("new_token", type_=sa.String()).is_(None)
    return (
        sa.update(runs)
        .where(
            runs.c.pk == sa.bindparam("run"),
            runs.c.event_seq == sa.bindparam("seen_event_seq"),
            runs.c.lease_token.is_not_distinct_from(sa.bindparam("seen_token")),
        )
        .values(
            status=sa.bindparam("new_status"),
            iteration=sa.bindparam("new_iteration"),
            refunds=sa.bindparam("new_refunds"),
            attempt=sa.bindparam("new_attempt"),
            deaths=sa.bindparam("new_deaths"),
            recovery=sa.bindparam("new_recovery"),
            memory=sa.bindparam("new_memory"),
            call_count=sa.bindparam("new_call_count"),
            resume_at=sa.bindparam("new_resume_at"),
            lease_token=sa.bindparam("new_token"),
            lease_owner=sa.case((gives_up, None), else_=runs.c.lease_owner),
            is_reserved=sa.case((gives_up, 0), else_=runs.c.is_reserved),
            hinted_at=sa.case((sa.bindparam("is_due", type_=sa.Boolean()), db_now()), else_=None),
            hints=0,
            message_seq=sa.bindparam("new_message_seq"),
            event_seq=sa.bindparam("new_event_seq"),
            input_tokens=runs.c.input_tokens + sa.bindparam("input"),
            output_tokens=runs.c.output_tokens + sa.bindparam("output"),
            cache_read_tokens=runs.c.cache_read_tokens + sa.bindparam("cache_read"),
            cache_write_tokens=runs.c.cache_write_tokens + sa.bindparam("cache_write"),
            reasoning_tokens=runs.c.reasoning_tokens + sa.bindparam("reasoning"),
            estimated_tokens=runs.c.estimated_tokens + sa.bindparam("estimated"),
            refused_attempts=runs.c.refused_attempts + sa.bindparam("refused_attempts"),
            unknown_attempts=runs.c.unknown_attempts + sa.bindparam("unknown_attempts"),
            unknown_input_tokens=runs.c.unknown_input_tokens + sa.bindparam("unknown_input"),
            unknown_output_tokens=runs.c.unknown_output_tokens + sa.bindparam("unknown_output"),
            cost_nano_usd=runs.c.cost_nano_usd + sa.bindparam("cost_nano_usd"),
            doubtful_nano_usd=runs.c.doubtful_nano_usd + sa.bindparam("doubtful_nano_usd"),
            unpriced_calls=runs.c.unpriced_calls + sa.bindparam("unpriced_calls"),
            cost_status=sa.bindparam("new_cost_status"),
            updated_at=db_now(),
        )
    )


def _select_held_call() -> sa.Select[Any]:
    return sa.select(tool_calls.c.run_pk).where(*_is_claimed())


def _is_claimed() -> tuple[sa.ColumnElement[bool], ...]:
    return (
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
        tool_calls.c.lease_token.is_not_distinct_from(sa.bindparam("token")),
    )


def _build_call_update() -> sa.Update:
    return (
        sa.update(tool_calls)
        .where(*_is_claimed())
        .values(
            status=sa.bindparam("call_status"),
            waits_for=None,
            lease_token=None,
            lease_owner=None,
            deadline_at=None,
            settled_at=db_now(),
        )
    )


def build_parameters(table: sa.Table, prefix: str, names: Sequence[str]) -> dict[str, sa.ColumnElement[Any]]:
    """Build the values of a new row: each column is given by the parameter of its name behind ``prefix``."""
    return {name: sa.bindparam(prefix + name, type_=table.c[name].type) for name in names}


def _build_message_values(prefix: str = "") -> dict[str, sa.ColumnElement[Any]]:
    given = build_parameters(messages, prefix, ("session_pk", "seq", "run_pk", "role", "body", "blob_hash"))
    return {**given, "created_at": db_now()}


def _build_event_values(prefix: str = "") -> dict[str, sa.ColumnElement[Any]]:
    given = build_parameters(events, prefix, ("run_pk", "seq", "event", "data"))
    return {**given, "at": sa.func.coalesce(sa.bindparam(f"{prefix}at", type_=sa.Double()), db_now())}


def _build_call_values(prefix: str = "") -> dict[str, sa.ColumnElement[Any]]:
    names = ("run_pk", "iteration", "position", "name", "replay", "segment", "timeout_s", "result_seq")
    is_due = sa.bindparam(f"{prefix}is_due", type_=sa.Boolean())
    return {
        **build_parameters(tool_calls, prefix, names),
        "status": sa.literal(CallStatus.PENDING.value, tool_calls.c.status.type),
        "hinted_at": sa.case((is_due, db_now()), else_=None),
    }


def _build_document_values(prefix: str = "") -> dict[str, sa.ColumnElement[Any]]:
    return build_parameters(session_documents, prefix, ("session_pk", "key", "body"))


def _add_overwrite(insert: postgresql.Insert) -> postgresql.Insert:
    return insert.on_conflict_do_update(index_elements=["session_pk", "key"], set_={"body": insert.excluded.body})


_KINDS: Mapping[str, tuple[sa.Table, Callable[[str], dict[str, sa.ColumnElement[Any]]]]] = {
    "message": (messages, _build_message_values),
    "event": (events, _build_event_values),
    "call": (tool_calls, _build_call_values),
    "document": (session_documents, _build_document_values),
}

_UPDATE_RUN = Prepared(_build_run_update().returning(runs.c.updated_at), takes=RunStepValues, gives=Written)
SETTLE_CALL = Prepared(_build_call_update(), takes=SettledCall)
INSERT_MESSAGE = Prepared(sa.insert(messages).values(_build_message_values()), takes=MessageRow)
INSERT_EVENT = Prepared(sa.insert(events).values(_build_event_values()), takes=EventRow)
_INSERT_CALL = Prepared(sa.insert(tool_calls).values(_build_call_values()), takes=NewCallRow)
_WRITE_DOCUMENT = Prepared(
    _add_overwrite(postgresql.insert(session_documents).values(_build_document_values())), takes=DocumentRow
)
"""In a form that both databases understand: SQLite has the same ON CONFLICT clause as PostgreSQL."""


@lru_cache(maxsize=1_000)
def _build_statement(settles: bool, *counts: int) -> Prepared[Values, Written]:
    """Build the statement for a step with this many rows of each kind."""
    update_run = _build_run_update()
    if settles:
        # Calls are locked before their run, as everybody does.
        held = _select_held_call().with_for_update().cte("held")
        update_run = update_run.where(sa.select(held.c.run_pk).exists())
    moved = update_run.returning(runs.c.updated_at).cte("moved")
    writes: list[sa.CTE] = []
    if settles:
        writes.append(_build_call_update().where(sa.select(moved.c.updated_at).exists()).cte("settled"))
    for (kind, (table, columns)), count in zip(_KINDS.items(), counts, strict=True):
        for number in range(count):
            prefix = f"{kind}{number}_"
            values = columns(prefix)
            insert = postgresql.insert(table).from_select(list(values), sa.select(*values.values()).select_from(moved))
            writes.append((_add_overwrite(insert) if kind == "document" else insert).cte(f"{kind}{number}"))
    names = _list_parameter_names(settles, counts)
    return Prepared(sa.select(moved.c.updated_at).add_cte(*writes), names=names, gives=Written)


_ROWS = {"message": MessageRow, "event": EventRow, "call": NewCallRow, "document": DocumentRow}


def _list_parameter_names(settles: bool, counts: Sequence[int]) -> set[str]:
    """The names of the parameters that ``_write_at_once`` gives to the statement for this many rows."""
    of_rows = (
        f"{kind}{number}_{name}"
        for kind, count in zip(_KINDS, counts, strict=True)
        for number in range(count)
        for name in _ROWS[kind].__annotations__
    )
    return {*RunStepValues.__annotations__, *(SettledCall.__annotations__ if settles else ()), *of_rows}
