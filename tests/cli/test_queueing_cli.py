"""Submitting for later and finding runs again, on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commandline import CommandLine
from support.store import Store


def listed(hermes: CommandLine, *filters: str) -> list[str]:
    ended = hermes.inline("runs", "list", "--json", *filters)
    assert ended.code == 0, ended.said
    return [json.loads(line)["run_id"] for line in ended.out.splitlines()]


def test_a_run_is_submitted_for_later(hermes: CommandLine, store: Store) -> None:
    options = ["--not-before", "90s", "--tag", "eu", "--tag", "nightly", "--meta", "ticket=7", "--priority", "high"]
    ended = hermes.inline("submit", "x", *options, "--json")
    assert ended.code == 0, ended.said
    said = json.loads(ended.out)

    assert said["status"] == "scheduled"
    assert store.due(said["run_id"]) == []
    shown = hermes.inline("runs", "show", said["run_id"]).out
    assert "begins    not before " in shown
    assert "tags      eu nightly" in shown
    assert "priority  high" in shown
    assert hermes.run_of(said["run_id"])["metadata"] == {"ticket": "7"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--not-before", "soon"], "is no time"),
        (["--meta", "ticket"], "is not NAME=VALUE"),
        (["--priority", "hgih"], "Did you mean 'high'?"),
        (["--tag", "a b"], "is no tag"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(hermes: CommandLine, store: Store, options: list[str], said: str) -> None:
    ended = hermes.inline("submit", "x", *options)
    assert ended.code == 2
    assert said in ended.err


def test_runs_are_found_by_what_was_noted_on_them(hermes: CommandLine, store: Store) -> None:
    tagged, plain = store.submit(tags=("t",), model="a").run_id, store.submit(model="b").run_id
    store.answer(plain)

    assert listed(hermes) == [plain, tagged]
    assert listed(hermes, "--tag", "t") == [tagged]
    assert listed(hermes, "--status", "completed", "--status", "failed") == [plain]
    assert listed(hermes, "--model", "b", "--since", "2h") == [plain]
    assert listed(hermes, "--until", "2h") == []
    assert listed(hermes, "--before", plain) == [tagged]
    assert listed(hermes, "--limit", "1") == [plain]


def test_a_run_says_why_it_waits(hermes: CommandLine, store: Store) -> None:
    run_id = store.submit(delay_s=3600.0).run_id

    shown = hermes.inline("runs", "explain", run_id)
    said = json.loads(hermes.inline("runs", "explain", run_id, "--json").out)

    assert shown.code == 0, shown.said
    assert f"{run_id}: it is to begin later" in shown.out
    assert (said["because"], said["until"]) == ("not_before", said["facts"]["not_before"])


def test_a_file_of_runs_is_submitted_line_by_line(hermes: CommandLine, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"input": "a", "tags": ["t"]}\n{"input": "b", "toolsets": ["nope"]}\n')

    ended = hermes.inline("runs", "submit", str(file))
    lines = [json.loads(line) for line in ended.out.splitlines()]

    assert ended.code == 1, ended.said
    assert store.bodies(lines[0]["run_id"]) == [{"role": "user", "content": "a"}]
    assert "nope" in lines[1]["error"]
    assert listed(hermes, "--tag", "t") == [lines[0]["run_id"]]


def test_a_line_that_is_no_run_is_named(hermes: CommandLine, store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"input": "a"}\n{"inptu": "b"}\n')

    ended = hermes.inline("runs", "submit", str(file))

    assert (ended.code, "line 2 cannot be submitted" in ended.err) == (2, True)
    assert listed(hermes) == []


def test_runs_are_stopped_by_a_filter_after_a_dry_run(hermes: CommandLine, store: Store) -> None:
    one, other = store.submit(tags=("t",)).run_id, store.submit().run_id

    dry = hermes.inline("runs", "stop", "--tag", "t", "--dry-run")
    assert (dry.code, dry.out) == (0, f"{one} would be stopped\n")
    assert listed(hermes, "--status", "queued") == [other, one]
    assert hermes.inline("runs", "stop", "--tag", "t").out == f"{one} asked to stop\n"
    assert listed(hermes, "--status", "cancelled") == [one]
    nothing = hermes.inline("runs", "stop")
    assert (nothing.code, "say which runs are meant" in nothing.err) == (2, True)


def test_runs_are_waited_for_and_asked_once_more(hermes: CommandLine, store: Store) -> None:
    done, open_run = store.submit().run_id, store.submit().run_id
    store.answer(done)

    assert hermes.inline("runs", "wait", done).code == 0
    late = hermes.inline("runs", "join", done, open_run, "--timeout", "0.1")
    assert (late.code, late.out) == (1, f"{done} completed\n{open_run} has not ended\n")
    assert hermes.inline("runs", "join", done, open_run, "--any").code == 0

    again = hermes.inline("runs", "retry", done)
    assert again.code == 0, again.said
    assert f"repeats   {done}" in hermes.inline("runs", "show", again.out.strip()).out
    refused = hermes.inline("runs", "retry", open_run)
    assert (refused.code, "has not ended" in refused.err) == (2, True)
