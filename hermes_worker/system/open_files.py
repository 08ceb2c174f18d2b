"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource

_WANTED = 65_536


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to 65,536, or as far as the hard limit allows. Idempotent.

    Each reader of a stream and each model call in flight is a socket, and 1,024 is a common soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
