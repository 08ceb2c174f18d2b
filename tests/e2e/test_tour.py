"""The tour in the documentation works as it is written."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.documents import find_programs, load_maker

pytestmark = pytest.mark.e2e
DOCS = Path(__file__).parents[2] / "docs"
OF_MACHINE = re.compile(r"(?:ok|note|broken) +(?:user|system|sandbox|tools) ")
"""Lines of doctor that tell who runs it, what its kernel can do and what is installed: another machine than the
document's says others."""


def written_down(maker: ModuleType, document: str) -> list[Any]:
    """The commands of the document with the output that stands below them."""
    found: list[Any] = []
    for block in re.findall(r"^```console\n(.*?)^```$", document, re.MULTILINE | re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append(maker.Played(command=command, output=output, status=0))
    return found


def shape(output: str) -> set[str]:
    """Its lines without what differs from one day and one machine to the next, or with how fast a reader comes."""
    output = re.sub(r"\bqueued\b", "running", re.sub(r"\bnow\b", "0 s ago", output))
    output = re.sub(r"\b\d+ min \d+ s\b", "60 s", output)
    output = re.sub(r"(\brunning +\d+ s ago +[\d.]+ s +)-", r"\1$0.00", output)  # before its first model call
    plain = re.sub(r"\d+", "#", re.sub(r"\b(run_)?(?=[0-9a-f]*\d)[0-9a-f]{7,}\b", "#", output))
    lines = {" ".join(re.sub(r"#(?:[.,:-]*#)*[.,:-]*", "#", line).split()) for line in plain.splitlines()}
    return {line for line in lines if "message.delta" not in line and not line.startswith("id:")}


@pytest.mark.nightly
def test_every_command_of_the_tour_does_what_the_tour_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    maker = load_maker("make_tour")
    build_environ = maker._environ
    warm = {"PATH": f"{find_programs()}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory(prefix="hermes-tour-") as home, tempfile.TemporaryDirectory() as temporary:
        # Doctor tells what processes have left in the temporary folder, those of other tests among them.
        warm["TMPDIR"] = temporary
        monkeypatch.setattr(maker, "_environ", lambda home, port: {**build_environ(home, port), **warm})
        played = maker.play((DOCS / "tour.md").read_text(), Path(home))

    said = {each.command: each.output for each in played}
    assert [(each.command, each.output) for each in played if each.status] == []
    assert "report: /home/you/greeter/hermes-report.md" in said["hermes-worker run"]
    assert "greet.py:2" in said["head -n 13 hermes-report.md"]
    assert "Hermes worker is up" in said["hermes-worker up &"]
    assert said["hermes-worker runs stop $RUN"].endswith("cancelled")
    assert '"event":"run.completed"' in said['curl -s -N localhost:8642/v1/runs/$RUN/events -H "$AUTH"']
    assert "Invalid API key" in said["curl -s localhost:8642/v1/runs | cut -c 1-37"]
    for each in written_down(maker, (DOCS / "tour.md").read_text()):
        # What goes on in the background says its lines in any order, and some of them after it is ready.
        if not each.command.endswith("&"):
            gone = {line for line in shape(each.output) - shape(said[each.command]) if not OF_MACHINE.match(line)}
            assert not gone, f"play docs/make_tour.py again: {each.command!r} says no more {sorted(gone)}"
    assert "broken" not in said["hermes-worker doctor"]
    assert said['hermes-worker up || echo "exit code $?"'].endswith("exit code 2")
    assert said['kill -INT $!; wait $!; echo "exit code $?"'].endswith("exit code 0")


def test_output_replaces_output_and_leaves_the_text() -> None:
    maker = load_maker("make_tour")
    document = "Before.\n\n```console\n$ one\nold\n$ two\n```\n\nBetween.\n\n```sh\n$ three\n```\n"
    played = [
        maker.Played(command="one", output="new\nlines", status=0),
        maker.Played(command="two", output="", status=0),
    ]
    assert list(maker.commands_of(document)) == ["one", "two"]
    assert maker.with_output(document, played) == (
        "Before.\n\n```console\n$ one\nnew\nlines\n$ two\n```\n\nBetween.\n\n```sh\n$ three\n```\n"
    )
