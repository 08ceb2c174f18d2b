"""The database's clock is set ahead or back by an hour: nothing ends for it, and nothing hangs for it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa
from support.questions import DANGER
from support.store import EMPTY, POLICY, TTL_S, Store, asks, before_step, settlement
from test_store_key_states import close, keys_of, park

from hermes_worker.core.messages import ModelReply
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.clock import CLOCK, MOVED
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.sweep import Sweeper
from hermes_worker.store.tables import key_states, maintenance, runs, tool_calls
from hermes_worker.store.whole_schema import load_schema

HOUR = 3600.0
STEPS = pytest.mark.parametrize("step_s", [HOUR, -HOUR], ids=["ahead", "back"])


def left_s(store: Store, run_id: str) -> float:
    """How far the deadline of a run is ahead."""
    with store.database.read() as connection:
        deadline_at = connection.execute(sa.select(runs.c.deadline_at).where(runs.c.run_id == run_id)).scalar_one()
    return float(deadline_at) - store.database.read_clock()


@STEPS
def test_no_run_deadline_wait_key_or_lease_ends_with_a_step(store: Store, step_s: float) -> None:
    worker = store.worker()
    held = store.submit(wall_s_max=600.0, idle_s_max=120.0).run_id
    claim = store.turn(held, worker.pk)
    calling = store.submit().run_id
    store.ask_tools(calling, asks(Replay.ONCE, timeout_s=30.0))
    call = store.call(calling, 0, worker.pk)
    asking = store.with_tools(Replay.ONCE)
    Waits(store.database).ask(store.call(asking), DANGER)
    keys = keys_of(store)
    close(keys)
    parked = park(store, "key1")
    store.sweep()

    store.step_clock(step_s)
    swept = store.sweep()

    assert (swept.workers_expired, swept.iterations_lost, swept.calls_lost, swept.resumed, swept.expired) == (0,) * 5
    assert store.status(parked) is RunStatus.WAITING_FOR_CAPACITY
    assert store.status(asking) is RunStatus.WAITING_FOR_APPROVAL
    assert left_s(store, held) == pytest.approx(600.0, abs=60.0)
    with store.database.read() as connection:
        probe_at = connection.execute(sa.select(key_states.c.probe_at)).scalar_one()
    assert 0 < probe_at - store.database.read_clock() < HOUR, "the key rests as long as it did"
    assert store.workers.renew(worker, ttl_s=TTL_S, watermarks={})
    store.calls.settle(call, settlement("it did work"))
    store.runs.commit_reply(claim, ModelReply(text="kept"), ())
    assert store.results(calling) == ["it did work"]


@STEPS
def test_what_ends_by_time_ends_as_long_after_a_step_as_it_would_have(store: Store, step_s: float) -> None:
    run_id = store.submit(wall_s_max=600.0).run_id
    asking = store.with_tools(Replay.ONCE)
    Waits(store.database).ask(store.call(asking), DANGER)
    parked = park(store)
    store.sweep()
    store.step_clock(step_s)
    store.sweep()

    store.let_pass(301)
    store.sweep()
    assert store.status(asking) is not RunStatus.WAITING_FOR_APPROVAL
    assert store.status(parked) is RunStatus.RUNNING
    store.let_pass(300)
    store.sweep()
    assert store.status(run_id) is RunStatus.EXPIRED


@STEPS
def test_an_api_key_lasts_as_long_as_it_was_made_to(store: Store, step_s: float) -> None:
    tenants = Tenants(store.database)
    key = tenants.create_key("default", "ci", [KeyScope.RUNS_READ], expires_in_s=600)
    store.sweep()
    store.step_clock(step_s)
    store.sweep()

    assert tenants.find_principal(key.token) is not None
    store.let_pass(601)
    assert tenants.find_principal(key.token) is None


@STEPS
def test_a_worker_that_is_gone_is_given_up_within_a_term(store: Store, step_s: float) -> None:
    store.turn(store.submit().run_id, store.worker().pk)
    store.sweep()
    store.step_clock(step_s)
    assert store.sweep().iterations_lost == 0

    store.let_pass(TTL_S)
    with store.database.write() as connection:  # sweeping went on meanwhile
        connection.execute(sa.update(maintenance).where(maintenance.c.name != CLOCK).values(hold_until=0.0))
    assert store.sweep().iterations_lost == 1


@STEPS
def test_a_lost_message_is_sent_again_soon(store: Store, step_s: float) -> None:
    run_id = store.submit().run_id
    store.sweep()
    store.step_clock(step_s)
    store.sweep()
    store.let_pass(31)
    assert [hint.effect.run_id for hint in store.sweep(EMPTY).hints] == [run_id]  # type: ignore[union-attr]


@STEPS
def test_what_was_written_after_the_step_is_right_already(store: Store, step_s: float) -> None:
    store.sweep()
    store.step_clock(step_s)
    run_id = store.submit(wall_s_max=60.0, idle_s_max=60.0).run_id
    store.ask_tools(run_id, asks(Replay.PURE, timeout_s=20.0))
    store.call(run_id)

    swept = store.sweep()

    assert (swept.expired, swept.calls_lost) == (0, 0)
    assert left_s(store, run_id) == pytest.approx(60.0, abs=50.0)
    with store.database.read() as connection:
        deadline_at = connection.execute(sa.select(tool_calls.c.deadline_at)).scalar_one()
    assert abs(deadline_at - store.database.read_clock()) < 600


@STEPS
def test_a_claim_between_the_step_and_the_next_sweep_ends_no_run(store: Store, step_s: float) -> None:
    run_id = store.submit(wall_s_max=600.0).run_id
    store.sweep()
    store.step_clock(step_s)

    assert not store.turn(run_id).loaded.run.wants_summary


@STEPS
def test_of_several_processes_one_moves_the_times(store: Store, step_s: float) -> None:
    run_id = store.submit(wall_s_max=600.0).run_id
    other = Sweeper(store.database, POLICY)
    store.sweep()
    other.sweep(None)
    assert other.clock.last is not None

    store.step_clock(step_s)
    other.clock.last = before_step(other.clock.last, step_s)
    store.sweep()
    for each in (other, store.sweeper, other):
        each.sweep(None)

    assert left_s(store, run_id) == pytest.approx(600.0, abs=60.0)


@STEPS
def test_a_process_that_begins_beside_others_leaves_the_step_to_them(store: Store, step_s: float) -> None:
    run_id = store.submit(wall_s_max=600.0).run_id
    store.sweep()
    store.step_clock(step_s)

    assert Sweeper(store.database, POLICY).sweep(None) is None
    assert store.sweep().expired == 0
    assert left_s(store, run_id) == pytest.approx(600.0, abs=60.0)


def test_the_first_process_after_all_were_gone_knows_a_clock_that_was_set_back(store: Store) -> None:
    run_id = store.submit(wall_s_max=600.0).run_id
    store.sweep()
    store.step_clock(-HOUR)
    first = Sweeper(store.database, POLICY)

    assert first.sweep(None) is None
    assert first.sweep(None) is not None
    assert left_s(store, run_id) == pytest.approx(600.0, abs=60.0)


def test_a_process_whose_machine_was_halted_moves_nothing(store: Store) -> None:
    """Its own clock stood still while others swept on."""
    run_id = store.submit(wall_s_max=2 * HOUR).run_id
    store.sweep()
    store.let_pass(HOUR)
    assert store.sweeper.clock.last is not None
    store.sweeper.clock.last = before_step(store.sweeper.clock.last, HOUR)

    store.sweep()

    assert left_s(store, run_id) == pytest.approx(HOUR, abs=60.0)


@contextmanager
def stepped(own_store: Store, by: list[float]) -> Iterator[Store]:
    """The store over a database whose clock is ahead by as many seconds as ``by`` says at the time."""
    database = Database(own_store.database.url.render_as_string(hide_password=False))
    if database.is_sqlite:

        def days(_: str) -> float:
            return (time.time() + by[0]) / 86_400.0 + 2_440_587.5

        sa.event.listen(database.engine, "connect", lambda raw, _: raw.create_function("julianday", 1, days))
    else:
        with database.write() as connection:
            for statement in _STEPPED:
                connection.execute(sa.text(statement))
        database.engine.dispose()
    yield Store.over(database)
    database.close()


_STEPPED = (
    "create schema stepped",
    "create table stepped.step (by_s double precision)",
    "insert into stepped.step values (0)",
    """create function stepped.clock_timestamp() returns timestamptz language sql volatile as
    'select pg_catalog.clock_timestamp() + make_interval(secs => by_s) from stepped.step'""",
    "do $$ begin execute format('alter database %I set search_path = stepped, pg_catalog, public',"
    " current_database()); end $$",
)


def set_ahead(store: Store, by: list[float], seconds: float) -> None:
    by[0] = seconds
    if not store.database.is_sqlite:
        with store.database.write() as connection:
            connection.execute(sa.text("update stepped.step set by_s = :by_s"), {"by_s": seconds})


@STEPS
def test_a_clock_that_really_goes_elsewhere_is_noticed_in_both_directions(own_store: Store, step_s: float) -> None:
    by = [0.0]
    with stepped(own_store, by) as store:
        run_id = store.submit(wall_s_max=600.0).run_id
        worker = store.worker()
        claim = store.turn(run_id, worker.pk)
        store.sweep()
        for ahead_s in (step_s, 0.0):
            before = store.database.read_clock()
            set_ahead(store, by, ahead_s)
            assert abs(store.database.read_clock() - before) > HOUR / 2, "the clock was set"

            swept = store.sweep()

            assert (swept.expired, swept.workers_expired, swept.iterations_lost) == (0, 0, 0)
            assert left_s(store, run_id) == pytest.approx(600.0, abs=60.0)
        store.runs.commit_reply(claim, ModelReply(text="kept"), ())
        assert store.status(run_id) is RunStatus.COMPLETED


PAST = (
    "active_at answered_at applied_at archived_at began_at changed_at closed_at created_at deleted_at disabled_at "
    "draining_at ended_at finished_at first_used_at last_run_at learnt_at listed_at marked_at modified_at paired_at "
    "past_at paused_at placed_at recovered_at redacted_at removed_at revoked_at settled_at started_at"
)
"""They tell of the past."""
APART = {
    "audit_log": "at",
    "events": "at",
    "memory_versions": "at",
    "retention_marks": "at",
    "api_keys": "last_used_at",
    "auxiliary_calls": "asked_at",
    "inbound": "received_at",
    "skill_contents": "used_at",
    "logins": "updated_at",
    "firings": "slot",
    "jobs": "next_fire_at next_slot updated_at",  # slots follow the clock
    "workers": "expires_at",  # a term anew for all
    "maintenance": "hold_until",
    "runs": "idle_s_max watched_until",
    "submit_rates": "tokens",
    "tenant_shares": "mean virtual weight",
}


def test_of_every_stored_time_it_is_decided_whether_it_moves() -> None:
    for name, table in load_schema().tables.items():
        times = {column.name for column in table.c if isinstance(column.type, sa.Double)}
        rule = MOVED.get(table)
        moved = set() if rule is None else {*rule.behind, *rule.ahead, *rule.terms}
        stays = set(APART.get(name, "").split())
        assert stays <= times - moved, name
        assert times - moved - stays <= set(PAST.split()), name
