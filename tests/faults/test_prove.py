"""``dev prove``: six properties of resuming, with workers that are killed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from hermes_worker.cli.entry import explain_error
from hermes_worker.cli.prove import prove as prove_command
from hermes_worker.lab.duels import DuelKind, choose_duels, write_duel_plan
from hermes_worker.lab.prove import POINTS, Experiment, ProveOptions, Row, build_scorecard, list_open_experiments, prove
from hermes_worker.system.faults import parse_faults

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("warm_lab")]


@pytest.mark.nightly
def test_every_property_holds_for_runs_whose_workers_are_killed(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    options = ProveOptions(experiments=len(POINTS), seed=5)
    rows = list(prove(options, tmp_path, (), explain_error))
    assert [row["property"] for row in rows if row["outcome"] == "held"] == list(POINTS), rows
    assert sum(row["kills"] for row in rows) > 0


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("own_postgres", [False, True], ids=["sqlite", "postgresql"])
def test_six_hundred_kills_break_no_property(tmp_path: Path, own_postgres: bool) -> None:
    tmp_path.chmod(0o711)
    options = ProveOptions(experiments=600, seed=38, own_postgres=own_postgres)
    assert [row for row in prove(options, tmp_path, (), explain_error) if row["outcome"] != "held"] == []


def row(experiment: Experiment, outcome: str = "held") -> Row:
    named = {"property": experiment.name, "seed": experiment.seed, "number": experiment.number}
    return {**named, "database": "sqlite", "outcome": outcome, "kills": 1, "point": "x", "seen": "y"}


def test_a_proof_goes_on_where_it_stopped() -> None:
    options = ProveOptions(experiments=14, seed=2)
    everything = list_open_experiments(options, (), "sqlite")
    assert len({each.run_id for each in everything}) == len({each.prompt_number for each in everything}) == 14
    known = [row(each) for each in everything[:9]]
    assert list_open_experiments(options, known, "sqlite") == everything[9:]
    assert list_open_experiments(options, known, "postgresql") == everything
    assert everything[0].point is Experiment(name=everything[0].name, seed=2, number=0).point


def test_a_scorecard_counts_kills_and_repeats_the_first_failure() -> None:
    [first, second] = (Experiment(name="consume-once", seed=1, number=number) for number in range(2))
    card = build_scorecard([row(first), row(second, "broken")], version="1", at="now")
    found = card["databases"]["sqlite"]["consume-once"]
    assert (found["experiments"], found["kills"], found["held"], found["broken"]) == (2, 2, 1, 1)
    assert found["first_failure"]["number"] == 1


def test_a_file_of_other_results_is_refused_with_a_sentence(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    for text in ("no json", json.dumps({"system": "langgraph"}), "[]"):
        other.write_text(text)
        done = CliRunner().invoke(prove_command, ["--resume", str(other)], standalone_mode=False)
        assert "name another file with --resume" in str(done.exception)


def test_every_kind_of_duel_has_a_plan_that_workers_understand(tmp_path: Path) -> None:
    duels = choose_duels(2 * len(DuelKind), seed=3)
    assert set(duels.values()) == set(DuelKind)
    faults = parse_faults(write_duel_plan(duels, tmp_path))
    assert {fault.only for fault in faults} == set(duels)
    held = [run_id for run_id, kind in duels.items() if kind.is_held]
    assert len({fault.latch for fault in faults}) == len(faults) == len(duels) + len(held)
