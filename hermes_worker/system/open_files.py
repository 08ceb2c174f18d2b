"""How many files and sockets this process may have open, and locks of open files."""

from __future__ import annotations

import fcntl
import resource
from typing import IO

_WANTED = 65_536


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to 65,536, or as far as the hard limit allows. Idempotent.

    Each reader of a stream and each model call in flight is a socket, and 1,024 is a common soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def try_lock(file: int | IO[str]) -> bool:
    """Lock an open file for this process alone, until it is closed; return false where another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
