"""What bad input and bad circumstances get: one sentence and exit code 2, never a traceback, never a leftover."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from support.commandline import COMMAND, CommandLine, Finished, wait_for

pytestmark = pytest.mark.e2e


def assert_one_sentence(ended: Finished, *words: str) -> None:
    said = [line for line in ended.err.splitlines() if not line.endswith("...")]
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert len(said) == 1, ended.said
    for word in words:
        assert word in said[0]


@pytest.mark.parametrize("command", [["run"], ["up", "--port", "0"], ["migrate"]])
def test_a_home_that_is_a_file(hermes: CommandLine, command: list[str]) -> None:
    hermes.home.write_text("")
    assert_one_sentence(hermes(*command), str(hermes.home), "Not a directory")


@pytest.mark.parametrize("command", [["run"], ["up", "--port", "0"]])
def test_a_home_whose_database_is_damaged(hermes: CommandLine, command: list[str]) -> None:
    hermes.home.mkdir()
    (hermes.home / "hermes-worker.db").write_bytes(b"no database " * 1000)
    assert_one_sentence(hermes(*command), "damaged", "--home")


def test_a_home_on_a_full_disk(hermes: CommandLine) -> None:
    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))

    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
            "sys.argv = ['hermes-worker', 'run']; from hermes_worker.cli import main; main()",
        ],
        env=hermes.environ,
        capture_output=True,
        text=True,
        preexec_fn=no_room,
        check=False,
        timeout=60,
    )
    assert_one_sentence(Finished(ended.returncode, ended.stdout, ended.stderr), str(hermes.home), "--home")


def test_a_home_that_cannot_be_written(hermes: CommandLine) -> None:
    # root may write everywhere but there: no file system takes new names under /proc
    assert_one_sentence(hermes("run", "--home", "/proc/hermes"), "/proc/hermes", "--home")


def test_a_port_that_is_taken(hermes: CommandLine) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert_one_sentence(hermes("up", "--port", port), port, "--port")


def test_an_open_api_without_a_key(hermes: CommandLine) -> None:
    assert_one_sentence(hermes("up", "--host", "0.0.0.0", "--port", "0"), "HERMES_SERVER_KEY")


@pytest.mark.parametrize("prompt", ["", "   "])
def test_an_empty_prompt(hermes: CommandLine, prompt: str) -> None:
    assert_one_sentence(hermes("run", prompt), "PROMPT")
    assert not hermes.home.exists()


def test_a_prompt_that_is_too_long(hermes: CommandLine) -> None:
    assert_one_sentence(hermes("run", "-", stdin="x" * (10 * 1024 * 1024 + 1)), "10 MB")


def test_a_workspace_that_is_not_there(hermes: CommandLine, tmp_path: Path) -> None:
    assert_one_sentence(hermes("run", "--workspace", str(tmp_path / "nowhere")), "nowhere")


def test_a_broker_that_is_away(hermes: CommandLine) -> None:
    hermes.environ["HERMES_BROKER_URL"] = "redis://127.0.0.1:9/0"
    assert hermes("migrate").code == 0
    sick = hermes("doctor")
    assert sick.code == 1
    assert "HERMES_BROKER_URL" in sick.out


def test_a_database_that_is_away(hermes: CommandLine) -> None:
    hermes.environ["HERMES_DATABASE_URL"] = "postgresql://u:hunter2-hunter2@127.0.0.1:9/x"
    hermes.environ["HERMES_BROKER_URL"] = "redis://127.0.0.1:9/0"
    hermes.environ["HERMES_BASE_URL"] = "http://127.0.0.1:9/v1"
    for command in (["migrate"], ["runs", "list"], ["worker"], ["api"], ["beat"]):
        ended = hermes(*command)
        assert_one_sentence(ended, "database")
        assert "hunter2" not in ended.said


def test_a_reader_that_goes_away_is_no_error(hermes: CommandLine) -> None:
    ended = subprocess.run(
        ["bash", "-c", f"'{COMMAND}' doctor | head -n 1"],
        env=hermes.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in ended.stderr
    assert "BrokenPipe" not in ended.stderr


def test_a_child_that_cannot_start_ends_everything_and_says_why(hermes: CommandLine) -> None:
    hermes.environ["HERMES_PROVIDER"] = "nobody"
    hermes.environ["HERMES_API_KEY"] = "sk-0123456789abcdef"
    hermes.environ["HERMES_MODEL"] = "m"
    with hermes.started("run") as running:
        assert running.wait() == 2, running.output
        assert "'nobody', which is not in the catalogue" in running.output
        assert "0123456789" not in running.output
        wait_for(lambda: not running.survivors())
