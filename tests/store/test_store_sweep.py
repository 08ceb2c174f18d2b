"""Repair: what lost its worker or its message is found, everything else is left alone."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import sqlalchemy as sa
from support.store import EMPTY, FULL, GRACE_S, POLICY, TTL_S, Store, asks, check, settlement

from hermes_worker.core import events as ev
from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import Failure, LeaseLost
from hermes_worker.core.messages import ModelReply
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import STATE_VERSION, ExitReason, RunStatus
from hermes_worker.store.sweep import Sweeper, SweepPolicy, SweepResult
from hermes_worker.store.tables import maintenance, messages, runs, sessions, tool_calls, workers
from hermes_worker.store.workers import Registration

P, K, O = Replay.PURE, Replay.KEYED, Replay.ONCE  # noqa: E741


def lose(store: Store, run_id: str, end: Callable[[Registration], None]) -> SweepResult:
    """A worker of its own takes the model call that is due, and comes to its end."""
    worker = store.worker()
    store.turn(run_id, worker.pk)
    end(worker)
    return store.sweep()


def deaths(store: Store, run_id: str) -> int | None:
    with store.database.read() as connection:
        return connection.execute(sa.select(runs.c.deaths).where(runs.c.run_id == run_id)).scalar_one()


# --- guilt -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_dies_makes_suspects_of_all_it_held_and_convicts_nobody(store: Store) -> None:
    held = [store.submit(attempts_max=1).run_id for _ in range(5)]
    for _ in range(4):
        worker = store.worker()
        for run_id in held:
            store.turn(run_id, worker.pk)
        store.vanish(worker)
        store.sweep()

    assert {store.status(run_id) for run_id in held} == {RunStatus.RUNNING}
    assert {deaths(store, run_id) for run_id in held} == {0}
    check(store)


def test_a_suspect_is_claimed_apart_only_and_any_other_step_in_company_only(store: Store) -> None:
    suspect, other = store.submit().run_id, store.submit().run_id
    [hint] = lose(store, suspect, store.vanish).hints
    assert isinstance(hint.effect, Iterate)
    asked = Iterate(run_id=other, iteration=1, attempt=1)

    assert store.runs.claim_iteration(replace(hint.effect, is_suspect=False), store.owner) is None
    assert store.runs.claim_iteration(replace(asked, is_suspect=True), store.owner) is None
    assert store.runs.claim_iteration(hint.effect, store.owner) is not None
    assert store.runs.claim_iteration(asked, store.owner) is not None


def test_a_suspected_tool_call_is_claimed_apart_only(store: Store) -> None:
    run_id = store.with_tools(P)
    worker = store.worker()
    store.call(run_id, 0, worker.pk)
    store.vanish(worker)
    [hint] = store.sweep().hints
    assert isinstance(hint.effect, RunTool)
    assert hint.effect.is_suspect

    assert store.calls.claim(replace(hint.effect, is_suspect=False), store.owner) is None
    assert store.calls.claim(hint.effect, store.owner) is not None


def test_a_suspect_that_settles_is_acquitted(store: Store) -> None:
    run_id = store.submit().run_id
    lose(store, run_id, store.vanish)
    lose(store, run_id, store.crash)
    assert deaths(store, run_id) == 1

    store.ask_tools(run_id, asks(P))

    assert deaths(store, run_id) is None
    assert store.due(run_id) == [RunTool(run_id=run_id, iteration=1, position=0, attempt=1)]
    check(store)


def test_a_worker_that_leaves_in_order_or_lets_go_makes_no_suspect(store: Store) -> None:
    left = store.submit().run_id
    lose(store, left, store.workers.retire)
    strayed, worker = store.submit().run_id, store.worker()
    store.turn(strayed, worker.pk)
    store.let_pass(10)
    store.workers.release_stray_claims(worker, except_for=(), older_than_s=5)
    store.sweep()

    assert [deaths(store, run_id) for run_id in (left, strayed)] == [None, None]
    assert store.turn(left).loaded.run.attempt == store.turn(strayed).loaded.run.attempt == 2


def test_a_lane_whose_end_nobody_saw_counts_for_nothing_and_its_suspect_waits_longer_each_time(store: Store) -> None:
    # Long beside what a slow machine takes between two lines.
    grace_s = 600.0
    store = replace(store, sweeper=Sweeper(store.database, replace(POLICY, resend_grace_s=grace_s)))
    run_id = store.submit().run_id
    assert len(lose(store, run_id, store.vanish).hints) == 1
    for waits_s in (1, 2, 4):
        assert lose(store, run_id, store.vanish).hints == ()
        store.let_pass(waits_s)
        assert store.sweep(EMPTY).resent == 0
        store.let_pass(grace_s + 0.5)
        [hint] = store.sweep(EMPTY).hints
        assert hint.effect == store.due(run_id)[0]
    assert deaths(store, run_id) == 0


def test_a_suspected_tool_call_waits_as_well(store: Store) -> None:
    run_id = store.with_tools(P, K)
    for _ in range(2):
        worker = store.worker()
        store.call(run_id, 0, worker.pk)
        store.vanish(worker)
        swept = store.sweep()

    assert swept.hints == ()
    store.let_pass(1 + GRACE_S + 0.5)
    hints = store.sweep({**FULL, "suspect_tools": 0}).hints
    assert [hint.effect for hint in hints] == [
        RunTool(run_id=run_id, iteration=1, position=0, attempt=3, is_suspect=True)
    ]


def test_a_lane_whose_suspect_outstays_its_time_loses_its_place_and_the_suspect_is_to_blame(store: Store) -> None:
    run_id = store.submit().run_id
    lose(store, run_id, store.vanish)
    lane, other = store.worker("lane", ttl_s=1e6), store.worker("other", ttl_s=1e6)
    store.turn(run_id, lane.pk)

    store.let_pass(POLICY.model_call_s_max + 10)
    store.sweep()

    assert deaths(store, run_id) == 1
    assert not store.workers.renew(lane, ttl_s=TTL_S, watermarks={})
    assert store.workers.renew(other, ttl_s=TTL_S, watermarks={})


def test_a_parent_reports_the_crash_of_a_lane_once_and_only_while_it_has_its_place(store: Store) -> None:
    store.worker("lane-1")
    silent = store.worker("lane-2")
    store.vanish(silent)
    store.sweep()

    assert store.workers.mark_crashed("lane-1")
    assert not store.workers.mark_crashed("lane-1")
    assert not store.workers.mark_crashed("lane-2")


def test_the_events_say_that_a_step_is_tried_apart_and_how_often_it_took_its_worker_down(store: Store) -> None:
    run_id = store.submit().run_id
    lose(store, run_id, store.workers.retire)
    lose(store, run_id, store.vanish)
    lose(store, run_id, store.crash)

    assert [event.data for event in store.views.list_events_after(run_id, 0)] == [
        {"step": "model", "attempt": 2},
        {"step": "model", "attempt": 3, "deaths": 0},
        {"step": "model", "attempt": 4, "deaths": 1},
    ]


# --- lost workers ----------------------------------------------------------------------------------------------------


def test_a_model_call_whose_worker_vanished_is_due_again_in_its_next_attempt(store: Store) -> None:
    worker = store.worker()
    run_id = store.submit().run_id
    store.turn(run_id, worker.pk)
    store.vanish(worker)

    swept = store.sweep()

    assert (swept.workers_expired, swept.iterations_lost) == (1, 1)
    assert [hint.effect for hint in swept.hints] == [Iterate(run_id=run_id, iteration=1, attempt=2, is_suspect=True)]
    assert store.due(run_id) == [hint.effect for hint in swept.hints]
    assert store.event_names(run_id) == ["step.retried"]
    check(store)


def test_everything_a_process_held_is_lost_with_it_and_nothing_else(store: Store) -> None:
    dead, alive = store.worker("dead"), store.worker("alive")
    theirs = [store.submit().run_id for _ in range(3)]
    tools = [store.with_tools(K) for _ in range(2)]
    ours = store.submit().run_id
    for run_id in theirs:
        store.turn(run_id, dead.pk)
    for run_id in tools:
        store.call(run_id, 0, dead.pk)
    kept = store.turn(ours, alive.pk)
    store.vanish(dead)

    swept = store.sweep()

    assert (swept.workers_expired, swept.iterations_lost, swept.calls_lost) == (1, 3, 2)
    assert {hint.effect.run_id for hint in swept.hints} == {*theirs, *tools}
    store.runs.commit_reply(kept, ModelReply(text="mine"), ())
    check(store)


def test_a_worker_that_retired_gives_up_what_it_held(store: Store) -> None:
    worker = store.worker()
    run_id = store.submit().run_id
    store.turn(run_id, worker.pk)

    store.workers.retire(worker)

    assert store.sweep().iterations_lost == 1


def test_a_supervisor_ends_the_terms_of_its_dead_child(store: Store) -> None:
    worker, other = store.worker("child-1"), store.worker("child-2")
    store.turn(store.submit().run_id, worker.pk)
    store.turn(store.submit().run_id, other.pk)

    assert store.workers.expire_leases("child-1") == 1

    assert store.sweep().iterations_lost == 1


def test_a_worker_whose_term_was_taken_away_cannot_renew_it(store: Store) -> None:
    worker = store.worker()
    assert store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
    store.vanish(worker)
    store.sweep()

    assert not store.workers.renew(worker, ttl_s=TTL_S, watermarks={})


def test_a_worker_that_renews_keeps_what_it_holds(store: Store) -> None:
    worker = store.worker()
    store.turn(store.submit().run_id, worker.pk)
    for _ in range(4):
        store.let_pass(TTL_S * 0.9)
        assert store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
        swept = store.sweep()
        assert (swept.workers_expired, swept.iterations_lost) == (0, 0)


def test_a_model_call_claimed_far_too_long_is_taken_even_from_a_live_worker(store: Store) -> None:
    worker = store.worker(ttl_s=1e6)
    run_id = store.submit().run_id
    store.turn(run_id, worker.pk)

    store.let_pass(POLICY.model_call_s_max - 10)
    assert store.sweep().iterations_lost == 0
    store.let_pass(20)
    assert store.sweep().iterations_lost == 1
    assert store.turn(run_id).loaded.run.attempt == 2


def test_a_model_call_that_costs_three_workers_their_life_alone_is_quarantined(store: Store) -> None:
    run_id = store.submit().run_id
    lose(store, run_id, store.vanish)
    for _ in range(3):
        lose(store, run_id, store.crash)

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.STEP_QUARANTINED)
    assert store.due(run_id) == []
    check(store)


def test_attempts_start_anew_with_every_step(store: Store) -> None:
    run_id = store.submit(attempts_max=2).run_id
    for _ in range(4):
        worker = store.worker()
        store.turn(run_id, worker.pk)
        store.vanish(worker)
        store.sweep()
        store.ask_tools(run_id, asks(P))
        store.settle(run_id)
    assert store.views.load_run(run_id).iteration == 4
    check(store)


# --- lost messages ---------------------------------------------------------------------------------------------------


def test_a_message_is_given_time_before_it_counts_as_lost(store: Store) -> None:
    run_id = store.submit().run_id

    store.let_pass(GRACE_S * 0.5)
    assert store.sweep(EMPTY).resent == 0
    store.let_pass(GRACE_S)
    swept = store.sweep(EMPTY)

    assert [hint.effect for hint in swept.hints] == [Iterate(run_id=run_id, iteration=1, attempt=1)]
    assert swept.hints[0].at == pytest.approx(store.database.read_clock(), abs=5)


def test_an_empty_queue_holds_no_message_so_what_is_due_is_sent_again(store: Store) -> None:
    asking, tooling = store.submit().run_id, store.with_tools(P, O)
    store.let_pass(GRACE_S * 2)

    swept = store.sweep(EMPTY)

    assert {hint.effect for hint in swept.hints} == {
        Iterate(run_id=asking, iteration=1, attempt=1),
        RunTool(run_id=tooling, iteration=1, position=0, attempt=1),
        RunTool(run_id=tooling, iteration=1, position=1, attempt=1),
    }
    assert swept.resent == 3
    check(store)


@pytest.mark.parametrize("depths", [FULL, None], ids=["a backlog", "no broker"])
def test_behind_a_backlog_or_without_a_broker_nothing_is_sent_again(
    store: Store, depths: Mapping[str, int] | None
) -> None:
    store.submit()
    store.with_tools(P)
    for _ in range(5):
        store.let_pass(100)
        assert store.sweep(depths).resent == 0


def test_only_the_queue_that_is_empty_is_refilled(store: Store) -> None:
    asking, tooling = store.submit().run_id, store.with_tools(P)
    store.let_pass(GRACE_S * 2)

    swept = store.sweep({"model": 5, "tools": 0})
    assert [hint.effect.run_id for hint in swept.hints] == [tooling]
    swept = store.sweep({"model": 0, "tools": 5})
    assert [hint.effect.run_id for hint in swept.hints] == [asking]


def test_a_message_that_others_overtook_is_lost(store: Store) -> None:
    """Queues are first in, first out: a worker that started a clearly later message did not skip ours."""
    worker = store.worker(ttl_s=1e6)
    lost = store.submit().run_id
    store.let_pass(GRACE_S * 3)
    later = store.submit()

    store.workers.renew(worker, ttl_s=1e6, watermarks={"model": later.hints[0].at})

    swept = store.sweep(FULL)
    assert [hint.effect.run_id for hint in swept.hints] == [lost]


def test_a_message_that_was_barely_overtaken_is_not_lost(store: Store) -> None:
    worker = store.worker(ttl_s=1e6)
    store.submit()
    store.let_pass(GRACE_S * 0.5)
    later = store.submit()
    store.let_pass(GRACE_S * 10)  # both wait; what was started was hinted only a little later
    store.workers.renew(worker, ttl_s=1e6, watermarks={"model": later.hints[0].at - GRACE_S * 10})

    assert store.sweep(FULL).resent == 0


def test_what_a_dead_worker_started_proves_nothing(store: Store) -> None:
    worker = store.worker()
    store.submit()
    store.workers.renew(worker, ttl_s=TTL_S, watermarks={"model": store.database.read_clock() + 1_000})
    store.let_pass(100)

    assert store.sweep(FULL).resent == 0


def test_a_watermark_of_another_queue_proves_nothing(store: Store) -> None:
    worker = store.worker(ttl_s=1e6)
    store.submit()
    store.let_pass(100)
    store.workers.renew(worker, ttl_s=1e6, watermarks={"tools": store.database.read_clock()})

    assert store.sweep(FULL).resent == 0


def test_messages_are_sent_again_ever_more_seldom(store: Store) -> None:
    store.submit()
    sweeper = Sweeper(store.database, replace(POLICY, resend_grace_s=3.5))
    sweeper.sweep(EMPTY)

    def resent() -> int:
        swept = sweeper.sweep(EMPTY)
        assert swept is not None
        return swept.resent

    for wait_s in (3.5, 7.0, 14.0, 28.0, 28.0, 28.0):
        store.let_pass(wait_s * 0.6)
        assert resent() == 0
        store.let_pass(wait_s * 0.5)
        assert resent() == 1


def test_a_claim_starts_the_patience_anew(store: Store) -> None:
    run_id = store.submit().run_id
    for _ in range(3):
        store.let_pass(100)
        store.sweep(EMPTY)
    store.runs.release_iteration(store.turn(run_id))

    store.let_pass(GRACE_S * 1.1)
    assert store.sweep(EMPTY).resent == 1


def test_a_row_that_was_sent_again_more_often_than_a_small_number_can_say_is_still_sent(store: Store) -> None:
    asking, tooling = store.submit().run_id, store.with_tools(P)
    store.change(runs, asking, hints=32_767)
    store.change(tool_calls, tooling, hints=32_767)
    store.let_pass(100)

    assert store.sweep(EMPTY).resent == 2


def test_a_run_that_waits_for_its_session_is_not_sent(store: Store) -> None:
    store.submit(session_id="s")
    store.submit(session_id="s")
    store.let_pass(100)

    assert store.sweep(EMPTY).resent == 1


def test_twenty_thousand_waiting_messages_are_not_amplified(store: Store) -> None:
    """One slow worker works through a backlog in order; only what it proves lost is sent again."""
    count = 20_000
    first = store.submit()
    _fill_with_queued_runs(store, count - 1)
    worker = store.worker(ttl_s=1e6)
    store.let_pass(300)
    resent = 0
    for tick in range(100):  # five minutes of sweeping every 3 s
        started = first.hints[0].at - 300 + tick * 0.02
        store.workers.renew(worker, ttl_s=1e6, watermarks={"model": started})
        resent += store.sweep({"model": count - tick, "tools": 0}).resent

    assert resent == 0


def test_a_flushed_broker_is_refilled_from_the_rows(store: Store) -> None:
    _fill_with_queued_runs(store, 1_000)
    store.let_pass(100)
    names: set[str] = set()
    for _ in range(20):
        swept = store.sweep(EMPTY)
        again = {hint.effect.run_id for hint in swept.hints}
        assert not again & names
        names |= again
        if not again:
            break

    assert len(names) == 1_000


def _fill_with_queued_runs(store: Store, count: int) -> None:
    """Queued runs whose first call is due, made by the database itself."""
    facts = {"count": count, "now": store.database.read_clock(), "version": STATE_VERSION}
    with store.database.write() as connection:
        facts["first"] = connection.execute(sa.select(sa.func.coalesce(sa.func.max(sessions.c.pk), 0))).scalar_one() + 1
        for statement in (_BULK_SESSIONS, _BULK_RUNS):
            connection.execute(sa.text(statement), facts)
        ours = (sessions.c.pk == runs.c.session_pk) & (sessions.c.pk >= facts["first"])
        connection.execute(sa.update(sessions).where(ours).values(active_run_pk=runs.c.pk))


_NUMBERS = "with recursive numbers(n) as (select 0 union all select n + 1 from numbers where n < :count - 1)"
_BULK_SESSIONS = f"""
insert into sessions (tenant, pk, session_id, message_seq, system_prompt, tools_hash, workspace, created_at)
{_NUMBERS} select 'default', :first + n, 'bulk' || (:first + n), 0, '', '', '{{}}', :now from numbers
"""
_BULK_RUNS = f"""
insert into runs (tenant, run_id, session_pk, model, status, state_version, iterations_max, attempts_max, hinted_at,
                  message_seq, deadline_at, created_at, updated_at)
{_NUMBERS} select 'default', 'bulk' || (:first + n), :first + n, 'm', 'queued', :version, 5, 3, :now + n * 1e-4,
                  1, :now + 86400, :now, :now from numbers
"""


# --- waiting and deadlines -------------------------------------------------------------------------------------------


def park(store: Store, run_id: str, seconds: float) -> None:
    awaited = ev.CapacityAwaited(resume_at=store.database.read_clock() + seconds, recovery='{"tries":1}')
    store.runs.commit_failure(store.turn(run_id), awaited)


def test_a_parked_run_goes_on_when_its_time_has_come(store: Store) -> None:
    run_id = store.submit().run_id
    park(store, run_id, 60)
    assert store.sweep().resumed == 0
    store.let_pass(61)

    swept = store.sweep()

    assert [hint.effect for hint in swept.hints] == [Iterate(run_id=run_id, iteration=1, attempt=1)]
    assert store.event_names(run_id) == ["run.waiting", "run.resumed"]
    assert store.turn(run_id).loaded.run.recovery == '{"tries":1}'
    check(store)


def test_an_idle_run_expires_and_one_that_moves_does_not(store: Store) -> None:
    idle, moving = (store.submit(idle_s_max=60.0).run_id for _ in range(2))
    worker = store.worker(ttl_s=1e6)
    store.turn(idle, worker.pk)
    for _ in range(3):
        store.ask_tools(moving, asks(P), worker.pk)
        store.settle(moving)
        store.let_pass(25)
        store.sweep()

    view = store.views.load_run(idle)
    assert (view.status, view.exit_reason) == (RunStatus.EXPIRED, ExitReason.IDLE_EXCEEDED)
    assert store.status(moving) is RunStatus.RUNNING
    check(store)


def test_a_run_that_waits_on_purpose_is_not_idle(store: Store) -> None:
    run_id = store.submit(idle_s_max=10.0).run_id
    park(store, run_id, 1_000)
    store.let_pass(100)
    store.sweep()

    assert store.status(run_id) is RunStatus.WAITING_FOR_CAPACITY


def test_a_run_past_its_wall_clock_expires_even_while_it_waits_for_its_session(store: Store) -> None:
    first = store.submit(session_id="s").run_id
    second = store.submit(session_id="s", wall_s_max=100.0).run_id
    store.let_pass(101)

    assert store.sweep().expired == 0 or store.status(second) is RunStatus.EXPIRED
    assert store.status(second) is RunStatus.EXPIRED
    assert store.due(first) != []
    check(store)


# --- after an outage -------------------------------------------------------------------------------------------------


def test_after_an_outage_live_workers_get_a_moment_to_be_heard(store: Store) -> None:
    worker = store.worker()
    run_id = store.submit().run_id
    claim = store.turn(run_id, worker.pk)
    store.sweep()
    store.let_pass(TTL_S * 4, nobody_swept=True)

    swept = store.sweep()
    assert (swept.workers_expired, swept.iterations_lost) == (0, 0)
    assert store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
    store.let_pass(TTL_S * 0.9)
    assert store.sweep().iterations_lost == 0

    store.runs.commit_reply(claim, ModelReply(text="kept in memory"), ())
    assert store.views.load_run(run_id).output == "kept in memory"


@pytest.mark.parametrize("part", [0.8, 0.95])
def test_an_outage_shorter_than_a_term_takes_nothing_from_live_workers_either(store: Store, part: float) -> None:
    """A heartbeat comes four times a term: when the outage began, a quarter of the term may have been gone."""
    worker = store.worker()
    claim = store.turn(store.submit().run_id, worker.pk)
    store.let_pass(TTL_S * 0.25)
    store.sweep()
    store.let_pass(TTL_S * part, nobody_swept=True)

    assert store.sweep().workers_expired == 0

    store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
    store.runs.commit_reply(claim, ModelReply(text="kept"), ())


def test_after_an_outage_a_worker_that_stays_silent_is_given_up(store: Store) -> None:
    worker = store.worker()
    store.turn(store.submit().run_id, worker.pk)
    store.sweep()
    store.let_pass(TTL_S * 4, nobody_swept=True)
    assert store.sweep().workers_expired == 0

    with store.database.write() as connection:  # the moment is over; sweeping went on meanwhile
        connection.execute(sa.update(maintenance).values(hold_until=maintenance.c.hold_until - TTL_S))
    assert store.sweep().iterations_lost == 1


def test_after_an_outage_a_call_past_its_time_out_may_still_report(store: Store) -> None:
    """Its worker is alive and waits with the result in memory: a once call must not become unknown for that."""
    worker = store.worker()
    run_id = store.submit().run_id
    store.ask_tools(run_id, asks(O, timeout_s=1.0))
    claim = store.call(run_id, 0, worker.pk)
    store.sweep()
    store.let_pass(120, nobody_swept=True)

    assert store.sweep().calls_lost == 0
    store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
    store.calls.settle(claim, settlement("it did work"))
    assert store.results(run_id) == ["it did work"]


def test_an_outage_is_not_idleness(store: Store) -> None:
    worker = store.worker(ttl_s=1e6)
    run_id = store.submit(idle_s_max=60.0).run_id
    claim = store.turn(run_id, worker.pk)
    store.sweep()
    store.let_pass(120, nobody_swept=True)

    store.sweep()
    store.runs.commit_reply(claim, ModelReply(text="here"), ())
    assert store.status(run_id) is RunStatus.COMPLETED


def test_an_outage_beside_a_claim_of_a_worker_that_is_known_to_be_dead_changes_nothing(store: Store) -> None:
    worker = store.worker()
    store.turn(store.submit().run_id, worker.pk)
    store.sweep()
    store.workers.retire(worker)
    store.let_pass(TTL_S * 4, nobody_swept=True)

    assert store.sweep().iterations_lost == 1


# --- two sweepers ----------------------------------------------------------------------------------------------------


def test_one_sweep_per_interval_however_many_offer(store: Store) -> None:
    policy = SweepPolicy(interval_s=30.0, ttl_s=TTL_S, resend_grace_s=GRACE_S)
    sweepers = [Sweeper(store.database, policy) for _ in range(8)]
    start = threading.Barrier(8)
    sweepers[0].sweep(EMPTY)  # makes the row

    def offer(sweeper: Sweeper) -> bool:
        start.wait()
        return sweeper.sweep(EMPTY) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(offer, sweepers)) == 1
    assert not any(sweeper.sweep(EMPTY) for sweeper in sweepers)


def test_two_sweepers_at_once_do_everything_once(store: Store) -> None:
    for _ in range(2 if store.database.is_sqlite else 6):
        dead = store.worker()
        asking = [store.submit().run_id for _ in range(10)]
        tooling = [store.with_tools(K) for _ in range(10)]
        parked = [store.submit().run_id for _ in range(5)]
        for run_id in asking:
            store.turn(run_id, dead.pk)
        for run_id in tooling:
            store.call(run_id, 0, dead.pk)
        for run_id in parked:
            park(store, run_id, -1)
        store.vanish(dead)
        store.sweeper.sweep(None)

        with ThreadPoolExecutor(4) as pool:
            swept = list(pool.map(lambda _: store.sweeper.sweep(FULL), range(4)))
        hinted = [hint.effect for one in swept if one is not None for hint in one.hints]
        # Whatever the round before left over was done now, and no step was counted twice.
        assert len(hinted) == len(set(hinted))
        for run_id in [*asking, *tooling, *parked]:
            [due] = store.due(run_id)
            assert due.attempt == (1 if run_id in parked else 2)
    check(store)


# --- rows that make no sense -----------------------------------------------------------------------------------------


def test_a_run_whose_rows_cannot_be_read_ends_alone_and_the_sweep_goes_on(store: Store) -> None:
    dead = store.worker()
    corrupt, healthy = store.with_tools(P, O), store.with_tools(P)
    for run_id in (corrupt, healthy):
        store.call(run_id, 0, dead.pk)
    store.change(tool_calls, corrupt, replay="wat")
    store.vanish(dead)

    swept = store.sweep()

    view = store.views.load_run(corrupt)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.CORRUPT_STATE)
    assert store.event_names(corrupt)[-1] == "run.failed"
    assert RunTool(run_id=healthy, iteration=1, position=0, attempt=2, is_suspect=True) in [
        hint.effect for hint in swept.hints
    ]
    with store.database.read() as connection:
        left = connection.execute(sa.select(sa.func.count()).where(tool_calls.c.lease_owner.is_not(None))).scalar_one()
    assert left == 0


def test_the_session_of_a_run_that_could_not_be_read_is_fit_for_its_next_turn(store: Store) -> None:
    dead = store.worker()
    corrupt = store.with_tools(P, O, session_id="s")
    waiting = store.submit(session_id="s", input="and now?").run_id
    store.call(corrupt, 0, dead.pk)
    store.change(tool_calls, corrupt, replay="wat")
    store.vanish(dead)

    swept = store.sweep()

    assert Iterate(run_id=waiting, iteration=1, attempt=1) in [hint.effect for hint in swept.hints]
    claim = store.turn(waiting)
    rows = store.transcripts.load(claim.loaded.session_pk, claim.loaded.message_seq)
    assert [json.loads(row.body)["role"] for row in rows] == ["user", "assistant", "tool", "tool", "assistant", "user"]
    store.runs.commit_reply(claim, ModelReply(text="fine"), ())
    assert store.status(waiting) is RunStatus.COMPLETED


def test_a_run_whose_reply_cannot_be_read_ends_alone(store: Store) -> None:
    """Its tool calls cannot even be named, so no results can be written for them."""
    dead = store.worker()
    corrupt = store.with_tools(O)
    store.call(corrupt, 0, dead.pk)
    with store.database.write() as connection:
        connection.execute(sa.update(messages).where(messages.c.role == "assistant").values(body="{torn"))
    store.vanish(dead)

    store.sweep()

    view = store.views.load_run(corrupt)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, ExitReason.CORRUPT_STATE)
    assert store.sweep().calls_lost == 0


def test_a_run_that_is_broken_off_ends_whoever_holds_it(store: Store) -> None:
    run_id = store.with_tools(P, O)
    claim = store.call(run_id, 1)
    failure = Failure(kind="internal_error", message="a defect")

    store.runs.end_broken(run_id, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure))

    assert store.views.load_run(run_id).exit_reason == "internal_error"
    with pytest.raises(LeaseLost):
        store.calls.settle(claim, settlement())
    assert store.runs.end_broken(run_id, ev.RunBroken(reason=ExitReason.INTERNAL_ERROR, failure=failure)) == []
    check(store)


def test_rows_of_a_newer_state_version_are_left_alone(store: Store) -> None:
    dead = store.worker()
    asking, tooling, due, due_tool, parked, late = (store.submit(wall_s_max=500.0).run_id for _ in range(6))
    for run_id in (tooling, due_tool):
        store.ask_tools(run_id, asks(P))
    store.turn(asking, dead.pk)
    store.call(tooling, 0, dead.pk)
    park(store, parked, 1)
    for run_id in (asking, tooling, due, due_tool, parked, late):
        store.change(runs, run_id, state_version=STATE_VERSION + 1)
    store.vanish(dead)
    store.let_pass(1_000)
    before = _rows(store)

    swept = store.sweep(EMPTY)

    assert swept.hints == ()
    assert _rows(store) == before


def _rows(store: Store) -> list[list[tuple[object, ...]]]:
    with store.database.read() as connection:
        found = [connection.execute(sa.select(table)).all() for table in (runs, tool_calls)]
    return [[tuple(row) for row in rows] for rows in found]


def test_workers_long_gone_are_forgotten(store: Store) -> None:
    gone, alive = store.worker("gone"), store.worker("alive", ttl_s=1e6)
    store.workers.retire(gone)
    store.let_pass(90_000)
    store.workers.renew(alive, ttl_s=TTL_S, watermarks={})

    store.sweeper.prune()

    with store.database.read() as connection:
        assert connection.execute(sa.select(workers.c.name)).scalars().all() == ["alive"]
    assert [worker["name"] for worker in store.workers.list_alive()] == ["alive"]


def test_a_claim_of_a_worker_that_was_forgotten_is_lost_like_any_other(store: Store) -> None:
    worker = store.worker()
    store.turn(store.submit().run_id, worker.pk)
    with store.database.write() as connection:
        connection.execute(sa.delete(workers))

    assert store.sweep().iterations_lost == 1
