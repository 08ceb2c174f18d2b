"""Laws of ``core.step`` over random legal histories: what holds for every run, whatever happens to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.core import events as ev
from hermes_worker.core.budget import Dimension
from hermes_worker.core.effects import AskAuxiliary, CallEffect, Effect, Iterate, list_outstanding
from hermes_worker.core.errors import Failure, InvalidTransition
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import (
    CALL_TRANSITIONS,
    CALL_WAITS,
    RUN_TRANSITIONS,
    SETTLED,
    CallStatus,
    ExitReason,
    Run,
    RunStatus,
    WaitKind,
)
from hermes_worker.core.step import apply_event, step_run

FAILURE = Failure(kind="timeout", message="late")
law = settings(max_examples=40, deadline=None, derandomize=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    before: Run
    event: ev.Event
    after: Run
    effects: frozenset[Effect]


def reply_events() -> st.SearchStrategy[ev.ModelReplied]:
    """Replies of up to five calls whose segments never decrease and have no gaps, as the planner makes them.

    Some ask for scripts alone, which gives their iteration back.
    """
    call = st.tuples(st.sampled_from(Replay), st.booleans())

    def planned(drawn: tuple[list[tuple[Replay, bool]], bool]) -> ev.ModelReplied:
        calls, segment = [], 0
        for position, (replay, opens_segment) in enumerate(drawn[0]):
            segment += int(opens_segment and position > 0)
            name = "execute_code" if drawn[1] else f"tool{position}"
            calls.append(ev.PlannedCall(name=name, replay=replay, segment=segment))
        return ev.ModelReplied(calls=tuple(calls))

    return st.tuples(st.lists(call, max_size=5), st.integers(0, 3).map(lambda drawn: drawn == 0)).map(planned)


def every_event(run: Run) -> list[ev.Event]:
    """One of each event but the reply, at every position and just past it, legal or not."""
    events: list[ev.Event] = [
        ev.IterationClaimed(),
        ev.IterationReleased(),
        *(ev.IterationLost(loss=loss) for loss in ev.Loss),
        ev.ModelFailed(failure=FAILURE, exit_reason=ExitReason.ALL_RETRIES_EXHAUSTED),
        ev.AskedAgain(memory='{"version":1,"summaries":1}', is_counted=True),
        ev.AskedAgain(memory=None, is_counted=False),
        ev.CapacityAwaited(resume_at=9.0, recovery="{}"),
        ev.WaitEnded(),
        ev.PauseRequested(),
        ev.ResumeRequested(),
        ev.StopRequested(),
        ev.DeadlinePassed(reason=ExitReason.IDLE_EXCEEDED, failure=FAILURE),
        ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=FAILURE),
    ]
    for position in range(-1, len(run.calls) + 1):
        events += [
            ev.CallClaimed(position=position),
            ev.CallReleased(position=position),
            *(ev.CallLost(position=position, loss=loss) for loss in ev.Loss),
            ev.CallAllowed(position=position),
            ev.CallAsked(position=position),
            *(ev.CallAnswered(position=position, is_last=is_last) for is_last in (True, False)),
        ]
        events += [ev.CallParked(position=position, waits_for=kind) for kind in WaitKind]
        events += [ev.CallSettled(position=position, status=status) for status in CallStatus]
    return events


_RARELY = ("stop_requested", "deadline_passed", "broken", "model_failed")
"""Events that end a run are drawn seldom, so that histories become long."""


@st.composite
def histories(draw: st.DrawFn, *, length: int = 20) -> list[Step]:
    """A run and what legally happened to it, including events that changed nothing."""
    run = Run(
        run_id="r",
        iterations_max=draw(st.integers(0, 4)),
        attempts_max=draw(st.integers(1, 3)),
    )
    history: list[Step] = []
    for _ in range(length):
        candidates: Sequence[ev.Event] = legal_events(run)
        if run.is_asking:
            candidates = [*candidates, draw(reply_events())]
        if draw(st.integers(0, 5)):
            candidates = [event for event in candidates if event.kind not in _RARELY] or list(candidates)
        event = draw(st.sampled_from(candidates))
        after, effects = step_run(run, event)
        history.append(Step(before=run, event=event, after=after, effects=effects))
        if run.status.is_terminal:
            break
        run = after
    return history


@cache
def legal_events(run: Run) -> tuple[ev.Event, ...]:
    return tuple(event for event in every_event(run) if is_legal(run, event))


def is_legal(run: Run, event: ev.Event) -> bool:
    try:
        apply_event(run, event)
    except InvalidTransition:
        return False
    return True


def call_changes(taken: Step) -> Iterator[tuple[int, CallStatus, CallStatus]]:
    if taken.after.iteration != taken.before.iteration:
        return
    for before, after in zip(taken.before.calls, taken.after.calls, strict=True):
        yield before.position, before.status, after.status


@law
@given(histories())
def test_every_legal_event_follows_the_transition_tables(history: list[Step]) -> None:
    for taken in history:
        before, after = taken.before.status, taken.after.status
        assert after is before or after in RUN_TRANSITIONS[before]
        for _, was, became in call_changes(taken):
            assert became is was or became in CALL_TRANSITIONS[was]


@law
@given(histories(), reply_events())
def test_an_illegal_event_raises_nothing_but_invalid_transition(history: list[Step], reply: ev.ModelReplied) -> None:
    run = history[-1].after
    for event in [*every_event(run), reply]:
        try:
            apply_event(run, event)
        except InvalidTransition as refusal:
            assert "'r'" in str(refusal)


@law
@given(histories())
def test_an_event_that_arrives_twice_is_refused_or_changes_nothing(history: list[Step]) -> None:
    for taken in history:
        try:
            again, effects = step_run(taken.after, taken.event)
        except InvalidTransition:
            continue
        assert again == taken.after
        assert effects == frozenset()


@law
@given(histories())
def test_a_terminal_run_never_changes_again(history: list[Step]) -> None:
    for taken in history:
        if taken.before.status.is_terminal:
            assert taken.after == taken.before


@law
@given(histories())
def test_a_run_has_an_exit_reason_exactly_when_it_has_ended(history: list[Step]) -> None:
    for taken in history:
        assert (taken.after.exit_reason is not None) == taken.after.status.is_terminal


@law
@given(histories())
def test_an_ended_run_leaves_nothing_open(history: list[Step]) -> None:
    for taken in history:
        if taken.after.status.is_terminal:
            assert not taken.after.unsettled_calls
            assert not taken.after.is_held
            assert taken.after.resume_at is None


@law
@given(histories())
def test_every_call_gets_exactly_one_terminal_status(history: list[Step]) -> None:
    settled: Counter[tuple[int, int]] = Counter()
    asked: set[tuple[int, int]] = set()
    for taken in history:
        asked |= {(taken.after.iteration, call.position) for call in taken.after.calls}
        for position, was, became in call_changes(taken):
            settled[taken.after.iteration, position] += int(became in SETTLED and was not in SETTLED)
            assert was not in SETTLED or became is was
    open_calls = {(history[-1].after.iteration, call.position) for call in history[-1].after.unsettled_calls}
    assert {key for key, times in settled.items() if times} == asked - open_calls
    assert set(settled.values()) <= {0, 1}


@law
@given(histories())
def test_the_next_model_call_waits_for_every_result(history: list[Step]) -> None:
    for taken in history:
        if any(isinstance(effect, Iterate) for effect in list_outstanding(taken.after)):
            assert not taken.after.unsettled_calls


@law
@given(histories())
def test_a_segment_waits_for_the_one_before_it(history: list[Step]) -> None:
    for taken in history:
        run = taken.after
        begun = [call.segment for call in run.calls if call.status is not CallStatus.PENDING]
        due = [run.calls[effect.position].segment for effect in list_outstanding(run) if isinstance(effect, CallEffect)]
        for segment in due:
            assert all(call.status.is_settled for call in run.calls if call.segment < segment)
            assert max(begun, default=0) <= segment


@law
@given(histories())
def test_nothing_is_outstanding_only_when_somebody_or_something_is_waited_for(history: list[Step]) -> None:
    """The run has ended, is parked, or every piece of work that could go on is claimed; a stopping run is held."""
    for taken in history:
        run = taken.after
        if run.status.is_terminal or run.status.is_parked:
            assert list_outstanding(run) == frozenset()
        elif not list_outstanding(run):
            assert run.is_held
        if run.status is RunStatus.STOPPING:
            assert run.is_held
            assert list_outstanding(run) == frozenset()


@law
@given(histories())
def test_the_effects_of_a_step_are_what_it_added_to_the_outstanding(history: list[Step]) -> None:
    for taken in history:
        assert taken.effects == list_outstanding(taken.after) - list_outstanding(taken.before)
        assert taken.effects.isdisjoint(list_outstanding(taken.before))


@law
@given(histories())
def test_an_effect_is_due_until_it_is_claimed_or_cancelled(history: list[Step]) -> None:
    """What drops out of the outstanding was claimed, put off by a pause, cut off by the end, or (a call) cancelled."""
    for taken in history:
        for gone in list_outstanding(taken.before) - list_outstanding(taken.after):
            after = taken.after
            if after.status is RunStatus.PAUSED:
                continue
            if isinstance(gone, Iterate):
                assert after.is_asking or after.status.is_terminal
            else:
                assert after.calls[gone.position].status in (
                    CallStatus.RUNNING,
                    CallStatus.CANCELLED,
                    CallStatus.FAILED,
                )


@law
@given(histories())
def test_no_effect_is_handed_out_twice_in_one_attempt_except_to_go_on(history: list[Step]) -> None:
    """After a release, a wait or an answer."""
    handed: Counter[Effect] = Counter(list_outstanding(history[0].before))
    again = (
        ev.IterationReleased
        | ev.CallReleased
        | ev.WaitEnded
        | ev.CallAllowed
        | ev.CallAsked
        | ev.CallAnswered
        | ev.ResumeRequested
        | ev.AskedAgain
    )
    for taken in history:
        if not isinstance(taken.event, again):
            assert all(handed[effect] == 0 for effect in taken.effects)
        handed.update(taken.effects)


@law
@given(histories())
def test_a_call_says_what_it_waits_for_exactly_while_it_waits(history: list[Step]) -> None:
    for taken in history:
        for call in taken.after.calls:
            assert (call.waits_for is not None) == (call.status is CallStatus.WAITING)


@law
@given(histories())
def test_a_run_is_parked_for_its_calls_exactly_while_they_are_all_that_can_go_on(history: list[Step]) -> None:
    for taken in history:
        run = taken.after
        stuck = bool(run.open_segment) and all(call.status is CallStatus.WAITING for call in run.open_segment)
        if run.status in CALL_WAITS:
            assert stuck
            assert not run.is_held
            assert run.status in {call.waits_for.parked_status for call in run.open_segment if call.waits_for}
        elif run.status is RunStatus.RUNNING:
            assert not stuck


@law
@given(histories())
def test_a_waiting_call_runs_only_after_it_was_allowed(history: list[Step]) -> None:
    for taken in history:
        for position, was, became in call_changes(taken):
            if was is CallStatus.WAITING and became is CallStatus.PENDING:
                assert taken.event == ev.CallAllowed(position=position)
            assert was is not CallStatus.WAITING or became is not CallStatus.RUNNING


@law
@given(histories())
def test_a_paused_run_begins_nothing_and_goes_on_where_it_was(history: list[Step]) -> None:
    run = history[-1].after
    if run.status.is_terminal or run.status is RunStatus.STOPPING:
        return
    paused = apply_event(run, ev.PauseRequested())
    assert paused.status is RunStatus.PAUSED
    assert list_outstanding(paused) == frozenset()
    resumed = apply_event(paused, ev.ResumeRequested())
    assert resumed.calls == run.calls
    assert list_outstanding(resumed) >= list_outstanding(run)
    assert resumed.status in CALL_WAITS or resumed.is_held or list_outstanding(resumed)


@law
@given(histories())
def test_a_step_takes_a_worker_down_at_most_as_often_as_it_may(history: list[Step]) -> None:
    for taken in history:
        for one in (taken.after, *taken.after.calls):
            assert one.deaths is None or 0 <= one.deaths < taken.after.attempts_max


@law
@given(histories())
def test_only_a_suspect_that_was_seen_to_take_its_worker_down_is_held_to_have(history: list[Step]) -> None:
    for taken in history:
        if taken.before.status.is_terminal:
            continue
        if taken.after.exit_reason is ExitReason.STEP_QUARANTINED:
            assert isinstance(taken.event, ev.IterationLost | ev.CallLost)
            assert taken.event.loss is ev.Loss.SEEN
        if taken.after.iteration != taken.before.iteration:
            continue
        pairs = [(taken.before, taken.after), *zip(taken.before.calls, taken.after.calls, strict=True)]
        for before, after in pairs:
            if after.deaths == before.deaths:
                continue
            if isinstance(taken.event, ev.CallAsked | ev.CallAnswered):
                assert after.deaths is None, "what came to its end in order is acquitted"
                continue
            assert isinstance(taken.event, ev.IterationLost | ev.CallLost)
            assert after.deaths == (0 if before.deaths is None else before.deaths + 1)
            assert before.deaths is None or taken.event.loss is ev.Loss.SEEN


@law
@given(histories())
def test_an_attempt_is_counted_only_for_a_loss(history: list[Step]) -> None:
    for taken in history:
        if taken.after.attempt > taken.before.attempt:
            assert isinstance(taken.event, ev.IterationLost)
        if taken.after.iteration == taken.before.iteration:
            for before, after in zip(taken.before.calls, taken.after.calls, strict=True):
                assert after.attempt - before.attempt in (0, 1)
                assert after.attempt == before.attempt or isinstance(taken.event, ev.CallLost)


@law
@given(histories())
def test_iterations_count_committed_replies_and_stay_under_their_cap(history: list[Step]) -> None:
    for taken in history:
        grown = taken.after.iteration - taken.before.iteration
        assert grown in (0, 1)
        is_counted = isinstance(taken.event, ev.AskedAgain) and taken.event.is_counted
        assert grown == 0 or isinstance(taken.event, ev.ModelReplied) or is_counted
        assert taken.after.iteration - taken.after.refunds <= taken.after.iterations_max


@law
@given(histories())
def test_an_iteration_is_given_back_once_only_for_scripts_and_not_for_ever(history: list[Step]) -> None:
    for taken in history:
        given_back = taken.after.refunds - taken.before.refunds
        assert given_back in (0, 1)
        if given_back:
            assert isinstance(taken.event, ev.ModelReplied)
            assert {call.name for call in taken.event.calls} == {"execute_code"}
            assert taken.after.iteration == taken.before.iteration + 1
        assert 0 <= taken.after.refunds <= min(taken.after.iteration, taken.after.iterations_max)


@law
@given(histories(), reply_events(), st.sampled_from(Dimension))
def test_a_run_whose_budget_is_used_up_ends_with_its_next_reply(
    history: list[Step], reply: ev.ModelReplied, dimension: Dimension
) -> None:
    """Whatever the reply asks for: nothing is begun, nothing is counted, and the reason names the dimension."""
    run = history[-1].after
    if not run.is_asking:
        return
    spent = replace(run, exhausted=dimension.value)
    after, effects = step_run(spent, reply)
    assert effects == frozenset()
    assert after.iteration == run.iteration
    if run.status is RunStatus.STOPPING:
        assert after.status is RunStatus.CANCELLED
        return
    assert after.status is RunStatus.COMPLETED
    is_counted = dimension is Dimension.ITERATIONS
    assert after.exit_reason is (ExitReason.MAX_ITERATIONS_REACHED if is_counted else ExitReason.BUDGET_EXHAUSTED)


@law
@given(histories())
def test_a_once_call_whose_tool_runs_never_goes_back_to_pending_but_to_ask(history: list[Step]) -> None:
    for taken in history:
        for position, was, became in call_changes(taken):
            before = taken.before.calls[position]
            if before.replay is Replay.ONCE and was is CallStatus.RUNNING and not before.asks:
                assert became is not CallStatus.PENDING or isinstance(taken.event, ev.CallAsked)


@law
@given(histories())
def test_what_is_due_of_a_call_is_its_tool_or_its_question(history: list[Step]) -> None:
    for taken in history:
        run = taken.after
        for effect in list_outstanding(run):
            if isinstance(effect, CallEffect):
                assert isinstance(effect, AskAuxiliary) == run.calls[effect.position].asks


@law
@given(histories())
def test_a_question_is_open_from_when_it_is_left_until_it_is_answered(history: list[Step]) -> None:
    """Or the call is over. Nothing else takes it away: no loss, no release, no pause."""
    for taken in history:
        if taken.after.iteration != taken.before.iteration:
            continue
        for before, after in zip(taken.before.calls, taken.after.calls, strict=True):
            if after.asks and not before.asks:
                assert taken.event == ev.CallAsked(position=after.position)
            if before.asks and not after.asks and not after.status.is_settled:
                assert taken.event == ev.CallAnswered(position=after.position)
            assert not after.asks or after.status in (CallStatus.PENDING, CallStatus.RUNNING)


@law
@given(histories())
def test_a_call_that_asks_is_never_in_doubt(history: list[Step]) -> None:
    for taken in history:
        for position, was, became in call_changes(taken):
            if became is CallStatus.UNKNOWN and was is not CallStatus.UNKNOWN:
                assert not taken.before.calls[position].asks


@law
@given(histories())
def test_a_once_call_that_was_running_never_counts_as_without_effect_unless_its_tool_says_so(
    history: list[Step],
) -> None:
    for taken in history:
        for position, was, became in call_changes(taken):
            before = taken.before.calls[position]
            if before.replay is not Replay.ONCE or was is not CallStatus.RUNNING or before.asks:
                continue
            if became is CallStatus.CANCELLED:
                assert isinstance(taken.event, ev.CallSettled | ev.CallAsked)


@law
@given(histories(), st.integers(0, 2**32))
def test_a_stop_leads_to_an_end_once_the_claims_are_given_up(history: list[Step], seed: int) -> None:
    """Whoever holds a claim loses it, hands it back or reports; in whatever order, the run then ends."""
    random = Random(seed)
    run = apply_event(history[-1].after, ev.StopRequested())
    for _ in range(20):
        if run.status.is_terminal:
            break
        run = apply_event(run, random.choice(list(ways_to_give_up(run))))
    assert run.status.is_terminal


def ways_to_give_up(run: Run) -> Iterator[ev.Event]:
    if run.is_asking:
        yield from (ev.IterationLost(), ev.IterationReleased(), ev.ModelReplied())
        yield ev.CapacityAwaited(resume_at=1.0, recovery="{}")
        yield from (ev.AskedAgain(memory=None, is_counted=is_counted) for is_counted in (True, False))
    for call in run.calls:
        if call.status is CallStatus.RUNNING and call.asks:
            yield ev.CallLost(position=call.position)
            yield ev.CallReleased(position=call.position)
            yield from (ev.CallAnswered(position=call.position, is_last=is_last) for is_last in (True, False))
        elif call.status is CallStatus.RUNNING:
            yield ev.CallLost(position=call.position)
            yield ev.CallAsked(position=call.position)
            yield ev.CallSettled(position=call.position, status=CallStatus.SUCCEEDED)
            if call.replay is not Replay.ONCE:
                yield ev.CallReleased(position=call.position)


@st.composite
def replies(draw: st.DrawFn) -> list[ev.ModelReplied]:
    """What the model says, reply by reply; beyond the list it answers."""
    return draw(st.lists(reply_events(), max_size=5))


@law
@given(replies(), st.integers(0, 2**32), st.integers(0, 4))
def test_a_healthy_run_never_needs_the_sweeper(script: list[ev.ModelReplied], seed: int, cap: int) -> None:
    """Doing exactly the effects that were handed out, in any order, brings a run to its end."""
    random = Random(seed)
    run = Run(run_id="r", iterations_max=cap)
    queue: list[Effect] = list(list_outstanding(run))
    while queue:
        effect = queue.pop(random.randrange(len(queue)))
        assert effect in list_outstanding(run)
        for event in done(effect, script, asks=random.random() < 0.3):
            run, effects = step_run(run, event)
            queue += sorted(effects, key=repr)
    assert run.status is RunStatus.COMPLETED


@law
@given(replies(), st.integers(0, 2**32), st.integers(0, 4))
def test_losses_handed_back_and_duplicates_change_nothing_but_time(
    script: list[ev.ModelReplied], seed: int, cap: int
) -> None:
    """Workers vanish, hand back and get every message twice; with attempts left the run still completes."""
    random = Random(seed)
    run = Run(run_id="r", iterations_max=cap, attempts_max=1_000)
    queue: list[Effect] = list(list_outstanding(run)) * 2
    while queue:
        effect = queue.pop(random.randrange(len(queue)))
        if effect not in list_outstanding(run):
            continue  # a stale or repeated message finds nothing
        accident = random.random() < 0.3
        for event in mishap(effect) if accident else done(effect, script, asks=random.random() < 0.3):
            run, effects = step_run(run, event)
            queue += sorted(effects, key=repr) * 2
    assert run.status is RunStatus.COMPLETED


def done(effect: Effect, script: list[ev.ModelReplied], *, asks: bool) -> list[ev.Event]:
    """What a worker makes of an effect; with ``asks`` there is a question, or one more."""
    if isinstance(effect, Iterate):
        known = effect.iteration <= len(script)
        return [ev.IterationClaimed(), script[effect.iteration - 1] if known else ev.ModelReplied()]
    claimed = ev.CallClaimed(position=effect.position)
    if isinstance(effect, AskAuxiliary):
        return [claimed, ev.CallAnswered(position=effect.position, is_last=not asks)]
    if asks:
        return [claimed, ev.CallAsked(position=effect.position)]
    return [claimed, ev.CallSettled(position=effect.position, status=CallStatus.SUCCEEDED)]


def mishap(effect: Effect) -> list[ev.Event]:
    if isinstance(effect, Iterate):
        return [ev.IterationClaimed(), ev.IterationLost() if effect.attempt % 2 else ev.IterationReleased()]
    return [ev.CallClaimed(position=effect.position), ev.CallLost(position=effect.position)]


@pytest.mark.parametrize("attempts_max", [1, 2, 3])
def test_a_step_that_kills_every_worker_is_tried_exactly_as_often_as_allowed(attempts_max: int) -> None:
    run = Run(run_id="r", attempts_max=attempts_max)
    tries = 0
    while not run.status.is_terminal:
        run = apply_event(apply_event(run, ev.IterationClaimed()), ev.IterationLost(loss=ev.Loss.SEEN))
        tries += int(run.is_suspect)
    assert (tries, run.exit_reason) == (attempts_max + 1, ExitReason.STEP_QUARANTINED), "once in company, then alone"


def test_the_laws_can_fail() -> None:
    """A run whose settled call is opened again breaks them: the walk is able to see what it claims to see."""
    run = apply_event(apply_event(Run(run_id="r"), ev.IterationClaimed()), ev.ModelReplied(calls=(_once(),)))
    running = apply_event(run, ev.CallClaimed(position=0))
    reopened = replace(running, calls=(replace(running.calls[0], status=CallStatus.PENDING),))
    broken = [Step(before=running, event=ev.CallLost(position=0), after=reopened, effects=frozenset())]
    with pytest.raises(AssertionError):
        test_a_once_call_whose_tool_runs_never_goes_back_to_pending_but_to_ask.hypothesis.inner_test(broken)  # type: ignore[attr-defined]
    with pytest.raises(AssertionError):
        test_the_effects_of_a_step_are_what_it_added_to_the_outstanding.hypothesis.inner_test(broken)  # type: ignore[attr-defined]


def _once() -> ev.PlannedCall:
    return ev.PlannedCall(name="pay", replay=Replay.ONCE, segment=0)
