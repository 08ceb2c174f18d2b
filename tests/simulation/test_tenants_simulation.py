"""Tenants share a fleet in which processes die and messages are lost: caps hold, no place is lost, nobody starves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from simulation.tenants import FEW, HABITS, MANY, TENANTS, TenantStore, TenantWorld
from simulation.world import PEACE, Trouble, Violation

from hermes_worker.core.fair_share import Account, Admitted, admit_runs
from hermes_worker.store import sweep as sweep_module
from hermes_worker.store.runs import admission as places_module

SEEDS = 2
SEEDS_AT_LENGTH = 200


def play(seed: int, *, trouble: Trouble | None = None, runs: int = len(TENANTS)) -> TenantWorld:
    make: Callable[..., Any] = partial(TenantStore, seed=seed, peace=trouble is PEACE)
    world = TenantWorld(
        seed=seed, runs=runs, habits=HABITS, make=make, sweep_s=1.0, trouble=trouble if trouble else Trouble()
    )
    world.run()
    return world


def portion(first: int, count: int) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in range(first, first + count):
        try:
            seen += play(seed).seen
        except Violation as error:
            raise Violation(f"seed {seed}: {error}") from error
    return seen


def test_whatever_dies_caps_hold_no_place_is_lost_and_nobody_starves() -> None:
    seen = portion(0, SEEDS)
    assert all(seen[kind] > 0 for kind in ("drop", "crash", "held", "full", "died at places", "repaired")), seen


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("first", range(SEEDS, SEEDS_AT_LENGTH, 33))
def test_the_same_at_length(first: int) -> None:
    assert portion(first, 33)["died at places"] > 33


def test_who_asks_for_little_waits_a_run_and_not_a_queue() -> None:
    assert play(1, trouble=PEACE, runs=2 * len(TENANTS)).seen["full"] > 10


# --- what the simulation would notice --------------------------------------------------------------------------------


def _first_by_name(accounts: Any, *, places: int, clock: float, usual: float = 1.0, most: int = 50) -> Admitted:
    """Whoever has used less does not matter."""
    known = [replace(each, virtual=0.0, held=0) if each.tenant == FEW else each for each in accounts]
    if any(each.tenant == MANY and each.held for each in known):
        return admit_runs(known, places=places, clock=clock, usual=usual, most=most)
    return admit_runs(accounts, places=places, clock=clock, usual=usual, most=most)


def _without_caps(accounts: Sequence[Account], **more: Any) -> Admitted:
    return admit_runs([replace(each, runs_max=None) for each in accounts], **more)


@pytest.mark.parametrize(
    ("module", "name", "broken", "noticed"),
    [
        (places_module, "admit_runs", _first_by_name, "waited"),
        (places_module, "admit_runs", _without_caps, "coda has"),
        (sweep_module, "sweep_places", lambda _: [], "has not ended|keep a place"),
    ],
    ids=["starving", "without caps", "without the sweeper"],
)
def test_what_is_left_out_is_caught(
    module: Any, name: str, broken: Any, noticed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    with pytest.raises(Violation, match=noticed):
        for seed in range(20):
            is_starving = broken is _first_by_name
            play(seed, trouble=PEACE if is_starving else None, runs=(2 if is_starving else 1) * len(TENANTS))
