"""How workers and the daemon of a background process communicate: by files of one directory, which may be on a volume
that many machines mount. Each file is replaced as a whole, so no reader ever sees half of one.

``state``   what the daemon says of the process, again every two seconds
``log``     how many bytes the process wrote, a line end, and the last of them
``in``      a file for each thing that the process is to be told, in the order of their names
"""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from hermes_worker.core.errors import format_reason
from hermes_worker.workspaces.base import PathNotFound, WorkspaceError
from hermes_worker.workspaces.processes import INPUT_BYTES_MAX, ProcessLook, ProcessOrder, ProcessState

BEAT_S: Final = 2.0
"""Seconds between two signs of life of a daemon."""
_SILENCE_S: Final = 30.0
"""A daemon on another machine that was silent for so many seconds is gone."""
_START_S: Final = 30.0
_TICK_S: Final = 0.02
_WAITING_MAX: Final = 64
"""How many inputs may wait for a process to read them."""
_GONE: Final = ".gone"
"""The end of the name of a directory that is being removed."""
DATA, LAST, KILL = "data", "last", "kill"
"""The kinds of files in ``in``: input, the last input, an order to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOrder:
    """The order that a daemon reads from its standard input."""

    directory: Path
    workspace: Any
    """A ``LocalWorkspace``."""
    process: ProcessOrder


def start_daemon(directory: Path, workspace: Any, order: ProcessOrder) -> None:
    """Start a process and its daemon; returns when the daemon says that it runs, or that it has ended already. Raises
    ``WorkspaceError``."""
    try:
        directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700)
        (directory / "in").mkdir(mode=0o700)
    except FileExistsError as error:
        raise WorkspaceError(f"there is a process called {directory.name} already") from error
    except OSError as error:
        raise WorkspaceError(f"the process could not be started: {format_reason(error)}") from error
    given = pickle.dumps(DaemonOrder(directory=directory, workspace=workspace, process=order))
    try:
        daemon = subprocess.Popen(
            [sys.executable, "-I", "-m", "hermes_worker.workspaces.process_daemon.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Nothing of the worker's: its secrets are in its environment.
            env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            cwd="/",
            start_new_session=True,
        )
        # It reads all of it, and then detaches from us.
        daemon.communicate(given, timeout=_START_S)
    except (OSError, subprocess.SubprocessError) as error:
        remove_process(directory)
        raise WorkspaceError(f"the process could not be started: {error}") from error
    deadline = time.monotonic() + _START_S
    while not (directory / "state").exists():
        if time.monotonic() > deadline:
            remove_process(directory)
            raise WorkspaceError("the process could not be started: what was to watch it said nothing")
        time.sleep(_TICK_S)
    found = read_look(directory)
    if found.state is ProcessState.FAILED:
        remove_process(directory)
        raise WorkspaceError(found.note or "the process could not be started")


def read_look(directory: Path) -> ProcessLook:
    """Read what a background process is doing from the directory of its state. Raises ``PathNotFound``."""
    said = _read_state(directory)
    try:
        total, _, output = (directory / "log").read_bytes().partition(b"\n")
    except OSError:
        total, output = b"0", b""
    state, note = ProcessState(said["state"]), said.get("note")
    if state is ProcessState.RUNNING and not _has_living_daemon(said, directory):
        again = _read_state(directory)  # it may have ended between the two looks
        state, note = ProcessState(again["state"]), again.get("note")
        if state is ProcessState.RUNNING:
            state, note = ProcessState.LOST, "what watched the process was killed, or its machine went away"
        said = again
    return ProcessLook(
        state=state,
        output=output,
        total=int(total),
        exit_code=said.get("exit_code"),
        note=note,
        sandbox=said.get("sandbox"),
        network=said.get("network"),
    )


def write_input(directory: Path, data: bytes, *, is_last: bool) -> None:
    """Write input for a process. Raises ``PathNotFound``, ``WorkspaceError``."""
    if len(data) > INPUT_BYTES_MAX:
        raise WorkspaceError(f"at most {INPUT_BYTES_MAX} bytes can be written to a process at once")
    found = read_look(directory)
    if not found.is_running:
        raise WorkspaceError(f"the process reads nothing any more: it has {found.state.value.replace('_', ' ')}")
    if len(list((directory / "in").iterdir())) >= _WAITING_MAX:
        raise WorkspaceError("the process does not read what was written to it before")
    _enqueue_message(directory, LAST if is_last else DATA, data)


def order_end(directory: Path) -> None:
    """Order a process to end. Raises ``PathNotFound``."""
    if read_look(directory).is_running:
        _enqueue_message(directory, KILL, b"")


def remove_process(directory: Path) -> None:
    """Remove the directory of a process; its daemon ends the process when it finds that it is gone."""
    # Renamed first: a daemon that writes a file while the directory is being emptied would keep it, and its process.
    gone = directory.with_name(f".{directory.name}.{secrets.token_hex(4)}{_GONE}")
    with suppress(OSError):
        directory = directory.rename(gone)
    shutil.rmtree(directory, ignore_errors=True)


def remove_orphans(processes_dir: Path, names: Collection[str], known: Collection[str]) -> list[str]:
    """Remove the directories of ``names`` below ``processes_dir`` that are not ``known``, and thereby end their
    processes; return which. A directory whose removal was interrupted goes as well."""
    for left in processes_dir.glob(f".*{_GONE}"):
        shutil.rmtree(left, ignore_errors=True)
    strays = sorted(set(names) - set(known))
    for name in strays:
        remove_process(processes_dir / name)
    return strays


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file as a whole. Raises ``OSError``."""
    new = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    new.write_bytes(data)
    new.replace(path)


def describe_self(directory: Path) -> dict[str, Any]:
    """The identity of this process and of the directory that it minds, by which others recognise both."""
    pid = os.getpid()
    return {
        "pid": pid,
        "began": _read_start_ticks(pid),
        "machine": _read_machine_identity(),
        "directory": _read_inode(directory),
    }


def _enqueue_message(directory: Path, kind: str, data: bytes) -> None:
    try:
        replace_file(directory / "in" / f"{time.time_ns():020d}-{secrets.token_hex(4)}.{kind}", data)
    except OSError as error:
        raise WorkspaceError(f"the process cannot be told: {format_reason(error)}") from error


def _read_state(directory: Path) -> dict[str, Any]:
    try:
        said: dict[str, Any] = json.loads((directory / "state").read_bytes())
    except FileNotFoundError as error:
        raise PathNotFound(f"there is no process {directory.name!r} in this workspace") from error
    except (OSError, ValueError) as error:
        raise WorkspaceError(f"what is known of the process {directory.name!r} cannot be read") from error
    return said


def _has_living_daemon(said: dict[str, Any], directory: Path) -> bool:
    if said["machine"] == _read_machine_identity():
        # A daemon watches the directory that it was given, and not a copy of it that a restore made beside it.
        is_its_own = said.get("directory") in (None, _read_inode(directory))
        return is_its_own and bool(_read_start_ticks(said["pid"]) == said["began"])
    return bool(time.time() - said["beat"] < _SILENCE_S)


def _read_inode(directory: Path) -> int | None:
    """The inode number of a directory, which stays the same when it is renamed; ``None`` when it is gone."""
    try:
        return directory.stat().st_ino
    except OSError:
        return None


def _read_start_ticks(pid: int) -> int | None:
    """When a process of this machine began, in ticks; ``None`` when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@cache
def _read_machine_identity() -> str:
    """The identity of the machine, container or boot within which a process number means the same process."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    return os.uname().nodename
