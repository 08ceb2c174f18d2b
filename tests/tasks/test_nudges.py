"""What a worker makes of nudges: reasons to look at rows, whoever sent them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
import redis
from support.store import TTL_S, Store, opened

from hermes_worker.core.abort import AbortSignal
from hermes_worker.store.runs.runs import NudgedRuns
from hermes_worker.tasks import heartbeat as keeper_module
from hermes_worker.tasks.heartbeat import NudgeListener
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

    def __call__(self, run_ids: Collection[str]) -> NudgedRuns:
        self.asked.append(set(run_ids))
        return self._store.runs.load_nudged(run_ids)


@pytest.fixture
def looks(store: Store) -> Looks:
    return Looks(store)


@pytest.fixture
def listener(looks: Looks, leases: Leases, clock: Clock) -> NudgeListener:
    return NudgeListener(redis.Redis(), leases, looks)


@pytest.fixture
def held(store: Store, leases: Leases) -> Iterator[tuple[str, AbortSignal]]:
    run_id = store.submit().run_id
    assert leases.owner and leases.is_trusted
    with leases.hold_claim("token", run_id, may_hand_over=True) as abort:
        yield run_id, abort


def test_a_forged_stop_interrupts_nothing(
    listener: NudgeListener, held: tuple[str, AbortSignal], leases: Leases
) -> None:
    run_id, abort = held
    for verb in ("stop", "watch", "interrupt", "steer", "pause"):
        listener.note_nudge(f"{verb} {run_id}")
    listener.poll_once()

    assert (abort.is_set(), leases.is_watched(run_id)) == (False, False)


def test_a_stop_that_the_row_confirms_is_obeyed_at_once(
    listener: NudgeListener, held: tuple[str, AbortSignal], store: Store
) -> None:
    run_id, abort = held
    store.runs.stop_tree(run_id)
    listener.note_nudge(f"stop {run_id}")
    listener.poll_once()

    assert abort.reason == AbortReason.STOP


def test_a_watch_that_the_row_confirms_is_believed(
    listener: NudgeListener, held: tuple[str, AbortSignal], store: Store, leases: Leases
) -> None:
    run_id, abort = held
    store.runs.mark_watched(run_id, 60)
    listener.note_nudge(f"stop {run_id}")
    listener.poll_once()

    assert (abort.is_set(), leases.is_watched(run_id)) == (False, True)


def test_a_watch_is_forgotten_with_the_last_step_of_its_run(leases: Leases) -> None:
    with leases.hold_claim("one", "run_1", may_hand_over=True):
        with leases.hold_claim("two", "run_1", may_hand_over=True):
            leases.watch({"run_1", "run_2"})
        assert leases.is_watched("run_1")
    assert not leases.is_watched("run_1")
    assert not leases.is_watched("run_2")


def test_whoever_comes_while_a_claim_is_held_is_shown_what_is_done_under_it(leases: Leases) -> None:
    shown: list[str] = []
    with leases.hold_claim("one", "run_1", may_hand_over=True):
        leases.announce_to_watchers("one", lambda: shown.append("one"))
        assert shown == []
        leases.watch({"run_1", "run_2"})
        leases.watch({"run_1"})
        assert shown == ["one", "one"]
    with leases.hold_claim("two", "run_1", may_hand_over=True):
        leases.watch({"run_1"})
        leases.announce_to_watchers("two", lambda: shown.append("two"))
    leases.watch({"run_1"})
    leases.announce_to_watchers("two", lambda: shown.append("too late"))
    assert shown == ["one", "one", "two"]


def test_a_flood_of_nudges_costs_a_few_statements_and_then_one_in_a_tenth_of_a_second(
    listener: NudgeListener, held: tuple[str, AbortSignal], looks: Looks, clock: Clock
) -> None:
    run_id, _ = held
    for number in range(10_000):
        clock.now += 0.000_01
        listener.note_nudge(f"stop {run_id if number % 2 else f'run_{number}'}")
        listener.poll_once()

    assert looks.asked == [{run_id}] * 3
    clock.now += 0.1
    listener.poll_once()
    assert looks.asked == [{run_id}] * 4


@pytest.mark.parametrize("text", ["", "stop", "stop ", " ", "x" * 1_000_000, "stop run_unknown", "\x00"])
def test_nudges_about_nothing_ask_nothing(
    listener: NudgeListener, held: tuple[str, AbortSignal], looks: Looks, text: str
) -> None:
    listener.note_nudge(text)
    listener.poll_once()

    assert looks.asked == []
