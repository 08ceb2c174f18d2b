"""What observers are owed is written with the event, told once, and taken over when its worker vanishes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from support.plans import statements
from support.store import EMPTY, TTL_S, Store, asks, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.effects import CallHook
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.hooks import HookCallState, Observed, build_observed
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason
from hermes_worker.store.engine.database import Database
from hermes_worker.store.hooks.calls import HookCallClaim, HookCalls
from hermes_worker.store.rows import Hint
from hermes_worker.store.tables import events, hook_calls, runs, tool_calls

P = Replay.PURE
OBSERVED = build_observed([("audit", ("agent:*", "post_tool_call", "subagent_stop")), ("bell", ("agent:end",))])


@pytest.fixture
def watched(store: Store) -> Iterator[Store]:
    """The same database as a process sees it in which hooks are enabled."""
    database = Database(store.database.url.render_as_string(hide_password=False), observed=OBSERVED)
    yield Store.over(database)
    database.close()


def owed(hints: list[Hint]) -> list[CallHook]:
    return [hint.effect for hint in hints if isinstance(hint.effect, CallHook)]


def take(here: Store, effect: CallHook, owner: int | None = None) -> HookCallClaim:
    claim = HookCalls(here.database).claim(effect, here.owner if owner is None else owner)
    assert claim is not None
    return claim


def states(here: Store) -> dict[str, str]:
    return {f"{row.event} {row.hook}": row.state.value for row in HookCalls(here.database).list()}


def test_a_step_owes_its_events_to_whom_they_interest(watched: Store) -> None:
    run_id = watched.submit().run_id
    first = owed(watched.ask_tools(run_id, asks(P)))
    second = owed(watched.settle(run_id))
    last = owed(watched.answer(run_id))
    assert [(one.event_id, one.hook) for one in (*first, *second, *last)] == [
        (f"{run_id}.1.agent:step", "audit"),
        (f"{run_id}.3.post_tool_call", "audit"),
        (f"{run_id}.4.agent:step", "audit"),
        (f"{run_id}.5.agent:end", "audit"),
        (f"{run_id}.5.agent:end", "bell"),
    ]
    assert set(states(watched).values()) == {"pending"}


def test_a_call_is_told_once(watched: Store) -> None:
    [effect] = owed(watched.ask_tools(watched.submit().run_id, asks(P)))
    calls = HookCalls(watched.database)
    claim = take(watched, effect)
    assert calls.claim(effect, watched.owner) is None
    calls.settle(claim)
    assert calls.claim(effect, watched.owner) is None
    with pytest.raises(LeaseLost):
        calls.settle(claim)
    [view] = calls.list()
    assert (view.state, view.attempts, view.reason) == (HookCallState.DONE, 1, None)


def test_the_event_and_what_it_owes_stand_or_fall_together(watched: Store) -> None:
    run_id = watched.submit().run_id
    claim = watched.turn(run_id)
    watched.runs.request_stop(run_id)
    watched.change(runs, run_id, lease_token=None, lease_owner=None)
    asked = asks(P)
    with pytest.raises(LeaseLost):
        watched.runs.commit_reply(claim, asked.reply, asked.calls)
    assert states(watched) == {}


def test_a_vanished_worker_leaves_its_call_to_another_and_thrice_to_nobody(watched: Store) -> None:
    [effect] = owed(watched.ask_tools(watched.submit().run_id, asks(P)))
    watched.sweep()
    for attempt in (1, 2, 3):
        worker = watched.worker(f"w{attempt}")
        claim = take(watched, effect, worker.pk)
        watched.vanish(worker)
        hints = owed(list(watched.sweep().hints))
        with pytest.raises(LeaseLost):
            HookCalls(watched.database).settle(claim)
        if attempt < 3:
            [effect] = hints
            assert effect.attempt == attempt + 1
        else:
            assert hints == []
    [view] = HookCalls(watched.database).list()
    assert (view.state, view.attempts) == (HookCallState.LOST, 3)


def test_a_lost_message_is_sent_again(watched: Store) -> None:
    [effect] = owed(watched.ask_tools(watched.submit().run_id, asks(P)))
    watched.sweep()
    watched.let_pass(TTL_S)
    assert effect in owed(list(watched.sweep(EMPTY).hints))


def test_a_beginning_is_told_of_once(watched: Store) -> None:
    run_id = watched.submit().run_id
    claim, calls = watched.turn(run_id), HookCalls(watched.database)
    for _ in range(2):
        [hint] = calls.record_run_begin((claim.loaded.pk, run_id), is_child=False, is_first=True)
    assert hint.effect == CallHook(run_id=run_id, event_id=f"{run_id}.0.agent:start", hook="audit", attempt=1)
    assert states(watched) == {"agent:start audit": "pending"}


def test_the_end_of_a_child_is_told_of_as_such(watched: Store) -> None:
    run_id = watched.with_tools(P)
    [child] = watched.delegate(run_id, 1)
    told = owed(watched.answer(child))
    assert [one.event_id for one in told if one.event_id.endswith("subagent_stop")] == [f"{child}.2.subagent_stop"]
    assert f"{run_id}.4.post_tool_call" in [one.event_id for one in told]
    facts = HookCalls(watched.database).load_facts(
        take(watched, next(one for one in told if one.event_id.endswith("subagent_stop")))
    )
    assert (facts.parent_run_id, facts.run_id) == (run_id, child)


def test_a_run_that_is_ended_by_force_is_told_of(watched: Store) -> None:
    run_id = watched.with_tools(P)
    watched.change(tool_calls, run_id, replay="what?")
    failure = Failure(kind="internal_error", message="no")
    hints = watched.runs.end_broken(run_id, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure))
    assert [one.hook for one in owed(hints)] == ["audit", "bell"]


def test_the_facts_of_a_call_are_its_arguments_and_its_result(watched: Store) -> None:
    run_id = watched.with_tools(P, Replay.ONCE)
    claim = watched.call(run_id, 1)
    watched.calls.rewrite(claim, '{"n":7}')
    [effect] = owed(watched.calls.settle(claim, settlement("seven")))
    facts = HookCalls(watched.database).load_facts(take(watched, effect))
    assert (facts.run_id, facts.data["tool"], facts.arguments) == (run_id, "tool1", '{"n":7}')
    assert json.loads(facts.result or "")["content"] == "seven"
    assert json.loads(facts.reply or "")["tool_calls"][1]["id"] == "call_1"
    assert json.loads(facts.opening or "")["content"] == "hello"


def test_rewritten_arguments_stay_with_the_call_whoever_takes_it(store: Store) -> None:
    run_id = store.with_tools(P)
    worker = store.worker()
    claim = store.call(run_id, owner=worker.pk)
    assert not claim.is_rewritten
    store.calls.rewrite(claim, '{"n":8}')
    store.sweep()
    store.vanish(worker)
    store.sweep()
    with pytest.raises(LeaseLost):
        store.calls.rewrite(claim, '{"n":9}')
    again = store.call(run_id)
    assert (again.is_rewritten, again.request.arguments) == (True, '{"n":8}')
    assert store.bodies(run_id)[1]["tool_calls"][0]["function"]["arguments"] == '{"n":0}'


def test_a_failure_is_an_event_of_the_run_while_it_goes_on(store: Store) -> None:
    run_id, calls = store.submit().run_id, HookCalls(store.database)
    claim, asked = store.turn(run_id), asks(P)
    calls.record_failure(claim.loaded.pk, hook="audit", event="pre_llm_call", reason="it raised \x00")
    store.runs.commit_reply(claim, asked.reply, asked.calls)
    call = store.call(run_id)
    calls.record_failure(claim.loaded.pk, hook="audit", event="pre_tool_call", reason="it hung")
    store.calls.settle(call, settlement())
    store.answer(run_id)
    calls.record_failure(claim.loaded.pk, hook="audit", event="agent:end", reason="too late")
    names = store.event_names(run_id)
    assert names.count("hook.failed") == 2
    assert names[-1] == "run.completed"
    [first, _] = [event for event in store.views.list_events_after(run_id, 0) if event.name == "hook.failed"]
    assert first.data == {"hook": "audit", "hook_event": "pre_llm_call", "reason": "it raised \ufffd"}


def test_settled_calls_are_forgotten_after_a_week(watched: Store) -> None:
    first, second = owed(watched.ask_tools(run := watched.submit().run_id, asks(P))), owed(watched.settle(run))
    HookCalls(watched.database).settle(take(watched, first[0]))
    watched.let_pass(8 * 86_400)
    watched.sweeper.prune()
    assert [row.event_id for row in HookCalls(watched.database).list()] == [second[0].event_id]


def _a_turn(here: Store) -> None:
    run_id = here.submit().run_id
    here.ask_tools(run_id, asks(P))
    here.settle(run_id)
    here.answer(run_id)


def test_without_hooks_no_statement_is_about_them(store: Store) -> None:
    store.sweep()
    with statements(store.database) as seen:
        _a_turn(store)
        store.sweep(EMPTY)
    assert len(seen) > 10
    assert [text for text, _ in seen if "hook_calls" in text] == []
    with store.database.read() as connection:
        assert connection.execute(sa.select(sa.func.count()).select_from(hook_calls)).scalar_one() == 0
        assert connection.execute(sa.select(sa.func.count()).select_from(events)).scalar_one() == 5


def test_hooks_for_other_events_cost_a_step_nothing(store: Store) -> None:
    """A step takes more statements only when it owes something."""

    def cost(observed: Observed) -> int:
        database = Database(store.database.url.render_as_string(hide_password=False), observed=observed)
        here = Store.over(database)
        run_id = here.with_tools(P)
        with statements(database) as seen:
            here.settle(run_id)
        database.close()
        return len(seen)

    assert cost({"agent:end": ("bell",)}) == cost({}) < cost({"post_tool_call": ("bell",)})
