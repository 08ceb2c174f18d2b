"""Write the end of a run: by the rules, or by force when its rows make no sense.

What follows from an end for other runs is in ``store.runs.step_writer``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.budget import Amounts
from hermes_worker.core.fair_share import FleetPlace
from hermes_worker.core.messages import Message, Role, build_tool_body
from hermes_worker.core.notices import build_missing_result
from hermes_worker.core.pricing import NOTHING_SPENT, CostStatus, Spent, count_unpriced_calls, to_doubtful_nano_usd
from hermes_worker.core.run import CallStatus, RunStatus, WaitKind
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.observe import log
from hermes_worker.store.artifacts.gatherings import enqueue_gathering
from hermes_worker.store.engine.database import Database, db_now
from hermes_worker.store.engine.prepared import Prepared, fetch_row, fetch_rows
from hermes_worker.store.hooks.pending_calls import build_hook_rows, enqueue_hooks
from hermes_worker.store.outbox.deliveries import enqueue_deliveries, parse_targets, remove_buttons
from hermes_worker.store.row_keys import RunKey
from hermes_worker.store.rows import (
    RUN_COLUMNS,
    Hint,
    ParentCall,
    RunRow,
    find_budget_pk,
    insert_messages,
    load_messages,
    make_storable,
    to_parent_call,
    to_reserved_amounts,
)
from hermes_worker.store.runs.budgets import Charge
from hermes_worker.store.runs.lost_attempts import estimate_lost_auxiliary_bare, estimate_lost_call_bare
from hermes_worker.store.runs.step_plan import STOPPED_BODY, EndRun, SettleBudget, build_event_rows
from hermes_worker.store.runs.step_statements import INSERT_EVENT
from hermes_worker.store.tables import runs, tool_calls, waits


class _End(RunKey):
    new_status: str
    reason: str
    kind: str | None
    message: str | None
    answer: int | None


class _Owed(NamedTuple):
    deliver: str | None
    artifacts: int | None
    was_watched: bool
    """A client followed the run, or its answer was shown while it was written."""


LEFT_PLACE = sa.case((runs.c.place.is_(None), sa.null()), else_=FleetPlace.LEFT.value)
"""The new ``place`` of a run that ends: the next round of ``store.runs.admission`` adds its cost to its tenant's
account."""
_END = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(
        status=sa.bindparam("new_status"),
        exit_reason=sa.bindparam("reason"),
        failure_kind=sa.bindparam("kind"),
        failure_message=sa.bindparam("message"),
        output_seq=sa.bindparam("answer"),
        finished_at=db_now(),
        place=LEFT_PLACE,
    )
    .returning(runs.c.deliver, runs.c.artifacts, (runs.c.watched_until > 0).label("was_watched")),
    takes=_End,
    gives=_Owed,
)


def end_run(connection: Connection, run_pk: int, end: EndRun) -> list[Hint]:
    """Write the end that ``core.step`` decided on, with the deliveries and artifacts that follow from it. Returns the
    hints to send."""
    after = end.after
    failure = after.failure
    values: _End = {
        "run": run_pk,
        "new_status": after.status.value,
        "reason": end.reason.value,
        "kind": failure.kind if failure else None,
        "message": make_storable(failure.message) if failure else None,
        "answer": end.output_seq,
    }
    owed = _END.one(connection, values)
    hints = []
    if owed.deliver:
        targets, run = parse_targets(owed.deliver), (run_pk, after.run_id)
        hints = enqueue_deliveries(connection, targets, run=run, may_be_shown=owed.was_watched)
    return [*hints, *(enqueue_gathering(connection, run_pk, after.run_id) if owed.artifacts else ())]


def close_waits(connection: Connection, run_pk: int, *call: sa.ColumnElement[bool]) -> None:
    """Close the open questions of a run, or of one ``call`` of it, without an answer. Tasks of servers stay open until
    the servers were told (``remote_tasks``)."""
    closed = connection.execute(
        sa.update(waits)
        .where(waits.c.run_pk == run_pk, waits.c.closed_at.is_(None), waits.c.kind != WaitKind.TASK.value, *call)
        .values(closed_at=db_now(), outcome="cancelled")
        .returning(waits.c.pk)
    )
    for wait_id in closed.scalars().all():
        remove_buttons(connection, run_pk, wait_id)


def close_wait(connection: Connection, run_pk: int, iteration: int, position: int) -> None:
    close_waits(connection, run_pk, waits.c.iteration == iteration, waits.c.position == position)


# --- by force --------------------------------------------------------------------------------------------------------


class _OpenCall(NamedTuple):
    iteration: int
    position: int
    result_seq: int
    is_asked: bool
    may_have_acted: bool


class _EndedRow(NamedTuple):
    run_id: str
    session_pk: int
    iteration: int
    event_seq: int
    message_seq: int
    deliver: str | None
    artifacts: int | None
    parent_pk: int | None
    parent_iteration: int | None
    parent_position: int | None
    is_background: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedEnd:
    """A run that was ended by force, and what the caller has still to do for it."""

    run_pk: int
    session_pk: int
    message_seq: int
    """The length of its session's transcript."""
    parent: ParentCall | None
    settled: SettleBudget | None
    """What the run takes from its budget; ``None`` when it has none."""
    hints: Sequence[Hint]


def force_end(connection: Connection, pk: int, event: ev.RunBroken) -> ForcedEnd | None:
    """End a run without reading what it was doing; ``None`` when it has ended already. Its open calls are locked first,
    in the usual order of locks."""
    open_calls = fetch_rows(connection.execute(_OPEN_CALLS, {"run": pk}), _OpenCall)
    held = fetch_row(connection.execute(_HELD, {"run": pk}), RunRow)
    lost = _estimate_losses(connection, held, open_calls)
    row = _write_end(connection, pk, event, lost)
    if row is None:
        return None
    close_waits(connection, pk)
    _settle_open_calls(connection, pk)
    data = {"error": event.failure.message, "exit_reason": event.reason.value, "status": RunStatus.FAILED.value}
    told = [RunEvent(name=RunEventName.RUN_FAILED, data=data)]
    INSERT_EVENT.run_each(connection, build_event_rows(pk, row.event_seq - 1, told))
    observed, is_child = Database.get_observed(connection), row.parent_pk is not None
    owed = build_hook_rows((pk, row.run_id), row.event_seq - 1, told, observed, is_child=is_child)
    return ForcedEnd(
        run_pk=pk,
        session_pk=row.session_pk,
        message_seq=row.message_seq + _close_transcript(connection, pk, row, open_calls),
        parent=to_parent_call(row),
        settled=_build_settlement(held, lost),
        hints=[
            *enqueue_deliveries(connection, parse_targets(row.deliver), run=(pk, row.run_id)),
            *enqueue_hooks(connection, row.run_id, owed),
            *(enqueue_gathering(connection, pk, row.run_id) if row.artifacts else ()),
        ],
    )


def _estimate_losses(connection: Connection, held: RunRow | None, open_calls: Sequence[_OpenCall]) -> Spent:
    """Estimate what the calls took whose claims are taken away by the end."""
    if held is None:
        return NOTHING_SPENT
    lost = NOTHING_SPENT if held.lease_token is None else estimate_lost_call_bare(connection, held)
    for call in open_calls:
        lost = lost + estimate_lost_auxiliary_bare(connection, held, call) if call.is_asked else lost
    return lost


def _build_settlement(held: RunRow | None, lost: Spent) -> SettleBudget | None:
    if held is None or not held.has_budget or not (held.is_reserved or lost.cost is not None):
        return None
    spent = Amounts(tokens=lost.usage.chargeable, nano_usd=to_doubtful_nano_usd(lost.cost))
    charge = Charge(given_back=to_reserved_amounts(held), spent=spent, unknown_costs=count_unpriced_calls(lost.cost))
    return SettleBudget(budget_pk=find_budget_pk(held) or held.pk, charge=charge)


def _write_end(connection: Connection, pk: int, event: ev.RunBroken, lost: Spent) -> _EndedRow | None:
    statement = (
        sa.update(runs)
        .where(runs.c.pk == pk, runs.c.exit_reason.is_(None))
        .values(
            status=RunStatus.FAILED.value,
            exit_reason=event.reason.value,
            failure_kind=event.failure.kind,
            failure_message=make_storable(event.failure.message),
            lease_token=None,
            lease_owner=None,
            is_reserved=0,
            hinted_at=None,
            resume_at=None,
            memory=None,
            event_seq=runs.c.event_seq + 1,
            finished_at=db_now(),
            updated_at=db_now(),
            place=LEFT_PLACE,
            **_build_unknown_attempt_columns(lost),
        )
        .returning(
            runs.c.run_id,
            runs.c.session_pk,
            runs.c.iteration,
            runs.c.event_seq,
            runs.c.message_seq,
            runs.c.deliver,
            runs.c.artifacts,
            runs.c.parent_pk,
            runs.c.parent_iteration,
            runs.c.parent_position,
            runs.c.is_background,
        )
    )
    return fetch_row(connection.execute(statement), _EndedRow)


def _settle_open_calls(connection: Connection, pk: int) -> None:
    connection.execute(
        sa.update(tool_calls)
        .where(tool_calls.c.run_pk == pk, tool_calls.c.settled_at.is_(None))
        .values(
            status=sa.case((_MAY_HAVE_ACTED, CallStatus.UNKNOWN.value), else_=CallStatus.CANCELLED.value),
            waits_for=None,
            asks=sa.case((tool_calls.c.asks.is_(None), sa.null()), else_=0),
            lease_token=None,
            lease_owner=None,
            deadline_at=None,
            hinted_at=None,
            settled_at=db_now(),
        )
    )


_READABLE = [sa.null().label("memory") if column is runs.c.memory else column for column in RUN_COLUMNS]
"""The columns of a run without ``memory``, which may be the text that cannot be read."""
_HELD = sa.select(*_READABLE).where(runs.c.pk == sa.bindparam("run")).with_for_update()
_IS_ASKED = (tool_calls.c.status == CallStatus.RUNNING.value) & (sa.func.coalesce(tool_calls.c.asks, 0) == 1)
_MAY_HAVE_ACTED = (tool_calls.c.status == CallStatus.RUNNING.value) & (sa.func.coalesce(tool_calls.c.asks, 0) == 0)


def _build_unknown_attempt_columns(lost: Spent) -> dict[str, object]:
    """The columns of a run that book an attempt of unknown outcome."""
    if lost.cost is None:
        return {}
    return {
        "unknown_attempts": runs.c.unknown_attempts + lost.usage.unknown_attempts,
        "unknown_input_tokens": runs.c.unknown_input_tokens + lost.usage.unknown_input,
        "unknown_output_tokens": runs.c.unknown_output_tokens + lost.usage.unknown_output,
        "doubtful_nano_usd": runs.c.doubtful_nano_usd + to_doubtful_nano_usd(lost.cost),
        "unpriced_calls": runs.c.unpriced_calls + count_unpriced_calls(lost.cost),
        "cost_status": CostStatus.UNKNOWN.value,
    }


_OPEN_CALLS = (
    sa.select(
        tool_calls.c.iteration,
        tool_calls.c.position,
        tool_calls.c.result_seq,
        _IS_ASKED.label("is_asked"),
        _MAY_HAVE_ACTED.label("may_have_acted"),
    )
    .where(tool_calls.c.run_pk == sa.bindparam("run"), tool_calls.c.settled_at.is_(None))
    .order_by(tool_calls.c.iteration, tool_calls.c.position)
    .with_for_update()
)


def _close_transcript(connection: Connection, pk: int, row: _EndedRow, open_calls: Sequence[_OpenCall]) -> int:
    """Write results for the open calls of a run that was ended by force, so that the session's next run has a valid
    transcript. Returns how many rows the transcript grew by: 0 when the reply that asked for the calls cannot be read
    either."""
    if row.iteration == 0:
        return 0
    try:
        with connection.begin_nested():
            results = [_build_unknown_result(connection, row.session_pk, call) for call in open_calls]
            closing = Message(seq=row.message_seq + 1, role=Role.ASSISTANT, body=STOPPED_BODY)
            insert_messages(connection, row.session_pk, pk, [*results, closing])
    except (ValueError, LookupError, TypeError, sa.exc.IntegrityError) as error:
        log.error("run.broken", run_pk=pk, error=f"its transcript could not be closed: {type(error).__name__}: {error}")
        return 0
    connection.execute(sa.update(runs).where(runs.c.pk == pk).values(message_seq=runs.c.message_seq + 1))
    return 1


def _build_unknown_result(connection: Connection, session_pk: int, call: _OpenCall) -> Message:
    asked_at = call.result_seq - call.position - 1
    reply = json.loads(load_messages(connection, session_pk, asked_at, asked_at)[0].body)
    status = CallStatus.UNKNOWN if call.may_have_acted else CallStatus.CANCELLED
    text = build_missing_result(status, was_running=False)
    body = build_tool_body(str(reply["tool_calls"][call.position]["id"]), text)
    return Message(seq=call.result_seq, role=Role.TOOL, body=body)
