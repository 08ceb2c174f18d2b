"""The task bodies under every kind of trouble, by the thousand, and what the simulation would notice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from simulation.database import SqlStore
from simulation.memory import (
    ChargingAttempts,
    CountingArrivals,
    KeepingStrays,
    MemoryStore,
    RerunningOnce,
    WithoutFence,
    WithoutSweeper,
)
from simulation.world import PEACE, Trouble, Violation, World

SEEDS = 2_000
_CHUNK = 250
WORSE = Trouble(
    drop=0.3,
    duplicate=0.4,
    crash=0.03,
    freeze=0.03,
    unknown=0.05,
    outages=4,
    flushes=4,
    stops=0.4,
    defect=0.02,
    drain=0.8,
)


def play(seed: int, **more: Any) -> World:
    """One world; its number says how many runs there are in it as well."""
    return World(seed=seed, runs=1 + seed % 2, **more).run()


@pytest.mark.parametrize("first", range(0, SEEDS, _CHUNK))
def test_whatever_goes_wrong_every_run_ends_and_nothing_is_done_or_counted_twice(first: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + _CHUNK):
        seen += play(seed).seen

    # A simulation in which nothing happened would prove nothing.
    rare = {"drop", "duplicate", "crash", "freeze", "unknown", "stop", "flush", "outage", "left"}
    effects = {"refused", "interrupted", "place lost", "stray", "repaired", "repeated deeds"}
    assert all(seen[kind] > 5 for kind in rare | effects), seen


@pytest.mark.parametrize("first", range(100_000, 100_200, 100))
def test_however_much_goes_wrong(first: int) -> None:
    for seed in range(first, first + 100):
        play(seed, trouble=WORSE)


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_the_real_store_holds_as_well(first: int) -> None:
    """The same worlds over SQLite, with the database's own clock replaced by the world's."""
    for seed in range(first, first + 8):
        World(seed=seed, runs=1 + seed % 3, make=SqlStore).run()


def test_in_peace_no_run_needs_the_sweeper_and_every_message_is_needed() -> None:
    for seed in range(100):
        world = play(seed, trouble=PEACE, make=WithoutSweeper)
        assert not +world.seen
        claims = sum(what in ("claim", "claim_turn") for _, what in world.trace)
        assert world.sent == claims


def test_the_same_seed_gives_the_same_history() -> None:
    for seed in range(10):
        assert play(seed).trace == play(seed).trace
    assert play(1).trace != play(3).trace


BROKEN: list[tuple[Callable[..., Any], int, str]] = [
    (WithoutFence, 100, "corrupt|not at rest|charged|replies|result"),
    (WithoutSweeper, 10, "has not ended"),
    (CountingArrivals, 30, "has not ended|lacks the results|corrupt|missing"),
    (ChargingAttempts, 20, "were charged for"),
    (RerunningOnce, 60, "took effect 2 times"),
    (KeepingStrays, 60, "has not ended"),
]
"""A store that leaves something out, the number of seeds within which that is noticed, and as what."""


@pytest.mark.parametrize(("make", "seeds", "noticed"), BROKEN, ids=[case[0].__name__ for case in BROKEN])
def test_a_store_that_leaves_something_out_is_caught(make: Callable[..., Any], seeds: int, noticed: str) -> None:
    with pytest.raises(Violation, match=noticed):
        for seed in range(seeds):
            play(seed, make=make)


def test_the_store_that_leaves_nothing_out_is_not() -> None:
    for seed in range(100):
        play(seed, make=MemoryStore)
