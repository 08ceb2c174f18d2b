"""The crash lab with trees: delegation, approvals and stops while workers are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.lab.lab import LabOptions, run_lab
from hermes_worker.lab.report import render_text

pytestmark = pytest.mark.faults


def test_trees_survive_kills_with_every_invariant(tmp_path: Path) -> None:
    options = LabOptions(runs=8, steps=3, kills=6, seed=4, ttl_s=2.0, has_trees=True)
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green, render_text(report)
    # A worker that is killed between the claim of a command and its question leaves it unknown: nobody is asked.
    assert (report.stopped, report.answered > 0) == (2, True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_trees_survive_many_kills_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    options = LabOptions(runs=60, steps=5, kills=60, seed=11, database_url=postgres_url, has_trees=True)
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green, render_text(report)
    assert (report.stopped, report.answered > 0) == (15, True)
