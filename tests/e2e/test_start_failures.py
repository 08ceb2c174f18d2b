"""What bad circumstances get that only a process of its own can have; the rest is in tests/cli."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from support.commandline import CommandLine, Finished, wait_for

pytestmark = pytest.mark.e2e


def assert_one_sentence(ended: Finished, *words: str) -> None:
    said = [line for line in ended.err.splitlines() if not line.endswith("...")]
    assert ended.code == 2, ended.said
    assert "Traceback" not in ended.said
    assert len(said) == 1, ended.said
    for word in words:
        assert word in said[0]


def with_full_disk(hermes: CommandLine, *arguments: str, bytes_max: int, stdin: str = "") -> Finished:
    """The command in a process that can write no file beyond ``bytes_max``."""

    def no_room() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))

    ended = subprocess.run(
        [
            sys.executable,
            "-c",
            "import signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
            f"sys.argv = {['hermes-worker', *arguments]!r}; from hermes_worker.cli import main; main()",
        ],
        # Of a module's compiled form, too, only the beginning would be written.
        env=hermes.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        input=stdin,
        capture_output=True,
        text=True,
        preexec_fn=no_room,
        check=False,
        timeout=60,
    )
    return Finished(ended.returncode, ended.stdout, ended.stderr)


def test_a_home_on_a_full_disk(hermes: CommandLine) -> None:
    assert_one_sentence(with_full_disk(hermes, "run", bytes_max=1024), str(hermes.home), "--home")


def test_a_database_on_a_disk_that_is_full_by_now(hermes: CommandLine, broker_url: str) -> None:
    hermes.environ["HERMES_BROKER_URL"] = broker_url
    assert hermes("migrate").code == 0
    ended = with_full_disk(hermes, "submit", "-", stdin="x" * 200_000, bytes_max=65_536)
    assert_one_sentence(ended, "make room on its disk")
    assert "run_" not in hermes("runs", "list").out


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_a_role_whose_database_is_away(hermes: CommandLine, role: str) -> None:
    hermes.environ["HERMES_DATABASE_URL"] = "postgresql://u:hunter2-hunter2@127.0.0.1:9/x"
    hermes.environ["HERMES_BROKER_URL"] = "redis://127.0.0.1:9/0"
    hermes.environ["HERMES_BASE_URL"] = "http://127.0.0.1:9/v1"
    ended = hermes(role)
    assert_one_sentence(ended, "database")
    assert "hunter2" not in ended.said


def test_a_child_that_cannot_start_ends_everything_and_says_why(hermes: CommandLine) -> None:
    hermes.environ["HERMES_PROVIDER"] = "nobody"
    hermes.environ["HERMES_API_KEY"] = "sk-0123456789abcdef"
    hermes.environ["HERMES_MODEL"] = "m"
    with hermes.started("run") as running:
        assert running.wait() == 2, running.output
        assert "'nobody', which is not in the catalogue" in running.output
        assert "0123456789" not in running.output
        wait_for(lambda: not running.survivors())
