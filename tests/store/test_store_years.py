"""The benchmarks of years of data, with little of it: what reads whole tables or keeps what it deletes fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def benchmark(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5_000:] + done.stderr[-5_000:]
    return done.stdout


def test_more_history_changes_neither_plans_nor_buffers() -> None:
    told = benchmark("benchmarks.years", "3000", "10000", "--check")
    assert "10,000 runs: buffers of one submit" in told and "0 differ from the first" in told


def test_steps_are_played_and_pruned() -> None:
    told = benchmark("benchmarks.steady", "1500", "--kept-s", "0.5")
    deleted = re.search(r"^(\d+) runs were deleted in all$", told, re.MULTILINE)
    assert deleted is not None and int(deleted[1]) > 0
    hot = re.search(r"^runs: [\d,]+ updates, (\d+)% of them HOT$", told, re.MULTILINE)
    assert hot is not None and int(hot[1]) >= 10
