"""What people write who do not know a command yet, and what they are told."""

from __future__ import annotations

import time
from datetime import datetime

import click
import pytest
from support.commandline import CommandLine

from hermes_worker.cli.listing import AGO, AHEAD


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["run", "list"], "hermes-worker runs list"),
        (["run", "show", "run_1"], "hermes-worker runs show run_1"),
        (["submit", "watch"], "hermes-worker runs watch"),
        (["chat", "list"], "hermes-worker runs list"),
        (["run", "help"], "hermes-worker run --help"),
        (["run", "fix", "the", "tests"], "hermes-worker run -- 'fix the tests'"),
        (["chat", "hello"], "hermes-worker chat -q hello"),
    ],
)
def test_a_command_is_no_task(hermes: CommandLine, words: list[str], meant: str) -> None:
    ended = hermes.inline(*words)
    assert (ended.code, ended.out) == (2, "")
    assert meant in ended.err


def test_a_word_behind_two_dashes_is_a_task(hermes: CommandLine) -> None:
    assert "is a command" in hermes.inline("submit", "list").err
    assert "is a command" not in hermes.inline("submit", "--", "list").err
    assert "is a command" not in hermes.inline("submit", "list the files").err


@pytest.mark.parametrize(
    ("words", "near"),
    [
        (["stop", "run_1"], ["runs stop", "down"]),
        (["memory", "forget", "mem_1"], ["remove"]),
        (["jobs"], ["cron"]),
        (["kill"], ["runs stop", "down"]),
        (["runs", "ls"], ["list"]),
        (["runs", "cancel"], ["stop"]),
        (["sessions", "describe"], ["show"]),
        (["approve"], ["runs approve"]),
        (["cron", "disable"], ["pause"]),
        (["logz"], ["logs"]),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest_command(
    hermes: CommandLine, words: list[str], near: list[str]
) -> None:
    ended = hermes.inline(*words)
    assert ended.code == 2
    for path in near:
        assert repr(path) in ended.err


@pytest.mark.parametrize("words", [["help"], ["help", "runs"], ["help", "runs", "show"], ["runs", "help", "show"]])
def test_help_is_a_word_as_well(hermes: CommandLine, words: list[str]) -> None:
    ended = hermes.inline(*words)
    asked = hermes.inline(*(word for word in words if word != "help"), "--help")
    assert (ended.code, ended.out) == (0, asked.out)


@pytest.mark.parametrize(
    "group",
    ["runs", "sessions", "cron", "memory", "fleet", "fleet workers", "gateway webhooks", "tenants keys", "data", "mcp"],
)
def test_a_group_without_a_verb_prints_its_help(hermes: CommandLine, group: str) -> None:
    ended = hermes.inline(*group.split())
    assert (ended.code, ended.out, ended.err) == (0, hermes.inline(*group.split(), "--help").out, "")


@pytest.mark.parametrize(
    ("written", "ago_s"),
    [("2h", 7_200), ("3 days ago", 259_200), ("90s", 90), ("2 hours ago", 7_200), ("1d12h ago", 129_600)],
)
def test_a_moment_is_so_long_ago(written: str, ago_s: float) -> None:
    assert AGO.convert(written, None, None) == pytest.approx(time.time() - ago_s, abs=5)


def test_a_day_begins_at_its_midnight() -> None:
    today = datetime.now().astimezone().date()
    read = {
        word: datetime.fromtimestamp(AGO.convert(word, None, None)).astimezone()
        for word in ("today", "Yesterday", "monday")
    }
    assert {moment.strftime("%H:%M:%S") for moment in read.values()} == {"00:00:00"}
    assert [(today - read[word].date()).days for word in ("today", "Yesterday")] == [0, 1]
    assert read["monday"].weekday() == 0
    assert 0 <= (today - read["monday"].date()).days < 7
    coming = datetime.fromtimestamp(AHEAD.convert("monday", None, None)).astimezone()
    assert (coming.weekday(), 0 < (coming.date() - today).days <= 7) == (0, True)
    with pytest.raises(click.BadParameter, match=r"no time .* no day .* no duration"):
        AGO.convert("sometime", None, None)
