"""Read files that somebody else may have put there: a program, a user, a command that an agent ran. And replace one.

Behind the name of a file may be a FIFO without a writer, a device that never ends, a socket, or ten gigabytes of holes.
So a file is opened without waiting, it is looked at once it is open, and only a bounded part of it is read.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

# O_NONBLOCK: opening a FIFO would wait for a writer that never comes. O_NOCTTY: a terminal would become ours.
# Windows has none of the three.
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC"))
_NOTE_BYTES_MAX = 1_000_000


class NotPlain(OSError):
    """The path is neither a file nor a directory: a FIFO, a device, a socket."""


def open_plain(path: str | Path, *, folder: int | None = None, follows_links: bool = True) -> BinaryIO:
    """The regular file at ``path``, for reading; relative to the descriptor ``folder`` where one is given.

    Never waits. Without ``follows_links`` a link is refused, but only as the last part of the path. Raises
    ``NotPlain``, ``IsADirectoryError`` and what ``open`` raises.
    """
    descriptor = os.open(path, _FLAGS if follows_links else _FLAGS | os.O_NOFOLLOW, dir_fd=folder)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise NotPlain(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_plain(path: str | Path, *, bytes_max: int, folder: int | None = None, follows_links: bool = True) -> bytes:
    """Read the first ``bytes_max`` bytes of a regular file. Raises ``OSError``, such as ``NotPlain``. Ask for one byte
    more than you take to see whether there is more."""
    with open_plain(path, folder=folder, follows_links=follows_links) as file:
        return file.read(bytes_max)


def read_note(path: Path) -> str:
    """Read the beginning of a short text that the product wrote for itself. Raises ``OSError``, ``NotPlain`` where
    it is no regular file, and ``UnicodeDecodeError``."""
    return read_plain(path, bytes_max=_NOTE_BYTES_MAX).decode("utf-8")


def replace_text(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file in one step. A reader finds the old one or the new one, whatever dies. It has ``mode``; ``None``
    keeps the old mode, and a new file is for its owner alone, as are directories that are made. Raises ``OSError``.
    """
    if mode is None:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    import tempfile  # loaded by who writes

    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
