"""Commands of agents in a pod of the level "restricted": which rung of the sandbox is left, and whether it confines.

A process is given what such a pod gives: user 10001 without a group of others, no capability, no new privileges, and a
filter that refuses namespaces and mounts as the runtimes' usual profile does
(https://github.com/containerd/containerd/blob/v2.1.0/contrib/seccomp/seccomp_default.go). It is no pod.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = 10001
pytestmark = [
    pytest.mark.machine,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may become user 10001"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the filter is written for x86-64"),
]

_REFUSED = {"umount2": 166, "mount": 165, "pivot_root": 155, "setns": 308, "unshare": 272}
_CLONE, _CLONE3, _NEW_NAMESPACES = 56, 435, 0x7E020000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _EPERM, _ENOSYS = 0x7FFF0000, 0x00050001, 0x00050026
_SET_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2


def _program() -> bytes:
    steps = [(_LOAD, 0, 0, 0)]
    for number in _REFUSED.values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _EPERM)]
    steps += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, _ENOSYS)]
    steps += [(_EQUAL, 0, 3, _CLONE), (_LOAD, 0, 0, 16), (_ANY_BIT, 0, 1, _NEW_NAMESPACES), (_RETURN, 0, 0, _EPERM)]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_void_p))


def _restrict() -> None:
    """Between fork and exec."""
    libc = ctypes.CDLL(None, use_errno=True)
    steps = _program()
    held = ctypes.create_string_buffer(steps, len(steps))
    made = _Filter(len(steps) // 8, ctypes.cast(held, ctypes.c_void_p))
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _FILTER, ctypes.byref(made)):
        raise OSError(ctypes.get_errno(), "the filter is not taken")


def _in_pod(home: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(home),
        "HERMES_HOME": str(home / "state"),
        "HERMES_SANDBOX": "require",
        "HERMES_SANDBOX_PROFILE": "tenant",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return subprocess.run(
        command, cwd=home / "work", env=environ, preexec_fn=_restrict, capture_output=True, text=True, timeout=100
    )


@pytest.fixture
def home() -> Iterator[Path]:
    """Where user 10001 may enter, as it may not where pytest has its directories."""
    with tempfile.TemporaryDirectory(prefix="hermes-pod-") as folder:
        directory = Path(folder)
        directory.chmod(0o755)
        (directory / "work").mkdir()
        for path in (directory, directory / "work"):
            os.chown(path, USER, USER)
        yield directory


def test_no_namespace_can_be_made(home: Path) -> None:
    ended = _in_pod(home, "unshare", "--user", "true")
    assert ended.returncode != 0
    assert "Operation not permitted" in ended.stderr


def _is_reached_by_others(path: Path) -> bool:
    real = path.resolve()
    return all(each.stat().st_mode & 0o001 for each in (real, *real.parents, *path.parents))


@pytest.mark.skipif(
    not _is_reached_by_others(Path(sys.executable)), reason="this Python is where user 10001 may not enter"
)
def test_commands_are_confined_by_landlock(home: Path) -> None:
    program = [sys.executable, "-P", "-m", "hermes_worker"]
    found = _in_pod(home, *program, "doctor").stdout
    [sandbox] = [line for line in found.splitlines() if line.split()[1:2] == ["sandbox"]]
    assert sandbox.split()[:3] == ["ok", "sandbox", "landlock"]
    assert "bubblewrap does not work here" in sandbox

    call = '{"name": "terminal", "arguments": {"command": "echo in > inside; echo out > ../outside; ls ../state"}}'
    ended = _in_pod(home, *program, "run", f'scripted: {{"steps": [{{"calls": [{call}]}}], "final": "done"}}')
    assert ended.returncode == 0, ended.stderr
    assert (home / "work" / "inside").read_text() == "in\n"
    assert not (home / "outside").exists()
