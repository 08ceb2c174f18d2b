"""Child runs: started as far as the cap allows, joined when the last has ended. ``new_children`` makes them.

Theory of operation. A child is a run of its own in a session of its own. It names the call that it works for, and the
call keeps the cap: how many children of its run may be at work at once.

    tool_calls  run 7, iteration 2, position 0: status ``waiting``, children_max 2
    runs        8  parent 7, 2, 0   completed                    over
                9  parent 7, 2, 0   running                      has begun, counts for the cap
               10  parent 7, 2, 0   queued, hinted_at is null    waits for a place

The transaction that ends a child takes its end to the parent (``step_writer.join_parent``). It locks the call, and so
the ends of siblings follow one another. Then it asks two questions in one look (``load_remaining``):

    does a child wait for a place?     start it, if the cap has room          the end of 8 starts 10
    is another child still open?       yes: nothing. no: settle the call      9 and 10: whoever ends last joins

So the join is on rows, and nothing counts arrivals (invariant I3). A call that waits no more, because its run ended
first, is left alone. A child that cannot start, because its input is unreadable, is ended on the way and may itself
have joined the call: so the second question is asked again after that. The call of *background* children has its
result already, and its run may have ended: there ``children_max`` says that it is not joined yet. The last child sets
it to null and adds a run to the session, which begins with what the children answered.

*Order of locks*, for every transaction that touches a family: the child's calls, the child, the parent's call, the
parent, and so on upwards. A transaction that holds a parent never waits for one of its children: a sibling that is to
be started is taken only if it is free, and one that is just being ended starts the next by itself when it has ended.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core.budget import to_usd
from hermes_worker.core.delegation import ChildOutcome
from hermes_worker.core.messages import Role
from hermes_worker.core.notices import STOPPED_ANSWER
from hermes_worker.core.run import STATE_VERSION, CallStatus, RunStatus
from hermes_worker.store.engine.database import db_now
from hermes_worker.store.engine.prepared import Joined, PkRow, Prepared
from hermes_worker.store.engine.sealing import coalesce_texts
from hermes_worker.store.row_keys import AtMost, CallKey, RunKey
from hermes_worker.store.rows import (
    CALL_COLUMNS,
    RUN_COLUMNS,
    CallRow,
    LoadedRun,
    ParentCall,
    RunRow,
    load_calls,
    load_messages,
    parse_call_ids,
    to_loaded,
    to_usage,
)
from hermes_worker.store.tables import RUN_IS_OPEN, blobs, messages, runs, sessions, tool_calls

_HAS_BEGUN = sa.text("runs.message_seq > 0")
"""A child that has begun has its task in its transcript; one that was paused before that uses up nothing of the cap."""
_WAITS = sa.text("runs.status = 'queued' and runs.hinted_at is null")
"""Both conditions, and ``RUN_IS_OPEN``, are spelled as in the partial indexes
``ix_runs_{open,begun,waiting}_children``: with values for parameters a plan that is made once could not use the
indexes, and a family of a thousand would be read whole whenever a child ends."""
_TRACE_MAX = 500
"""Tool calls of all children together that a report may name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingCall:
    """A call that waits for children, locked."""

    call: CallRow
    children_max: int
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemainingChildren:
    """The state of a family when a child has ended."""

    is_any_open: bool
    """A child of the same call has not ended."""
    is_any_queued: bool
    """A child of the same run has not begun."""


_started = (
    sa.select(runs.c.pk)
    .where(runs.c.parent_pk == sa.bindparam("run"), RUN_IS_OPEN, _HAS_BEGUN)
    .limit(sa.bindparam("cap", type_=sa.Integer()))
    .subquery()
)
started_count = sa.select(sa.func.count()).select_from(_started)
"""Counts the children of ``run`` that are at work, up to ``cap``."""


class _Cap(RunKey):
    cap: int


class _Started(NamedTuple):
    started: int


_COUNT_STARTED = Prepared(sa.select(started_count.scalar_subquery().label("started")), takes=_Cap, gives=_Started)

# --------------------------------------------------------------------------------------------------------- cap and join


class _Family(NamedTuple):
    children_max: int | None
    waited_s: float | None


class _JoinedRun(RunKey):
    asked_at: int


class ReplyRow(NamedTuple):
    reply: str


class _Left(NamedTuple):
    open_pk: int | None
    queued_pk: int | None


class QueuedChild(NamedTuple):
    """A child that waits for a place."""

    pk: int
    run_id: str
    session_pk: int
    message_seq: int


class _HaltRow(NamedTuple):
    halt: str | None


class _MostChildren(NamedTuple):
    children_max: int | None


_LOCK_CALL = Prepared(
    sa.select(
        *CALL_COLUMNS,
        tool_calls.c.children_max,
        (db_now() - tool_calls.c.claimed_at).label("waited_s"),
    )
    .where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
    )
    .with_for_update(),
    takes=CallKey,
    gives=Joined(CallRow, _Family),
)

_LOCK_JOINED = Prepared(
    sa.select(*RUN_COLUMNS, coalesce_texts(messages.c.body, blobs.c.body).label("reply"))
    .select_from(
        runs.outerjoin(
            messages,
            (messages.c.session_pk == runs.c.session_pk) & (messages.c.seq == sa.bindparam("asked_at")),
        ).outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
    )
    .where(runs.c.pk == sa.bindparam("run"))
    .with_for_update(of=runs),
    takes=_JoinedRun,
    gives=Joined(RunRow, ReplyRow),
)
"""Reads also the reply that asked for the call, which never changes."""

_MARK_JOINED = Prepared(
    sa.update(tool_calls)
    .where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
    )
    .values(children_max=None),
    takes=CallKey,
)

_REMAINING = Prepared(
    sa.select(
        sa.select(runs.c.pk)
        .where(
            runs.c.parent_pk == sa.bindparam("run"),
            runs.c.parent_iteration == sa.bindparam("iter"),
            runs.c.parent_position == sa.bindparam("pos"),
            RUN_IS_OPEN,
        )
        .order_by(runs.c.pk)  # the order of the index of open children
        .limit(1)
        .scalar_subquery()
        .label("open_pk"),
        sa.select(runs.c.pk)
        .where(runs.c.parent_pk == sa.bindparam("run"), _WAITS)
        .order_by(runs.c.pk)
        .limit(1)
        .scalar_subquery()
        .label("queued_pk"),
    ),
    takes=CallKey,
    gives=_Left,
)
_NEXT_QUEUED = Prepared(
    sa.select(runs.c.pk, runs.c.run_id, runs.c.session_pk, sessions.c.message_seq)
    .join(sessions, sessions.c.pk == runs.c.session_pk)
    .where(
        runs.c.parent_pk == sa.bindparam("run"),
        _WAITS,
        sessions.c.active_run_pk.is_(None),
    )
    .order_by(runs.c.pk)
    .limit(1)
    .with_for_update(skip_locked=True, of=runs),
    takes=RunKey,
    gives=QueuedChild,
)

_LOCK_PARENT = Prepared(
    sa.select(runs.c.halt).where(runs.c.pk == sa.bindparam("run")).with_for_update(), takes=RunKey, gives=_HaltRow
)

_CAP = Prepared(
    sa.select(sa.func.max(tool_calls.c.children_max).label("children_max")).where(
        tool_calls.c.run_pk == sa.bindparam("run"), tool_calls.c.children_max.is_not(None)
    ),
    takes=RunKey,
    gives=_MostChildren,
)


def lock_waiting_call(connection: Connection, parent: ParentCall) -> WaitingCall | None:
    """Lock the call that a child worked for; ``None`` when it waits no more, because its run ended first."""
    found = _LOCK_CALL.first(connection, build_call_key(parent))
    if found is None or found[0].status != CallStatus.WAITING.value:
        return None
    call, family = found
    return WaitingCall(call=call, children_max=family.children_max or 1, waited_s=float(family.waited_s or 0))


def lock_background_call(connection: Connection, parent: ParentCall) -> int | None:
    """Lock the call whose children work in the background. Returns how many of them may work at once, or ``None`` when
    they are joined already."""
    found = _LOCK_CALL.first(connection, build_call_key(parent))
    return None if found is None else found[1].children_max


def lock_parent_run(connection: Connection, parent: ParentCall, waiting: WaitingCall) -> tuple[LoadedRun, str]:
    """Lock and load the run whose call is to be joined; returns also the model's id of the call. The caller holds the
    call. Its siblings are read once the run is locked, as in ``lock_run_after_call``."""
    call = waiting.call
    asked_at = call.result_seq - call.position - 1
    row, asked = _LOCK_JOINED.one(connection, {"run": parent.run_pk, "asked_at": asked_at})
    calls = [call] if row.call_count == 1 else load_calls(connection, parent.run_pk, row.iteration)
    return to_loaded(row, calls), parse_call_ids(asked.reply)[call.position]


def mark_joined(connection: Connection, parent: ParentCall) -> None:
    """Write that a background call is joined, so that it is never joined again. The caller holds its lock."""
    _MARK_JOINED.run(connection, build_call_key(parent))


def load_remaining(connection: Connection, parent: ParentCall) -> RemainingChildren:
    """Count what is left of a call's children. Reliable under the call's lock."""
    row = _REMAINING.one(connection, build_call_key(parent))
    return RemainingChildren(is_any_open=row.open_pk is not None, is_any_queued=row.queued_pk is not None)


def lock_next_child(connection: Connection, parent_pk: int, children_max: int) -> QueuedChild | None:
    """Lock the next child of a run to start. ``None`` when none waits, when as many as allowed are at work, or when the
    run and what it caused is paused or stopped. The cap is counted under the parent's lock, so two children that end at
    once do not start three."""
    if _NEXT_QUEUED.first(connection, {"run": parent_pk}) is None:
        return None
    if _LOCK_PARENT.one(connection, {"run": parent_pk}).halt is not None:
        return None
    counted = _COUNT_STARTED.one(connection, {"run": parent_pk, "cap": children_max})
    if counted.started >= children_max:
        return None
    return _NEXT_QUEUED.first(connection, {"run": parent_pk})


def load_children_max(connection: Connection, parent_pk: int) -> int | None:
    """Load how many children of a run may work at once; ``None`` for a run that has delegated nothing."""
    return _CAP.one(connection, {"run": parent_pk}).children_max


def build_call_key(parent: ParentCall) -> CallKey:
    """The key of the parent's call, as parameters."""
    return {"run": parent.run_pk, "iter": parent.iteration, "pos": parent.position}


# -------------------------------------------------------------------------------------------------------------- outcome


class _EndedChild(NamedTuple):
    pk: int
    run_id: str
    session_pk: int
    child_index: int
    status: str
    exit_reason: str
    model: str
    iteration: int
    call_count: int
    started_at: float | None
    finished_at: float | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    estimated_tokens: int
    refused_attempts: int
    unknown_attempts: int
    unknown_input_tokens: int
    unknown_output_tokens: int
    failure_message: str | None
    cost_status: str | None
    cost_nano_usd: int
    output_body: str | None
    now: float


class _TracedCall(NamedTuple):
    run_pk: int
    position: int
    name: str
    status: str
    result_seq: int


_OUTCOMES = Prepared(
    sa.select(
        *(runs.c[name] for name in _EndedChild._fields[:-2]),
        coalesce_texts(messages.c.body, blobs.c.body).label("output_body"),
        db_now().label("now"),
    )
    .select_from(
        runs.outerjoin(
            messages, (messages.c.session_pk == runs.c.session_pk) & (messages.c.seq == runs.c.output_seq)
        ).outerjoin(blobs, blobs.c.hash == messages.c.blob_hash)
    )
    .where(
        runs.c.parent_pk == sa.bindparam("run"),
        runs.c.parent_iteration == sa.bindparam("iter"),
        runs.c.parent_position == sa.bindparam("pos"),
    )
    .order_by(runs.c.child_index),
    takes=CallKey,
    gives=_EndedChild,
)

_TRACES = Prepared(
    sa.select(
        tool_calls.c.run_pk, tool_calls.c.position, tool_calls.c.name, tool_calls.c.status, tool_calls.c.result_seq
    )
    .join(runs, runs.c.pk == tool_calls.c.run_pk)
    .where(
        runs.c.parent_pk == sa.bindparam("run"),
        runs.c.parent_iteration == sa.bindparam("iter"),
        runs.c.parent_position == sa.bindparam("pos"),
    )
    .order_by(tool_calls.c.run_pk, tool_calls.c.iteration, tool_calls.c.position)
    .limit(_TRACE_MAX),
    takes=CallKey,
    gives=_TracedCall,
)

_WORDS = (
    sa.select(coalesce_texts(messages.c.body, blobs.c.body))
    .select_from(messages.outerjoin(blobs, blobs.c.hash == messages.c.blob_hash))
    .where(
        messages.c.session_pk == sa.bindparam("session"),
        messages.c.run_pk == sa.bindparam("run"),
        messages.c.role == Role.ASSISTANT.value,
    )
    .order_by(messages.c.seq.desc())
    .limit(20)
)


def load_outcomes(connection: Connection, parent: ParentCall) -> list[ChildOutcome]:
    """Load what the children of a call left, in the order of its tasks. All of them have ended."""
    rows = _OUTCOMES.all(connection, build_call_key(parent))
    traces: dict[int, list[_TracedCall]] = {}
    if any(row.iteration > 1 or row.call_count for row in rows):  # otherwise no child called a tool
        for call in _TRACES.all(connection, build_call_key(parent)):
            traces.setdefault(call.run_pk, []).append(call)
    return [_build_outcome(connection, row, traces.get(row.pk, [])) for row in rows]


def _build_outcome(connection: Connection, row: _EndedChild, calls: Sequence[_TracedCall]) -> ChildOutcome:
    summary = _read_message_text(row.output_body) if row.output_body else ""
    if not summary and row.iteration:
        summary = _load_last_words(connection, row)
    return ChildOutcome(
        index=row.child_index,
        run_id=row.run_id,
        status=RunStatus(row.status),
        exit_reason=row.exit_reason,
        model=row.model,
        iterations=row.iteration,
        duration_s=(row.finished_at or row.now) - row.started_at if row.started_at else 0.0,
        usage=to_usage(row),
        summary=summary,
        error=row.failure_message,
        tools=[(call.name, call.status) for call in calls],
        files=_list_written_files(connection, row, calls),
        cost_usd=None if row.cost_status in (None, "unknown") else float(to_usd(row.cost_nano_usd)),
    )


_FILE_TOOLS = {"write_file": "path", "patch": "path"}
"""Tools that make or change one file, and the argument that names it."""
_FILES_MAX = 50


def _list_written_files(connection: Connection, row: _EndedChild, calls: Sequence[_TracedCall]) -> list[str]:
    """The paths of files that a child wrote, for its report: they are there however the child ended."""
    wrote = [call for call in calls if call.name in _FILE_TOOLS and call.status == CallStatus.SUCCEEDED.value]
    paths: dict[str, None] = {}
    for call in wrote[:_FILES_MAX]:
        asked_at = call.result_seq - call.position - 1
        [reply] = load_messages(connection, row.session_pk, asked_at, asked_at)
        path = _find_argument(json.loads(reply.body)["tool_calls"][call.position], _FILE_TOOLS[call.name])
        if path is not None:
            paths[path] = None
    return list(paths)


def _find_argument(call: Mapping[str, Any], name: str) -> str | None:
    """A text argument of a stored call; ``None`` when it is missing or no text."""
    try:
        found = json.loads(call["function"]["arguments"])
    except ValueError:
        return None  # the tool may have repaired the arguments, but the repaired ones are not stored
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, str) else None


def _load_last_words(connection: Connection, row: _EndedChild) -> str:
    """The last text that a child without an answer wrote: the only trace of its work beside its tool calls."""
    bodies = connection.execute(_WORDS, {"session": row.session_pk, "run": row.pk}).scalars()
    texts = (_read_message_text(body) for body in bodies)
    return next((text for text in texts if text and text != STOPPED_ANSWER), "")


def _read_message_text(body: str) -> str:
    content = json.loads(body).get("content")
    return content if isinstance(content, str) else ""


# ------------------------------------------------------------------------------------------------------------- orphans

_parents = runs.alias("parents")

_ORPHANS = Prepared(
    sa.select(runs.c.pk)
    .join(_parents, _parents.c.pk == runs.c.parent_pk)
    .where(
        runs.c.parent_pk.is_not(None),
        RUN_IS_OPEN,
        runs.c.status != RunStatus.STOPPING.value,
        runs.c.state_version <= STATE_VERSION,
        sa.text("parents.status in ('completed', 'failed', 'cancelled', 'expired', 'stopping')"),
        # A background child outlives the run that delegated to it, but not a stop.
        sa.or_(runs.c.is_background == 0, sa.text("parents.status in ('cancelled', 'stopping')")),
    )
    .order_by(runs.c.pk)
    .limit(sa.bindparam("most", type_=sa.Integer())),
    takes=AtMost,
    gives=PkRow,
)


def list_orphans(connection: Connection, *, most: int) -> list[int]:
    """List open runs whose parent has ended or is being stopped: their answer is not wanted any more, so they are to be
    stopped."""
    return [row.pk for row in _ORPHANS.all(connection, {"most": most})]


def detach_child(connection: Connection, loaded: LoadedRun) -> LoadedRun:
    """Detach a background child whose parent was stopped by a person: its end will begin no new run."""
    if loaded.parent is None or not loaded.parent.is_background:
        return loaded
    connection.execute(sa.update(runs).where(runs.c.pk == loaded.pk).values(is_background=0))
    return replace(loaded, parent=replace(loaded.parent, is_background=False))


_TURNS_OF = Prepared(
    sa.select(runs.c.pk).where(runs.c.cause_pk == sa.bindparam("run")).order_by(runs.c.pk), takes=RunKey, gives=PkRow
)


def list_caused_runs(connection: Connection, run_pk: int) -> list[int]:
    """List the runs of the session that background children of a run began, ended ones included: they may have caused
    others."""
    return [int(row.pk) for row in _TURNS_OF.all(connection, {"run": run_pk})]


def list_open_children(connection: Connection, parent_pk: int, *, most: int) -> list[int]:
    """List children of a run that have not ended and were not asked to stop."""
    found = connection.execute(
        sa.select(runs.c.pk)
        .where(runs.c.parent_pk == parent_pk, RUN_IS_OPEN, runs.c.status != RunStatus.STOPPING.value)
        .order_by(runs.c.pk)
        .limit(most)
    )
    return list(found.scalars())


def list_begun_children(connection: Connection, parent_pk: int) -> list[int]:
    """List children of a run that are at work, paused ones included."""
    found = sa.select(runs.c.pk).where(runs.c.parent_pk == parent_pk, RUN_IS_OPEN, _HAS_BEGUN)
    return list(connection.execute(found.order_by(runs.c.pk)).scalars())
