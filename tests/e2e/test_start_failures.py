"""What bad circumstances get that only a process of its own can have; the rest is in tests/cli."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.commandline import CommandLine, Finished, script, wait_for

from hermes_worker.local.paths import find_running_stack
from hermes_worker.local.valkey import EmbeddedValkey

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
    assert hermes("data", "migrate").code == 0
    ended = with_full_disk(hermes, "submit", "-", stdin="x" * 200_000, bytes_max=65_536)
    assert_one_sentence(ended, "make room on its disk")
    assert "run_" not in hermes("runs", "list").out


NOWHERE = {
    "HERMES_DATABASE_URL": "postgresql://u:hunter2-hunter2@127.0.0.1:9/x",
    "HERMES_BROKER_URL": "redis://127.0.0.1:9/0",
    "HERMES_BASE_URL": "http://127.0.0.1:9/v1",
}


@pytest.mark.parametrize("role", ["worker", "beat"])
def test_a_role_whose_database_is_away_waits_for_it_and_ends_when_it_is_told_to(hermes: CommandLine, role: str) -> None:
    hermes.environ.update(NOWHERE)
    with hermes.started("start", role) as running:
        running.wait_for_line("database.unreachable")
        os.kill(running.pid, signal.SIGTERM)
        assert running.wait() == 0, running.output
    assert "hunter2" not in running.output


def test_a_child_that_cannot_start_ends_everything_and_says_why(hermes: CommandLine) -> None:
    hermes.environ["HERMES_PROVIDER"] = "nobody"
    hermes.environ["HERMES_API_KEY"] = "sk-0123456789abcdef"
    hermes.environ["HERMES_MODEL"] = "m"
    with hermes.started("run") as running:
        assert running.wait() == 2, running.output
        assert "'nobody', which is not in the catalogue" in running.output
        assert "0123456789" not in running.output
        wait_for(lambda: not running.survivors())


def install(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}")
    path.chmod(0o755)
    return path


def written_by(home: Path, server: Path) -> None:
    """Make it look as if ``server`` had written the broker's files of this home."""
    (home / "valkey" / "appendonlydir").mkdir(parents=True, exist_ok=True)
    (home / "valkey" / "valkey.json").write_text(json.dumps({"port": 0, "server": str(server)}))


def test_a_server_that_is_installed_later_does_not_stop_a_working_home(hermes: CommandLine, tmp_path: Path) -> None:
    assert hermes("run", script(final="Before.")).code == 0
    asked = tmp_path / "asked"
    theirs = install(
        tmp_path / "bin" / "redis-server",
        f"[ $1 = --version ] && {{ echo 'Redis server v=7.0.15 sha=0'; exit; }}\ntouch {asked}; exit 1\n",
    )
    hermes.environ["PATH"] = f"{theirs.parent}:{hermes.environ['PATH']}"

    again = hermes("run", script(final="After."))

    assert again.code == 0, again.said
    assert "After." in again.out
    assert "child.failed" not in again.said and "set_aside" not in again.said
    assert not asked.exists()


def test_a_broker_that_cannot_start_is_named_with_its_last_words(hermes: CommandLine, tmp_path: Path) -> None:
    server = install(
        tmp_path / "bin" / "redis-server",
        "[ $1 = --version ] && { echo 'Redis server v=7.0.15 sha=0'; exit; }\n"
        "echo '*** FATAL CONFIG FILE ERROR ***'; echo 'Bad directive'; exit 3\n",
    )
    written_by(hermes.home, server)
    with hermes.started("up", "--port", "0") as up:
        assert up.wait() == 2, up.output
    said = "valkey could not be started: exit status 3: *** FATAL CONFIG FILE ERROR *** | Bad directive"
    assert f"hermes-worker: {said}\n" in up.output
    assert "restart_in_s=null" not in up.output

    sick = hermes.inline("doctor")
    assert sick.code == 1
    assert re.search(rf"^broken +start +the last one, at .*, failed: {re.escape(said)}$", sick.out, re.MULTILINE)

    server.unlink()
    with hermes.up():
        well = hermes.inline("doctor")
    assert "failed" not in well.out, well.out


def test_files_that_the_broker_cannot_read_are_set_aside_and_the_run_goes_on(hermes: CommandLine) -> None:
    assert hermes("run", script(final="Before.")).code == 0
    manifest = hermes.home / "valkey" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")

    with hermes.up() as up:
        told = up.wait_for_line(r"broker\.data_set_aside +kept_as=(\S+) because=")
        assert (Path(told[1]) / manifest.name).read_text() == "nonsense\n"
        assert hermes.inline("submit", script(final="After."), "--watch").code == 0
    assert "set it aside" in hermes.inline("doctor").out


def test_a_role_that_cannot_start_is_named_in_the_sentence_that_up_ends_with(hermes: CommandLine) -> None:
    hermes.environ |= {"HERMES_PROVIDER": "nobody", "HERMES_API_KEY": "sk-0123456789abcdef", "HERMES_MODEL": "m"}
    with hermes.started("up", "--port", "0") as up:
        assert up.wait() == 2, up.output
    assert re.search(r"^hermes-worker: model could not be started: exit status 2: .*'nobody'", up.output, re.MULTILINE)
    assert "restart_in_s=null" not in up.output


def test_up_is_up_when_its_broker_is_there_and_not_before(hermes: CommandLine, own_valkey: EmbeddedValkey) -> None:
    hermes.environ["HERMES_BROKER_URL"] = own_valkey.url
    own_valkey.stop()
    with hermes.started("up", "--port", "0") as up:
        awaited = up.wait_for_line(r"child\.awaited +children=(\S+) for_s=5")[1].split(",")
        assert {"model", "tools"} <= set(awaited)
        assert "broker.unreachable" in up.output
        assert "is up" not in up.output
        assert find_running_stack(hermes.home) is None
        own_valkey.start()
        up.wait_for_line("Hermes worker is up")


def test_processes_without_their_broker_say_so_ever_less_often_and_go_on_when_it_is_back(
    hermes: CommandLine, own_valkey: EmbeddedValkey
) -> None:
    hermes.environ["HERMES_BROKER_URL"] = own_valkey.url
    with hermes.up() as up:
        own_valkey.kill()
        run_id = hermes.inline("submit", script(final="Back.")).out.strip()
        for role in ("model", "tools"):
            up.wait_for_line(rf"^{role} .*broker\.unreachable .*away_s=7")
        told = [line.partition("|")[0].strip() for line in up.output.splitlines() if "broker.unreachable" in line]
        assert {role: told.count(role) <= 5 for role in set(told)} == dict.fromkeys(set(told), True), up.output
        assert "Cannot connect" not in up.output and "Traceback" not in up.output

        own_valkey.start()
        began = time.monotonic()
        watched = hermes.inline("runs", "watch", run_id)
        print(f"\nthe run ended {time.monotonic() - began:.2f} s after the broker was back")
        assert watched.code == 0, watched.said
        assert "Back." in watched.out
        up.wait_for_line(r"^model .*broker\.reachable")
