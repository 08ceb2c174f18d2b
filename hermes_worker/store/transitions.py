"""Write down what ``core.step`` decided: the one function through which a run changes.

``save`` compares the run before with the run after and writes the difference, the events and the messages, in the
caller's transaction. Its UPDATE names the lease token and the event number it read: when either moved, nothing
matches, and ``StateMoved`` tells the caller to read again and decide again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from hermes_worker.core import events as ev
from hermes_worker.core.budget import NANO, Amounts, Budget, Dimension, Limits, Use, uses, warning
from hermes_worker.core.delegation import report
from hermes_worker.core.effects import AskModel, CallEffect, Effect, outstanding
from hermes_worker.core.errors import Failure, UnavailableError
from hermes_worker.core.messages import Message, Role, Usage, canonical_json, tool_body
from hermes_worker.core.notices import STOPPED_ANSWER, result_without_a_run
from hermes_worker.core.pricing import NOTHING_SPENT, Cost, CostStatus, Pricing, Spent, worst_of
from hermes_worker.core.principals import author
from hermes_worker.core.run import Call, CallStatus, ExitReason, Run, RunStatus, WaitKind, exit_text
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.core.step import apply
from hermes_worker.observe import log
from hermes_worker.store import background, budgets, children
from hermes_worker.store.database import Database, db_now
from hermes_worker.store.deliveries import owe, targets_of
from hermes_worker.store.inputs import CorruptInput, opening_message
from hermes_worker.store.losses import lost_aside, lost_aside_of, lost_call, lost_call_of
from hermes_worker.store.prepared import Prepared
from hermes_worker.store.rows import (
    BLOB_CHARS_MIN,
    GIVE_TURN,
    RUN_COLUMNS,
    Hint,
    LoadedRun,
    ParentCall,
    budget_pk_of,
    ids_of_calls,
    insert_messages,
    lock_run,
    message_values,
    parent_of,
    plain,
    read_messages,
    reserved_of,
)
from hermes_worker.store.steering import noted, steered
from hermes_worker.store.steps import INSERT_EVENT, ROWS_MAX, Step, write_step
from hermes_worker.store.tables import runs, sessions, tool_calls, waits


class StateMoved(Exception):
    """The run changed between reading and writing; nothing was written, decide again on what it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What a step brings besides the new state."""

    messages: Sequence[Message] = ()
    """Rows with their final ``seq``."""
    events: Sequence[RunEvent] = ()
    usage: Usage = field(default_factory=Usage)
    cost: Cost | None = None
    """Of ``usage``; ``None`` when the step brought none."""
    output_seq: int | None = None
    """Where the final answer stands, when this step wrote it."""
    written_calls: frozenset[int] = frozenset()
    """Positions whose rows the caller has brought up to date already."""
    settled_call: Mapping[str, Any] | None = None
    """The claim on the call that this step settles, with its new status; its row is written with the rest."""
    documents: Sequence[Mapping[str, Any]] = ()
    """Session documents to write with the rest."""
    waits_for: str = ""
    """Why the run is parked, in a sentence for people."""
    by: str | None = None
    """Who wanted the step (``core.principals``); ``None`` when it came of itself."""
    message_seq: int | None = None
    """The transcript's new length, counting places kept free for results; ``None`` when it did not grow."""
    is_of_holder: bool = False
    """Who holds the claim on the model call writes the step, and knows what the call took. A claim that anybody else
    takes away is booked as an attempt whose outcome nobody knows."""
    held_call: int | None = None
    """The position of the tool call for which a model was asked, when who holds that claim writes the step. The same
    goes for it as for ``is_of_holder``."""
    pricing: Pricing | None = None
    """What such an attempt costs; without it, the run's other calls tell."""


_UPDATE_CALL = Prepared(
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
    )
)


def save(connection: Connection, loaded: LoadedRun, after: Run, additions: Additions | None = None) -> list[Hint]:
    """Write the step from ``loaded.run`` to ``after`` and return what to send once the transaction committed.

    The caller holds the run's lock, or is prepared for ``StateMoved``. A claim that ``after`` no longer has is given
    up here; one that it still has keeps its token.
    """
    additions = additions or Additions()
    before = loaded.run
    gave_up = before.is_asking and not after.is_asking
    if gave_up and not additions.is_of_holder:
        additions = _with_lost(additions, lost_call(connection, loaded, additions.pricing))
    for position in _lost_asides(before, after, additions):
        additions = _with_lost(additions, lost_aside(connection, loaded, position, additions.pricing))
    added = outstanding(after) - outstanding(before)
    message_seq = loaded.message_seq if additions.message_seq is None else additions.message_seq
    late = _results_without_a_run(connection, loaded, after)
    if after.status.is_terminal:
        message_seq, closing = _closing_rows(after, message_seq, additions)
        late += closing
    happened = [
        *additions.events,
        *_call_events(loaded, after),
        *_budget_events(before, after),
        *_status_events(before, after, additions),
    ]
    written = [*additions.messages, *late]
    if before.unsettled and not after.unsettled and not after.status.is_terminal:
        written = _with_notes(connection, loaded, after, written)
    step = Step(
        run=_run_values(loaded, after, message_seq, len(happened), additions),
        settled_call=additions.settled_call,
        messages=message_values(connection, loaded.session_pk, loaded.pk, written),
        events=_event_values(loaded.pk, loaded.event_seq, happened),
        calls=_new_calls(loaded, after, added),
        documents=additions.documents,
    )
    at = write_step(connection, step)
    if at is None:
        raise StateMoved(f"run {after.run_id!r} moved on while a step was being written")
    for before_call, call, is_due in _changed_calls(loaded, after, additions):
        _update_call(connection, loaded, after, before_call, call, is_due=is_due)
    hints = [Hint(effect=effect, at=at) for effect in sorted(added, key=_effect_order)]
    if after.status.is_terminal:
        hints += _write_end(connection, loaded, after, additions)
        hints += release_session(connection, loaded.session_pk, loaded.pk, message_seq)
        hints += join_parent(connection, loaded.parent)
    if loaded.budget_pk is not None and (gave_up or additions.cost is not None):
        budgets.settle(connection, loaded.budget_pk, _charge(loaded, after, additions, gave_up=gave_up))
    return hints


def _with_lost(additions: Additions, lost: Spent) -> Additions:
    spent = Spent(usage=additions.usage, cost=additions.cost) + lost
    return replace(additions, usage=spent.usage, cost=spent.cost)


def _lost_asides(before: Run, after: Run, additions: Additions) -> list[int]:
    """The positions of the calls for which a model was being asked, by somebody who is none of the step's writers and
    has lost the claim with it."""
    return [
        call.position
        for call in before.calls
        if call.asks
        and call.status is CallStatus.RUNNING
        and after.calls[call.position] != call
        and call.position != additions.held_call
    ]


def _charge(loaded: LoadedRun, after: Run, additions: Additions, *, gave_up: bool) -> budgets.Charge:
    before = loaded.run
    replies = after.iteration - before.iteration
    return budgets.Charge(
        given_back=loaded.reserved if gave_up else Amounts(),
        spent=Amounts(
            iterations=replies - (after.refunds - before.refunds) if loaded.reserved.iterations else 0,
            tokens=additions.usage.chargeable,
            tool_calls=len(after.calls) if replies else 0,
            nano_usd=nano_usd_of(additions.cost) + doubtful_nano_usd_of(additions.cost),
        ),
        unknown_costs=unpriced_calls_of(additions.cost),
    )


def _with_notes(connection: Connection, loaded: LoadedRun, after: Run, written: list[Message]) -> list[Message]:
    """The last result of a batch with what the model is to know beside it: what the user said, and how much of the
    run's limits is used."""
    if loaded.steers:
        written = steered(connection, loaded.pk, written)
    found = [_wall_use(loaded), *uses(Budget(limits=Limits(iterations=after.iterations_max), spent=_counted(after)))]
    if loaded.budget_pk is not None:
        found += uses(budgets.read_budget(connection, loaded.budget_pk))
    note = warning(found)
    return written if note is None else noted(written, note)


def _counted(run: Run) -> Amounts:
    return Amounts(iterations=run.iteration - run.refunds)


def _wall_use(loaded: LoadedRun) -> Use:
    """As it was when the run was read, which may be when the call was claimed."""
    used, limit = int(loaded.wall_s - loaded.left_s), max(1, int(loaded.wall_s))
    return Use(dimension=Dimension.WALL_CLOCK, used=used, limit=limit)


def _effect_order(effect: Effect) -> int:
    return effect.position if isinstance(effect, CallEffect) else -1


def needs_transaction(database: Database, loaded: LoadedRun, after: Run, additions: Additions) -> bool:
    """Whether ``save`` takes more than one statement, so that the caller has to begin a transaction for it.

    False for the usual step of a run on PostgreSQL: a reply that goes on, or the result of its only call.
    """
    return (
        database.is_sqlite
        or after.status.is_terminal
        or loaded.budget_pk is not None
        or loaded.steers > 0
        # One place of each kind stays free for what ``save`` adds.
        or any(
            len(rows) >= ROWS_MAX for rows in (additions.messages, additions.events, additions.documents, after.calls)
        )
        or any(len(message.body) >= BLOB_CHARS_MIN for message in additions.messages)
        or bool(_changed_calls(loaded, after, additions))
    )


def _run_values(
    loaded: LoadedRun, after: Run, message_seq: int, events_added: int, additions: Additions
) -> dict[str, Any]:
    # The end is written in two statements, this one and ``_write_end``: the status changes only in the second,
    # together with the exit reason, as the CHECK on both demands.
    status = loaded.run.status if after.status.is_terminal else after.status
    usage = additions.usage
    return {
        "run": loaded.pk,
        "seen_event_seq": loaded.event_seq,
        "seen_token": loaded.lease_token,
        "new_status": status.value,
        "new_iteration": after.iteration,
        "new_refunds": after.refunds,
        "new_attempt": after.attempt,
        "new_deaths": after.deaths,
        "new_recovery": after.recovery,
        "new_memory": after.memory,
        "new_call_count": len(after.calls),
        "new_resume_at": after.resume_at,
        "new_token": loaded.lease_token if after.is_asking else None,
        "is_due": any(isinstance(effect, AskModel) for effect in outstanding(after)),
        "new_message_seq": message_seq,
        "new_event_seq": loaded.event_seq + events_added,
        "input": usage.input,
        "output": usage.output,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "reasoning": usage.reasoning,
        "estimated": usage.estimated,
        "refused_attempts": usage.refused_attempts,
        "unknown_attempts": usage.unknown_attempts,
        "unknown_input": usage.unknown_input,
        "unknown_output": usage.unknown_output,
        "cost_nano_usd": nano_usd_of(additions.cost),
        "doubtful_nano_usd": doubtful_nano_usd_of(additions.cost),
        "unpriced_calls": unpriced_calls_of(additions.cost),
        "new_cost_status": _cost_status(loaded, additions.cost),
    }


def nano_usd_of(cost: Cost | None) -> int:
    """Money is stored as a whole number, so that a sum of many small amounts is exact."""
    return 0 if cost is None or cost.usd is None else int((cost.usd * NANO).to_integral_value())


def doubtful_nano_usd_of(cost: Cost | None) -> int:
    """What may have been billed beside that, at most."""
    return 0 if cost is None else int((cost.doubtful_usd * NANO).to_integral_value())


def unpriced_calls_of(cost: Cost | None) -> int:
    """1 for what not even a bound of the cost is known of."""
    return int(cost is not None and cost.usd is None)


def _cost_status(loaded: LoadedRun, cost: Cost | None) -> str | None:
    status = loaded.cost_status if cost is None else worst_of(loaded.cost_status, cost.status)
    return status.value if status else None


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
    )
    .returning(runs.c.deliver)
)


def _write_end(connection: Connection, loaded: LoadedRun, after: Run, additions: Additions) -> list[Hint]:
    assert after.exit_reason is not None
    failure = after.failure
    values = {
        "run": loaded.pk,
        "new_status": after.status.value,
        "reason": after.exit_reason.value,
        "kind": failure.kind if failure else None,
        "message": plain(failure.message) if failure else None,
        "answer": additions.output_seq,
    }
    deliver = _END.first(connection, values).deliver
    return owe(connection, targets_of(deliver), run=(loaded.pk, after.run_id)) if deliver else []


def _changed_calls(loaded: LoadedRun, after: Run, additions: Additions) -> list[tuple[Call, Call, bool]]:
    """The calls of the current iteration whose rows have to follow: before, after, and whether they are due."""
    before = loaded.run
    if after.iteration != before.iteration or after.calls == before.calls == ():
        return []
    was_due = {effect.position for effect in outstanding(before) if isinstance(effect, CallEffect)}
    is_due = {effect.position for effect in outstanding(after) if isinstance(effect, CallEffect)}
    return [
        (before_call, call, call.position in is_due)
        for before_call, call in zip(before.calls, after.calls, strict=True)
        if (call != before_call or (call.position in was_due) != (call.position in is_due))
        and not before_call.status.is_settled
        and call.position not in additions.written_calls
    ]


def _update_call(
    connection: Connection, loaded: LoadedRun, after: Run, before_call: Call, call: Call, *, is_due: bool
) -> None:
    if before_call.waits_for in (WaitKind.APPROVAL, WaitKind.INPUT) and call.status.is_settled:
        _close_wait(connection, loaded.pk, after.iteration, call.position)
    _UPDATE_CALL.run(
        connection,
        {
            "run": loaded.pk,
            "iter": after.iteration,
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


def _close_wait(connection: Connection, run_pk: int, iteration: int, position: int) -> None:
    """The call ends without an answer. Whoever answered has closed the wait before, with the answer."""
    connection.execute(
        sa.update(waits)
        .where(
            waits.c.run_pk == run_pk,
            waits.c.iteration == iteration,
            waits.c.position == position,
            waits.c.closed_at.is_(None),
        )
        .values(closed_at=db_now(), outcome="cancelled")
    )


def _new_calls(loaded: LoadedRun, after: Run, added: frozenset[Effect]) -> list[dict[str, Any]]:
    if after.iteration == loaded.run.iteration:
        return []
    due = {effect.position for effect in added if isinstance(effect, CallEffect)}
    # The assistant's row stands at message_seq + 1; the results follow it in the order of the calls.
    first_result = loaded.message_seq + 2
    return [
        {
            "run_pk": loaded.pk,
            "iteration": after.iteration,
            "position": call.position,
            "name": plain(call.name)[:100],
            "replay": call.replay.value,
            "segment": call.segment,
            "timeout_s": call.timeout_s,
            "result_seq": first_result + call.position,
            "is_due": call.position in due,
        }
        for call in after.calls
    ]


def insert_events(connection: Connection, run_pk: int, last_seq: int, happened: Sequence[RunEvent]) -> None:
    """Append events after ``last_seq``. The primary key refuses a number that is taken."""
    INSERT_EVENT.run_each(connection, _event_values(run_pk, last_seq, happened))


def _event_values(run_pk: int, last_seq: int, happened: Sequence[RunEvent]) -> list[dict[str, Any]]:
    return [
        {
            "run_pk": run_pk,
            "seq": last_seq + n,
            "at": event.at,
            "event": event.name.value,
            "data": canonical_json(event.data),
        }
        for n, event in enumerate(happened, start=1)
    ]


def _call_events(loaded: LoadedRun, after: Run) -> list[RunEvent]:
    """What the stream says of calls that end without their tool's own answer."""
    if after.iteration != loaded.run.iteration:
        return []
    happened: list[RunEvent] = []
    for before, call in zip(loaded.run.calls, after.calls, strict=True):
        if call.status not in (CallStatus.CANCELLED, CallStatus.UNKNOWN) or before.status.is_settled:
            continue
        data = {"tool": call.name, "iteration": after.iteration, "position": call.position}
        if before.may_have_acted:
            happened.append(RunEvent(name=RunEventName.TOOL_STARTED, data={**data, "attempt": call.attempt}))
        ended = {**data, "error": True, "outcome": call.status.value}
        happened.append(RunEvent(name=RunEventName.TOOL_COMPLETED, data=ended))
    return happened


def _results_without_a_run(connection: Connection, loaded: LoadedRun, after: Run) -> list[Message]:
    """A result row for each call that ``after`` settles and whose tool said nothing."""
    if after.iteration != loaded.run.iteration:
        return []
    orphans = [
        (before, call)
        for before, call in zip(loaded.run.calls, after.calls, strict=True)
        if call.status in (CallStatus.CANCELLED, CallStatus.UNKNOWN) and not before.status.is_settled
    ]
    if not orphans:
        return []
    ids = tool_call_ids(connection, loaded)
    return [
        Message(
            seq=loaded.result_seqs[call.position],
            role=Role.TOOL,
            body=tool_body(ids[call.position], _notice(before, call)),
        )
        for before, call in orphans
    ]


def _notice(before: Call, call: Call) -> str:
    was_running = before.may_have_acted or before.waits_for is WaitKind.CHILDREN
    return result_without_a_run(call.status, was_running=was_running)


def tool_call_ids(connection: Connection, loaded: LoadedRun) -> list[str]:
    """The ids the model gave the calls of this iteration, from its stored reply."""
    asked_at = loaded.result_seqs[0] - 1
    rows = read_messages(connection, loaded.session_pk, asked_at, asked_at)
    return ids_of_calls(rows[0].body)


def _closing_rows(after: Run, message_seq: int, additions: Additions) -> tuple[int, list[Message]]:
    """An ended turn must not end with a tool's result: the next user message would follow it without an answer."""
    if after.status is RunStatus.COMPLETED or after.iteration == 0 or additions.output_seq is not None:
        return message_seq, []
    return message_seq + 1, [Message(seq=message_seq + 1, role=Role.ASSISTANT, body=_STOPPED_BODY)]


_STOPPED_BODY = canonical_json({"role": "assistant", "content": STOPPED_ANSWER})


def _budget_events(before: Run, after: Run) -> list[RunEvent]:
    """Of a run whose own model calls are used up. What a tree's budget refuses is told by the claim it refuses."""
    if before.wants_summary or not after.wants_summary or after.status.is_terminal:
        return []
    return [exhausted_event(Dimension.ITERATIONS)]


def exhausted_event(dimension: Dimension) -> RunEvent:
    return RunEvent(name=RunEventName.BUDGET_EXHAUSTED, data={"dimension": dimension.value})


def _status_events(before: Run, after: Run, additions: Additions) -> list[RunEvent]:
    if after.status is before.status:
        return []
    reason = _exit_text(after) if after.exit_reason else None
    match after.status:
        case RunStatus.COMPLETED:
            data = {"exit_reason": reason, "message_seq": additions.output_seq}
            return [RunEvent(name=RunEventName.RUN_COMPLETED, data=data)]
        case RunStatus.CANCELLED:
            return [RunEvent(name=RunEventName.RUN_CANCELLED, data={"exit_reason": reason} | author(additions.by))]
        case RunStatus.FAILED | RunStatus.EXPIRED:
            error = after.failure.message if after.failure else reason
            data = {"error": error, "exit_reason": reason, "status": after.status.value}
            return [RunEvent(name=RunEventName.RUN_FAILED, data=data)]
        case RunStatus.STOPPING:
            return [RunEvent(name=RunEventName.STOP_REQUESTED, data=author(additions.by))]
        case _ if after.status.is_parked:
            waiting = {"status": after.status.value, "until": after.resume_at}
            told = {"reason": additions.waits_for} if additions.waits_for else {}
            return [RunEvent(name=RunEventName.WAITING, data=waiting | told | author(additions.by))]
        case RunStatus.RUNNING if before.status is RunStatus.WAITING_FOR_CAPACITY:
            return [RunEvent(name=RunEventName.RESUMED)]
        case _:
            return []


def _exit_text(run: Run) -> str:
    used = run.iteration - run.refunds
    return exit_text(run.exit_reason or "", used=used, allowed=run.iterations_max, exhausted=run.exhausted)


def break_off(
    database: Database, pk: int, event: ev.Broken, may: Callable[[Connection], bool] = lambda connection: True
) -> list[Hint]:
    """End a run that cannot go on, even one whose rows cannot be read. Idempotent.

    ``may`` is asked under the run's lock whether it is still the caller's to end.
    """
    try:
        with database.write() as connection:
            loaded = lock_run(connection, pk)
            if loaded is None or loaded.run.status.is_terminal or not may(connection):
                return []
            return save(connection, loaded, apply(loaded.run, event))
    except UnavailableError:
        raise
    except Exception as error:
        # The rows do not even let the run be ended by the rules. It must still end, and nothing else may suffer.
        log.error("run.broken", run_pk=pk, error=f"{type(error).__name__}: {error}")
        with database.write() as connection:
            return _force_end(connection, pk, event) if may(connection) else []


def _force_end(connection: Connection, pk: int, event: ev.Broken) -> list[Hint]:
    """End a run without reading what it was doing. Its open calls are locked first, as everybody does."""
    open_calls = connection.execute(_OPEN_CALLS, {"run_pk": pk}).all()
    held = connection.execute(_HELD, {"run_pk": pk}).first()
    lost = NOTHING_SPENT if held is None or held.lease_token is None else lost_call_of(connection, held)
    for call in open_calls if held is not None else ():
        lost = lost + lost_aside_of(connection, held, call) if call.is_asked else lost
    row = connection.execute(
        sa.update(runs)
        .where(runs.c.pk == pk, runs.c.exit_reason.is_(None))
        .values(
            status=RunStatus.FAILED.value,
            exit_reason=event.reason.value,
            failure_kind=event.failure.kind,
            failure_message=plain(event.failure.message),
            lease_token=None,
            lease_owner=None,
            is_reserved=0,
            hinted_at=None,
            resume_at=None,
            event_seq=runs.c.event_seq + 1,
            finished_at=db_now(),
            updated_at=db_now(),
            **_booked(lost),
        )
        .returning(
            runs.c.run_id,
            runs.c.session_pk,
            runs.c.iteration,
            runs.c.event_seq,
            runs.c.message_seq,
            runs.c.deliver,
            runs.c.parent_pk,
            runs.c.parent_iteration,
            runs.c.parent_position,
            runs.c.is_background,
        )
    ).first()
    if row is None:
        return []
    connection.execute(
        sa.update(waits)
        .where(waits.c.run_pk == pk, waits.c.closed_at.is_(None))
        .values(closed_at=db_now(), outcome="cancelled")
    )
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
    data = {"error": event.failure.message, "exit_reason": event.reason.value, "status": RunStatus.FAILED.value}
    insert_events(connection, pk, row.event_seq - 1, [RunEvent(name=RunEventName.RUN_FAILED, data=data)])
    message_seq = row.message_seq + _close_transcript(connection, pk, row, open_calls)
    hints = owe(connection, targets_of(row.deliver), run=(pk, row.run_id))
    hints = [*hints, *release_session(connection, row.session_pk, pk, message_seq)]
    hints = [*hints, *join_parent(connection, parent_of(row))]
    if held is not None and held.has_budget and (held.is_reserved or lost.cost is not None):
        spent = Amounts(tokens=lost.usage.chargeable, nano_usd=doubtful_nano_usd_of(lost.cost))
        charge = budgets.Charge(given_back=reserved_of(held), spent=spent, unknown_costs=unpriced_calls_of(lost.cost))
        budgets.settle(connection, budget_pk_of(held) or pk, charge)
    return hints


_HELD = sa.select(*RUN_COLUMNS).where(runs.c.pk == sa.bindparam("run_pk")).with_for_update()
_IS_ASKED = (tool_calls.c.status == CallStatus.RUNNING.value) & (sa.func.coalesce(tool_calls.c.asks, 0) == 1)
_MAY_HAVE_ACTED = (tool_calls.c.status == CallStatus.RUNNING.value) & (sa.func.coalesce(tool_calls.c.asks, 0) == 0)


def _booked(lost: Spent) -> dict[str, Any]:
    """The columns of a run that book an attempt whose outcome nobody knows."""
    if lost.cost is None:
        return {}
    return {
        "unknown_attempts": runs.c.unknown_attempts + lost.usage.unknown_attempts,
        "unknown_input_tokens": runs.c.unknown_input_tokens + lost.usage.unknown_input,
        "unknown_output_tokens": runs.c.unknown_output_tokens + lost.usage.unknown_output,
        "doubtful_nano_usd": runs.c.doubtful_nano_usd + doubtful_nano_usd_of(lost.cost),
        "unpriced_calls": runs.c.unpriced_calls + unpriced_calls_of(lost.cost),
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
    .where(tool_calls.c.run_pk == sa.bindparam("run_pk"), tool_calls.c.settled_at.is_(None))
    .order_by(tool_calls.c.iteration, tool_calls.c.position)
    .with_for_update()
)


def _close_transcript(connection: Connection, pk: int, row: Any, open_calls: Sequence[Any]) -> int:
    """Give the open calls of a run that was ended by force their results, for the session's next turn.

    Returns how many rows the transcript grew by: none when the reply that asked for the calls cannot be read either.
    """
    if row.iteration == 0:
        return 0
    try:
        with connection.begin_nested():
            results = [_unknown_result(connection, row.session_pk, call) for call in open_calls]
            closing = Message(seq=row.message_seq + 1, role=Role.ASSISTANT, body=_STOPPED_BODY)
            insert_messages(connection, row.session_pk, pk, [*results, closing])
    except (ValueError, LookupError, TypeError, sa.exc.IntegrityError) as error:
        log.error("run.broken", run_pk=pk, error=f"its transcript could not be closed: {type(error).__name__}: {error}")
        return 0
    connection.execute(sa.update(runs).where(runs.c.pk == pk).values(message_seq=runs.c.message_seq + 1))
    return 1


def _unknown_result(connection: Connection, session_pk: int, call: Any) -> Message:
    asked_at = call.result_seq - call.position - 1
    reply = json.loads(read_messages(connection, session_pk, asked_at, asked_at)[0].body)
    status = CallStatus.UNKNOWN if call.may_have_acted else CallStatus.CANCELLED
    text = result_without_a_run(status, was_running=False)
    body = tool_body(str(reply["tool_calls"][call.position]["id"]), text)
    return Message(seq=call.result_seq, role=Role.TOOL, body=body)


_NEXT_RUN = Prepared(
    sa.select(runs.c.pk, runs.c.run_id)
    .where(runs.c.session_pk == sa.bindparam("session_pk"), sa.text("runs.status = 'queued'"))
    .order_by(runs.c.goes_first.desc(), runs.c.pk)
    .limit(1)
    .with_for_update()
)
"""Locked, because somebody may be stopping it at this moment: then it is passed over. The status is a literal, so that
a plan made once for all sessions can use ``ix_runs_open``."""
_FREE = Prepared(
    sa.update(sessions)
    .where(sessions.c.pk == sa.bindparam("session"), sessions.c.active_run_pk == sa.bindparam("run"))
    .values(active_run_pk=None, message_seq=sa.bindparam("length"))
)
_BEGIN = Prepared(
    sa.update(runs)
    .where(runs.c.pk == sa.bindparam("run"))
    .values(message_seq=sa.bindparam("length"), hinted_at=db_now(), updated_at=db_now())
    .returning(runs.c.hinted_at)
)
_INPUT_UNREADABLE = ev.Broken(
    reason=ExitReason.CORRUPT_STATE,
    failure=Failure(kind="corrupt_state", message="the stored input of this run cannot be read; see the log"),
)


def release_session(connection: Connection, session_pk: int, run_pk: int, message_seq: int) -> list[Hint]:
    """The run gives its session back; the oldest run waiting for it, if any, takes its turn (invariant I10)."""
    freed = _FREE.run(connection, {"session": session_pk, "run": run_pk, "length": message_seq})
    if freed == 0:
        return []  # it was still waiting for its turn
    while (waiting := _NEXT_RUN.first(connection, {"session_pk": session_pk})) is not None:
        try:
            return [activate(connection, session_pk, waiting.pk, waiting.run_id, message_seq)]
        except CorruptInput as error:
            # It ends; the run that is ending here and the one after it have no part in that.
            log.error("run.broken", run_id=waiting.run_id, error=str(error))
            _force_end(connection, waiting.pk, _INPUT_UNREADABLE)
    return []


def join_parent(connection: Connection, parent: ParentCall | None) -> list[Hint]:
    """After the end of a child, in its transaction: start the next one that waits for a place, and settle the
    parent's call when this was the last. At any depth: a parent that ends by that joins its own.

    Idempotent: a call that waits no more is left alone.
    """
    if parent is None:
        return []
    if parent.is_background:
        return _join_background(connection, parent)
    waiting = children.lock_waiting(connection, parent)
    if waiting is None:
        return []
    hints, is_last = _go_on(connection, parent, waiting.children_max, children.lock_waiting)
    if not is_last:
        return hints
    loaded, tool_call_id = children.lock_joined(connection, parent, waiting)
    outcomes = children.outcomes(connection, parent)
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
    body = tool_body(tool_call_id, report(outcomes))
    additions = Additions(
        messages=[Message(seq=waiting.call.result_seq, role=Role.TOOL, body=body)],
        events=[RunEvent(name=RunEventName.TOOL_COMPLETED, data=data)],
        written_calls=frozenset({parent.position}),
        settled_call={**children.key_of(parent), "token": None, "call_status": settled.status.value},
    )
    return hints + save(connection, loaded, apply(loaded.run, settled), additions)


def _join_background(connection: Connection, parent: ParentCall) -> list[Hint]:
    """Like ``join_parent`` for children nobody waits for: the last of them begins a new turn of the session.

    A run that was stopped wants none.
    """
    children_max = children.lock_background(connection, parent)
    if children_max is None:
        return []
    hints, is_last = _go_on(connection, parent, children_max, children.lock_background)
    if not is_last:
        return hints
    children.mark_joined(connection, parent)
    turn = background.insert_turn(connection, parent)
    if turn is None or not turn.is_next:
        return hints
    return [*hints, activate(connection, turn.session_pk, turn.run_pk, turn.run_id, turn.message_seq)]


def _go_on(
    connection: Connection, parent: ParentCall, children_max: int, lock: Callable[[Connection, ParentCall], object]
) -> tuple[list[Hint], bool]:
    """Start the children for whom a place is free now; also whether the call, which the caller holds, is to be joined:
    none of its children is open, and ``lock`` still finds it waiting."""
    left = children.remaining(connection, parent)
    hints: list[Hint] = []
    if left.is_any_queued:
        hints, has_broken = _start_children(connection, parent.run_pk, children_max)
        if has_broken:  # children that could not even start have ended by this, and may have joined the call
            left = children.remaining(connection, parent)
            return hints, not left.is_any_open and lock(connection, parent) is not None
    return hints, not left.is_any_open


def start_children(connection: Connection, parent_pk: int, children_max: int) -> list[Hint]:
    """Start children of a run until ``children_max`` of them are at work. The caller holds one of its calls."""
    return _start_children(connection, parent_pk, children_max)[0]


def _start_children(connection: Connection, parent_pk: int, children_max: int) -> tuple[list[Hint], bool]:
    """The same, and whether a child could not start and was ended."""
    hints: list[Hint] = []
    has_broken = False
    while (child := children.take_queued(connection, parent_pk, children_max)) is not None:
        try:
            hints.append(activate(connection, child.session_pk, child.pk, child.run_id, child.message_seq))
        except CorruptInput as error:
            log.error("run.broken", run_id=child.run_id, error=str(error))
            hints += _force_end(connection, child.pk, _INPUT_UNREADABLE)
            has_broken = True
    return hints, has_broken


def activate(connection: Connection, session_pk: int, run_pk: int, run_id: str, message_seq: int) -> Hint:
    """Give the session's turn to a queued run: its user message joins the transcript and its first call is due.

    The caller's transaction holds the session's row and has seen that no run is active. Raises ``CorruptInput``,
    and then nothing was written.
    """
    row = opening_message(connection, run_pk, message_seq + 1)
    insert_messages(connection, session_pk, run_pk, [row])
    GIVE_TURN.run(connection, {"session": session_pk, "run": run_pk})
    begun = _BEGIN.first(connection, {"run": run_pk, "length": message_seq + 1})
    return Hint(effect=AskModel(run_id=run_id, iteration=1, attempt=1), at=float(begun.hinted_at))
