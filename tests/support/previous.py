"""The version before: the last commit before the newest revision of the schema, in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from hermes_worker.store.revisions import MIGRATIONS, newest

ROOT = Path(__file__).resolve().parent.parent.parent
VARIABLE = "HERMES_TEST_PREVIOUS"
"""Names an archive (.tar) of that commit, for machines that have no history: ``.ci/run`` makes one."""


def previous_commit() -> str:
    """The commit before the one that added the newest revision."""
    (script,) = (MIGRATIONS / "versions").glob(f"{newest()}_*.py")
    added = _git("log", "--diff-filter=A", "--follow", "--format=%H", "-1", "--", str(script.relative_to(ROOT)))
    if not added:
        pytest.skip(f"revision {newest()} is not committed yet, so there is no version before it")
    return _git("rev-parse", f"{added}^")


def previous_program(folder: Path) -> Path:
    """The interpreter of a new environment in ``folder`` in which the version before is installed."""
    archive = Path(os.environ.get(VARIABLE) or _archived(folder))
    source = folder / "source"
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="data")
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    [site] = (environment / "lib").glob("python*/site-packages")
    (site / "host.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    python = environment / "bin" / "python"
    # What is installed here stands before what host.pth names: a version of its own with our libraries.
    pip = [
        str(python),
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--ignore-installed",
    ]
    environ = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"]}  # for a setuptools that is new enough
    done = subprocess.run([*pip, str(source)], env=environ, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 0, done.stderr
    return python


def _archived(folder: Path) -> Path:
    path = folder / "previous.tar"
    _git("archive", "--format=tar", f"--output={path}", previous_commit())
    return path


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"needs the project's history and git, or an archive that {VARIABLE} names")
    return done.stdout.strip()
