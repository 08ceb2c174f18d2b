"""What reaches the terminal."""

from __future__ import annotations

from typing import Any

import click
import pytest

from hermes_worker.cli.follow import Notice
from hermes_worker.cli.layout import render_table
from hermes_worker.cli.screen import Screen, flatten_text, strip_controls
from hermes_worker.stream.wire_events import WireEvent


def event(name: str, **fields: Any) -> WireEvent:
    return WireEvent(id="1", name=name, at=0.0, fields=fields)


def shown(capsys: pytest.CaptureFixture[str], *events: WireEvent | Notice) -> str:
    screen = Screen("run_1")
    for each in events:
        screen.show(each)
    return click.unstyle(capsys.readouterr().out)


def test_a_reply_is_shown_once_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        event("message.delta", delta="Hel"),
        event("message.delta", delta="lo"),
        event("message.completed", text="Hello", iteration=1),
    )
    assert text == "Hello\n"


def test_a_reply_that_ends_in_white_space_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        event("message.delta", delta="Hello  \n"),
        event("message.completed", text="Hello", iteration=1),
    )
    assert text == "Hello  \n"


def test_a_wait_is_told_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys, event("run.waiting", status="waiting_for_capacity", until=None, reason="it answered\x1b[2J 500")
    )
    assert text == "  waiting for capacity: it answered<U+001B>[2J 500\n"


def test_calls_of_one_reply_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def start(position: int) -> WireEvent:
        return event("tool.started", tool="terminal", position=position, preview="{}")

    def end(position: int) -> WireEvent:
        return event("tool.completed", tool="terminal", position=position, duration=1, error=False)

    text = shown(capsys, start(0), start(1), end(1), end(0))
    ends = [line.strip() for line in text.splitlines() if "✓" in line]
    assert ends == ["✓ terminal #2  1.00 s", "✓ terminal  1.00 s"]


@pytest.mark.parametrize(
    ("by", "words"),
    [
        ("rules", "refused by the rules of this installation: it is forbidden"),
        ("person", "refused by a person: it is forbidden"),
        ("timeout", "refused, because nobody answered in time: it is forbidden"),
    ],
)
def test_a_refused_call_says_who_refused_it_and_why(capsys: pytest.CaptureFixture[str], by: str, words: str) -> None:
    refused = event(
        "tool.completed", tool="terminal", duration=0.0, error=True, refused_by=by, reason="it is forbidden"
    )
    assert shown(capsys, refused) == f"  ✗ terminal  {words}\n"


def test_a_steer_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, event("run.steered", text="in French,\nplease")) == "  you said: in French, please\n"


def test_what_is_not_shown_does_not_break_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        event("message.delta", delta="I look for "),
        event("tool.generating", tool="search_files"),
        event("reasoning.available", text="Hm."),
        event("message.delta", delta="lines."),
        event("run.failed", error="gone"),
    )
    assert text == "I look for lines.\n"


def test_a_reply_that_another_worker_began_again_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        event("message.delta", delta="Good mor"),
        event("message.completed", text="Good evening", iteration=1),
    )
    assert text == "Good mor\n  the reply was begun again:\nGood evening\n"


def test_a_tool_is_shown_when_it_starts_and_when_it_ends(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(
        capsys,
        event("message.delta", delta="Let me look"),
        event("message.completed", text="Let me look", iteration=1),
        event("tool.started", tool="terminal", preview='{"command":"git log","timeout":5}'),
        event("tool.completed", tool="terminal", duration=0.123, error=False),
        event("tool.completed", tool="patch", duration=0.5, error=True),
        event("tool.completed", tool="terminal", duration=0.0, error=True, outcome="unknown"),
    )
    assert text.splitlines() == [
        "Let me look",
        "  → terminal  command=git log timeout=5",
        "  ✓ terminal  0.12 s",
        "  ✗ patch  answered with an error, 0.50 s",
        "  ! terminal  its worker was lost, outcome unknown; it is not run again",
    ]


@pytest.mark.parametrize(
    ("preview", "line"),
    [
        ('{"path":"a.t', "  → tool  path=a.t"),
        ('{"path":"a\\nb","content":"x\\', "  → tool  path=a b content=x"),
        ('{"limit":', '  → tool  {"limit":'),
        ("[1]", "  → tool  [1]"),
        ("", "  → tool"),
    ],
)
def test_a_preview_that_was_cut_short_shows_what_there_is(
    preview: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(capsys, event("tool.started", tool="tool", preview=preview)) == f"{line}\n"


def test_nothing_a_model_or_a_tool_wrote_commands_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    attack = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\rok\x00\u202e"
    text = shown(
        capsys,
        event("message.delta", delta=attack),
        event("message.completed", text=attack, iteration=1),
        event("tool.started", tool=attack, preview=attack),
        event("tool.completed", tool=attack, duration=0.0, error=True, outcome=attack),
        Notice(text=attack),
    )
    assert all(c.isprintable() or c == "\n" for c in text)


def test_clean_keeps_what_text_needs() -> None:
    assert strip_controls("a\tb\nc é 漢 🙂") == "a\tb\nc é 漢 🙂"


def test_one_line_fits() -> None:
    assert flatten_text("a\n b\tc", 80) == "a b c"
    assert flatten_text("x" * 50, 10) == "x" * 9 + "…"


def test_columns_are_as_wide_as_what_is_seen_of_their_cells() -> None:
    rows = [("a", click.style("completed", fg="green"), "end"), ("bbb", "x", "")]
    assert click.unstyle(render_table(rows, ("R", "S", "T"))).splitlines() == [
        "R    S          T",
        "a    completed  end",
        "bbb  x",
    ]
