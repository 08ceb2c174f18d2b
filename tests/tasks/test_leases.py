"""What a process holds when its database, its disk or its own time fails it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.store import TTL_S, Store, asks, opened, settlement

from hermes_worker.core.effects import Iterate, RunTool
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.replay import Replay
from hermes_worker.core.retention_rules import DEFAULT_RULES
from hermes_worker.core.run import RunStatus
from hermes_worker.features.retention.rows import Pruner
from hermes_worker.store.tables import workers
from hermes_worker.store.worker_claims import load_workers
from hermes_worker.tasks import heartbeat as keeper_module
from hermes_worker.tasks import leases as leases_module
from hermes_worker.tasks.heartbeat import EX_STALLED, WorkerKeeper
from hermes_worker.tasks.leases import AbortReason, Leases


class Clock:
    """``time`` for one module."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, clock: int) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(leases_module, "time", clock)
    return clock


@pytest.fixture
def leases(store: Store, clock: Clock) -> Leases:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=TTL_S)
    leases.register()
    return leases


def claim_iteration(store: Store, leases: Leases) -> tuple[str, Any]:
    created = store.submit()
    effect = created.hints[0].effect
    assert isinstance(effect, Iterate)
    claim = store.runs.claim_iteration(effect, leases.owner)
    assert claim is not None
    return created.run_id, claim


# --- a process that was frozen ---------------------------------------------------------------------------------------


def test_marks_of_before_the_clock_was_set_back_are_forgotten(store: Store, leases: Leases) -> None:
    """Beside them every later hint would look lost, and a backlog would be sent again and again."""
    now = store.database.read_clock()
    for queue, at in {"model": now + 3600.0, "tools": now}.items():
        with leases.admit_task(queue, at):
            pass

    leases.renew()
    leases.renew()

    with store.database.read() as connection:
        [marks] = connection.execute(sa.select(workers.c.watermarks)).scalars()
    assert set(json.loads(marks)) == {"tools"}


def test_a_process_that_was_frozen_takes_its_place_anew_before_it_claims(
    store: Store, leases: Leases, clock: Clock
) -> None:
    """Claims under a place that was taken away are lost at once, and three of those quarantine a healthy step."""
    before = leases.owner
    store.let_pass(TTL_S * 2)
    clock.now += TTL_S * 2
    store.sweep()

    run_id, _ = claim_iteration(store, leases)

    assert leases.owner != before
    assert leases.is_trusted
    store.sweep()
    assert store.due(run_id) == []


def test_a_hundred_threads_that_wake_together_take_one_new_place(store: Store, leases: Leases, clock: Clock) -> None:
    store.let_pass(TTL_S * 2)
    clock.now += TTL_S * 2
    store.sweep()
    start = threading.Barrier(20)

    def wake(_: int) -> int:
        start.wait()
        return leases.owner

    with ThreadPoolExecutor(20) as pool:
        assert len(set(pool.map(wake, range(20)))) == 1
    assert len(store.workers.list_alive()) == 1


def test_a_process_whose_heartbeats_are_late_renews_before_it_claims(
    store: Store, leases: Leases, clock: Clock
) -> None:
    owner = leases.owner
    clock.now += TTL_S * 0.9
    assert not leases.is_trusted

    assert leases.owner == owner
    assert leases.is_trusted


# --- claims that nobody works on -------------------------------------------------------------------------------------


def test_a_claim_whose_task_ended_without_giving_it_up_is_given_up(store: Store, leases: Leases) -> None:
    """The database was away when the task needed it: the claim stands, under a process that is alive and well."""
    run_id, _ = claim_iteration(store, leases)
    tooling = store.submit().run_id
    store.ask_tools(tooling, asks(Replay.PURE))
    store.calls.claim(RunTool(run_id=tooling, iteration=1, position=0, attempt=1), leases.owner)
    store.let_pass(TTL_S + 1)

    assert leases.renew()
    assert leases.release_orphaned_claims() == 2

    swept = store.sweep()
    assert (swept.iterations_lost, swept.calls_lost) == (1, 1)
    assert store.turn(run_id).loaded.run.attempt == 2


def test_a_claim_that_somebody_works_on_is_kept_however_old(store: Store, leases: Leases) -> None:
    _, claim = claim_iteration(store, leases)
    with leases.hold_claim(claim.token, claim.run_id, may_hand_over=True):
        store.let_pass(TTL_S * 10)
        leases.renew()

        assert leases.release_orphaned_claims() == 0


def test_a_claim_that_was_made_just_now_is_not_a_stray(store: Store, leases: Leases) -> None:
    claim_iteration(store, leases)

    assert leases.release_orphaned_claims() == 0


def test_the_claims_of_other_processes_are_theirs(store: Store, leases: Leases) -> None:
    other = store.worker(ttl_s=1e6)
    store.turn(store.submit().run_id, other.pk)
    store.let_pass(TTL_S * 2)
    leases.renew()

    assert leases.release_orphaned_claims() == 0


# --- threads that must not die ---------------------------------------------------------------------------------------


class Sender:
    def send(self, hints: object) -> int:
        return 0

    def count_waiting(self) -> None:
        return None


def keeper(store: Store, leases: Leases, **changes: Any) -> WorkerKeeper:
    facts: dict[str, Any] = {
        "leases": leases,
        "sweeper": store.sweeper,
        "pruner": Pruner(store.database, DEFAULT_RULES),
        "sender": Sender(),
        "stopping": store.runs.find_stopping,
        "queues": ["model"],
        "sweep_every_s": 0.01,
        "alive_file": None,
    }
    return WorkerKeeper(**{**facts, **changes})


def test_the_heartbeat_outlives_a_disk_that_is_full(store: Store, tmp_path: Path) -> None:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    beats = threading.Semaphore(0)
    renew = leases.renew

    def counted() -> bool:
        beats.release()
        return renew()

    leases.renew = counted  # type: ignore[method-assign]
    watched = keeper(store, leases, alive_file=tmp_path / "missing" / "folder" / "alive")
    watched.start()
    try:
        assert all(beats.acquire(timeout=10) for _ in range(3))
    finally:
        watched.stop()


def test_the_alive_file_stays_young_while_the_database_is_away_and_not_after_a_defect(
    store: Store, tmp_path: Path
) -> None:
    """A liveness probe must not end every process of a fleet whose database is being restarted."""
    alive = tmp_path / "alive"
    beats = threading.Semaphore(0)
    failures: list[Exception] = [UnavailableError("away")]

    def failing(_: object) -> Any:
        beats.release()
        raise failures[0]

    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    watched = keeper(store, leases, stopping=failing, alive_file=alive)
    watched.start()
    try:
        assert all(beats.acquire(timeout=10) for _ in range(3))
        assert alive.exists()
        failures[0] = KeyError("a defect")
        assert all(beats.acquire(timeout=10) for _ in range(2))
        alive.unlink()
        assert all(beats.acquire(timeout=10) for _ in range(3))
        assert not alive.exists()
    finally:
        watched.stop()


def test_the_threads_outlive_a_defect(store: Store) -> None:
    """Without its heartbeat a process would claim step after step and lose every one of them."""
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    calls = threading.Semaphore(0)

    def broken(*_: object) -> Any:
        calls.release()
        raise KeyError("a defect")

    class BrokenSweeper:
        sweep = broken

    watched = keeper(store, leases, stopping=broken, sweeper=BrokenSweeper())
    watched.start()
    try:
        assert all(calls.acquire(timeout=10) for _ in range(8))
    finally:
        watched.stop()


# --- liveness --------------------------------------------------------------------------------------------------------


class Backlog:
    """A broker with so many messages in each queue."""

    def __init__(self, **depths: int) -> None:
        self.looks = threading.Semaphore(0)
        self._depths = depths

    def send(self, hints: object) -> int:
        return 0

    def count_waiting(self) -> dict[str, int]:
        self.looks.release()
        return self._depths


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The statuses with which the process would have ended."""
    found: list[int] = []
    monkeypatch.setattr(keeper_module.os, "_exit", found.append)
    return found


def watch(store: Store, leases: Leases, broker: Backlog) -> None:
    """Let a keeper look at the broker for longer than a deaf process may live."""
    watched = keeper(store, leases, sender=broker, stalled_after_s=0.05)
    watched.start()
    try:
        assert all(broker.looks.acquire(timeout=10) for _ in range(20))
    finally:
        watched.stop()


def test_a_process_that_takes_nothing_from_its_full_queue_ends(store: Store, exits: list[int]) -> None:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    watch(store, leases, Backlog(model=3, tools=0))

    assert set(exits) == {EX_STALLED}


def test_a_process_for_which_nothing_is_due_lives(store: Store, exits: list[int]) -> None:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    watch(store, leases, Backlog(model=0, tools=3))

    assert exits == []


def test_a_process_that_works_on_what_it_has_lives(store: Store, exits: list[int]) -> None:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    with leases.hold_claim("a token", "a run", may_hand_over=True):
        watch(store, leases, Backlog(model=3, tools=0))

    assert exits == []


def test_a_process_that_leaves_is_not_deaf(store: Store, exits: list[int]) -> None:
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    leases.drain()
    watch(store, leases, Backlog(model=3, tools=0))

    assert exits == []


# --- leaving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [None, 4_242], ids=["by itself", "child of a pool"])
def test_a_process_that_is_asked_to_leave_sends_one_signal(
    store: Store, monkeypatch: pytest.MonkeyPatch, pool: int | None
) -> None:
    """A second one would say that the time to drain is over."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(keeper_module.os, "kill", lambda pid, number: sent.append((pid, number)))
    leases = Leases(store.workers, name="us", queues="model", ttl_s=0.2)
    beats = threading.Semaphore(0)
    watched = keeper(store, leases, stopping=lambda _: beats.release() or set())
    if pool is not None:
        watched.join_pool(pool)
    watched.start()
    try:
        assert beats.acquire(timeout=10)
        assert sent == []
        store.workers.drain(leases.register().worker_id)
        assert all(beats.acquire(timeout=10) for _ in range(5))
    finally:
        watched.stop()
    assert sent == [(pool or os.getpid(), signal.SIGTERM)]


def test_a_process_that_leaves_already_is_not_asked_again(store: Store, leases: Leases) -> None:
    leases.drain()
    assert leases.renew()
    [view] = load_workers(store.database)
    assert view.draining_at is not None
    assert not leases.was_asked_to_leave


def test_the_heartbeat_says_what_confines_the_commands_of_a_process(store: Store) -> None:
    found: list[str | None] = [None]
    leases = Leases(store.workers, name="us", queues="tools", ttl_s=TTL_S, sandbox=lambda: found[0])
    for name in (None, "namespaces"):
        found[0] = name
        leases.renew()
        assert [view.sandbox for view in load_workers(store.database)] == [name]


def test_a_task_is_in_flight_before_its_claim_and_until_its_hints_are_sent(leases: Leases) -> None:
    """Otherwise a process that drains in between takes itself for idle, and nobody hands that step over."""
    with leases.admit_task("model", 1.0) as may_begin:
        assert may_begin and leases.in_flight == 1
        leases.drain()
        with leases.hold_claim("a token", "a run", may_hand_over=True) as abort:
            assert leases.in_flight == 1 and not abort.is_set()
        assert leases.in_flight == 1
    assert leases.in_flight == 0


def test_nothing_begins_in_a_process_that_drains(leases: Leases) -> None:
    leases.drain()
    with leases.admit_task("model", 1.0) as may_begin:
        assert not may_begin and leases.in_flight == 0


@pytest.mark.parametrize("may_hand_over", [True, False])
def test_a_claim_that_comes_after_the_drain_period_is_handed_over_at_once(leases: Leases, may_hand_over: bool) -> None:
    with leases.admit_task("model", 1.0):
        leases.drain()
        assert leases.hand_over() == 0
        with leases.hold_claim("a token", "a run", may_hand_over=may_hand_over) as abort:
            assert (abort.reason == AbortReason.DRAIN) is may_hand_over


# --- who may break a run off -----------------------------------------------------------------------------------------


def test_a_defect_ends_the_run_whose_step_it_struck(store: Store, leases: Leases) -> None:
    run_id, _ = claim_iteration(store, leases)
    effect = Iterate(run_id=run_id, iteration=1, attempt=1)

    store.runs.end_broken_step(effect, leases.owner, "ValueError in the worker")

    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.FAILED, "internal_error")
    assert view.error is not None and "ValueError" in view.error


def test_a_defect_before_the_claim_ends_the_run_too(store: Store, leases: Leases) -> None:
    run_id = store.with_tools(Replay.PURE)

    store.runs.end_broken_step(RunTool(run_id=run_id, iteration=1, position=0, attempt=1), leases.owner, "boom")

    assert store.status(run_id) is RunStatus.FAILED


@pytest.mark.parametrize("is_taken", [True, False])
def test_a_zombies_defect_does_not_end_a_run_that_has_moved_on(store: Store, leases: Leases, is_taken: bool) -> None:
    run_id, _ = claim_iteration(store, leases)
    zombie = Iterate(run_id=run_id, iteration=1, attempt=1)
    store.let_pass(TTL_S * 2)
    store.sweep()
    successor = store.turn(run_id) if is_taken else None

    assert store.runs.end_broken_step(zombie, leases.owner, "too late") == []

    assert not store.status(run_id).is_terminal
    if successor is not None:
        store.ask_tools_with(successor, asks(Replay.ONCE))
        late = RunTool(run_id=run_id, iteration=1, position=0, attempt=1)
        store.runs.end_broken_step(zombie, leases.owner, "even later")
        store.calls.settle(store.call(run_id), settlement())
        store.runs.end_broken_step(late, leases.owner, "after its settle")
        assert not store.status(run_id).is_terminal


def test_a_zombies_defect_does_not_end_a_run_whose_call_another_worker_got_back(store: Store, leases: Leases) -> None:
    """Handed back and taken again, the attempt is the same; the holder is not."""
    run_id, claim = claim_iteration(store, leases)
    store.runs.release_iteration(claim)
    store.turn(run_id)

    assert store.runs.end_broken_step(Iterate(run_id=run_id, iteration=1, attempt=1), leases.owner, "late") == []
    assert store.status(run_id) is RunStatus.RUNNING
