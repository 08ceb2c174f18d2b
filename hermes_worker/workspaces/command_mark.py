"""The mark of an agent's commands, by which our own command line knows that it was called from one.

Theory of operation. A variable can be unset, so it is only the first sign. The second is a resource limit that no
kernel since 2.4.25 looks at (the number of file locks, ``RLIMIT_LOCKS``): set to 0 it changes nothing, every child has
it too, and only a process with CAP_SYS_RESOURCE can raise it again, which no process in a sandbox has. Root without a
sandbox can. So the third sign is a worker among the processes above. None of them is the wall: that is the hidden home,
and the key of the API.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

MARK_VARIABLE: Final = "HERMES_INSIDE_COMMAND"
"""Set for every command that may not call us."""
MARK_LIMIT: Final = 10
"""RLIMIT_LOCKS, which Python has no name for."""
MARK_LETTER: Final = "x"
"""The letter of that limit in bash's ``ulimit``."""
_OPEN: Final = ", agents may call hermes-worker"
_WORKERS = ("hermes-worker: worker ", "hermes-worker: lane ")
_DEPTH_MAX = 64


def build_worker_title(role: str, *, may_call_us: bool) -> str:
    """The title of a process that runs commands. It says whether they may call us; a command cannot change the title of
    a process above it.
    """
    return f"{role}{_OPEN}" if may_call_us else role


def is_marked() -> bool:
    """Whether this process has the limit of an agent's command, from itself or from a process above it. Linux only."""
    if sys.platform == "win32":
        return False
    import resource

    try:
        return resource.getrlimit(MARK_LIMIT)[1] == 0
    except (ValueError, OSError):
        return False  # no Linux


def is_below_worker() -> bool:
    """Whether a worker that does not allow it is among the processes above this one. Linux only."""
    pid = os.getppid()
    for _ in range(_DEPTH_MAX):
        if pid <= 1:
            return False
        try:
            title = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode("utf-8", "replace")
            parent = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1]
        except (OSError, IndexError):
            return False  # it has ended, or it is not ours to see
        if title.startswith(_WORKERS):
            return not title.endswith(_OPEN)
        pid = int(parent)
    return False
