"""Folders for what a process needs on the disk while it lives, and not a moment longer.

A process that is killed removes nothing. So its files must have an owner that a later process can name: each process
has one folder below a place that all of them know, and holds a lock in it while it lives. A process that finds a folder
whose lock is free removes it (``remove_left_folders``). The kernel frees the lock, so a process number that was given
out again cannot mislead anything.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

if sys.platform != "win32":
    import fcntl

_LOCK = "lock"


class LeftFolders(NamedTuple):
    """The folders that ended processes have left."""

    folders: int
    bytes: int


class OwnFolder(NamedTuple):
    """The folder of a process, and the lock that says that the process lives."""

    path: Path
    lock: IO[bytes]


def open_own_folder(place: Path) -> OwnFolder:
    """Make a folder below ``place`` for this process, and remove those of processes that are gone. Raises ``OSError``,
    also where ``place`` is not this user's alone.
    """
    _require_private(place)
    remove_left_folders(place)
    while True:
        own = place / f"{os.getpid()}-{secrets.token_hex(4)}"
        own.mkdir(mode=0o700)
        lock = (own / _LOCK).open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (own / _LOCK).exists():  # else another process took it for left, before it was locked
            return OwnFolder(own, lock)
        lock.close()


def remove_left_folders(place: Path) -> int:
    """Remove the folders below ``place`` whose processes are gone, and return their number. Idempotent."""
    removed = 0
    for folder in _find_left_folders(place):
        shutil.rmtree(folder, ignore_errors=True)
        removed += 1
    return removed


def find_left_folders(place: Path) -> LeftFolders:
    """Count the folders below ``place`` whose processes are gone, and their bytes."""
    sizes = [_measure_size_below(folder) for folder in _find_left_folders(place)]
    return LeftFolders(len(sizes), sum(sizes))


def get_temporary_place() -> Path:
    """The directory below which the processes of this user have their folders."""
    return Path(tempfile.gettempdir()) / f"hermes-worker-{os.geteuid()}-processes"


def make_temporary_folder(prefix: str) -> str:
    """Make a folder that a later process of this user removes if this one cannot; this one should. Raises
    ``OSError``."""
    with _lock:
        own = _of_process.get(os.getpid())
        if own is None or not own.path.is_dir():
            own = _open_temporary()
            _of_process.clear()  # what a parent holds is the parent's
            _of_process[os.getpid()] = own
            atexit.register(_remove_place, own.path, os.getpid())
    return tempfile.mkdtemp(prefix=prefix, dir=own.path)


def _open_temporary() -> OwnFolder:
    try:
        return open_own_folder(get_temporary_place())
    except PermissionError:
        # In a namespace of users another one's folder has our name. No later process finds a place of our own.
        place = Path(tempfile.mkdtemp(prefix="hermes-worker-"))
        atexit.register(_remove_place, place, os.getpid())
        return open_own_folder(place)


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """A folder that is removed at the end of the block, or by a later process where this one is killed in it."""
    folder = make_temporary_folder(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_of_process: dict[int, OwnFolder] = {}
_lock = threading.Lock()


def _require_private(place: Path) -> None:
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise PermissionError(f"{str(place)!r} belongs to somebody else; remove it, or set TMPDIR to another directory")
    place.chmod(0o700)


def _find_left_folders(place: Path) -> Iterator[Path]:
    """Yield the folders whose lock is free. The caller has each lock until it asks for the next one."""
    with suppress(OSError):
        for folder in sorted(place.iterdir()):
            with suppress(OSError), (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                yield folder


def _measure_size_below(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total


def _remove_place(path: Path, pid: int) -> None:
    """Remove a folder at the end of the process that made it, and not at that of a forked child."""
    if os.getpid() == pid:
        shutil.rmtree(path, ignore_errors=True)
