"""What a worker makes of nudges: reasons to look at rows, whoever sent them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import redis
from support.store import TTL_S, Store, opened

from hermes_worker.core.abort import AbortSignal
from hermes_worker.store.runs.runs import Nudged
from hermes_worker.tasks import keeper as keeper_module
from hermes_worker.tasks.keeper import Listener
from hermes_worker.tasks.leases import AbortReason, Leases


class Clock:
    """``time`` of the listener."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with opened(f"sqlite:///{tmp_path / 'store.db'}") as store:
        yield store


@pytest.fixture
def leases(store: Store) -> Leases:
    return Leases(store.workers, name="us", queues="model", ttl_s=TTL_S)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(keeper_module, "time", clock)
    return clock


class Looks:
    """Counts what is asked of the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.asked: list[set[str]] = []

    def __call__(self, run_ids: Collection[str]) -> Nudged:
        self.asked.append(set(run_ids))
        return self._store.runs.nudged(run_ids)


@pytest.fixture
def looks(store: Store) -> Looks:
    return Looks(store)


@pytest.fixture
def listener(looks: Looks, leases: Leases, clock: Clock) -> Listener:
    return Listener(redis.Redis(), leases, looks)


@pytest.fixture
def held(store: Store, leases: Leases) -> Iterator[tuple[str, AbortSignal]]:
    run_id = store.submit().run_id
    assert leases.owner and leases.is_trusted
    with leases.holding("token", run_id, may_hand_over=True) as abort:
        yield run_id, abort


def test_a_forged_stop_interrupts_nothing(listener: Listener, held: tuple[str, AbortSignal], leases: Leases) -> None:
    run_id, abort = held
    for verb in ("stop", "watch", "interrupt", "steer", "pause"):
        listener.hear(f"{verb} {run_id}")
    listener.look()

    assert (abort.is_set(), leases.is_watched(run_id)) == (False, False)


def test_a_stop_that_the_row_confirms_is_obeyed_at_once(
    listener: Listener, held: tuple[str, AbortSignal], store: Store
) -> None:
    run_id, abort = held
    store.runs.stop_tree(run_id)
    listener.hear(f"stop {run_id}")
    listener.look()

    assert abort.reason == AbortReason.STOP


def test_a_watch_that_the_row_confirms_is_believed(
    listener: Listener, held: tuple[str, AbortSignal], store: Store, leases: Leases
) -> None:
    run_id, abort = held
    store.runs.watch(run_id, 60)
    listener.hear(f"stop {run_id}")
    listener.look()

    assert (abort.is_set(), leases.is_watched(run_id)) == (False, True)


def test_a_watch_is_forgotten_with_the_last_step_of_its_run(leases: Leases) -> None:
    with leases.holding("one", "run_1", may_hand_over=True):
        with leases.holding("two", "run_1", may_hand_over=True):
            leases.watch({"run_1", "run_2"})
        assert leases.is_watched("run_1")
    assert not leases.is_watched("run_1")
    assert not leases.is_watched("run_2")


def test_a_flood_of_nudges_costs_a_few_statements_and_then_one_in_a_tenth_of_a_second(
    listener: Listener, held: tuple[str, AbortSignal], looks: Looks, clock: Clock
) -> None:
    run_id, _ = held
    for number in range(10_000):
        clock.now += 0.000_01
        listener.hear(f"stop {run_id if number % 2 else f'run_{number}'}")
        listener.look()

    assert looks.asked == [{run_id}] * 3
    clock.now += 0.1
    listener.look()
    assert looks.asked == [{run_id}] * 4


@pytest.mark.parametrize("text", ["", "stop", "stop ", " ", "x" * 1_000_000, "stop run_unknown", "\x00"])
def test_nudges_about_nothing_ask_nothing(
    listener: Listener, held: tuple[str, AbortSignal], looks: Looks, text: str
) -> None:
    listener.hear(text)
    listener.look()

    assert looks.asked == []
