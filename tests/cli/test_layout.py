"""Tables that fit, times with their zone, values in words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import click
import pytest
from support.commandline import CommandLine
from support.store import Store

from hermes_worker.cli.layout import format_clock, format_field, format_moment, iterate_tree, render_table


@pytest.fixture(autouse=True)
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


CREATED = "2026-11-22 23:57:12 CET"
ROWS = [
    (
        "run_" + "0123456789abcdef" * 2,
        click.style("waiting_for_capacity", fg="cyan"),
        "2026-11-22 23:57:12 CET",
        "x" * 70,
    ),
    ("run_" + "f" * 32, "completed", "2026-11-22 23:57:12 CET", "漢字" * 30),
]
HEADER = ("RUN", "STATUS", "CREATED", "ANSWER")


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = click.unstyle(render_table(ROWS, HEADER, ids=(0,), whole=(2,))).splitlines()
    assert all(len(line) + len(re.findall("[漢字]", line)) <= width for line in lines)
    assert "run_0123456789ab " in lines[1]
    assert all("2026-11-22 23:57:12 CET" in line for line in lines[1:])
    assert lines[1].endswith("…")


def test_a_table_that_fits_or_goes_into_a_pipe_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert all(row[0] in render_table(ROWS, HEADER, ids=(0,)) and row[3] in render_table(ROWS, HEADER) for row in ROWS)
    monkeypatch.setenv("COLUMNS", "220")
    assert ROWS[0][0] in render_table(ROWS, HEADER, ids=(0,))


def test_columns_that_can_be_spared_go_before_texts_become_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("What was asked, in rather many words", "5 min ago", "scripted-large-model", "run_" + "0" * 32)]
    header = ("TITLE", "WHEN", "MODEL", "RUN")
    heads = {}
    for width in (120, 64, 50, 30):
        monkeypatch.setenv("COLUMNS", str(width))
        head, line = render_table(rows, header, ids=(3,), whole=(1,), spared=(2, 3)).splitlines()
        assert len(line) <= max(width, 24 + 2 + 9)
        heads[width] = head.split()
    assert heads == {120: [*header], 64: ["TITLE", "WHEN", "RUN"], 50: ["TITLE", "WHEN"], 30: ["TITLE", "WHEN"]}


def test_times_are_local_and_name_their_zone() -> None:
    assert format_moment(0) == "1970-01-01 01:00:00 CET"
    assert format_clock(1_750_000_000) == "17:06:40 CEST"
    assert format_moment(None) == "-"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("deliver", ["local", "telegram"], "local, telegram"),
        ("deliver", [], "-"),
        ("no_agent", True, "yes"),
        ("no_agent", False, "no"),
        ("origin", None, "-"),
        ("schedule", {"kind": "cron"}, '{"kind": "cron"}'),
        ("next_slot", 0.0, "1970-01-01 01:00:00 CET"),
        ("created_at", 0.5, "1970-01-01 01:00:00 CET"),
        ("not_before", 0.5, "1970-01-01 01:00:00 CET"),
        ("wall_s_max", 90.0, "90"),
        ("estimated_cost_usd", 0, "$0.00"),
        ("completed", 3, "3"),
    ],
)
def test_a_field_is_shown_in_words(name: str, value: object, words: str) -> None:
    assert format_field(name, value) == words


@pytest.mark.parametrize("width", [80, 120])
def test_lists_and_details_show_no_python_and_fit(hermes: CommandLine, store: Store, width: int) -> None:
    hermes.environ.update(COLUMNS=str(width), TZ="Europe/Berlin")
    store.submit()

    made = hermes.inline("cron", "create", "every 1h", "Look at everything there is " * 9, "--name", "look")
    assert made.code == 0, made.said
    for command in (("runs", "list"), ("cron", "list"), ("cron", "history", "look"), ("gateway", "webhooks", "list")):
        shown = hermes.inline(*command)
        assert shown.code == 0, shown.said
        assert all(len(line) <= width for line in shown.out.splitlines()), shown.out
    shown = hermes.inline("cron", "show", "look").out
    assert not re.search(r"\bTrue\b|\bFalse\b|\bNone\b|\[\]|\['|\d{10}\.\d", shown), shown
    assert re.search(r"^next_slot +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d CES?T$", shown, re.MULTILINE)


@pytest.mark.parametrize(
    ("parents", "order"),
    [
        ({"a": None, "b": "a", "c": "a", "d": "b", "e": None}, "a0 b1 d2 c1 e0"),
        ({"b": "gone", "c": "b"}, "b0 c1"),
        ({"a": None, "b": "c", "c": "b"}, "a0 b0 c0"),
        ({}, ""),
    ],
)
def test_a_tree_is_told_from_its_roots_and_leaves_nobody_out(parents: dict[str, str | None], order: str) -> None:
    assert " ".join(f"{name}{level}" for name, level in iterate_tree(parents)) == order


def test_a_title_is_cut_between_words_and_a_name_is_not_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    rows = [
        ("Write the nightly report about the fleet and send it", "my_conversation_about_parsers"),
        ("A" * 50, "run_" + "0123456789abcdef" * 2),
    ]
    lines = render_table(rows, ("TITLE", "SESSION"), ids=(1,)).splitlines()
    assert lines[1].split("  ")[0] == "Write the nightly report…"
    assert lines[1].endswith("my_conversation_about_parsers")
    assert lines[2].startswith("A" * 28 + "…") and lines[2].endswith("run_0123456789ab")
