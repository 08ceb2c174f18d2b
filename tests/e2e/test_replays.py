"""Recorded runs are played again from the command line, and graded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running, call, script

pytestmark = pytest.mark.e2e


def test_runs_are_played_again_without_an_effect_and_the_report_stays(
    shared: tuple[CommandLine, Running], project: Path, tmp_path: Path
) -> None:
    hermes = shared[0].inline
    paid = script(call("terminal", command="echo one >> paid"), final="Paid.")
    asked = hermes("submit", paid, "--workspace", str(project), "--tag", "orders", "--watch")
    assert asked.code == 0, asked.said
    run_id = re.findall(r"run_[0-9a-f]{32}", asked.said)[0]
    data = tmp_path / "orders.jsonl"
    data.write_text(hermes("runs", "replay", "--filter", "tag=orders", "--export").out)
    assert json.loads(data.read_text()) == {"run_id": run_id, "expected": "Paid."}

    line = ("runs", "replay", "--data", str(data), "--name", "orders", "--grade", "exact", "--json")
    played = hermes(*line)
    assert played.code == 0, played.said
    report = json.loads(played.out)
    assert (report["runs"], report["differing"], report["good"]) == (1, 0, {"exact": 1})
    assert (project / "paid").read_text() == "one\n", "the command did not run again"

    again = hermes(*line)  # as after an interruption: nothing is begun twice
    assert json.loads(again.out) == report
    shown = hermes("runs", "replay", "--show", "orders")
    assert f"## {run_id}: no step differs, exact: good" in shown.out

    chosen = hermes("runs", "replay", "--filter", "tag=orders", "--grade", "exact", "--json")
    assert json.loads(chosen.out)["good"] == {"exact": 1}, "what the run answered is expected"

    data.write_text(json.dumps({"run_id": run_id, "expected": "Refused."}))
    wrong = hermes(*line[:4], "--name", "other", "--grade", "exact")
    assert (wrong.code, "exact: not good" in wrong.out) == (1, True), wrong.said
    assert "there is no replay 'none'" in hermes("runs", "replay", "--show", "none").err
