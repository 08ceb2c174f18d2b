"""The version before: the last commit that made the revision before the newest, in an environment of its own.

``python -m support.previous FILE`` writes an archive of it, for a machine that has no history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes_worker.store.revisions import MIGRATIONS, find_newest, list_revisions
from support.environments import environment_with

ROOT = Path(__file__).resolve().parent.parent.parent
_VERSIONS = f"{(MIGRATIONS / 'versions').relative_to(ROOT)}/"
VARIABLE = "HERMES_TEST_PREVIOUS"
"""Names that archive; ``.ci/run`` makes one for its furnished machine."""


class NoPreviousVersion(LookupError):
    """There is no version before this one here; the message says why, and what would help."""


def previous_commit() -> str:
    """The last commit of the revision before the newest. Raises ``NoPreviousVersion``."""
    before = max(list_revisions() - {find_newest()})
    added = git("log", "--topo-order", "--reverse", "--diff-filter=A", "--format=%H", "--name-only", "--", _VERSIONS)
    commit = ""
    for line in filter(None, added.splitlines()):
        if not line.startswith(_VERSIONS):
            commit = line
        elif Path(line).name.partition("_")[0] > before:
            return git("rev-parse", f"{commit}^")
    raise NoPreviousVersion(f"no revision after {before} is committed yet, so there is no version before it")


def previous_program(folder: Path) -> Path:
    """The interpreter of a new environment in ``folder`` in which the version before is installed."""
    return environment_with(unpack_previous(folder), folder)


def unpack_previous(folder: Path) -> Path:
    """The sources of the version before, in a new directory of ``folder``."""
    try:
        archive = Path(os.environ.get(VARIABLE) or archived(folder / "previous.tar"))
    except NoPreviousVersion as why:
        pytest.skip(str(why))
    source = folder / "source"
    source.mkdir()
    subprocess.run(["tar", "--extract", f"--file={archive}", f"--directory={source}"], check=True)
    return source


def archived(path: Path) -> Path:
    """``path``, where the version before now is. Raises ``NoPreviousVersion``."""
    git("archive", "--format=tar", f"--output={path.absolute()}", previous_commit())
    return path


def git(*arguments: str) -> str:
    """What git says about the project. Raises ``NoPreviousVersion`` where there is no history."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        why = f"needs the project's history and git, or an archive that {VARIABLE} names"
        raise NoPreviousVersion(why) from None
    return done.stdout.strip()


if __name__ == "__main__":
    archived(Path(sys.argv[1]))
