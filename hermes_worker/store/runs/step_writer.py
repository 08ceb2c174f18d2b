"""Write a step, and everything that its end causes in other runs.

Theory of operation. ``save_step`` is the one function through which a run changes. The UPDATE of a step names the lease
token and the event number that were read. When either of them has moved, nothing matches, nothing is written, and
``StateMoved`` tells the caller to read again and decide again.

The end of a run has two consequences, in the same transaction. Its session becomes free, and the oldest run that waits
for the session begins. And when the run is a child, its parent's call is joined:

    child C ends (its row is written)
      -> lock the parent's call; is it still waiting?       no: done, another transaction has joined it
      -> start queued children while the cap has room        their hints are returned
      -> is any child of the call still open?               yes: done, the last one will join
      -> lock the parent's run, settle the call with all summaries, save the parent's step
           -> which may end the parent, which joins its own parent in turn

Two children that end at the same moment wait for each other at the lock on the parent's call, so the second one sees
the end of the first and joins: rows decide who is the last, never a count of arrivals (I3). Locks go upwards only (a
child's calls, the child, the parent's call, the parent), so two joins never wait for each other in a circle.

A child in the background works alike, but its parent's call was settled long ago: the last one begins a new run of the
session. Everything here returns hints, and the caller sends them after its COMMIT. A process that dies in between loses
only the hints, and the sweeper sends them again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict, assert_never

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.delegation import build_report
from hermes_worker.core.effects import build_first_effect
from hermes_worker.core.errors import Failure, UnavailableError
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.core.messages import Message, Role, build_tool_body
from hermes_worker.core.run import Call, CallStatus, ExitReason, Run, RunStatus
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.sources import EVALUATION_SOURCE
from hermes_worker.core.step import apply_event
from hermes_worker.observe import log
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_row
from hermes_worker.store.hooks.pending_calls import enqueue_hooks
from hermes_worker.store.key_states import park_on_keys
from hermes_worker.store.rewinds import take_note
from hermes_worker.store.row_keys import CallKey, RunKey, SessionKey
from hermes_worker.store.rows import (
    ACTIVATE_RUN,
    Hint,
    LoadedRun,
    ParentCall,
    SessionTurn,
    delete_documents,
    insert_messages,
    lock_run,
    upsert_blob,
)
from hermes_worker.store.runs import budgets, children
from hermes_worker.store.runs import continuations as background
from hermes_worker.store.runs.ending import close_wait, end_run, force_end
from hermes_worker.store.runs.inputs import CorruptInput, load_opening_messages
from hermes_worker.store.runs.steering import mark_included
from hermes_worker.store.runs.step_plan import (
    NO_PLAN_INPUTS,
    ChangeCall,
    CloseWait,
    DeleteDocuments,
    EndRun,
    EnqueueHooks,
    HandOnSession,
    JoinParent,
    MarkMessagesRead,
    ParkOnKeys,
    SettleBudget,
    StepOutput,
    StepPlan,
    Write,
    decide_required_inputs,
    load_plan_inputs,
    plan_step,
)
from hermes_worker.store.runs.step_statements import NO_ROWS, NewRows, write_step
from hermes_worker.store.tables import runs, sessions, tool_calls


class StateMoved(Exception):
    """The run changed between reading and writing; nothing was written, decide again on what it is now."""


_NO_ADDITIONS = StepOutput()


def save_step(
    connection: Connection, loaded: LoadedRun, after: Run, additions: StepOutput = _NO_ADDITIONS
) -> list[Hint]:
    """Write the step from ``loaded.run`` to ``after`` in the caller's transaction and return what to send once that is
    committed.

    The caller holds the run's lock, or is prepared for ``StateMoved``. A claim that ``after`` no longer has is given
    up here; one that it still has keeps its token.
    """
    wanted = decide_required_inputs(loaded, after, additions)
    known = load_plan_inputs(connection, loaded, wanted, additions.pricing) if wanted else NO_PLAN_INPUTS
    observed = _select_events_to_observe(loaded, Database.get_observed(connection))
    return _write_plan(connection, plan_step(loaded, after, additions, known, observed))


def commit_step(database: Database, loaded: LoadedRun, after: Run, additions: StepOutput) -> list[Hint]:
    """``save_step`` in a transaction of its own, or in one statement where that is enough. Raises ``StateMoved``."""
    wanted = decide_required_inputs(loaded, after, additions)
    observed = _select_events_to_observe(loaded, database.observed)
    if not wanted:
        return write_plan(database, plan_step(loaded, after, additions, observed=observed))
    with database.read() as connection:
        known = load_plan_inputs(connection, loaded, wanted, additions.pricing)
    # A change since ``loaded`` added an event, so the write raises ``StateMoved``. The exception is the budget,
    # of which the run is told how much is used.
    return write_plan(database, plan_step(loaded, after, additions, known, observed))


def _select_events_to_observe(loaded: LoadedRun, observed: Observed) -> Observed:
    """Select the events of a run that observers are told of: none of an evaluation."""
    return NOT_OBSERVED if loaded.origin == EVALUATION_SOURCE else observed


def write_plan(database: Database, planned: StepPlan) -> list[Hint]:
    """Write a plan, in a transaction exactly when it takes more than one statement. Raises ``StateMoved``."""
    with database.write() if planned.rest else database.statement() as connection:
        return _write_plan(connection, planned)


def _write_plan(connection: Connection, planned: StepPlan) -> list[Hint]:
    more = next((each for each in planned.rest if isinstance(each, NewRows)), NO_ROWS)
    for digest, body in more.blobs:
        upsert_blob(connection, digest, body)
    at = write_step(connection, planned.first, more)
    if at is None:
        raise StateMoved(f"run {planned.loaded.run.run_id!r} moved on while a step was being written")
    hints = [Hint(effect=effect, at=at) for effect in planned.added]
    for each in planned.rest:
        hints += _write_one(connection, planned, each, at)
    return hints


def _write_one(connection: Connection, planned: StepPlan, what: Write, at: float) -> list[Hint]:
    run_pk, session_pk = planned.loaded.pk, planned.loaded.session_pk
    match what:
        case NewRows():
            return []  # with the first statement
        case EnqueueHooks():
            return enqueue_hooks(connection, what.run_id, what.rows, at)
        case DeleteDocuments():
            delete_documents(connection, session_pk, what.keys)
        case MarkMessagesRead():
            mark_included(connection, run_pk, what.seq)
        case CloseWait():
            close_wait(connection, run_pk, planned.iteration, what.position)
        case ChangeCall():
            _change_call(connection, run_pk, planned.iteration, what.call, is_due=what.is_due)
        case ParkOnKeys():
            park_on_keys(connection, run_pk, what.credentials)
        case EndRun():
            return end_run(connection, run_pk, what)
        case HandOnSession():
            return release_session(connection, session_pk, run_pk, what.message_seq)
        case JoinParent():
            return join_parent(connection, what.parent)
        case SettleBudget():
            budgets.settle_charge(connection, what.budget_pk, what.charge)
        case _:
            assert_never(what)
    return []


class _ChangedCall(CallKey):
    new_status: str
    new_waits_for: str | None
    is_asking: bool
    new_attempt: int
    new_deaths: int | None
    is_due: bool
    is_settled: bool


_CHANGE_CALL = Prepared(
    sa.update(tool_calls)
    .where(
        tool_calls.c.run_pk == sa.bindparam("run"),
        tool_calls.c.iteration == sa.bindparam("iter"),
        tool_calls.c.position == sa.bindparam("pos"),
    )
    .values(
        status=sa.bindparam("new_status"),
        waits_for=sa.bindparam("new_waits_for"),
        asks=sa.case(
            (sa.bindparam("is_asking", type_=sa.Boolean()), 1), (tool_calls.c.asks.is_(None), sa.null()), else_=0
        ),
        attempt=sa.bindparam("new_attempt"),
        deaths=sa.bindparam("new_deaths"),
        lease_token=None,
        lease_owner=None,
        deadline_at=None,
        hinted_at=sa.case((sa.bindparam("is_due", type_=sa.Boolean()), db_now()), else_=None),
        hints=0,
        settled_at=sa.case((sa.bindparam("is_settled", type_=sa.Boolean()), db_now()), else_=None),
    ),
    takes=_ChangedCall,
)


def _change_call(connection: Connection, run_pk: int, iteration: int, call: Call, *, is_due: bool) -> None:
    _CHANGE_CALL.run(
        connection,
        {
            "run": run_pk,
            "iter": iteration,
            "pos": call.position,
            "new_status": call.status.value,
            "new_waits_for": call.waits_for.value if call.waits_for else None,
            "is_asking": call.asks,
            "new_attempt": call.attempt,
            "new_deaths": call.deaths,
            "is_due": is_due,
            "is_settled": call.status.is_settled,
        },
    )


# --- runs whose rows make no sense -----------------------------------------------------------------------------------


def end_broken(
    database: Database, pk: int, event: ev.RunBroken, may: Callable[[Connection], bool] = lambda connection: True
) -> list[Hint]:
    """End a run that cannot go on, even one whose rows cannot be read. Idempotent. ``may`` is called under the run's
    lock and says whether the caller may still end it."""
    try:
        with database.write() as connection:
            loaded = lock_run(connection, pk)
            if loaded is None or loaded.run.status.is_terminal or not may(connection):
                return []
            return save_step(connection, loaded, apply_event(loaded.run, event))
    except UnavailableError:
        raise
    except Exception as error:
        # The rows are too damaged to end the run by the rules. It must still end, without harm to other runs.
        log.error("run.broken", run_pk=pk, error=f"{type(error).__name__}: {error}")
        with database.write() as connection:
            return _force_end(connection, pk, event) if may(connection) else []


def _force_end(connection: Connection, pk: int, event: ev.RunBroken) -> list[Hint]:
    ended = force_end(connection, pk, event)
    if ended is None:
        return []
    hints = [*ended.hints, *release_session(connection, ended.session_pk, pk, ended.message_seq)]
    if ended.parent is not None:
        hints += join_parent(connection, ended.parent)
    if ended.settled is not None:
        budgets.settle_charge(connection, ended.settled.budget_pk, ended.settled.charge)
    return hints


# --- the session's next run ------------------------------------------------------------------------------------------


class _NextRun(NamedTuple):
    pk: int
    run_id: str
    place: int | None


class _ActiveRunKey(TypedDict):
    run: int
    length: int
    """The length of the session's transcript."""


class _SessionRun(_ActiveRunKey):
    session: int


class _BegunRow(NamedTuple):
    hinted_at: float
    prepares: int | None


_NEXT_RUN = Prepared(
    sa.select(runs.c.pk, runs.c.run_id, runs.c.place)
    .where(
        runs.c.session_pk == sa.bindparam("session"),
        sa.text("runs.status = 'queued'"),
        sa.func.coalesce(runs.c.not_before, 0.0) <= db_now(),
    )
    .order_by(runs.c.goes_first.desc(), runs.c.pk)
    .limit(1)
    .with_for_update(),
    takes=SessionKey,
    gives=_NextRun,
)
"""The next run is locked, because somebody may be stopping it at this moment: then it is passed over. The status is a
literal, so that a plan made once for all sessions can use ``ix_runs_open``."""
_FREE = Prepared(
    sa.update(sessions)
    .where(sessions.c.pk == sa.bindparam("session"), sessions.c.active_run_pk == sa.bindparam("run"))
    .values(active_run_pk=None, message_seq=sa.bindparam("length"), active_at=db_now()),
    takes=_SessionRun,
)
_TAKE_TURN = Prepared(
    sa.update(sessions)
    .where(sessions.c.pk == sa.bindparam("session"))
    .values(active_run_pk=sa.bindparam("run"), active_at=db_now()),
    takes=SessionTurn,
)
"""``ACTIVATE_RUN`` for a session that was opened before: it is active again."""
_BEGIN = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(message_seq=sa.bindparam("length"), hinted_at=db_now(), updated_at=db_now())
    .returning(runs.c.hinted_at, runs.c.prepares),
    takes=_ActiveRunKey,
    gives=_BegunRow,
)
_INPUT_UNREADABLE = ev.RunBroken(
    reason=ExitReason.CORRUPT_STATE,
    failure=Failure(kind="corrupt_state", message="the stored input of this run cannot be read; see the log"),
)


def release_session(connection: Connection, session_pk: int, run_pk: int, message_seq: int) -> list[Hint]:
    """Give back the session of a run that ended; the oldest run waiting for it, if any, becomes the active one
    (invariant I10). Returns the hints to send."""
    freed = _FREE.run(connection, {"session": session_pk, "run": run_pk, "length": message_seq})
    if freed == 0:
        return []  # it was not its session's active run yet
    while (waiting := _NEXT_RUN.first(connection, {"session": session_pk})) is not None:
        try:
            return begin_run(connection, session_pk, waiting.pk, waiting.run_id, message_seq, waiting.place)
        except CorruptInput as error:
            # Only the unreadable run ends; the run that is ending now and the next one are not affected.
            log.error("run.broken", run_id=waiting.run_id, error=str(error))
            end_unreadable(connection, waiting.pk)
    return []


def end_unreadable(connection: Connection, run_pk: int) -> list[Hint]:
    """End a run that cannot begin, because its input makes no sense."""
    return _force_end(connection, run_pk, _INPUT_UNREADABLE)


_HOLD = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"), runs.c.place == FleetPlace.WAITS.value)
    .values(place=FleetPlace.HELD.value, updated_at=db_now()),
    takes=RunKey,
)


def begin_run(
    connection: Connection, session_pk: int, run_pk: int, run_id: str, message_seq: int, place: int | None
) -> list[Hint]:
    """Begin a queued run whose session is free, or let it wait for a place when it shares the fleet
    (``store.runs.admission``). Conditions and errors as in ``activate``. Returns the hints to send."""
    if place is None:
        return [activate(connection, session_pk, run_pk, run_id, message_seq)]
    hold_for_place(connection, run_pk)
    return []


def hold_for_place(connection: Connection, run_pk: int) -> None:
    """Let a run whose session is free wait for a place. Idempotent."""
    _HOLD.run(connection, {"run": run_pk})


def activate(connection: Connection, session_pk: int, run_pk: int, run_id: str, message_seq: int) -> Hint:
    """Make a queued run the active one of its session: its user message joins the transcript and its first call is due.

    The caller's transaction holds the session's row and has seen that no run is active. Raises ``CorruptInput``,
    and then nothing was written.
    """
    note = take_note(connection, session_pk, message_seq + 1, run_pk) if message_seq else []
    rows = [*note, *load_opening_messages(connection, run_pk, message_seq + len(note) + 1)]
    insert_messages(connection, session_pk, run_pk, rows)
    (_TAKE_TURN if message_seq else ACTIVATE_RUN).run(connection, {"session": session_pk, "run": run_pk})
    begun = _BEGIN.one(connection, {"run": run_pk, "length": message_seq + len(rows)})
    return Hint(effect=build_first_effect(run_id, prepares=begun.prepares is not None), at=float(begun.hinted_at))


def begin_postponed(connection: Connection, loaded: LoadedRun) -> list[Hint] | None:
    """Begin a locked run whose start time has come. Returns the hints to send; ``None`` when it has begun already, or
    its session has an active run, whose end will begin it."""
    session = fetch_row(connection.execute(_SESSION_OF, {"session": loaded.session_pk}), _FreeSession)
    if session is None or session.active_run_pk is not None or loaded.run.status is not RunStatus.QUEUED:
        return None
    if loaded.lease_token is not None or loaded.run.is_asking:
        return None
    try:
        message_seq = session.message_seq
        return begin_run(connection, loaded.session_pk, loaded.pk, loaded.run.run_id, message_seq, loaded.place)
    except CorruptInput as error:
        log.error("run.broken", run_id=loaded.run.run_id, error=str(error))
        return _force_end(connection, loaded.pk, _INPUT_UNREADABLE)


class _FreeSession(NamedTuple):
    active_run_pk: int | None
    message_seq: int


_SESSION_OF = (
    sa.select(sessions.c.active_run_pk, sessions.c.message_seq)
    .where(sessions.c.pk == sa.bindparam("session"))
    .with_for_update()
)


# --- the parent's call -----------------------------------------------------------------------------------------------


def join_parent(connection: Connection, parent: ParentCall) -> list[Hint]:
    """Take the end of a child to its parent, in the child's transaction: start the next child that waits for the cap,
    and settle the parent's call when this child was the last. Works at any depth: a parent that ends by that joins its
    own.

    Idempotent: a call that waits no more is left alone.
    """
    if parent.is_background:
        return _join_background(connection, parent)
    waiting = children.lock_waiting_call(connection, parent)
    if waiting is None:
        return []
    hints, is_last = _start_next_children(connection, parent, waiting.children_max, children.lock_waiting_call)
    if not is_last:
        return hints
    loaded, tool_call_id = children.lock_parent_run(connection, parent, waiting)
    outcomes = children.load_outcomes(connection, parent)
    has_success = any(outcome.status is RunStatus.COMPLETED for outcome in outcomes)
    settled = ev.CallSettled(
        position=parent.position, status=CallStatus.SUCCEEDED if has_success else CallStatus.FAILED
    )
    data = {
        "tool": waiting.call.name,
        "tool_call_id": tool_call_id,
        "iteration": parent.iteration,
        "position": parent.position,
        "duration": round(waiting.waited_s, 3),
        "error": not has_success,
    }
    body = build_tool_body(tool_call_id, build_report(outcomes))
    additions = StepOutput(
        messages=[Message(seq=waiting.call.result_seq, role=Role.TOOL, body=body)],
        events=[RunEvent(name=RunEventName.TOOL_COMPLETED, data=data)],
        written_calls=frozenset({parent.position}),
        settled_call={**children.build_call_key(parent), "token": None, "call_status": settled.status.value},
    )
    return hints + save_step(connection, loaded, apply_event(loaded.run, settled), additions)


def _join_background(connection: Connection, parent: ParentCall) -> list[Hint]:
    """Take the end of a background child to its parent: after the last child a new run of the session begins. A stopped
    run gets no such continuation."""
    children_max = children.lock_background_call(connection, parent)
    if children_max is None:
        return []
    hints, is_last = _start_next_children(connection, parent, children_max, children.lock_background_call)
    if not is_last:
        return hints
    children.mark_joined(connection, parent)
    turn = background.insert_continuation(connection, parent)
    if turn is None or not turn.is_next:
        return hints
    return [*hints, *begin_run(connection, turn.session_pk, turn.run_pk, turn.run_id, turn.message_seq, turn.place)]


def _start_next_children(
    connection: Connection, parent: ParentCall, children_max: int, lock: Callable[[Connection, ParentCall], object]
) -> tuple[list[Hint], bool]:
    """Start the children that the cap has room for. Returns the hints, and whether the call, which the caller holds, is
    to be joined: no child of it is open, and ``lock`` still finds it waiting."""
    left = children.load_remaining(connection, parent)
    hints: list[Hint] = []
    if left.is_any_queued:
        hints, has_broken = _try_start_children(connection, parent.run_pk, children_max)
        if has_broken:  # children that could not start have ended, and may have joined the call
            left = children.load_remaining(connection, parent)
            return hints, not left.is_any_open and lock(connection, parent) is not None
    return hints, not left.is_any_open


def start_children(connection: Connection, parent_pk: int, children_max: int) -> list[Hint]:
    """Start children of a run until ``children_max`` of them are at work. The caller holds the lock of one of its
    calls."""
    return _try_start_children(connection, parent_pk, children_max)[0]


def _try_start_children(connection: Connection, parent_pk: int, children_max: int) -> tuple[list[Hint], bool]:
    """Start children of a run until ``children_max`` of them are at work. Returns the hints, and whether a child could
    not start and was ended instead."""
    hints: list[Hint] = []
    has_broken = False
    while (child := children.lock_next_child(connection, parent_pk, children_max)) is not None:
        try:
            hints.append(activate(connection, child.session_pk, child.pk, child.run_id, child.message_seq))
        except CorruptInput as error:
            log.error("run.broken", run_id=child.run_id, error=str(error))
            hints += end_unreadable(connection, child.pk)
            has_broken = True
    return hints, has_broken
