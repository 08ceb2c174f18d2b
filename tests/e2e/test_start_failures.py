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
