"""The benchmark of searches, with few messages: everything is indexed, and every kind of query is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


def test_every_kind_of_query_is_asked() -> None:
    told = searching("--sqlite", "--rounds", "2", "--turn", "0.01")
    assert "\n400 messages indexed, " in told
    found = dict(re.findall(r"^  (.+?)(?: +[\d.]+){6} +([\d.]+) found$", told, re.MULTILINE))
    assert len(found) == 10 and float(found["a common word"]) > 1
    assert len(re.findall(r"^  CPU of a step .* alone, beside an indexer, alone: ", told, re.MULTILINE)) == 2


def test_what_is_loaded_at_once_is_what_the_indexer_makes_and_is_kept(tmp_path: Path) -> None:
    told = searching("--sqlite", "--at-once", "--texts", "50", "--fill", "--keep", str(tmp_path))
    assert "of 10 sessions the indexer made the same rows\n400 messages are indexed, 0 sessions are due" in told
    assert "filling in" not in searching("--sqlite", "--fill", "--keep", str(tmp_path))


def searching(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.searching", "400", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout
