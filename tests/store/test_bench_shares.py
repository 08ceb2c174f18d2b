"""The benchmark of shared fleets, with little of everything: each kind of fleet does each act."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_every_kind_of_fleet_takes_its_turns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.shares", "--sqlite", "--turns", "3", "--held", "5"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    rows = re.findall(r"^\| (.+?) \| [\d.]+ ms, ([\d.]+) x \| .* \|$", done.stdout, re.MULTILINE)
    fleets = ["one tenant", "ten tenants, places free", "ten tenants, runs held", "ten tenants with limits"]
    assert [title for title, _ in rows] == fleets
    assert rows[0][1] == "1.00"
