"""What every command has in common: help, errors as one sentence, exit codes."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.commandline import find_command

from hermes_worker import installed
from hermes_worker.cli import help_page
from hermes_worker.cli.entry import explain_error, main
from hermes_worker.core.errors import ConfigurationError, UnavailableError


def call(*arguments: str) -> int:
    """Run the command line in this process; its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(autouse=True)
def no_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The machine's own keys and home are nobody's business here."""
    for name in ("HERMES_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "OPENROUTER_API_KEY", "HERMES_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "home"))


def test_the_list_of_commands_says_what_the_command_says() -> None:
    for name, declared in installed.get_installed().commands.items():
        command, _ = find_command(name.split())
        assert declared.summary == command.get_short_help_str(limit=200) or isinstance(command, click.Group), name


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for name in installed.get_installed().commands:
        assert call(*name.split(), "--help") == 0, name
        assert "Usage: hermes-worker" in capsys.readouterr().out, name


def test_the_whole_explains_itself_without_importing_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--help") == 0
    shown = capsys.readouterr().out
    assert all(f"  {name}  " in shown for name in installed.get_installed().commands if " " not in name)


def test_the_page_of_help_is_what_the_command_line_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(help_page.WIDTH))
    assert call("--help") == 0
    assert capsys.readouterr().out == help_page.PAGE, "run 'python docs/make_reference.py'"


def test_the_page_is_not_shown_where_there_may_be_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = {"HERMES_HOME": str(tmp_path)}
    monkeypatch.setenv("COLUMNS", "100")
    assert help_page.show_page(home)
    assert capsys.readouterr().out == help_page.PAGE
    assert not help_page.show_page({**home, "HERMES_EXTENSIONS": "mine"})
    (tmp_path / "config.yaml").write_text("extensions:\n  enabled: [mine]\n")
    assert not help_page.show_page(home)
    (tmp_path / "config.yaml").unlink()
    (tmp_path / ".env").write_text("HERMES_EXTENSIONS=mine\n")
    assert not help_page.show_page(home)
    (tmp_path / ".env").unlink()
    monkeypatch.setenv("COLUMNS", "60")
    assert not help_page.show_page(home)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "arguments", [["fly"], ["runs", "fly"], ["run", "--port"], ["submit"], ["start", "worker", "--queues", "x"]]
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_configuration_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_LEASE_TTL_S", "soon")
    assert call("config", "check") == 2
    said = capsys.readouterr().err
    assert re.fullmatch(r"hermes-worker: lease\.ttl_s must be .*'soon'\.\n", said)


def test_debug_shows_where_an_error_came_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HERMES_LEASE_TTL_S", "soon")
    with pytest.raises(ConfigurationError):
        main(["config", "check", "--debug"])


def test_a_secret_in_the_configuration_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HERMES_BROKER_URL", "ftp://user:hunter2-hunter2@host")
    assert call("config", "check") == 2
    assert "hunter2" not in "".join(capsys.readouterr())


def test_a_configuration_that_can_be_used_is_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("config", "check") == 0
    shown = capsys.readouterr().out
    assert "scripted stand-in, not a language model" in shown
    assert not (tmp_path / "home").exists()


def test_runs_of_a_home_where_nothing_ran_says_how_to_begin(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert call("runs", "list") == 2
    assert "'hermes-worker run'" in capsys.readouterr().err
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("command", [["runs", "list"], ["doctor"], ["data", "migrate"]])
def test_a_damaged_database_is_named_and_does_not_end_in_a_traceback(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "hermes-worker.db").write_bytes(b"this is no database at all " * 400)
    assert call(*command) in (1, 2)
    said = "".join(capsys.readouterr())
    assert "damaged" in said
    assert "Traceback" not in said


def test_submitting_without_a_broker_says_what_to_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "migrate") == 0
    assert call("submit", "hello") == 2
    assert "hermes-worker up" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["show", "watch", "stop"])
@pytest.mark.parametrize("run_id", ["run_nowhere", "", "../x", "x" * 300, "run_' or 1=1 --", "\udcff"])
def test_an_unknown_run_is_one_sentence(action: str, run_id: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "migrate") == 0
    assert call("runs", action, run_id) == 2
    said = capsys.readouterr().err
    assert said.startswith("hermes-worker: there is no run")
    assert said.count("\n") == 1


@pytest.mark.parametrize("prompt", ["", " \n\t "])
def test_an_empty_prompt_is_refused(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("data", "migrate") == 0
    assert call("submit", prompt) == 2
    assert "PROMPT is empty" in capsys.readouterr().err


def test_a_full_disk_is_one_sentence() -> None:
    sentence = explain_error(OSError(errno.ENOSPC, "No space left on device", "/data/x"))
    assert sentence is not None
    assert "'/data/x': No space left on device" in sentence


def test_a_defect_keeps_its_traceback() -> None:
    assert explain_error(ValueError("no")) is None
    assert explain_error(OSError(errno.EBADF, "Bad file descriptor")) is None


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("hermes_worker.cli.flower_server", "this installation of hermes-worker is broken ("),
        ("celery", "this installation of hermes-worker is broken ("),
        ("playwright", "pip install 'hermes-worker[browser]'"),
    ],
)
def test_a_module_that_our_code_misses_is_told_as_that(
    missing: str, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError) as missed:
        _run_as("hermes_worker.cli.flower", f"import {missing}")
    assert advice in str(explain_error(missed.value))


def test_a_command_whose_module_is_missing_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "hermes_worker.features.mcp_servers.verbs", None)
    assert call("mcp", "list") == 2
    said = capsys.readouterr().err
    assert said.startswith("hermes-worker: this installation of hermes-worker is broken (")
    assert "extension" not in said


def test_a_module_that_an_extension_misses_keeps_its_traceback() -> None:
    with pytest.raises(ModuleNotFoundError) as missed:
        _run_as("acme.tools", "import nowhere_at_all")
    assert explain_error(missed.value) is None


def _run_as(module: str, text: str) -> None:
    """Run ``text`` as if it stood in ``module``."""
    exec(text, {"__name__": module})  # noqa: S102


def test_a_server_that_is_away_is_its_own_sentence() -> None:
    assert explain_error(UnavailableError("the database did not answer: refused")) == (
        "the database did not answer: refused"
    )


def test_only_sqlites_own_complaint_counts_as_damage() -> None:
    class Wrapped(Exception):
        orig = sqlite3.DatabaseError("file is not a database")

    class Constraint(Exception):
        orig = sqlite3.IntegrityError("UNIQUE constraint failed")

    assert "damaged" in (explain_error(Wrapped()) or "")
    assert explain_error(Constraint()) is None


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["submitt"], "submit"),
        (["mirgate"], "data migrate"),
        (["data", "mirgate"], "migrate"),
        (["runs", "shwo"], "show"),
        (["cron", "lst"], "list"),
        (["runs", "list", "--staus", "failed"], "--status"),
        (["runs", "list", "--status", "complete"], "completed"),
        (["start", "worker", "--pool", "thread"], "threads"),
        (["start", "worker", "--queues", "modell"], "model"),
        (["cron", "create", "every 1h", "x", "--overlap", "queue"], "queue_one"),
    ],
)
def test_what_was_probably_meant_is_said(arguments: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 2
    assert re.search(rf"Did you mean.*'?{meant}'?", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("environ", "colours"), [({}, True), ({"NO_COLOR": "yes please"}, False), ({"NO_COLOR": ""}, True)]
)
def test_no_color_is_honoured_on_a_terminal(tmp_path: Path, environ: dict[str, str], colours: bool) -> None:
    assert ("\x1b[" in on_terminal(tmp_path, ["doctor"], environ)) is colours


def on_terminal(tmp_path: Path, arguments: list[str], environ: dict[str, str]) -> str:
    """What the installed command, run as a module, writes to a terminal."""
    master, terminal = pty.openpty()
    plain = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "HERMES_HOME": str(tmp_path / "home"), **environ}
    process = subprocess.Popen(
        [sys.executable, "-m", "hermes_worker", *arguments], env=plain, stdin=terminal, stdout=terminal, stderr=terminal
    )
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):  # the end of a terminal on Linux
        while piece := os.read(master, 65_536):
            said += piece
    os.close(master)
    process.wait()
    assert b"settings" in said
    return said.decode(errors="replace")


@pytest.mark.parametrize(
    ("words", "completed"),
    [("hermes-worker su", "submit"), ("hermes-worker runs st", "stop"), ("hermes-worker ru", "run")],
)
def test_the_shell_completes_commands(
    words: str, completed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_HERMES_WORKER_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert call() == 0
    assert f"plain,{completed}" in capsys.readouterr().out.split()
