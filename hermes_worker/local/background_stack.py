"""A stack in the background: its log, its process, and how it is ended.

Theory of operation. Whether a stack runs is said by the lock of its home (``paths``), which the kernel takes back
however it dies, and never by a number in a file. A number of a process may be another's by the time that it is read. So
a command that signals a stack takes hold of the process first (a pidfd), and then looks whether the lock is still held
and the note still names that number, and whether the process is as old as the note says. The process that it took hold
of is then the stack, and stays it.

The log is opened for appending by every process of the stack, and they keep it open. So it is not renamed when it has
grown: its content is copied aside and it is made empty, by the process that writes nearly all lines. The log of the
embedded broker, which opens it for every line, is kept small in the same way.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil

from hermes_worker.core.errors import HermesError
from hermes_worker.local.paths import StackNote, find_running_stack, get_logs_dir, is_held
from hermes_worker.local.process import list_child_processes

LOG_BYTES_MAX = 10_000_000
LOGS_KEPT = 5
"""How many logs are kept beside the one that is written."""
_OLDER_S = 2.0
"""A process begins before its note is written; clocks that count from the start of the machine are this exact."""
_LOOK_EVERY_S = 0.1
_READ_BYTES = 65_536


class NoStack(HermesError):
    """No stack runs on a home."""


def get_log_path(home: Path) -> Path:
    """The file to which a stack in the background writes what it would show in a terminal."""
    return get_logs_dir(home) / "up.log"


def get_broker_log_path(home: Path) -> Path:
    """The log of the embedded broker."""
    return get_logs_dir(home) / "valkey.log"


class StackLog:
    """A log of a stack that is kept small."""

    def __init__(self, path: Path, *, bytes_max: int = LOG_BYTES_MAX, kept: int = LOGS_KEPT) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._kept = kept

    def open(self) -> int:
        """A descriptor to append with; the file is for its owner alone. Raises ``OSError``."""
        return os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def keep_small(self) -> None:
        """Put a log aside that has grown too long, and drop the oldest one. Never raises: a full disk ends no stack."""
        with contextlib.suppress(OSError):
            if self._path.stat().st_size >= self._bytes_max:
                self._put_aside()

    def _put_aside(self) -> None:
        for number in range(self._kept - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._get_older_path(number).replace(self._get_older_path(number + 1))
        shutil.copyfile(self._path, self._get_older_path(1))
        self._get_older_path(1).chmod(0o600)
        os.truncate(self._path, 0)

    def _get_older_path(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def read_log_end(path: Path, count: int) -> tuple[list[bytes], int]:
    """The last whole lines of a log, and the position behind them, for reading on. Raises ``FileNotFoundError``."""
    text = path.read_bytes()
    place = text.rfind(b"\n") + 1
    found = text[:place].splitlines()
    before = path.with_name(f"{path.name}.1")
    if len(found) < count and before.exists():
        found = [*before.read_bytes().splitlines(), *found]
    return found[len(found) - count :] if count < len(found) else found, place


def follow_lines(path: Path, place: int, is_over: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the lines of a log behind ``place``, and those that are added, until ``is_over`` and all is read."""
    begun = b""
    with path.open("rb") as file:
        while True:
            was_over = is_over()
            if path.stat().st_size < place:  # it was put aside
                with path.with_name(f"{path.name}.1").open("rb") as older:
                    older.seek(place)
                    begun += older.read()
                place = 0
            file.seek(place)
            data = file.read(_READ_BYTES)
            place += len(data)
            *lines, begun = (begun + data).split(b"\n")
            yield from lines
            if not data and was_over:
                return
            if not data:
                time.sleep(_LOOK_EVERY_S)


class RunningStack:
    """The stack of a home, held so that its number cannot come to mean another process. Raises ``NoStack`` where none
    runs.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.note, self._process = _hold_stack(home)

    def __enter__(self) -> RunningStack:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._process)

    def signal(self, number: int) -> None:
        """Send a signal; a stack that has ended gets none. Idempotent."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._process, number)

    @property
    def is_running(self) -> bool:
        """Whether the stack runs: true until it has released its home."""
        try:
            signal.pidfd_send_signal(self._process, 0)
        except ProcessLookupError:
            return False
        return is_held(self.home)

    def list_parts(self) -> list[str]:
        """The roles of its processes that run, as ``ps`` names them."""
        children = list_child_processes(self.note.pid, recursive=True)
        return sorted({name for child in children for name in _list_roles(child)})


def _hold_stack(home: Path) -> tuple[StackNote, int]:
    note = find_running_stack(home)
    if note is None:
        raise NoStack(f"no hermes-worker runs on {str(home)!r}")
    try:
        process = os.pidfd_open(note.pid)
    except ProcessLookupError:
        raise NoStack(f"no hermes-worker runs on {str(home)!r}") from None
    # Only now that no other process can get its number does the lock under this note mean anything.
    if find_running_stack(home) == note and _is_old_enough(note):
        return note, process
    os.close(process)
    raise NoStack(f"the hermes-worker on {str(home)!r} is starting or stopping; try again in a moment")


def _is_old_enough(note: StackNote) -> bool:
    try:
        return psutil.Process(note.pid).create_time() <= note.started_at + _OLDER_S
    except psutil.Error:
        return False


def _list_roles(process: psutil.Process) -> Sequence[str]:
    try:
        words = process.cmdline()
    except psutil.Error:
        return ()
    # A title that fills its room to the last byte is read as one word, else as one for each of its words.
    title = " ".join(words)
    prefix = "hermes-worker: "
    if title.startswith(prefix):
        return title.removeprefix(prefix).strip().split(" and ")
    # A server that names itself has one word, with its arguments.
    return [Path(words[0].partition(" ")[0]).name] if words else ()
