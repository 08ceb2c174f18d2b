"""Who runs on a home, and what it leaves for others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.patience import PATIENCE_S

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import (
    HomeBusy,
    StackNote,
    build_embedded_database_url,
    find_embedded_broker_url,
    find_running_stack,
    hold_home,
    prepare_home,
)

NOTE = StackNote(
    pid=4711,
    command="up",
    started_at=1_700_000_000.0,
    broker_url="redis://:secret@127.0.0.1:1/0",
    model="scripted",
    model_key="scripted",
    api_url="http://127.0.0.1:8642",
)

_HOLDER = """
import sys, time
from pathlib import Path
from hermes_worker.local.paths import StackNote, hold_home
with hold_home(Path(sys.argv[1])) as held:
    held.announce(StackNote(pid=1, command="up", started_at=0.0, broker_url="redis://x", model="m", model_key="m"))
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_home_without_a_stack_has_no_broker(tmp_path: Path) -> None:
    assert find_embedded_broker_url(tmp_path / "never-made") is None
    prepare_home(tmp_path)
    assert find_embedded_broker_url(tmp_path) is None


def test_others_find_the_broker_while_a_stack_runs_and_not_after(tmp_path: Path) -> None:
    with hold_home(tmp_path) as held:
        assert find_running_stack(tmp_path) is None  # it has not said where it is yet
        held.announce(NOTE)
        assert find_running_stack(tmp_path) == NOTE
        assert find_embedded_broker_url(tmp_path) == NOTE.broker_url
    assert find_embedded_broker_url(tmp_path) is None


def test_a_second_stack_is_told_who_holds_the_home(tmp_path: Path) -> None:
    with hold_home(tmp_path) as held:
        held.announce(NOTE)
        with (
            pytest.raises(HomeBusy, match=r"'hermes-worker up' \(pid 4711, .*http://127.0.0.1:8642"),
            hold_home(tmp_path),
        ):
            pass
    with hold_home(tmp_path):
        pass


def test_a_killed_stack_leaves_the_home_free_and_its_note_is_not_believed(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    assert find_embedded_broker_url(tmp_path) == "redis://x"
    holder.send_signal(signal.SIGKILL)
    holder.wait()

    assert find_embedded_broker_url(tmp_path) is None
    with hold_home(tmp_path):
        assert find_running_stack(tmp_path) is None


def test_a_child_of_a_dead_stack_does_not_hold_the_home(tmp_path: Path) -> None:
    with hold_home(tmp_path):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, close_fds=False)
    try:
        with hold_home(tmp_path):
            pass
    finally:
        child.communicate(b"\n")


def test_looking_does_not_keep_a_stack_from_starting(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    looker = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys\nfrom pathlib import Path\nfrom hermes_worker.local.paths import find_running_stack\n"
            "print('looking', flush=True)\nwhile True: find_running_stack(Path(sys.argv[1]))",
            str(tmp_path),
        ],
        stdout=subprocess.PIPE,
    )
    assert looker.stdout is not None
    looker.stdout.readline()
    try:
        for _ in range(20):
            with hold_home(tmp_path):
                pass
    finally:
        looker.kill()
        looker.wait()


def test_the_note_can_be_read_by_its_owner_only(tmp_path: Path) -> None:
    with hold_home(tmp_path) as held:
        held.announce(NOTE)
        assert (tmp_path / "run" / "stack.json").stat().st_mode & 0o077 == 0


def test_a_note_that_cannot_be_read_is_an_error_with_a_way_out(tmp_path: Path) -> None:
    with hold_home(tmp_path):
        (tmp_path / "run" / "stack.json").write_text("{")
        with pytest.raises(ConfigurationError, match="stop the hermes-worker"):
            find_running_stack(tmp_path)


@pytest.mark.parametrize("name", ["plain", "with space", "per%20cent", "q?x=1#y", "ünï"])
def test_the_database_url_means_the_file_in_the_home_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    home = tmp_path / name
    assert sa.make_url(build_embedded_database_url(home)).database == str(home / "hermes-worker.db")


def test_a_file_where_the_home_should_be_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(ConfigurationError, match=r"cannot be used .*--home") as caught:
        prepare_home(tmp_path / "home")
    assert "\n" not in str(caught.value)


def test_preparing_a_home_leaves_no_probe_behind(tmp_path: Path) -> None:
    prepare_home(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["logs", "run", "workspaces"]
    assert list((tmp_path / "run").iterdir()) == []


def test_many_who_start_at_once_make_one_stack(tmp_path: Path) -> None:
    starters = [
        subprocess.Popen([sys.executable, "-c", _HOLDER, str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while sum(starter.poll() is None for starter in starters) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert sum(starter.poll() is None for starter in starters) == 1
    finally:
        for starter in starters:
            if starter.poll() is None:
                os.kill(starter.pid, signal.SIGKILL)
            starter.communicate()


def test_an_existing_home_and_its_files_are_closed_to_other_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "logs").mkdir(parents=True)
    for name in ("hermes-worker.db", ".env", "notes of the user"):
        (home / name).write_text("")
        (home / name).chmod(0o644)
    home.chmod(0o755)
    (home / "run").mkdir(mode=0o755)
    (tmp_path / "elsewhere").mkdir(mode=0o755)
    (home / "cron").symlink_to(tmp_path / "elsewhere")

    prepare_home(home)

    modes = {path.name: path.lstat().st_mode & 0o777 for path in home.iterdir() if not path.is_symlink()}
    assert home.stat().st_mode & 0o777 == 0o700
    assert modes.pop("notes of the user") == 0o644
    assert not [name for name, mode in modes.items() if mode & 0o077]
    assert (tmp_path / "elsewhere").stat().st_mode & 0o777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o2770, False)])
def test_the_home_of_somebody_else_is_refused_when_every_user_can_enter_it(mode: int, is_refused: bool) -> None:
    home = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(home, 0, 65534)
    home.chmod(mode)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        try:
            prepare_home(home)
            os.write(writer, b"taken")
        except ConfigurationError as error:
            os.write(writer, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    said = os.read(reader, 10_000).decode()
    os.close(reader)
    shutil.rmtree(home)
    assert ("have its owner run" in said and str(home) in said) if is_refused else said == "taken"
