"""The crash lab with trees: delegation, approvals and stops while workers are killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from hermes_worker.lab.duels import DuelKind
from hermes_worker.lab.lab import LabOptions, run_lab
from hermes_worker.lab.report import render_text

pytestmark = [pytest.mark.faults, pytest.mark.usefixtures("warm_lab"), pytest.mark.nightly]


@pytest.mark.timeout(1200)
def test_trees_survive_kills_with_every_invariant(tmp_path: Path) -> None:
    options = LabOptions(runs=8, steps=3, kills=6, seed=4, ttl_s=2.0, has_trees=True)
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green, render_text(report)
    # A worker that is killed between the claim of a command and its question leaves it unknown: nobody is asked.
    assert not report.unfinished and report.stopped == 2
    assert report.answered > 0 or report.unknown_calls > 0


@pytest.mark.timeout(1200)
def test_two_writers_at_one_row_break_no_invariant(tmp_path: Path, empty_postgres_url: str) -> None:
    options = LabOptions(
        runs=2,
        steps=2,
        kills=0,
        only_kills=True,
        seed=5,
        database_url=empty_postgres_url,
        duels=len(DuelKind),
        people=1,
    )
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green and not report.unfinished, render_text(report)
    assert report.deliveries >= sum(kind.delivers for kind in DuelKind)
    assert sum(report.duels.values()) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_trees_survive_many_kills_on_postgresql(tmp_path: Path, empty_postgres_url: str) -> None:
    options = LabOptions(runs=60, steps=5, kills=60, seed=11, database_url=empty_postgres_url, has_trees=True)
    report = run_lab(options, tmp_path, progress=lambda progress: None)
    assert report.is_green, render_text(report)
    assert (report.stopped, report.answered > 0) == (15, True)
