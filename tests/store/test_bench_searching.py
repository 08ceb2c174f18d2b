"""The benchmark of searches, with few messages: everything is indexed, and every kind of query is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_kind_of_query_is_asked() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.searching", "400", "--sqlite", "--steps", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    assert "\n400 messages indexed, " in done.stdout
    found = dict(re.findall(r"^  (.+?) +[\d.]+ +[\d.]+ +[\d.]+ +([\d.]+) found$", done.stdout, re.MULTILINE))
    assert len(found) == 10 and float(found["a common word"]) > 1
    assert len(re.findall(r"ms of CPU alone and .* beside an indexer$", done.stdout, re.MULTILINE)) == 8
