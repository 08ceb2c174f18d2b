"""When this process collects garbage: hardly while it imports, and never among the objects that imports left. And how
something large is computed without a trace of what that took."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

_STARTING = 1_000_000
"""Modules make 300,000 objects that stay. To look through them once takes a twentieth of a start."""
_RUNNING = 10_000
"""New objects before the youngest are looked through: a step makes thousands that die by themselves."""


def collect_rarely() -> None:
    """Collect rarely from now on: the process starts and will import much."""
    gc.set_threshold(_STARTING, 10, 10)


def freeze_objects() -> None:
    """Keep all present objects out of every later search, since they stay. Idempotent.

    Nothing is collected before: one object in two hundred is garbage, and to find it takes 0.2 s of CPU.
    """
    gc.freeze()
    gc.set_threshold(_RUNNING, 10, 10)


def compute_apart(compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the JSON object that ``compute`` returns, computed in a forked process, so that the memory which that
    takes is given back. In a process with threads, which cannot be forked, and on other systems it is just called."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return compute()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reader)
            with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                json.dump(compute(), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(text) if status == 0 else compute()  # which raises what was wrong
    return found
