"""The suite of resuming (benchmarks/resume) sees an agent that forgets, and repeats what it saw from a seed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # the suite is no part of what is installed

from benchmarks.resume.outside import Outside
from benchmarks.resume.suite import SYSTEMS, Bench, System, run_experiment, summarise


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_our_worker_pays_once_after_a_kill() -> None:
    [system] = [one for one in SYSTEMS if one.name == "hermes-sqlite"]
    with Outside() as outside:
        bench = Bench(system=system, python=Path(sys.executable), outside=outside)
        row = run_experiment(bench, "effect exactly-once", 2, 0)
    assert row["outcome"] == "held" and row["kills"] == 1, row


@pytest.mark.parametrize(
    ("name", "seed", "outcome"),
    [
        ("effect exactly-once", 3, "broken"),
        ("prefix continuation", 1, "broken"),
        ("consume-once", 1, "broken"),
        ("checkpoint validity", 1, "not claimed"),
    ],
)
def test_an_agent_that_stores_nothing_is_seen(name: str, seed: int, outcome: str) -> None:
    system = System(name="forgetful", driver="forgetful_agent.py")
    with Outside() as outside:
        row = run_experiment(Bench(system=system, python=Path(sys.executable), outside=outside), name, seed, 0)
    assert row["outcome"] == outcome, row
    card = summarise([row], seed=seed)["systems"]
    assert isinstance(card, dict)
    found = card["forgetful"][name]
    assert found["experiments"] == 1
    assert ("first_failure" in found) is (outcome == "broken")
