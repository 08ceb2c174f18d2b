"""A home and a project for each test, and one stack that the gentle tests share."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commandline import CommandLine, Running


@pytest.fixture
def hermes(tmp_path: Path) -> CommandLine:
    """The command with a home that does not exist yet."""
    return CommandLine(tmp_path / "home")


@pytest.fixture
def installed(tmp_path: Path) -> CommandLine:
    """The same, started as a user would, from nothing."""
    return CommandLine(tmp_path / "home", is_installed=True)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with known contents."""
    return make_project(tmp_path / "project")


def make_project(path: Path) -> Path:
    (path / "src").mkdir(parents=True)
    (path / "README.md").write_text("# Sample\n\nA sample project.\n")
    (path / "src" / "main.py").write_text('print("hello")\n# TODO: say goodbye as well\n' + "x = 1\n" * 40)
    (path / "src" / "other.py").write_text("# FIXME: this divides by zero\n1 / 0\n")
    (path / "notes.txt").write_text("nothing marked here\n")
    git = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", "-C", str(path)]
    subprocess.run(["git", "init", "-q", str(path)], check=True)
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-q", "-m", "Say hello"], check=True)
    return path


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[CommandLine, Running]]:
    """A command and the ``up`` that runs on its home. Tests may submit, watch and stop, and kill nothing."""
    directory = Path(tempfile.mkdtemp(prefix="hermes-e2e-"))
    command = CommandLine(directory / "home")
    try:
        with command.up() as running:
            yield command, running
    finally:
        shutil.rmtree(directory, ignore_errors=True)
