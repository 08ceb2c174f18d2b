"""What a process leaves on the disk goes with it, or with the next one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.confined import working

from hermes_worker.system import own_folders
from hermes_worker.system.own_folders import (
    find_left_folders,
    get_temporary_place,
    make_temporary_folder,
    open_own_folder,
    remove_left_folders,
    temporary_folder,
)
from hermes_worker.tasks.maintenance import remove_left_on_machine

_HOLDER = """
import sys
from pathlib import Path
from hermes_worker.system.own_folders import open_own_folder
own = open_own_folder(Path(sys.argv[1]))
(own.path / "data").write_bytes(b"x" * 1000)
print(own.path, flush=True)
sys.stdin.read()
"""
_COMMAND = """
import sys
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.sandbox.landlock import LandlockRung
from hermes_worker.workspaces.sandbox.backends import Sandbox
from hermes_worker.workspaces.sandbox.policy import SandboxMode, SandboxPolicy
sandbox = Sandbox(SandboxMode.REQUIRE, SandboxPolicy(), [LandlockRung()])
here = LocalWorkspace(sys.argv[1], base_env={"PATH": "/usr/bin:/bin"}, hermes_home="", sandbox=sandbox)
here.execute("echo $TMPDIR > started; head -c 1000 /dev/zero > $TMPDIR/data; mv started said; sleep 600",
             cwd=None, env={}, timeout_s=600, output_bytes_max=1000, should_stop=lambda: False)
"""


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def test_the_folder_of_a_process_that_was_killed_is_counted_and_removed_and_no_other(tmp_path: Path) -> None:
    killed, alive = _start(_HOLDER, str(tmp_path)), _start(_HOLDER, str(tmp_path))
    assert killed.stdout is not None and alive.stdout is not None
    gone, there = Path(killed.stdout.readline().strip()), Path(alive.stdout.readline().strip())
    try:
        assert find_left_folders(tmp_path) == (0, 0)
        _kill(killed)

        assert find_left_folders(tmp_path) == (1, 1000)
        assert remove_left_folders(tmp_path) == 1
        assert (gone.exists(), there.exists()) == (False, True)
        assert remove_left_folders(tmp_path) == 0
    finally:
        _kill(alive)


def test_the_next_process_removes_what_the_one_before_left(tmp_path: Path) -> None:
    killed = _start(_HOLDER, str(tmp_path))
    assert killed.stdout is not None
    gone = Path(killed.stdout.readline().strip())
    _kill(killed)

    own = open_own_folder(tmp_path)
    own.lock.close()
    assert not gone.exists() and own.path.exists()


def test_a_place_that_somebody_else_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "place").symlink_to(tmp_path / "there")
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        open_own_folder(tmp_path / "place")


def test_a_forked_child_has_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_folders, "_of_process", {})
    monkeypatch.setattr(own_folders.tempfile, "tempdir", str(tmp_path))
    mine = Path(make_temporary_folder("a-")).parent
    pid = os.fork()
    if pid == 0:
        os._exit(0 if Path(make_temporary_folder("b-")).parent != mine and mine.exists() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with temporary_folder("c-") as folder:
        assert Path(folder).parent == mine
    assert not Path(folder).exists()


def test_the_temporary_folder_of_a_command_goes_with_a_later_start_when_its_worker_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working("landlock")
    temporary, workspace = tmp_path / "tmp", tmp_path / "workspace"
    temporary.mkdir()
    workspace.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setattr(own_folders.tempfile, "tempdir", str(temporary))
    worker = _start(_COMMAND, str(workspace))
    said = workspace / "said"
    while not said.exists():
        assert worker.poll() is None
    folder = Path(said.read_text().strip())
    assert get_temporary_place() in folder.parents
    _kill(worker)

    assert find_left_folders(get_temporary_place()).bytes >= 1000
    assert remove_left_on_machine(tmp_path / "home") == 1
    assert not folder.exists()
