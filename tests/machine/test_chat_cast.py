"""The cast of a chat at the top of the README shows what the program shows.

``HERMES_CAST=docs/images/chat.svg pytest -n 0 -m machine tests/machine/test_chat_cast.py`` makes it anew.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

import pytest
from support.cast import read_cast, render_cast
from support.commandline import COMMAND, CommandLine
from support.tmux_program import COLUMNS, tmux_terminal

pytestmark = pytest.mark.machine
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "coding-agent"
CAST = ROOT / "docs" / "images" / "chat.svg"


def shape(svg: str) -> list[str]:
    """What is shown, without numbers, which differ from one time to the next."""
    return [" ".join(re.sub(r"\d[\d.,]*", "#", line).split()) for line in read_cast(svg)]


def record(directory: Path) -> str:
    """A person asks in the project of the example; the scripted model answers as in its ``replies.yaml``."""
    project = directory / "project"
    shutil.copytree(EXAMPLE / "project", project)
    hermes = CommandLine(directory / "home")
    hermes.home.mkdir(mode=0o700)
    shutil.copyfile(EXAMPLE / "home" / "replies.yaml", hermes.home / "replies.yaml")
    environ = {**hermes.environ, "TERM": "tmux-256color", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1"}
    go = ["sh", "-c", f"cd {project}; exec {COMMAND} chat"]
    with hermes.up(), tmux_terminal(directory / "terminal", go, environ) as terminal:
        terminal.wait_for("May it work here?")
        terminal.say("y")
        terminal.wait_for("/help shows the commands")
        terminal.wait_for("\n>")
        terminal.say("The test fails. Find out why, and repair it.")
        terminal.wait_for("completed, ")
        shown = terminal.escapes
        terminal.key("C-d")
        assert terminal.wait_for_end() == 0
    told, end, after = shown.replace(str(directory), "/home/you").rpartition("completed, ")
    return render_cast(told + end + after.partition("\n")[0], columns=COLUMNS)


def test_the_cast_of_the_readme_is_what_the_program_shows() -> None:
    with tempfile.TemporaryDirectory(prefix="cast-") as directory:  # as long each time: it decides where lines break
        recorded = record(Path(directory))
    if target := os.environ.get("HERMES_CAST"):
        Path(target).write_text(recorded, encoding="utf-8")
    kept = CAST.read_text(encoding="utf-8")
    assert len(kept.encode()) <= 30_000
    assert shape(kept) == shape(recorded), f"make it anew: {__doc__}"
