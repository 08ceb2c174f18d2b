"""The run's state machine: the one place where it is decided what a run becomes.

Theory of operation. ``apply(run, event)`` returns the run after the event; ``step_run`` also returns the effects that
the event added. It is total over legal events (``InvalidTransition`` for the rest), it never acts, and terminal states
absorb every later event. A turn without trouble:

    event               status     iteration  asking  calls           outstanding afterwards
    (accepted)          queued     0          no      -               Iterate 1
    IterationClaimed    running    0          yes     -               -
    ModelReplied(2)     running    1          no      pending x 2     RunTool 0, RunTool 1
    CallClaimed(0)      running    1          no      running, pend.  RunTool 1
    CallSettled(0)      running    1          no      succeeded, p.   RunTool 1
    CallClaimed(1)      running    1          no      succ., running  -
    CallSettled(1)      running    1          no      succeeded x 2   Iterate 2
    IterationClaimed    running    1          yes     succeeded x 2   -
    ModelReplied(0)     completed  2          no      succeeded x 2   -

Three rules shape the rest. A *park* gives up the claim and waits as a row: for time (``CapacityAwaited``) or for what a
call waits for (``CallParked``). A *stop* cancels what no worker holds at once, and ends the run when the last claim is
given up, because a worker may be in the middle of an effect. A *loss* (``IterationLost``, ``CallLost``) makes the step
due again with the next attempt, unless it is a ``once`` call that may have begun: then its outcome is unknown for ever
(I5). A step that was held when a worker died becomes a suspect and is tried alone; only one that takes a worker down
alone, several times, and is seen to do so, is quarantined (D14).
"""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from hermes_worker.core import events as ev
from hermes_worker.core.budget import Dimension, is_refunded
from hermes_worker.core.effects import Effect, build_call_effect, list_outstanding
from hermes_worker.core.errors import Failure, InvalidTransition
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import (
    CALL_TRANSITIONS,
    CALL_WAITS,
    RUN_TRANSITIONS,
    Call,
    CallStatus,
    ExitReason,
    Run,
    RunStatus,
)

_RETRY_WAIT_S_MAX = 300.0


def step_run(run: Run, event: ev.Event) -> tuple[Run, frozenset[Effect]]:
    """Return the run after ``event``, and what has to be done now that did not have to be done before."""
    after = apply_event(run, event)
    return after, list_outstanding(after) - list_outstanding(run)


def apply_event(run: Run, event: ev.Event) -> Run:
    """Return the run after ``event``. Raises ``InvalidTransition`` when the event cannot happen in this state."""
    if run.status.is_terminal:
        return run
    match event:
        case ev.IterationClaimed():
            return _claim_iteration(run)
        case ev.IterationReleased():
            return _end_if_stopped(replace(_require_claimed(run), is_asking=False))
        case ev.PromptCompleted():
            # The prompt ended normally, so the next model call starts with no attempts or deaths counted.
            done = replace(_require_claimed(run), is_prepared=True, attempt=1, deaths=None)
            return _end_if_stopped(replace(done, is_asking=False))
        case ev.IterationLost():
            return _lose_iteration(_require_claimed(run), event.loss)
        case ev.ModelReplied():
            return _take_reply(_require_claimed(run), event)
        case ev.AskedAgain():
            return _ask_again(_require_claimed(run), event)
        case ev.ModelFailed():
            return _fail_iteration(_require_claimed(run), event)
        case ev.CapacityAwaited():
            return _park(_require_claimed(run), event)
        case ev.WaitEnded():
            return _resume(run)
        case ev.CallClaimed():
            return _claim_call(run, event.position)
        case ev.CallReleased():
            return _release_call(run, event)
        case ev.CallLost():
            return _lose_call(run, event)
        case ev.CallSettled():
            return _settle_call(run, event)
        case ev.CallParked():
            return _park_call(run, event)
        case ev.CallAsked():
            return _ask_auxiliary(run, event.position)
        case ev.CallAnswered():
            return _answer_call(run, event)
        case ev.CallAllowed():
            return _allow_call(run, event.position)
        case ev.PauseRequested():
            return _pause(run)
        case ev.ResumeRequested():
            return _unpause(run, event)
        case ev.StopRequested():
            return _stop(run)
        case ev.DeadlinePassed():
            return _finish(run, RunStatus.EXPIRED, event.reason, event.failure)
        case ev.RunBroken():
            return _finish(run, RunStatus.FAILED, event.reason, event.failure)
        case _:
            assert_never(event)


def _claim_iteration(run: Run) -> Run:
    if run.is_asking or run.unsettled_calls or run.status not in (RunStatus.QUEUED, RunStatus.RUNNING):
        raise InvalidTransition(f"run {run.run_id!r} has no model call to claim (status {run.status.value})")
    return _with_status(replace(run, is_asking=True), RunStatus.RUNNING)


def _require_claimed(run: Run) -> Run:
    if not run.is_asking:
        raise InvalidTransition(f"no model call of run {run.run_id!r} is claimed")
    return run


def _take_reply(run: Run, event: ev.ModelReplied) -> Run:
    if run.status is RunStatus.STOPPING:
        return _finish(run, RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL)
    if run.wants_summary:
        is_counted_out = run.exhausted in (None, Dimension.ITERATIONS)
        reason = ExitReason.MAX_ITERATIONS_REACHED if is_counted_out else ExitReason.BUDGET_EXHAUSTED
        return _finish(run, RunStatus.COMPLETED, reason)
    counted = replace(run, iteration=run.iteration + 1, attempt=1, deaths=None, recovery=None, memory=event.memory)
    if not event.calls:
        return _finish(counted, RunStatus.COMPLETED, event.exit_reason, event.failure)
    calls = tuple(
        Call(
            position=position,
            name=call.name,
            replay=call.replay,
            segment=call.segment,
            timeout_s=call.timeout_s,
        )
        for position, call in enumerate(event.calls)
    )
    return replace(counted, is_asking=False, calls=calls, refunds=run.refunds + int(_may_refund(run, calls)))


def _may_refund(run: Run, calls: tuple[Call, ...]) -> bool:
    """Whether an iteration is refunded. At most ``iterations_max`` are, so that every run comes to its end."""
    return run.refunds < run.iterations_max and is_refunded([call.name for call in calls])


def _ask_again(run: Run, event: ev.AskedAgain) -> Run:
    if run.status is RunStatus.STOPPING:
        return _finish(run, RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL)
    again = replace(run, is_asking=False, recovery=None, memory=event.memory)
    if not event.is_counted or run.wants_summary:
        return again
    return replace(again, iteration=run.iteration + 1, attempt=1, deaths=None, calls=())


def _fail_iteration(run: Run, event: ev.ModelFailed) -> Run:
    if run.status is RunStatus.STOPPING:
        return _finish(run, RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL)
    return _finish(run, RunStatus.FAILED, event.exit_reason, event.failure)


def _lose_iteration(run: Run, loss: ev.Loss) -> Run:
    if run.status is RunStatus.STOPPING:
        return _finish(run, RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL)
    deaths = _count_deaths(run.deaths, loss)
    if deaths is not None and deaths >= run.attempts_max:
        step = "reading the workspace" if run.wants_preparing else f"model call {run.iteration + 1}"
        return _quarantine(run, step, deaths)
    return replace(run, is_asking=False, attempt=run.attempt + 1, deaths=deaths)


def _count_deaths(deaths: int | None, loss: ev.Loss) -> int | None:
    """The deaths that are held against a step after a loss (``Run.deaths``).

    A step that was in company is made a suspect, and nothing more: any other step of its worker may have caused the
    death. A suspect was alone, so the death of its worker is its own, provided that it was seen: a worker that merely
    fell silent may have gone down with its machine.
    """
    if loss is ev.Loss.GIVEN_UP:
        return deaths
    if deaths is None:
        return 0
    return deaths + int(loss is ev.Loss.SEEN)


def compute_retry_delay_s(attempt: int) -> float:
    """Seconds that a step whose claim was lost waits before its try number ``attempt`` begins.

    The first repetition begins at once. The wait is for a step that takes down everything around it, so that its deaths
    are never seen or counted: it must not repeat that without a pause until its run's deadline ends it.
    """
    return 0.0 if attempt <= 2 else min(_RETRY_WAIT_S_MAX, 2.0 ** min(attempt - 3, 16))


def _park(run: Run, event: ev.CapacityAwaited) -> Run:
    if run.status is RunStatus.STOPPING:
        return _finish(run, RunStatus.CANCELLED, ExitReason.INTERRUPTED_DURING_API_CALL)
    parked = replace(run, is_asking=False, recovery=event.recovery, memory=event.memory)
    if run.status is RunStatus.PAUSED:
        return parked  # a person who resumes it does not mean "and then wait"
    return _with_status(replace(parked, resume_at=event.resume_at), RunStatus.WAITING_FOR_CAPACITY)


def _resume(run: Run) -> Run:
    if run.status is not RunStatus.WAITING_FOR_CAPACITY:
        raise InvalidTransition(f"run {run.run_id!r} is not waiting (status {run.status.value})")
    return _with_status(replace(run, resume_at=None), RunStatus.RUNNING)


def _claim_call(run: Run, position: int) -> Run:
    call = _require_call(run, position)
    if build_call_effect(run, call) not in list_outstanding(run):
        raise InvalidTransition(f"call {position} of run {run.run_id!r} is not to be had (status {call.status.value})")
    return _with_call_status(run, position, CallStatus.RUNNING)


def _release_call(run: Run, event: ev.CallReleased) -> Run:
    position = event.position
    call = _require_call(run, position)
    if call.replay is Replay.ONCE and event.has_begun and not call.asks and not call.status.is_settled:
        raise InvalidTransition(f"call {position} of run {run.run_id!r} may have begun and must not run again")
    return _end_if_stopped(_with_call_status(run, position, CallStatus.PENDING))


def _settle_call(run: Run, event: ev.CallSettled) -> Run:
    call = _require_call(run, event.position)
    if not event.status.is_settled or call.status is CallStatus.PENDING or call.asks:
        what = f"cannot settle from {call.status.value} to {event.status.value}"
        raise InvalidTransition(f"call {event.position} of run {run.run_id!r} {what}")
    return _go_on_after_settled(_with_call_status(run, event.position, event.status))


def _park_call(run: Run, event: ev.CallParked) -> Run:
    call = _require_call(run, event.position)
    if not call.may_have_acted:
        raise InvalidTransition(f"nobody runs call {event.position} of run {run.run_id!r} (status {call.status})")
    if run.status is RunStatus.STOPPING:
        return _end_if_stopped(_with_call_status(run, event.position, CallStatus.CANCELLED))
    parked = _with_call_status(run, event.position, CallStatus.WAITING)
    return _park_or_resume(
        _replace_call(parked, replace(_require_call(parked, event.position), waits_for=event.waits_for))
    )


def _ask_auxiliary(run: Run, position: int) -> Run:
    call = _require_call(run, position)
    if not call.may_have_acted:
        raise InvalidTransition(f"nobody runs call {position} of run {run.run_id!r} (status {call.status})")
    return _end_if_stopped(_continue_call(run, position, asks=True))


def _answer_call(run: Run, event: ev.CallAnswered) -> Run:
    call = _require_call(run, event.position)
    if call.status is not CallStatus.RUNNING or not call.asks:
        raise InvalidTransition(f"nobody asks for call {event.position} of run {run.run_id!r} (status {call.status})")
    return _end_if_stopped(_continue_call(run, event.position, asks=not event.is_last))


def _continue_call(run: Run, position: int, *, asks: bool) -> Run:
    """Make a call pending after a part of it ended in order, so its former deaths do not count against the next
    part."""
    pending = _with_call_status(run, position, CallStatus.PENDING)
    return _replace_call(pending, replace(_require_call(pending, position), asks=asks, deaths=None))


def _allow_call(run: Run, position: int) -> Run:
    call = _require_call(run, position)
    if call.status is not CallStatus.WAITING:
        raise InvalidTransition(f"call {position} of run {run.run_id!r} is not waiting (status {call.status})")
    return _park_or_resume(_with_call_status(run, position, CallStatus.PENDING))


def _go_on_after_settled(run: Run) -> Run:
    """The run after a call was settled: a run that is being stopped may end now, a parked one go on, another one
    park."""
    return _end_if_stopped(run) if run.status is RunStatus.STOPPING else _park_or_resume(run)


def _park_or_resume(run: Run) -> Run:
    """Park the run when nothing can go on before a waiting call has what it waits for; otherwise let it run."""
    if run.status is not RunStatus.RUNNING and run.status not in CALL_WAITS:
        return run
    waits = [call.waits_for for call in run.open_segment if call.waits_for is not None]
    if not waits or len(waits) < len(run.open_segment):
        return _with_status(run, RunStatus.RUNNING)
    return _with_status(run, waits[0].parked_status)


def _pause(run: Run) -> Run:
    if run.status in (RunStatus.PAUSED, RunStatus.STOPPING):
        return run
    return _with_status(replace(run, resume_at=None), RunStatus.PAUSED)


def _unpause(run: Run, event: ev.ResumeRequested) -> Run:
    if run.status is not RunStatus.PAUSED:
        return run
    if not event.is_active_run:
        return _with_status(run, RunStatus.QUEUED)
    return _park_or_resume(_with_status(run, RunStatus.RUNNING))


def _lose_call(run: Run, event: ev.CallLost) -> Run:
    position = event.position
    call = _require_call(run, position)
    if call.status.is_settled:
        return run  # the result came first
    if call.status is not CallStatus.RUNNING:
        raise InvalidTransition(f"nobody holds call {position} of run {run.run_id!r}")
    if call.replay is Replay.ONCE and event.has_begun and not call.asks:
        return _go_on_after_settled(_with_call_status(run, position, CallStatus.UNKNOWN))
    if run.status is RunStatus.STOPPING:
        return _end_if_stopped(_with_call_status(run, position, CallStatus.CANCELLED))
    deaths = _count_deaths(call.deaths, event.loss)
    if deaths is not None and deaths >= run.attempts_max:
        what = "the model call for tool call" if call.asks else "tool call"
        return _quarantine(run, f"{what} {call.name!r} of iteration {run.iteration}", deaths)
    retried = _with_call_status(run, position, CallStatus.PENDING)
    return _replace_call(retried, replace(_require_call(retried, position), attempt=call.attempt + 1, deaths=deaths))


def _stop(run: Run) -> Run:
    if run.status is RunStatus.STOPPING:
        return run
    cancelled = _cancel(run, CallStatus.PENDING, CallStatus.WAITING)
    if not cancelled.is_held:
        return _finish(cancelled, RunStatus.CANCELLED, ExitReason.INTERRUPTED_BY_USER)
    return _with_status(cancelled, RunStatus.STOPPING)


def _end_if_stopped(run: Run) -> Run:
    """End a run that is being stopped when the last claim on it is given up."""
    if run.status is not RunStatus.STOPPING:
        return run
    cancelled = _cancel(run, CallStatus.PENDING)
    if cancelled.is_held:
        return cancelled
    return _finish(cancelled, RunStatus.CANCELLED, ExitReason.INTERRUPTED_BY_USER)


def _quarantine(run: Run, what: str, deaths: int) -> Run:
    message = (
        f"{what} took down {deaths} times a worker that did nothing else, and will not be tried again; "
        "look at the worker's log and memory limit before you submit it anew"
    )
    failure = Failure(kind=ExitReason.STEP_QUARANTINED.value, message=message)
    return _finish(run, RunStatus.FAILED, ExitReason.STEP_QUARANTINED, failure)


def _finish(run: Run, status: RunStatus, reason: ExitReason, failure: Failure | None = None) -> Run:
    """End the run. Calls without a result get one, so that the transcript stays valid for the next turn.

    A ``once`` call that is running now cannot be called back: its outcome is unknown, not cancelled.
    """
    ended = _cancel(_with_status(run, status), CallStatus.PENDING, CallStatus.WAITING)
    for call in ended.unsettled_calls:
        is_in_doubt = call.replay is Replay.ONCE and call.may_have_acted
        lost = CallStatus.UNKNOWN if is_in_doubt else CallStatus.CANCELLED
        ended = _with_call_status(ended, call.position, lost)
    return replace(ended, is_asking=False, resume_at=None, exit_reason=reason, failure=failure)


def _with_status(run: Run, status: RunStatus) -> Run:
    if status is run.status:
        return run
    if status not in RUN_TRANSITIONS[run.status]:
        raise InvalidTransition(f"run {run.run_id!r} cannot go from {run.status.value} to {status.value}")
    return replace(run, status=status)


def _cancel(run: Run, *statuses: CallStatus) -> Run:
    for call in run.calls:
        if call.status in statuses:
            run = _with_call_status(run, call.position, CallStatus.CANCELLED)
    return run


def _require_call(run: Run, position: int) -> Call:
    if not 0 <= position < len(run.calls):
        raise InvalidTransition(f"iteration {run.iteration} of run {run.run_id!r} has no call {position}")
    return run.calls[position]


def _with_call_status(run: Run, position: int, status: CallStatus) -> Run:
    call = _require_call(run, position)
    if call.status.is_settled:
        # A settled call already has its only result; later events do not change it.
        return run
    if status not in CALL_TRANSITIONS[call.status]:
        raise InvalidTransition(f"call {position} of run {run.run_id!r} cannot go from {call.status} to {status}")
    asks = call.asks and not status.is_settled
    return _replace_call(run, replace(call, status=status, waits_for=None, asks=asks))


def _replace_call(run: Run, call: Call) -> Run:
    return replace(run, calls=(*run.calls[: call.position], call, *run.calls[call.position + 1 :]))
