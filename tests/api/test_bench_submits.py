"""The benchmark of submissions, with little of everything: it keeps its timetable, and everybody connects."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_submissions_are_measured_beside_readers() -> None:
    arguments = ["--database", "sqlite", "--rate", "20", "--seconds", "1", "--readers", "20", "--slow", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.submits", *arguments, "--half-closed", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5_000:]
    rows = re.findall(r"^\| (\w.*?) \| (\d+) \| (\d+) \|", done.stdout, re.MULTILINE)
    crowds = ["nobody", "20 idle, 0 slow, 0 half closed", "20 idle, 2 slow, 2 half closed", "nobody"]
    assert rows == [(crowd, "20", "0") for crowd in crowds]
    assert "memory of the API per idle reader" in done.stdout
    assert len(re.findall(r"^sqlite: ", done.stderr, re.MULTILINE)) == 5
