"""The line of progress: on a terminal only, cut to its width, and gone afterwards."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from hermes_worker.cli.api_connection import open_home_client
from hermes_worker.cli.progress import clear_progress, show_progress
from hermes_worker.core.errors import UnavailableError
from hermes_worker.settings import Settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("kind", "term", "shown"),
    [
        (Terminal, "xterm-256color", "\r\x1b[Ka line that is long\r\x1b[K"),
        (Terminal, "dumb", ""),
        (io.StringIO, "xterm-256color", ""),
    ],
)
def test_the_line_is_cut_and_cleared_where_it_can_be(
    kind: type[io.StringIO], term: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = kind()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("COLUMNS", "20")
    show_progress("a line that is longer than the terminal is wide")
    clear_progress()
    assert stream.getvalue() == shown


def test_a_command_without_a_stack_says_so_before_it_opens_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("TERM", "xterm")
    shown_before: list[str] = []

    def refuse(_settings: Settings) -> None:
        shown_before.append(stream.getvalue())
        raise UnavailableError("the database is away")

    monkeypatch.setattr("hermes_worker.api.in_process.AloneApi", refuse)
    with pytest.raises(UnavailableError):
        open_home_client(Settings(home=tmp_path))
    assert "no stack runs here" in shown_before[0]
    assert stream.getvalue().endswith("\r\x1b[K")
