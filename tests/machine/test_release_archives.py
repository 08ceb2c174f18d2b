"""The archives of a release before the index's own judges: ``twine check``, and ``check-wheel-contents``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.machine, pytest.mark.timeout(300)]


def test_the_judges_of_an_index_have_nothing_to_say(tmp_path: Path) -> None:
    pytest.importorskip("twine")
    pytest.importorskip("check_wheel_contents")
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    build = [sys.executable, str(ROOT / ".ci/release.py"), "build", str(tmp_path)]
    subprocess.run(build, env=environ, check=True, capture_output=True, timeout=200)
    wheels, sources = sorted(tmp_path.glob("*.whl")), sorted(tmp_path.glob("*.tar.gz"))
    assert len(wheels) == len(sources) == 1

    for judge in (
        ["twine", "check", "--strict", *wheels, *sources],
        # W002: each example is whole by itself. W004: revisions of the schema are files that Alembic loads, and no
        # modules. W009: two packages are meant.
        ["check_wheel_contents", "--ignore=W002,W004,W009", *wheels],
    ):
        done = subprocess.run([sys.executable, "-m", *map(str, judge)], capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stdout + done.stderr
