"""Remove the directories that sessions were given, when they are not needed any more."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection
from pathlib import Path

from hermes_worker.observe import log

_OWN = re.compile(r"run_[0-9a-f]{32}")
"""The name of a session's own workspace, which is the id of the session (``ref.make_session_ref``)."""
_AT_ONCE = 100
_TOUCHED_S = 3600.0


def prune_workspaces(directory: Path, over: Callable[[Collection[str]], set[str]]) -> list[str]:
    """Remove the workspaces below ``directory`` of the sessions that are ``over`` among those asked for; return their
    sessions.

    Nothing else is touched, no link is followed, and no workspace is removed that was changed within the last hour.
    Idempotent; safe for several processes.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if _is_own(entry))
    except FileNotFoundError:
        return []
    removed = []
    for first in range(0, len(names), _AT_ONCE):
        removed += [name for name in sorted(over(names[first : first + _AT_ONCE])) if _remove(directory / name)]
    if removed:
        log.info("workspace.pruned", count=len(removed))
    return removed


def remove_workspaces(directory: Path, sessions: Collection[str]) -> list[str]:
    """Remove the workspaces below ``directory`` that these sessions were given, also one that was changed a moment ago;
    return their sessions. No link is followed. Idempotent.
    """
    own = [name for name in sorted(sessions) if _OWN.fullmatch(name) and (directory / name).is_dir()]
    return [name for name in own if not (directory / name).is_symlink() and _remove(directory / name)]


def is_own_name(name: str) -> bool:
    """Whether a workspace of this name is one that a session was given."""
    return _OWN.fullmatch(name) is not None


def _is_own(entry: os.DirEntry[str]) -> bool:
    is_own = is_own_name(entry.name) and entry.is_dir(follow_symlinks=False)
    return is_own and entry.stat(follow_symlinks=False).st_mtime < time.time() - _TOUCHED_S


def _remove(path: Path) -> bool:
    # Where the system has the calls for it, which every supported one does, this cannot be led outside by a link.
    shutil.rmtree(path, ignore_errors=True)
    return not path.exists()
