from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from support.patience import PATIENCE_S

from hermes_worker.workspaces.guardian import guardian
from hermes_worker.workspaces.local import LocalWorkspace

WORKER = """
import sys
from hermes_worker.workspaces.local import LocalWorkspace
workspace = LocalWorkspace(sys.argv[1], base_env={"PATH": "/usr/bin:/bin"})
workspace.execute(sys.argv[2], cwd=None, env={}, timeout_s=1000, output_bytes_max=1000, should_stop=lambda: False)
"""
PROJECT = Path(__file__).parents[2]


def _gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _worker(root: Path, command: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", WORKER, str(root), command], cwd=PROJECT, stdin=subprocess.DEVNULL)


@pytest.mark.faults
@pytest.mark.parametrize(
    "command",
    [
        "echo $BASHPID > pid; while :; do sleep 0.05; done",
        "sleep 1000 & echo $! > pid; wait",
        "setsid sleep 1000 & echo $! > pid; wait",
        "set -m; sleep 1000 & echo $! > pid; wait",
    ],
    ids=["shell", "child", "other-session", "other-group"],
)
def test_the_commands_of_a_killed_worker_die_with_it(tmp_path: Path, command: str) -> None:
    worker = _worker(tmp_path, command)
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
        assert worker.poll() is None
        time.sleep(0.01)
    pid = int(pid_file.read_text())
    assert not _gone(pid)

    worker.kill()
    worker.wait()

    deadline = time.monotonic() + PATIENCE_S
    while not _gone(pid):
        assert time.monotonic() < deadline, "the command outlived its worker"
        time.sleep(0.01)


def test_a_worker_that_ends_in_order_leaves_no_companion(tmp_path: Path) -> None:
    worker = _worker(tmp_path, "touch begun; until [ -e go ]; do sleep 0.01; done")
    while not (tmp_path / "begun").exists():
        assert worker.poll() is None
        time.sleep(0.01)
    children = psutil.Process(worker.pid).children()
    companions = [child.pid for child in children if any("hermes-guardian" in part for part in child.cmdline())]
    (tmp_path / "go").touch()
    assert worker.wait() == 0
    assert len(companions) == 1
    assert _gone(companions[0])


def _echo(workspace: LocalWorkspace) -> bytes:
    result = workspace.execute(
        "echo hi", cwd=None, env={}, timeout_s=10, output_bytes_max=100, should_stop=lambda: False
    )
    return result.output


def test_a_companion_that_was_killed_is_replaced(workspace: LocalWorkspace) -> None:
    assert _echo(workspace) == b"hi\n"
    first = guardian._companion
    assert first is not None
    first.kill()
    first.wait()
    assert _echo(workspace) == b"hi\n"
    assert guardian._companion is not None
    assert guardian._companion.pid != first.pid


def test_a_forked_worker_has_a_companion_of_its_own(workspace: LocalWorkspace, root: Path) -> None:
    assert _echo(workspace) == b"hi\n"
    parents = guardian._companion
    assert parents is not None
    child = os.fork()
    if child == 0:
        try:
            _echo(workspace)
            companion = guardian._companion
            (root / "child").write_text(f"{companion.pid if companion else None}")
            guardian.stop()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert int((root / "child").read_text()) != parents.pid
    assert parents.poll() is None
    assert _echo(workspace) == b"hi\n"
