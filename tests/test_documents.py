"""README.md and ARCHITECTURE.md say what is there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from hermes_worker.cli.entry import commands

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "hermes_worker"
README = (ROOT / "README.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?:sh|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def lines_of(document: str) -> Iterator[str]:
    """The command lines of its shell blocks, those that go on joined."""
    for block in _BLOCK.findall(document):
        yield from block.replace("\\\n", " ").splitlines()


SHOWN = [line for line in lines_of(README) if line.startswith("hermes-worker ")]


@pytest.mark.parametrize("line", SHOWN)
def test_every_command_of_the_readme_is_one(line: str) -> None:
    _, *words = shlex.split(line, comments=True)
    if words[-1] == "&":  # it goes on in the background
        words.pop()
    command: click.Command | None = commands
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), words.pop(0))
    assert command is not None, line
    command.make_context(line, words)


def test_the_readme_shows_commands() -> None:
    assert len(SHOWN) > 20


def test_every_file_that_the_architecture_names_is_there() -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE))
    assert len(named) > 10
    places = (ROOT, PACKAGE, PACKAGE / "channels", ROOT / "scheduler")
    assert [name for name in sorted(named) if not any((place / name).exists() for place in places)] == []


@pytest.mark.parametrize("document", sorted(path.name for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]))
def test_every_link_between_documents_leads_somewhere(document: str) -> None:
    path = next(place / document for place in (ROOT, ROOT / "docs") if (place / document).exists())
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []
