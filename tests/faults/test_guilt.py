"""One step kills whatever works on it: it is found out, and the steps that were in its company come to no harm."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.rig import Rig, rig_on, sink_call, until

from hermes_worker.core.run import RunStatus
from hermes_worker.core.run_events import RunEventName
from hermes_worker.lab.lab import LabOptions, run_lab
from hermes_worker.lab.report import render_text
from hermes_worker.local.valkey import EmbeddedValkey

pytestmark = pytest.mark.faults

MODEL_POISON, TOOL_POISON = "badbadbad0", "badbadbad1"
PLAN = f"iterate.after_reply=kill?{MODEL_POISON};call_tool.after_run=kill?{TOOL_POISON}"
QUARANTINED = (RunStatus.FAILED, "step_quarantined")


def poison(mark: str, number: int) -> str:
    return f"run_{mark}{number:022x}"


def tend(rig: Rig) -> int:
    """Put a new worker into each place whose worker has died; returns how many had."""
    dead = [worker for worker in rig.fleet.workers if not rig.fleet.is_alive(worker)]
    for worker in dead:
        rig.fleet.replace(worker)
    return len(dead)


def await_all(rig: Rig, *, patience_s: float) -> int:
    """Replace what dies until every run has ended; returns how many workers died."""
    deaths = 0

    def over() -> bool | None:
        nonlocal deaths
        deaths += tend(rig)
        return rig.all_ended() or None

    until(over, "every run to end", patience_s=patience_s)
    return deaths


def assert_justice(rig: Rig, poisons: Sequence[str]) -> None:
    verdicts = {run_id: rig.view(run_id) for run_id in rig.submitted}
    for run_id, run in verdicts.items():
        expected = QUARANTINED if run_id in poisons else (RunStatus.COMPLETED, "text_response")
        assert (run.status, run.exit_reason) == expected, f"{run_id}: {run.error}"
    assert rig.broken_invariants(poisons=poisons) == []


def deaths_told(rig: Rig, run_id: str) -> list[object]:
    """What the events say was held against the step, each time it was tried again."""
    events = rig.client.views.list_events_after(run_id, 0)
    return [event.data.get("deaths") for event in events if event.name == RunEventName.STEP_RETRIED]


def test_one_poison_among_a_hundred_in_one_worker_is_quarantined_and_nobody_else(
    tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(
        tmp_path,
        database_url=database_url,
        broker_url=own_valkey.url,
        workers_per_role=1,
        concurrency=60,
        more_environ={"HERMES_FAULTS": PLAN},
    ) as rig:
        guilty = poison(MODEL_POISON, 0)
        for _ in range(100):
            rig.submit([], publish=False)
        rig.submit([], run_id=guilty, publish=False)
        assert await_all(rig, patience_s=100) == 1, "it dies once in company, and from then on apart"
        assert_justice(rig, [guilty])
        assert deaths_told(rig, guilty) == [0, 1, 2]


def test_a_poisonous_tool_call_is_quarantined_and_its_neighbours_settle(
    tmp_path: Path, database_url: str, own_valkey: EmbeddedValkey
) -> None:
    with rig_on(
        tmp_path,
        database_url=database_url,
        broker_url=own_valkey.url,
        workers_per_role=1,
        concurrency=8,
        work_s=0.1,
        more_environ={"HERMES_FAULTS": PLAN},
    ) as rig:
        guilty = poison(TOOL_POISON, 0)
        for number in range(12):
            rig.submit([{"calls": [sink_call("pure", f"{number}"), sink_call("keyed", f"{number}")]}])
        rig.submit([{"calls": [sink_call("keyed", "poison")]}], run_id=guilty)
        assert await_all(rig, patience_s=100) == 1
        assert_justice(rig, [guilty])
        assert "'sink_keyed'" in (rig.view(guilty).error or "")
        assert [effect.attempt for effect in rig.effects() if effect.mark == "poison"] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("innocents", "poisons", "patience_s"),
    [
        pytest.param(40, 2, 100, marks=pytest.mark.nightly),
        pytest.param(297, 3, 500, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
    ],
)
def test_every_poison_is_found_among_many(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey, innocents: int, poisons: int, patience_s: float
) -> None:
    chance = random.Random(13)
    with rig_on(
        tmp_path,
        database_url=postgres_url,
        broker_url=own_valkey.url,
        workers_per_role=1,
        concurrency=30,
        more_environ={"HERMES_FAULTS": PLAN},
    ) as rig:
        guilty = [poison((MODEL_POISON, TOOL_POISON)[n % 2], n) for n in range(poisons)]
        order: list[str | None] = [None] * innocents + [*guilty]
        chance.shuffle(order)
        for number, run_id in enumerate(order):
            rig.submit([{"calls": [sink_call("keyed", f"{number}")], "delay_s": 0.1}], run_id=run_id)
        began = time.monotonic()
        deaths = await_all(rig, patience_s=patience_s)
        print(f"{deaths} workers died, {poisons} poisons among {innocents} found in {time.monotonic() - began:.0f} s")
        assert_justice(rig, guilty)


@pytest.mark.parametrize(
    ("runs", "steps", "kills"),
    [
        pytest.param(12, 4, 6, marks=pytest.mark.nightly),
        pytest.param(80, 10, 1_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_workers_that_are_killed_at_random_convict_nobody(
    tmp_path: Path, postgres_url: str, own_valkey: EmbeddedValkey, runs: int, steps: int, kills: int
) -> None:
    """A worker is killed every second, whatever it does; the lanes are spared.

    If they were not, a suspect would be condemned when three kills in a row hit the lane that it is tried in: with one
    of ``n`` processes killed every second, and a step that takes ``t`` seconds, in about ``(t / n) ** 3`` of the cases.
    """
    chance = random.Random(7)
    with rig_on(
        tmp_path, database_url=postgres_url, broker_url=own_valkey.url, workers_per_role=2, concurrency=8, work_s=0.05
    ) as rig:
        for number in range(runs):
            call = sink_call("keyed", f"{number}.{{i}}")
            rig.submit([{"calls": [call], "repeat": steps, "delay_s": 0.1}])
        began = time.monotonic()
        killed = 0
        while not rig.all_ended():
            if killed < kills:
                rig.fleet.kill(chance.choice(rig.fleet.workers))
                killed += 1
            tend(rig)
            next_at = time.monotonic() + 1.0
            until(lambda next_at=next_at: rig.all_ended() or time.monotonic() > next_at or None, "the next second")
            assert time.monotonic() - began < 800
        events = [deaths for run_id in rig.submitted for deaths in deaths_told(rig, run_id)]
        processes, step_s = len(rig.fleet.workers) * 3, 0.5
        print(
            f"{killed} kills in {time.monotonic() - began:.0f} s under {runs} runs x {steps} steps: {len(events)} "
            f"tries again, {sum(deaths == 0 for deaths in events)} of them apart; if the kills hit lanes as well, "
            f"about 1 of {math.ceil((processes / step_s) ** 3)} suspects would be condemned"
        )
        assert_justice(rig, [])


@pytest.mark.nightly
def test_the_crash_lab_condemns_its_poisons_and_nobody_else(tmp_path: Path) -> None:
    options = LabOptions(runs=8, steps=3, kills=4, seed=3, ttl_s=2.0, poisons=2)
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green, render_text(report)
    assert report.faults["poison"] == 2
