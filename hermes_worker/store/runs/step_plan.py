"""The plan of a step: what a step writes, decided before anything is written.

Theory of operation. A step takes a run from one state to the next. ``core.step`` has decided the new state; this module
compares the two states and lists the writes as values. It reads and writes nothing, except ``load_plan_inputs``.

    ``decide_required_inputs``     says which other rows the plan depends on (nothing, for most steps)
    ``load_plan_inputs``    reads them
    ``plan_step``       compares the two states and returns a ``StepPlan``
    ``store.runs.step_writer``  writes the plan

A plan has two parts. ``first`` is the run's own row with its messages, events and new calls: one statement on
PostgreSQL. ``rest`` is a list of ``Write`` values that take statements of their own. A transaction is needed exactly
when ``rest`` is not empty, so the most frequent steps cost one round trip. Three steps as examples:

    step                              first                                      rest
    a reply with two calls            run, assistant message, event, two calls   SettleBudget
    a result that is not the last     run, result, event, settled call           (nothing)
    the answer of a child run         run, answer, event                         EndRun, FreeSession, JoinParent,
                                                                                 SettleBudget

Three places look wrong and are right. The first statement of an end leaves the old status in the row: the CHECK on
status and exit reason is satisfied only when ``EndRun`` writes both. The order of ``rest`` is the order in which every
step takes its locks. What ``load_plan_inputs`` read may be stale when the plan is written; when that matters, the event
number of the run has moved, and nothing is written at all (only the figures of a budget in a warning may be a little
old).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy.engine import Connection

from hermes_worker.core.budget import Amounts, Budget, BudgetLimits, Dimension, LimitUse, format_warning, list_uses
from hermes_worker.core.effects import CallEffect, Effect, TurnEffect, list_outstanding
from hermes_worker.core.hooks import NOT_OBSERVED, Observed
from hermes_worker.core.inner_calls import InnerCall, append_begun
from hermes_worker.core.messages import Message, Role, Usage, build_tool_body, dump_canonical_json
from hermes_worker.core.notices import STOPPED_ANSWER, build_missing_result
from hermes_worker.core.pricing import (
    NOTHING_SPENT,
    Cost,
    Pricing,
    Spent,
    choose_worst,
    count_unpriced_calls,
    to_doubtful_nano_usd,
    to_nano_usd,
)
from hermes_worker.core.principals import build_author_field
from hermes_worker.core.run import Call, CallStatus, ExitReason, Run, RunStatus, WaitKind, format_exit_reason
from hermes_worker.core.run_events import RunEvent, RunEventName
from hermes_worker.store.hooks.pending_calls import OwedHookRow, build_hook_rows
from hermes_worker.store.rows import (
    BLOB_CHARS_MIN,
    LoadedRun,
    ParentCall,
    build_message_row,
    compute_blob_hash,
    load_call_ids,
    load_inner_calls,
    make_storable,
)
from hermes_worker.store.runs import budgets
from hermes_worker.store.runs.lost_attempts import estimate_lost_auxiliary, estimate_lost_call
from hermes_worker.store.runs.steering import append_note, append_steers, find_last_result, load_pending
from hermes_worker.store.runs.step_statements import (
    ROWS_MAX,
    DocumentRow,
    EventRow,
    NewCallRow,
    NewRows,
    RunStepValues,
    SettledCall,
    Step,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """The output of a step besides the new state of the run."""

    messages: Sequence[Message] = ()
    """New rows of the transcript, with their final ``seq``."""
    events: Sequence[RunEvent] = ()
    usage: Usage = field(default_factory=Usage)
    cost: Cost | None = None
    """The price of ``usage``; ``None`` when the step brought no usage."""
    output_seq: int | None = None
    """The place of the final answer in the transcript, when this step wrote it; else ``None``."""
    written_calls: frozenset[int] = frozenset()
    """Positions whose rows the caller has brought up to date already."""
    settled_call: SettledCall | None = None
    """The claim on the call that this step settles, with its new status; its row is written with the run's."""
    documents: Sequence[DocumentRow] = ()
    """Session documents to write."""
    documents_gone: Sequence[str] = ()
    """The keys of session documents to delete."""
    waits_for: str = ""
    """Why the run is parked, in a sentence for people."""
    keys: tuple[str, ...] = ()
    """The closed keys that it is parked on."""
    by: str | None = None
    """The principal who asked for the step (``core.principals``); ``None`` when the step came of itself."""
    message_seq: int | None = None
    """The transcript's new length, counting places kept free for results; ``None`` when it did not grow."""
    is_of_holder: bool = False
    """True when the holder of the claim on the model call writes the step and knows what the call took. When somebody
    else takes the claim away, it is booked as an attempt of unknown outcome."""
    held_call: int | None = None
    """The position of the tool call for which a model was asked, when the holder of that claim writes the step. Without
    it, a claim that the step takes away is booked as an attempt of unknown outcome, as with ``is_of_holder``."""
    pricing: Pricing | None = None
    """The prices for an attempt of unknown outcome; without them, the average of the run's other calls is used."""


# --- what has to be known --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredInputs:
    """The other rows that a plan depends on, beside the run's own and its calls'. False when there are none."""

    is_call_lost: bool = False
    """The claim on the model call is taken away, so the cost of that attempt has to be estimated."""
    auxiliary_lost: tuple[int, ...] = ()
    """Positions of the tool calls whose auxiliary call loses its claim, so its cost has to be estimated."""
    tool_call_ids: bool = False
    """The model's ids of the calls are wanted, because some calls get a result that no tool wrote."""
    said: bool = False
    """What the user said to the run is wanted: it goes into the last result of the batch."""
    budget: bool = False
    """The chain's budget is wanted: the model is told how much of it is used."""

    def __bool__(self) -> bool:
        return bool(self.is_call_lost or self.auxiliary_lost or self.tool_call_ids or self.said or self.budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The rows that ``load_plan_inputs`` read, on which a plan depends beside the run's own and its calls'."""

    lost: Spent = NOTHING_SPENT
    """The estimated usage and cost of the calls whose claims are taken away."""
    tool_call_ids: Sequence[str] = ()
    """The model's ids of the calls of this iteration, in order."""
    inner_calls: Mapping[int, tuple[InnerCall, ...]] = field(default_factory=dict)
    """The calls that scripts had begun and whose outcome is unknown, by the position of the scripts' own calls."""
    said: Sequence[str] = ()
    """The user's messages to the run that the model has not read."""
    budget: Budget | None = None


NO_PLAN_INPUTS = PlanInputs()


def decide_required_inputs(loaded: LoadedRun, after: Run, additions: StepOutput) -> RequiredInputs:
    """Decide what has to be looked up before the step from ``loaded.run`` to ``after`` is planned: nothing for most
    steps."""
    before = loaded.run
    is_over = _is_batch_over(before, after)
    return RequiredInputs(
        is_call_lost=_gives_up_claim(before, after) and not (additions.is_of_holder or before.wants_preparing),
        auxiliary_lost=_find_lost_auxiliary(before, after, additions),
        tool_call_ids=bool(_find_calls_without_result(loaded, after, additions)),
        said=is_over and loaded.steers > 0,
        budget=is_over and loaded.budget_pk is not None,
    )


def load_plan_inputs(
    connection: Connection, loaded: LoadedRun, wanted: RequiredInputs, pricing: Pricing | None = None
) -> PlanInputs:
    """Read the rows that a plan depends on. ``pricing`` says what lost calls cost; without it, the run's other calls
    do."""
    lost = estimate_lost_call(connection, loaded, pricing) if wanted.is_call_lost else NOTHING_SPENT
    for position in wanted.auxiliary_lost:
        lost = lost + estimate_lost_auxiliary(connection, loaded, position, pricing)
    budget_pk = loaded.budget_pk if wanted.budget else None
    return PlanInputs(
        lost=lost,
        tool_call_ids=load_call_ids(connection, loaded) if wanted.tool_call_ids else (),
        inner_calls=load_inner_calls(connection, loaded) if wanted.tool_call_ids else {},
        said=load_pending(connection, loaded.pk) if wanted.said else (),
        budget=None if budget_pk is None else budgets.load_budget(connection, budget_pk),
    )


def _gives_up_claim(before: Run, after: Run) -> bool:
    return before.is_asking and not after.is_asking


def _is_batch_over(before: Run, after: Run) -> bool:
    """Whether the step settles the last open call of the batch and the run goes on. Notes for the model are then
    appended to that last result."""
    return bool(before.unsettled_calls) and not after.unsettled_calls and not after.status.is_terminal


def _find_lost_auxiliary(before: Run, after: Run, additions: StepOutput) -> tuple[int, ...]:
    """The positions of the calls whose auxiliary call loses its claim because another process writes this step."""
    return tuple(
        call.position
        for call in before.calls
        if call.asks
        and call.status is CallStatus.RUNNING
        and after.calls[call.position] != call
        and call.position != additions.held_call
    )


def _find_calls_without_result(loaded: LoadedRun, after: Run, additions: StepOutput) -> list[tuple[Call, Call]]:
    """The calls that ``after`` settles without a result from their tool, each as the pair before and after."""
    if after.iteration != loaded.run.iteration:
        return []
    written = {message.seq for message in additions.messages}
    return [
        (was, call)
        for was, call in zip(loaded.run.calls, after.calls, strict=True)
        if call.status in (CallStatus.CANCELLED, CallStatus.UNKNOWN)
        and not was.status.is_settled
        and loaded.result_seqs[call.position] not in written
    ]


# --- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteDocuments:
    keys: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkMessagesRead:
    """Record that the user's messages to the run became part of the result at ``seq``."""

    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseWait:
    """Close the wait of the call at ``position``, which ends without an answer. An answer closes its wait itself,
    earlier."""

    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeCall:
    """Update the row of a call to its new state."""

    call: Call
    is_due: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkOnKeys:
    """Park the run until one of these provider keys may be used again."""

    credentials: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRun:
    """Write the end of the run. The status changes only here and not in ``first``, because the CHECK demands it
    together with the exit reason."""

    after: Run
    reason: ExitReason
    output_seq: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HandOnSession:
    """Hand the run's session to the next run that waits for it."""

    message_seq: int
    """The length of the transcript."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinParent:
    parent: ParentCall


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleBudget:
    budget_pk: int
    charge: budgets.Charge


@dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueHooks:
    """Write a pending hook call for each observer of the step's events."""

    run_id: str
    rows: Sequence[OwedHookRow]


Write = (
    NewRows
    | EnqueueHooks
    | DeleteDocuments
    | MarkMessagesRead
    | CloseWait
    | ChangeCall
    | ParkOnKeys
    | EndRun
    | HandOnSession
    | JoinParent
    | SettleBudget
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Everything that a step writes. It takes a transaction exactly when ``rest`` is not empty."""

    loaded: LoadedRun
    """The run before the step."""
    iteration: int
    """The iteration of the calls that the step changes."""
    first: Step
    """One statement on PostgreSQL, and a transaction of its own where nothing else is to be written."""
    rest: tuple[Write, ...]
    """The other writes, in the order in which every step takes its locks."""
    added: Sequence[Effect]
    """The effects that are due after the step and were not before, in order."""


def plan_step(
    loaded: LoadedRun,
    after: Run,
    additions: StepOutput,
    known: PlanInputs = NO_PLAN_INPUTS,
    observed: Observed = NOT_OBSERVED,
) -> StepPlan:
    """Plan the step from ``loaded.run`` to ``after``. ``known`` is what ``load_plan_inputs`` read for
    ``decide_required_inputs``; ``observed`` says which events have observers."""
    before = loaded.run
    spent = Spent(usage=additions.usage, cost=additions.cost)
    if known.lost is not NOTHING_SPENT:
        spent += known.lost
    added = list_outstanding(after) - list_outstanding(before)
    message_seq, written = _build_transcript_rows(loaded, after, additions, known)
    happened = [
        *additions.events,
        *_build_call_events(loaded, after, additions),
        *_build_budget_events(before, after),
        *_build_status_events(before, after, additions),
    ]
    rows = NewRows(
        messages=[build_message_row(loaded.session_pk, loaded.pk, message) for message in written],
        events=build_event_rows(loaded.pk, loaded.event_seq, happened),
        calls=_build_call_rows(loaded, after, added),
        documents=additions.documents,
        blobs=[(compute_blob_hash(row.body), row.body) for row in written if len(row.body) >= BLOB_CHARS_MIN],
    )
    first, more = rows.split(ROWS_MAX)
    return StepPlan(
        loaded=loaded,
        iteration=after.iteration,
        first=Step(
            run=_build_run_values(loaded, after, message_seq, len(happened), spent),
            settled_call=additions.settled_call,
            rows=first,
        ),
        rest=(
            *((more,) if more else ()),
            *_plan_other_writes(loaded, after, additions, known, written),
            *(_plan_hook_writes(loaded, happened, observed) if observed else ()),
            *_plan_end_writes(loaded, after, additions, message_seq),
            *_plan_budget_writes(loaded, after, spent),
        ),
        added=sorted(added, key=_rank_effect),
    )


def _build_transcript_rows(
    loaded: LoadedRun, after: Run, additions: StepOutput, known: PlanInputs
) -> tuple[int, list[Message]]:
    """Return the transcript's new length, and the rows it grows by in their final form."""
    message_seq = loaded.message_seq if additions.message_seq is None else additions.message_seq
    written = [*additions.messages, *_build_missing_results(loaded, after, additions, known)]
    if after.status.is_terminal:
        message_seq, closing = _build_closing_rows(after, message_seq, additions)
        written += closing
    if _is_batch_over(loaded.run, after):
        written = _append_notes(loaded, after, written, known)
    return message_seq, written


def _append_notes(loaded: LoadedRun, after: Run, written: list[Message], known: PlanInputs) -> list[Message]:
    """Append to the last result of a batch what the user said meanwhile, and how much of the run's limits is used."""
    if known.said:
        written = append_steers(written, known.said)
    found = [
        _measure_wall_use(loaded),
        *list_uses(Budget(limits=BudgetLimits(iterations=after.iterations_max), spent=_count_iterations(after))),
    ]
    if known.budget is not None:
        found += list_uses(known.budget)
    note = format_warning(found)
    return written if note is None else append_note(written, note)


def _count_iterations(run: Run) -> Amounts:
    return Amounts(iterations=run.iteration - run.refunds)


def _measure_wall_use(loaded: LoadedRun) -> LimitUse:
    """The use of the wall-clock limit at the time the run was read, which may be when the call was claimed."""
    used, limit = int(loaded.wall_s - loaded.left_s), max(1, int(loaded.wall_s))
    return LimitUse(dimension=Dimension.WALL_CLOCK, used=used, limit=limit)


def _rank_effect(effect: Effect) -> int:
    return effect.position if isinstance(effect, CallEffect) else -1


def _plan_other_writes(
    loaded: LoadedRun, after: Run, additions: StepOutput, known: PlanInputs, written: Sequence[Message]
) -> list[Write]:
    """List the writes to rows that most steps do not touch."""
    writes: list[Write] = []
    if additions.documents_gone:
        writes.append(DeleteDocuments(keys=additions.documents_gone))
    seq = find_last_result(written) if known.said else None
    if seq is not None:
        writes.append(MarkMessagesRead(seq=seq))
    for before, call, is_due in _find_changed_calls(loaded, after, additions):
        if before.waits_for in (WaitKind.APPROVAL, WaitKind.INPUT) and call.status.is_settled:
            writes.append(CloseWait(position=call.position))
        writes.append(ChangeCall(call=call, is_due=is_due))
    if additions.keys and after.status is RunStatus.WAITING_FOR_CAPACITY:
        writes.append(ParkOnKeys(credentials=additions.keys))
    return writes


def _plan_hook_writes(loaded: LoadedRun, happened: Sequence[RunEvent], observed: Observed) -> list[Write]:
    rows = build_hook_rows(
        (loaded.pk, loaded.run.run_id), loaded.event_seq, happened, observed, is_child=loaded.parent is not None
    )
    return [EnqueueHooks(run_id=loaded.run.run_id, rows=rows)] if rows else []


def _plan_end_writes(loaded: LoadedRun, after: Run, additions: StepOutput, message_seq: int) -> list[Write]:
    if after.exit_reason is None:
        return []  # it has not ended
    ended: list[Write] = [
        EndRun(after=after, reason=after.exit_reason, output_seq=additions.output_seq),
        HandOnSession(message_seq=message_seq),
    ]
    return ended if loaded.parent is None else [*ended, JoinParent(parent=loaded.parent)]


def _plan_budget_writes(loaded: LoadedRun, after: Run, spent: Spent) -> list[Write]:
    gave_up = _gives_up_claim(loaded.run, after)
    if loaded.budget_pk is None or not (gave_up or spent.cost is not None):
        return []
    return [SettleBudget(budget_pk=loaded.budget_pk, charge=_build_charge(loaded, after, spent, gave_up=gave_up))]


def _build_charge(loaded: LoadedRun, after: Run, spent: Spent, *, gave_up: bool) -> budgets.Charge:
    before = loaded.run
    replies = after.iteration - before.iteration
    return budgets.Charge(
        given_back=loaded.reserved if gave_up else Amounts(),
        spent=Amounts(
            iterations=replies - (after.refunds - before.refunds) if loaded.reserved.iterations else 0,
            tokens=spent.usage.chargeable,
            tool_calls=len(after.calls) if replies else 0,
            nano_usd=to_nano_usd(spent.cost) + to_doubtful_nano_usd(spent.cost),
        ),
        unknown_costs=count_unpriced_calls(spent.cost),
    )


def _build_run_values(
    loaded: LoadedRun, after: Run, message_seq: int, events_added: int, spent: Spent
) -> RunStepValues:
    # The terminal status is written with the exit reason, see ``EndRun``.
    status = loaded.run.status if after.status.is_terminal else after.status
    usage = spent.usage
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
        "is_due": any(isinstance(effect, TurnEffect) for effect in list_outstanding(after)),
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
        "cost_nano_usd": to_nano_usd(spent.cost),
        "doubtful_nano_usd": to_doubtful_nano_usd(spent.cost),
        "unpriced_calls": count_unpriced_calls(spent.cost),
        "new_cost_status": _merge_cost_status(loaded, spent.cost),
    }


def _merge_cost_status(loaded: LoadedRun, cost: Cost | None) -> str | None:
    status = loaded.cost_status if cost is None else choose_worst(loaded.cost_status, cost.status)
    return status.value if status else None


def _find_changed_calls(loaded: LoadedRun, after: Run, additions: StepOutput) -> list[tuple[Call, Call, bool]]:
    """The calls of the current iteration whose rows have to change: before, after, and whether they are due."""
    before = loaded.run
    if after.iteration != before.iteration or after.calls == before.calls == ():
        return []
    was_due = {effect.position for effect in list_outstanding(before) if isinstance(effect, CallEffect)}
    is_due = {effect.position for effect in list_outstanding(after) if isinstance(effect, CallEffect)}
    return [
        (before_call, call, call.position in is_due)
        for before_call, call in zip(before.calls, after.calls, strict=True)
        if (call != before_call or (call.position in was_due) != (call.position in is_due))
        and not before_call.status.is_settled
        and call.position not in additions.written_calls
    ]


def _build_call_rows(loaded: LoadedRun, after: Run, added: frozenset[Effect]) -> list[NewCallRow]:
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
            "name": make_storable(call.name)[:100],
            "replay": call.replay.value,
            "segment": call.segment,
            "timeout_s": call.timeout_s,
            "result_seq": first_result + call.position,
            "is_due": call.position in due,
        }
        for call in after.calls
    ]


def build_event_rows(run_pk: int, last_seq: int, happened: Sequence[RunEvent]) -> list[EventRow]:
    """Number events after ``last_seq``, as parameters of ``steps.INSERT_EVENT``."""
    return [
        {
            "run_pk": run_pk,
            "seq": last_seq + n,
            "at": event.at,
            "event": event.name.value,
            "data": dump_canonical_json(event.data),
        }
        for n, event in enumerate(happened, start=1)
    ]


def _build_call_events(loaded: LoadedRun, after: Run, additions: StepOutput) -> list[RunEvent]:
    """The events for calls that end without a result from their tool."""
    happened: list[RunEvent] = []
    for before, call in _find_calls_without_result(loaded, after, additions):
        data = {"tool": call.name, "iteration": after.iteration, "position": call.position}
        if before.may_have_acted:
            happened.append(RunEvent(name=RunEventName.TOOL_STARTED, data={**data, "attempt": call.attempt}))
        ended = {**data, "error": True, "outcome": call.status.value}
        happened.append(RunEvent(name=RunEventName.TOOL_COMPLETED, data=ended))
    return happened


def _build_missing_results(loaded: LoadedRun, after: Run, additions: StepOutput, known: PlanInputs) -> list[Message]:
    return [
        Message(
            seq=loaded.result_seqs[call.position],
            role=Role.TOOL,
            body=build_tool_body(known.tool_call_ids[call.position], _build_notice(before, call, known)),
        )
        for before, call in _find_calls_without_result(loaded, after, additions)
    ]


def _build_notice(before: Call, call: Call, known: PlanInputs) -> str:
    was_running = before.may_have_acted or before.waits_for in (WaitKind.CHILDREN, WaitKind.TASK)
    notice = build_missing_result(call.status, was_running=was_running)
    return append_begun(notice, known.inner_calls.get(call.position, ()))


def _build_closing_rows(after: Run, message_seq: int, additions: StepOutput) -> tuple[int, list[Message]]:
    """Close the transcript of an ended turn that has no answer, and return its new length. A transcript that ended with
    a tool's result would be followed by the next user message without an answer."""
    if after.status is RunStatus.COMPLETED or after.iteration == 0 or additions.output_seq is not None:
        return message_seq, []
    return message_seq + 1, [Message(seq=message_seq + 1, role=Role.ASSISTANT, body=STOPPED_BODY)]


STOPPED_BODY = dump_canonical_json({"role": "assistant", "content": STOPPED_ANSWER})


def _build_budget_events(before: Run, after: Run) -> list[RunEvent]:
    """The event for a run whose own model calls are used up. A refusal by the chain's budget is reported by the claim
    that is refused."""
    if before.wants_summary or not after.wants_summary or after.status.is_terminal:
        return []
    return [build_exhausted_event(Dimension.ITERATIONS)]


def build_exhausted_event(dimension: Dimension) -> RunEvent:
    return RunEvent(name=RunEventName.BUDGET_EXHAUSTED, data={"dimension": dimension.value})


def _build_status_events(before: Run, after: Run, additions: StepOutput) -> list[RunEvent]:
    if after.status is before.status:
        return []
    reason = _format_exit_text(after) if after.exit_reason else None
    match after.status:
        case RunStatus.COMPLETED:
            data = {"exit_reason": reason, "message_seq": additions.output_seq}
            return [RunEvent(name=RunEventName.RUN_COMPLETED, data=data)]
        case RunStatus.CANCELLED:
            return [
                RunEvent(
                    name=RunEventName.RUN_CANCELLED, data={"exit_reason": reason} | build_author_field(additions.by)
                )
            ]
        case RunStatus.FAILED | RunStatus.EXPIRED:
            error = after.failure.message if after.failure else reason
            data = {"error": error, "exit_reason": reason, "status": after.status.value}
            return [RunEvent(name=RunEventName.RUN_FAILED, data=data)]
        case RunStatus.STOPPING:
            return [RunEvent(name=RunEventName.STOP_REQUESTED, data=build_author_field(additions.by))]
        case _ if after.status.is_parked:
            waiting = {"status": after.status.value, "until": after.resume_at}
            told = {"reason": additions.waits_for} if additions.waits_for else {}
            return [RunEvent(name=RunEventName.WAITING, data=waiting | told | build_author_field(additions.by))]
        case RunStatus.RUNNING if before.status is RunStatus.WAITING_FOR_CAPACITY:
            return [RunEvent(name=RunEventName.RESUMED)]
        case _:
            return []


def _format_exit_text(run: Run) -> str:
    used = run.iteration - run.refunds
    return format_exit_reason(run.exit_reason or "", used=used, allowed=run.iterations_max, exhausted=run.exhausted)
