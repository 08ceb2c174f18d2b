"""systemd/hermes-worker.service: its command is one of ours, its times are those of a drain, and systemd takes it."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from support.commandline import find_command

from hermes_worker.cli.stack import _BROKER_GRACE_S, _LEAVING_S
from hermes_worker.settings import load_settings

UNIT = Path(__file__).parents[2] / "systemd" / "hermes-worker.service"


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(UNIT.read_text(encoding="utf-8"))
    return unit["Service"]


def test_what_it_starts_is_a_command_with_settings_that_there_are(tmp_path: Path) -> None:
    program, *words = service()["ExecStart"].split()
    assert Path(program).name == "hermes-worker"
    command, rest = find_command(words)
    command.make_context(words[0], rest)
    given = dict(each.split("=", 1) for each in service()["Environment"].split())
    settings = load_settings({**given, "HOME": str(tmp_path), "PATH": "/usr/bin"})
    assert settings.notes == ()
    assert given["HERMES_HOME"] == f"/var/lib/{service()['StateDirectory']}"


def test_it_is_given_the_time_that_a_drain_takes(tmp_path: Path) -> None:
    lease = load_settings({"HOME": str(tmp_path), "PATH": "/usr/bin"}).lease
    assert float(service()["TimeoutStopSec"]) >= lease.drain_s + lease.drain_once_s + _LEAVING_S + _BROKER_GRACE_S
    assert service()["KillMode"] == "mixed", "the stack drains; only what is left after that is killed"


def test_the_backup_is_a_command_of_ours_outside_the_home_that_it_may_write() -> None:
    unit = configparser.ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string((UNIT.parent / "hermes-worker-backup.service").read_text(encoding="utf-8"))
    part = unit["Service"]
    shell, option, script = shlex.split(part["ExecStart"].replace("%%", "%"))
    assert (shell, option) == ("/bin/sh", "-c")
    execute, program, *words, target = shlex.split(script)
    command, rest = find_command(words)
    command.make_context("backup", [*rest, target])
    assert (execute, program) == ("exec", service()["ExecStart"].split()[0])
    assert str(Path(target.partition("$")[0]).parent) in part["ReadWritePaths"].replace(" -", " ").split()
    assert part["Environment"] in service()["Environment"].split()


def test_systemd_finds_nothing_wrong_with_it(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not on this machine")
    # Names a program that is there: that ours is not installed below /opt is no fault of the unit.
    text = UNIT.read_text(encoding="utf-8").replace("/opt/hermes-worker/bin/hermes-worker", "/bin/true")
    unit = tmp_path / "hermes-worker.service"
    unit.write_text(text.replace("User=hermes-worker", "User=root"), encoding="utf-8")
    backup = tmp_path / "hermes-worker-backup.service"
    text = (UNIT.parent / backup.name).read_text(encoding="utf-8")
    backup.write_text(text.replace("User=hermes-worker", "User=root"), encoding="utf-8")
    timer = tmp_path / "hermes-worker-backup.timer"
    shutil.copy(UNIT.parent / timer.name, timer)
    checked = [program, "verify", "--man=no", str(unit), str(backup), str(timer)]
    done = subprocess.run(checked, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip()) == (0, "")
