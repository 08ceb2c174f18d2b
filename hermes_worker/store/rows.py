"""Turn rows into values: the reads that the other modules of the store share, and their statements.

Statements are built once at import; SQLAlchemy then finds their compiled form by identity.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypedDict

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import Amounts, to_usd
from hermes_worker.core.effects import CallHook, Collect, Effect, FetchFile, GatherArtifacts, SendDelivery
from hermes_worker.core.inner_calls import SCRIPT_RUNNERS, InnerCall
from hermes_worker.core.inner_calls import parse_calls as read_inner
from hermes_worker.core.messages import Message, Role, Usage
from hermes_worker.core.metering import UsageSoFar
from hermes_worker.core.pricing import CostStatus
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import Call, CallStatus, Run, RunStatus, WaitKind
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_rows
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.engine.stored_texts import make_storable as make_storable
from hermes_worker.store.prefixes import find_prefix
from hermes_worker.store.row_keys import RunKey, SessionKey
from hermes_worker.store.runs.step_statements import INSERT_MESSAGE, MessageRow
from hermes_worker.store.tables import blobs, messages, runs, session_documents, sessions, tool_calls, waits

CALL_OF_WAIT = (
    (tool_calls.c.run_pk == waits.c.run_pk)
    & (tool_calls.c.iteration == waits.c.iteration)
    & (tool_calls.c.position == waits.c.position)
)
"""Joins a wait with the call that waits."""

BLOB_CHARS_MIN = 16_384
"""Texts at least this long go to ``blobs``, where equal ones share a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """An effect to send, and the ``hinted_at`` of its row, by which the sweeper recognises a lost message."""

    effect: Effect | SendDelivery | Collect | CallHook | GatherArtifacts | FetchFile
    at: float
    group: str | None = None
    """Hints that began together and are sent as one Celery group; ``None`` groups by run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentCall:
    """The call for which a child run works."""

    run_pk: int
    iteration: int
    position: int
    is_background: bool = False
    """The call was settled when it was delegated: the end of its children begins a new run of the session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """A run's own row, without its calls. No step can be decided on it."""

    pk: int
    session_pk: int
    model: str
    endpoint: str | None
    """Which provider serves the model (``RunSpec.endpoint``); ``None`` leaves that to the workers."""
    origin: str | None
    """The kind of source of the first run of its chain; ``None`` for runs of older versions."""
    network: str | None
    """The network that was requested for its commands (``RunSpec.network``)."""
    replies: int
    """Model replies committed so far."""
    message_seq: int
    event_seq: int
    cost_status: CostStatus | None
    """How reliable the run's known cost is; ``None`` before its first reply."""
    is_watched: bool
    """A client follows the stream, so deltas are worth sending."""
    lease_token: str | None
    parent: ParentCall | None
    """``None`` for a run that was not delegated."""
    root_pk: int
    """The run at the top of the delegation tree; this run itself when it has no parent."""
    depth: int
    """0 at the top of the tree."""
    budget_pk: int | None
    """The run whose budget it draws from: its root, or itself; ``None`` when there is none."""
    reserved: Amounts
    """What its claim has reserved of that budget."""
    used: Amounts
    """What the run itself is known to have used, without its tool calls."""
    doubtful: Amounts
    """What it may have used beside that: attempts of unknown outcome, and replies whose cost is only bounded."""
    unpriced_calls: int
    """How many of its calls have an unknown cost."""
    output_tokens: int
    """Tokens that the model wrote in it."""
    left_s: float
    """Seconds until its deadline; negative when that has passed."""
    wall_s: float
    """Seconds from when it could begin until its deadline."""
    steers: int = 0
    """How many messages of the user wait to be appended to a tool result."""
    place: int | None = None
    """``core.fair_share.FleetPlace``; ``None`` for a run that shares the fleet with no other tenant's."""
    has_output_schema: bool = False
    """The answer has to fit a schema, which its input names."""
    overrides: str | None = None
    """``RunSpec.overrides`` in canonical JSON; ``None`` for a run that has the settings of its processes."""

    @property
    def usual(self) -> UsageSoFar:
        """The average use of its calls until now."""
        return UsageSoFar(
            replies=self.replies,
            output_tokens=self.output_tokens,
            tokens=self.used.tokens,
            usd=to_usd(self.used.nano_usd),
            cost_status=self.cost_status,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRun(RunRecord):
    """A run, whole, as read under a lock or a claim: with all calls of its iteration that are not settled."""

    run: Run
    result_seqs: tuple[int, ...]
    """The place in the transcript of the result of each call of the current iteration."""


BEGAN_AT: sa.ColumnElement[float] = sa.func.coalesce(runs.c.not_before, runs.c.created_at)
"""When its time begins to count, in epoch seconds."""
RUN_COLUMNS: tuple[sa.ColumnElement[Any], ...] = (
    runs.c.pk,
    runs.c.run_id,
    runs.c.session_pk,
    runs.c.model,
    runs.c.endpoint,
    runs.c.origin,
    runs.c.network,
    runs.c.status,
    runs.c.iteration,
    runs.c.iterations_max,
    runs.c.attempt,
    runs.c.attempts_max,
    runs.c.deaths,
    runs.c.recovery,
    runs.c.memory,
    runs.c.cost_status,
    runs.c.resume_at,
    runs.c.call_count,
    runs.c.message_seq,
    runs.c.event_seq,
    runs.c.lease_token,
    runs.c.parent_pk,
    runs.c.parent_iteration,
    runs.c.parent_position,
    runs.c.root_pk,
    runs.c.depth,
    runs.c.is_background,
    runs.c.has_budget,
    runs.c.is_reserved,
    runs.c.reserved_tokens,
    runs.c.reserved_nano_usd,
    runs.c.refunds,
    (runs.c.input_tokens + runs.c.cache_read_tokens + runs.c.cache_write_tokens + runs.c.output_tokens).label("tokens"),
    runs.c.output_tokens,
    (runs.c.unknown_input_tokens + runs.c.unknown_output_tokens).label("unknown_tokens"),
    runs.c.cost_nano_usd,
    runs.c.doubtful_nano_usd,
    runs.c.unpriced_calls,
    (sa.func.coalesce(runs.c.deadline_at, 1e12) - db_now()).label("left_s"),
    (sa.func.coalesce(runs.c.deadline_at, 1e12) - BEGAN_AT).label("wall_s"),
    runs.c.exhausted,
    runs.c.steers,
    (runs.c.watched_until > db_now()).label("is_watched"),
    runs.c.place,
    runs.c.has_output_schema,
    runs.c.prepares,
    runs.c.overrides,
)


class RunRow(NamedTuple):
    """A row of ``RUN_COLUMNS``."""

    pk: int
    run_id: str
    session_pk: int
    model: str
    endpoint: str | None
    origin: str | None
    network: str | None
    status: str
    iteration: int
    iterations_max: int
    attempt: int
    attempts_max: int
    deaths: int | None
    recovery: str | None
    memory: str | None
    cost_status: str | None
    resume_at: float | None
    call_count: int
    message_seq: int
    event_seq: int
    lease_token: str | None
    parent_pk: int | None
    parent_iteration: int | None
    parent_position: int | None
    root_pk: int | None
    depth: int
    is_background: int
    has_budget: int
    is_reserved: int
    reserved_tokens: int
    reserved_nano_usd: int
    refunds: int
    tokens: int
    output_tokens: int
    unknown_tokens: int
    cost_nano_usd: int
    doubtful_nano_usd: int
    unpriced_calls: int
    left_s: float
    wall_s: float
    exhausted: str | None
    steers: int
    is_watched: bool | None
    place: int | None
    has_output_schema: int
    prepares: int | None
    overrides: str | None


def is_suspect(table: sa.Table) -> sa.ColumnElement[int]:
    """1 for a step that is tried apart from all others, which only a lane claims; 0 for any other."""
    return sa.case((table.c.deaths.is_not(None), 1), else_=0)


CALL_COLUMNS = (
    tool_calls.c.position,
    tool_calls.c.name,
    tool_calls.c.replay,
    tool_calls.c.segment,
    tool_calls.c.status,
    tool_calls.c.waits_for,
    tool_calls.c.asks,
    tool_calls.c.attempt,
    tool_calls.c.deaths,
    tool_calls.c.timeout_s,
    tool_calls.c.result_seq,
)


class CallRow(NamedTuple):
    """A row of ``CALL_COLUMNS``."""

    position: int
    name: str
    replay: str
    segment: int
    status: str
    waits_for: str | None
    asks: int | None
    attempt: int
    deaths: int | None
    timeout_s: float
    result_seq: int


class _IterationKey(TypedDict):
    run: int
    iteration: int


_BY_PK = sa.select(*RUN_COLUMNS).where(runs.c.pk == sa.bindparam("run"))
_LOCK_RUN = Prepared(_BY_PK.with_for_update(), takes=RunKey, gives=RunRow)
_READ_RUN = Prepared(_BY_PK, takes=RunKey, gives=RunRow)
_calls_of = (
    sa.select(*CALL_COLUMNS)
    .where(tool_calls.c.run_pk == sa.bindparam("run"), tool_calls.c.iteration == sa.bindparam("iteration"))
    .order_by(tool_calls.c.position)
)
_READ_CALLS = Prepared(_calls_of, takes=_IterationKey, gives=CallRow)
_LOCK_CALLS = Prepared(_calls_of.with_for_update(), takes=_IterationKey, gives=CallRow)


def to_record(row: RunRow) -> RunRecord:
    return RunRecord(**_build_record_fields(row))


def to_loaded(row: RunRow, calls: Sequence[CallRow]) -> LoadedRun:
    """Build the run with ``calls``, which are all of its iteration; they may be left out when all of them are
    settled."""
    run = Run(
        run_id=row.run_id,
        status=RunStatus(row.status),
        iteration=row.iteration,
        iterations_max=row.iterations_max,
        refunds=row.refunds,
        attempt=row.attempt,
        attempts_max=row.attempts_max,
        deaths=row.deaths,
        is_asking=row.lease_token is not None,
        is_prepared=row.prepares is None,
        recovery=row.recovery,
        memory=row.memory,
        resume_at=row.resume_at,
        exhausted=row.exhausted,
        calls=tuple(map(_to_call, calls)),
    )
    return LoadedRun(**_build_record_fields(row), run=run, result_seqs=tuple(call.result_seq for call in calls))


def _to_call(row: CallRow) -> Call:
    return Call(
        position=row.position,
        name=row.name,
        replay=Replay(row.replay),
        segment=row.segment,
        status=CallStatus(row.status),
        attempt=row.attempt,
        deaths=row.deaths,
        timeout_s=row.timeout_s,
        waits_for=WaitKind(row.waits_for) if row.waits_for else None,
        asks=row.asks == 1,
    )


def _build_record_fields(row: RunRow) -> dict[str, Any]:
    """Build the fields of ``RunRecord``."""
    return {
        "pk": row.pk,
        "session_pk": row.session_pk,
        "model": row.model,
        "endpoint": row.endpoint,
        "origin": row.origin,
        "network": row.network,
        "replies": row.iteration,
        "message_seq": row.message_seq,
        "event_seq": row.event_seq,
        "cost_status": CostStatus(row.cost_status) if row.cost_status else None,
        "is_watched": bool(row.is_watched),
        "lease_token": row.lease_token,
        "parent": to_parent_call(row),
        "root_pk": row.root_pk or row.pk,
        "depth": row.depth,
        "budget_pk": find_budget_pk(row),
        "reserved": to_reserved_amounts(row),
        "used": Amounts(iterations=row.iteration - row.refunds, tokens=int(row.tokens), nano_usd=row.cost_nano_usd),
        "doubtful": Amounts(tokens=int(row.unknown_tokens), nano_usd=row.doubtful_nano_usd),
        "unpriced_calls": row.unpriced_calls,
        "output_tokens": row.output_tokens,
        "left_s": float(row.left_s),
        "wall_s": float(row.wall_s),
        "steers": row.steers,
        "place": row.place,
        "has_output_schema": bool(row.has_output_schema),
        "overrides": row.overrides,
    }


class HasParent(Protocol):
    """A row with the columns that name the call for which a child works."""

    @property
    def parent_pk(self) -> int | None: ...

    @property
    def parent_iteration(self) -> int | None: ...

    @property
    def parent_position(self) -> int | None: ...

    @property
    def is_background(self) -> int: ...


def to_parent_call(row: HasParent) -> ParentCall | None:
    if row.parent_pk is None or row.parent_iteration is None or row.parent_position is None:
        return None  # a CHECK couples the three
    return ParentCall(
        run_pk=row.parent_pk,
        iteration=row.parent_iteration,
        position=row.parent_position,
        is_background=bool(row.is_background),
    )


class HasUsage(Protocol):
    """A row with the columns that say what model calls used, of one run or of several."""

    @property
    def input_tokens(self) -> int: ...

    @property
    def output_tokens(self) -> int: ...

    @property
    def cache_read_tokens(self) -> int: ...

    @property
    def cache_write_tokens(self) -> int: ...

    @property
    def reasoning_tokens(self) -> int: ...

    @property
    def estimated_tokens(self) -> int: ...

    @property
    def refused_attempts(self) -> int: ...

    @property
    def unknown_attempts(self) -> int: ...

    @property
    def unknown_input_tokens(self) -> int: ...

    @property
    def unknown_output_tokens(self) -> int: ...


def to_usage(row: HasUsage) -> Usage:
    return Usage(
        input=row.input_tokens,
        output=row.output_tokens,
        cache_read=row.cache_read_tokens,
        cache_write=row.cache_write_tokens,
        reasoning=row.reasoning_tokens,
        estimated=row.estimated_tokens,
        refused_attempts=row.refused_attempts,
        unknown_attempts=row.unknown_attempts,
        unknown_input=row.unknown_input_tokens,
        unknown_output=row.unknown_output_tokens,
    )


OWN_BUDGET = 2
"""Value of ``runs.has_budget``: a child with a budget of its own."""


class DrawsFromBudget(Protocol):
    """A row with the columns that say whose budget a run draws from."""

    @property
    def pk(self) -> int: ...

    @property
    def root_pk(self) -> int | None: ...

    @property
    def has_budget(self) -> int: ...


class HasReserved(Protocol):
    """A row with the columns that say how much of a budget a claim has reserved."""

    @property
    def is_reserved(self) -> int: ...

    @property
    def reserved_tokens(self) -> int: ...

    @property
    def reserved_nano_usd(self) -> int: ...


def find_budget_pk(row: DrawsFromBudget) -> int | None:
    if not row.has_budget:
        return None
    return int(row.pk if row.has_budget == OWN_BUDGET else row.root_pk or row.pk)


def to_reserved_amounts(row: HasReserved) -> Amounts:
    if not row.is_reserved:
        return Amounts()
    return Amounts(iterations=1, tokens=row.reserved_tokens, nano_usd=row.reserved_nano_usd)


def lock_run(connection: Connection, pk: int) -> LoadedRun | None:
    """Lock the calls of the run's iteration, then the run, and load both; ``None`` when there is no such run."""
    while True:
        seen = _READ_RUN.first(connection, {"run": pk})
        if seen is None:
            return None
        locks = connection.begin_nested()
        calls = _LOCK_CALLS.all(connection, {"run": pk, "iteration": seen.iteration})
        row = _LOCK_RUN.first(connection, {"run": pk})
        if row is None or row.iteration == seen.iteration:
            locks.commit()
            return None if row is None else to_loaded(row, calls)
        # The run moved on while we waited. Unlock it and begin again: calls are always locked before their run.
        locks.rollback()


def load_record(connection: Connection, pk: int) -> RunRecord:
    """Load a run without its calls, as it is at the moment; nothing is locked."""
    return to_record(_READ_RUN.one(connection, {"run": pk}))


def lock_run_after_call(connection: Connection, pk: int) -> LoadedRun:
    """Lock and load a run in a transaction that holds the lock of one of its calls already: the other calls are only
    read. They are read *after* the run is locked, so of two calls that settle at the same time the second sees the
    first."""
    row = _LOCK_RUN.one(connection, {"run": pk})
    return to_loaded(row, load_calls(connection, pk, row.iteration))


def load_calls(connection: Connection, run_pk: int, iteration: int) -> list[CallRow]:
    """Load the rows of an iteration's calls, in order; nothing is locked."""
    return _READ_CALLS.all(connection, {"run": run_pk, "iteration": iteration})


class SessionTurn(SessionKey):
    run: int


ACTIVATE_RUN = Prepared(
    sa.update(sessions).where(sessions.c.pk == sa.bindparam("session")).values(active_run_pk=sa.bindparam("run")),
    takes=SessionTurn,
)
"""Makes a run the active one of its session. The session's row is locked, and no run of it is active."""


def parse_call_ids(reply: str) -> list[str]:
    """Parse the model's ids of the calls from a stored reply, in order."""
    return [str(call["id"]) for call in json.loads(reply)["tool_calls"]]


def load_call_ids(connection: Connection, loaded: LoadedRun) -> list[str]:
    """Load the model's ids of the calls of this iteration, from its stored reply."""
    asked_at = loaded.result_seqs[0] - 1
    rows = load_messages(connection, loaded.session_pk, asked_at, asked_at)
    return parse_call_ids(rows[0].body)


class _ScriptRow(NamedTuple):
    position: int
    inner_calls: str | None


def load_inner_calls(connection: Connection, loaded: LoadedRun) -> dict[int, tuple[InnerCall, ...]]:
    """Load the calls that scripts of this iteration have begun, by the position of the scripts' own calls. Reads
    nothing where there is no script."""
    scripts = [call.position for call in loaded.run.calls if call.name in SCRIPT_RUNNERS]
    if not scripts:
        return {}
    statement = sa.select(tool_calls.c.position, tool_calls.c.inner_calls).where(
        tool_calls.c.run_pk == loaded.pk,
        tool_calls.c.iteration == loaded.run.iteration,
        tool_calls.c.position.in_(scripts),
    )
    found = fetch_rows(connection.execute(statement), _ScriptRow)
    return {row.position: read_inner(row.inner_calls) for row in found}


def replace_calls(loaded: LoadedRun, calls: Sequence[Call]) -> LoadedRun:
    return replace(loaded, run=replace(loaded.run, calls=tuple(calls)))


def insert_messages(connection: Connection, session_pk: int, run_pk: int, rows: Sequence[Message]) -> None:
    """Append rows; a place that is taken already is an error (``IntegrityError``), never an overwrite."""
    INSERT_MESSAGE.run_each(connection, build_message_rows(connection, session_pk, run_pk, rows))


def build_message_rows(
    connection: Connection, session_pk: int, run_pk: int, rows: Sequence[Message]
) -> list[MessageRow]:
    """Build ``rows`` as parameters of ``INSERT_MESSAGE``. Long bodies are stored as blobs on the way."""
    for row in rows:
        if len(row.body) >= BLOB_CHARS_MIN:
            store_blob(connection, row.body)
    return [build_message_row(session_pk, run_pk, row) for row in rows]


def build_message_row(session_pk: int, run_pk: int, message: Message) -> MessageRow:
    """Build ``message`` as parameters of ``INSERT_MESSAGE``. A long body stands in a blob, which the caller writes."""
    is_long = len(message.body) >= BLOB_CHARS_MIN
    return {
        "session_pk": session_pk,
        "seq": message.seq,
        "run_pk": run_pk,
        "role": message.role.value,
        "body": None if is_long else message.body,
        "blob_hash": compute_blob_hash(message.body) if is_long else None,
    }


def delete_documents(connection: Connection, session_pk: int, keys: Sequence[str]) -> None:
    """Delete those documents of a session that exist among ``keys``."""
    here = (session_documents.c.session_pk == session_pk) & session_documents.c.key.in_(keys)
    connection.execute(sa.delete(session_documents).where(here))


def compute_blob_hash(body: str) -> str:
    """The hash under which ``store_blob`` stores ``body``."""
    return hashlib.sha256(body.encode("utf-8")).hexdigest()


class _BlobKey(TypedDict):
    digest: str


class _BlobRow(NamedTuple):
    hash: str


_KNOWN_BLOB = Prepared(
    sa.select(blobs.c.hash).where(blobs.c.hash == sa.bindparam("digest"), blobs.c.released_at.is_(None)),
    takes=_BlobKey,
    gives=_BlobRow,
)


def store_blob(connection: Connection, body: str) -> str:
    """Store ``body`` under its hash, and return the hash. Idempotent."""
    digest = compute_blob_hash(body)
    upsert_blob(connection, digest, body)
    return digest


def upsert_blob(connection: Connection, digest: str, body: str) -> None:
    """Store ``body``, whose hash is ``digest``. Idempotent. A text that is about to be deleted for want of references
    is revived: its row is locked, so either the deletion sees that, or the text is written anew."""
    if _KNOWN_BLOB.first(connection, {"digest": digest}) is None:
        connection.execute(_insert_or_revive(connection), {"hash": digest, "body": body})


def _insert_or_revive(connection: Connection) -> sa.Insert:
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(blobs).on_conflict_do_update(index_elements=["hash"], set_={"released_at": None})
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert

    return postgresql_insert(blobs).on_conflict_do_update(index_elements=["hash"], set_={"released_at": None})


def build_insert_ignoring(connection: Connection, table: sa.Table) -> sa.Insert:
    """Build ``INSERT ... ON CONFLICT DO NOTHING`` in the dialect at hand."""
    if connection.dialect.name == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table).on_conflict_do_nothing()
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert

    return postgresql_insert(table).on_conflict_do_nothing()


class _Span(TypedDict):
    session_pk: int
    first: int
    last: int


class _StoredMessage(NamedTuple):
    seq: int
    role: str
    body: str


_READ_MESSAGES = Prepared(
    sa.select(messages.c.seq, messages.c.role, coalesce_texts(messages.c.body, blobs.c.body).label("body"))
    .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
    .where(messages.c.session_pk == sa.bindparam("session_pk"), messages.c.seq >= sa.bindparam("first"))
    .where(messages.c.seq <= sa.bindparam("last"))
    .order_by(messages.c.seq),
    takes=_Span,
    gives=_StoredMessage,
)


def load_messages(connection: Connection, session_pk: int, first: int, last: int) -> list[Message]:
    """Load the rows numbered ``first`` to ``last`` of a session's transcript, in order. Rows that a fork shares with
    its original are read from the original's session."""
    rows = _READ_MESSAGES.all(connection, {"session_pk": session_pk, "first": first, "last": last})
    found = [Message(seq=row.seq, role=Role(row.role), body=row.body) for row in rows]
    missing = (found[0].seq if found else last + 1) - 1
    if missing < first or (prefix := find_prefix(connection, session_pk)) is None:
        return found
    return [*load_messages(connection, prefix.session_pk, first, min(missing, prefix.rows)), *found]
