"""The tour in the documentation works as it is written."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.e2e
DOCS = Path(__file__).parents[2] / "docs"


def tour_maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_tour", DOCS / "make_tour.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["make_tour"] = module
    spec.loader.exec_module(module)
    return module


def test_every_command_of_the_tour_does_what_the_tour_shows() -> None:
    maker = tour_maker()
    with tempfile.TemporaryDirectory(prefix="hermes-tour-") as home:
        played = maker.play((DOCS / "tour.md").read_text(), Path(home))

    said = {each.command: each.output for each in played}
    assert [(each.command, each.output) for each in played if each.status] == []
    assert "report: /home/you/greeter/hermes-report.md" in said["hermes-worker run"]
    assert "greet.py:2" in said["head -n 24 hermes-report.md"]
    assert "Hermes worker is up" in said["hermes-worker up &"]
    assert said["hermes-worker runs stop $RUN"].endswith("cancelled")
    assert '"event":"run.completed"' in said["curl -s -N localhost:8642/v1/runs/$RUN/events"]
    assert "broken" not in said["hermes-worker doctor"]
    assert said['hermes-worker up || echo "exit code $?"'].endswith("exit code 2")
    assert said['kill -INT $!; wait $!; echo "exit code $?"'].endswith("exit code 0")


def test_output_replaces_output_and_leaves_the_text() -> None:
    maker = tour_maker()
    document = "Before.\n\n```console\n$ one\nold\n$ two\n```\n\nBetween.\n\n```sh\n$ three\n```\n"
    played = [
        maker.Played(command="one", output="new\nlines", status=0),
        maker.Played(command="two", output="", status=0),
    ]
    assert list(maker.commands_of(document)) == ["one", "two"]
    assert maker.with_output(document, played) == (
        "Before.\n\n```console\n$ one\nnew\nlines\n$ two\n```\n\nBetween.\n\n```sh\n$ three\n```\n"
    )
