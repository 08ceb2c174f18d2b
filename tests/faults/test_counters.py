"""Counters of rows after kills: at every moment they say what the rows say, and they never go back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recount import Counted, counted
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

SEED = 16
REPLAYS = ("pure", "keyed", "once")


@pytest.fixture
def usual_rig(tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey) -> Iterator[Rig]:
    with rig_on(tmp_path, database_url=postgres_url, broker_url=own_valkey.url, work_s=0.05) as rig:
        yield rig


@pytest.mark.nightly
def test_counters_agree_with_the_rows_through_kills(usual_rig: Rig) -> None:
    """A sample of the five hundred below."""
    _kill(usual_rig, kills=8, runs_at_once=6)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_counters_agree_with_the_rows_through_five_hundred_kills(usual_rig: Rig) -> None:
    _kill(usual_rig, kills=500, runs_at_once=20)


def _kill(rig: Rig, *, kills: int, runs_at_once: int) -> None:
    chance = random.Random(SEED)
    before: Counted = {}
    for number in range(kills):
        _keep_busy(rig, chance, runs_at_once)
        _await_claims(rig)
        worker = chance.choice(rig.fleet.workers)
        rig.fleet.kill(worker)
        rig.fleet.replace(worker)
        said, true = counted(rig.client.database)
        assert said == true, f"seed {SEED}, after kill {number + 1}"
        assert all(said.get(key, 0) >= amount for key, amount in before.items()), f"seed {SEED}, kill {number + 1}"
        before = said
    rig.ended()
    assert rig.broken_invariants() == []
    said, _ = counted(rig.client.database)
    retried = said.get(("steps_retried", ("model",)), 0)
    print(f"{kills} kills: {retried} model steps retried, {said['runs_accepted', ()]} runs")


def _keep_busy(rig: Rig, chance: random.Random, runs: int) -> None:
    """As many open runs as before the last kill."""
    statuses = rig.statuses()
    open_runs = sum(number for status, number in statuses.items() if status in ("queued", "running"))
    for _ in range(runs - open_runs):
        calls = [sink_call(replay, f"{len(rig.submitted)}.{replay}.{{i}}") for replay in chance.sample(REPLAYS, 2)]
        rig.submit([{"calls": calls, "repeat": 2, "delay_s": 0.05}])


def _await_claims(rig: Rig) -> None:
    """A kill that meets nobody at work would show little."""
    until(lambda: rig.statuses().get("running") or None, "a run at work")
