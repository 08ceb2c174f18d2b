"""The archives of a release: before an index's own judges (``twine check``, ``check-wheel-contents``), and as people
start them without installing anything (``uvx``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.machine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the source archive."""
    folder = tmp_path_factory.mktemp("archives")
    environ = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    build = [sys.executable, str(ROOT / ".ci/release.py"), "build", str(folder)]
    subprocess.run(build, env=environ, check=True, capture_output=True)
    return folder


def test_the_judges_of_an_index_have_nothing_to_say(archives: Path) -> None:
    pytest.importorskip("twine")
    pytest.importorskip("check_wheel_contents")
    wheels, sources = sorted(archives.glob("*.whl")), sorted(archives.glob("*.tar.gz"))
    assert len(wheels) == len(sources) == 1

    for judge in (
        ["twine", "check", "--strict", *wheels, *sources],
        # W002: each example is whole by itself. W004: revisions of the schema are files that Alembic loads, and no
        # modules. W009: two packages are meant.
        ["check_wheel_contents", "--ignore=W002,W004,W009", *wheels],
    ):
        done = subprocess.run([sys.executable, "-m", *map(str, judge)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_uvx_runs_the_main_job_from_a_folder_of_archives(archives: Path, tmp_path: Path) -> None:
    pytest.importorskip("uv")
    project = tmp_path / "project"
    project.mkdir()
    (project / "notes.txt").write_text("TODO: tidy up\n")
    environ = {**os.environ, "HERMES_HOME": str(tmp_path / "home"), "UV_CACHE_DIR": str(tmp_path / "cache")}
    links = ["--find-links", str(archives)]
    if os.environ.get("PIP_NO_INDEX"):  # a machine whose packages lie in a folder, as CI's
        links += ["--no-index", "--find-links", os.environ["PIP_FIND_LINKS"]]
    line = [sys.executable, "-m", "uv", "tool", "run", "--python", sys.executable, *links, "hermes-worker", "run"]
    done = subprocess.run(line, cwd=project, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "notes.txt:1" in (project / "hermes-report.md").read_text()
