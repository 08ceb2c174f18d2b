"""Find the files of a workspace that hold variables with secrets (``.env`` and its like), so that their values can be
hidden in results. No tool shows these files; a command that an agent runs may read them, and print what it read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from hermes_worker.system.plainfiles import NotPlain, read_plain
from hermes_worker.workspaces.protection import is_env_file

_DEPTH: Final = 2
"""How many levels of folders below the root are looked into."""
_ENTRIES_MAX: Final = 4_000
_FILES_MAX: Final = 32
_BYTES_MAX: Final = 65_536
_SKIPPED: Final = frozenset({".git", "node_modules", ".venv", "venv", "__pycache__", "hermes-results"})


def read_env_texts(root: str) -> tuple[str, ...]:
    """The texts of the environment files of ``root`` and of the folders below it, two deep. No link is followed, and
    files that cannot be read are left out.
    """
    found: list[str] = []
    for path in _find_env_files(root):
        with suppress(OSError, NotPlain):
            found.append(read_plain(path, bytes_max=_BYTES_MAX, follows_links=False).decode("utf-8", "replace"))
        if len(found) == _FILES_MAX:
            break
    return tuple(found)


def _find_env_files(root: str) -> Iterator[str]:
    waiting, left = [(root, 0)], _ENTRIES_MAX
    while waiting:
        folder, depth = waiting.pop(0)
        try:
            entries = os.scandir(folder)
        except OSError:
            continue
        with entries:
            for entry in entries:
                left -= 1
                if left < 0:
                    return
                if is_env_file(entry.name) and _is_plain(entry):
                    yield entry.path
                elif depth < _DEPTH and entry.name not in _SKIPPED and _is_folder(entry):
                    waiting.append((entry.path, depth + 1))


def _is_plain(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:
        return False
