"""How much disk a workspace takes, and whether its disk is nearly full: looked at while a command runs.

Asking the file system what is free costs microseconds and is done all the time. Walking through a workspace is not, so
it is done a little at a time, and anew only when the file system has become fuller by enough to matter, or after a
while that grows with what the last walk took.

A file counts as what it takes on the disk, holes not among it, and as at least ``FILE_BYTES_MIN``: a million empty
files are a burden, too.
"""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

FILE_BYTES_MIN = 16 * 1024
_AT_A_TIME = 2000
_EVERY_S = 5.0
_SHARE_OF_TIME = 20
"""Walking may take this part of the time."""


def free_bytes(path: str | bytes) -> int:
    """What this user may still write to the disk of ``path``. No free inodes count as no space. Raises ``OSError``."""
    found = os.statvfs(path)
    free = found.f_bavail * found.f_frsize
    # Some file systems do not count files.
    return min(free, found.f_favail * FILE_BYTES_MIN) if found.f_files else free


def left_of(path: str | bytes) -> tuple[int, int]:
    """How many bytes, and how many files, this user may still write to the disk of ``path``; nothing of a disk that
    is gone, and no files where the file system does not count them."""
    try:
        found = os.statvfs(path)
    except OSError:
        return 0, 0
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else 0


class Walk:
    """Adds up what is below ``root``, a step at a time. What comes and goes meanwhile may be missed."""

    def __init__(self, root: str | bytes) -> None:
        self.bytes = 0
        self._links: set[tuple[int, int]] = set()
        self._steps = self._walked(root)

    def step(self) -> bool:
        """Look at some more; whether that was the end."""
        return next(self._steps, True)

    def finished(self, deadline: float) -> bool:
        """Go on to the end, or until ``deadline`` (``time.monotonic``); whether it is the end."""
        while not self.step():
            if time.monotonic() >= deadline:
                return False
        return True

    def _walked(self, root: str | bytes) -> Iterator[bool]:
        waiting: list[Any] = [root]
        seen = 0
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        self._add(entry, waiting)
                        seen += 1
                        if seen % _AT_A_TIME == 0:
                            yield False
            except OSError:
                continue  # gone meanwhile, or not ours to look at

    def _add(self, entry: os.DirEntry[Any], waiting: list[Any]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)
        except OSError:
            return
        if found.st_nlink > 1 and not entry.is_dir(follow_symlinks=False):
            file = (found.st_dev, found.st_ino)
            if file in self._links:
                return
            self._links.add(file)
        self.bytes += max(found.st_blocks * 512, FILE_BYTES_MIN)


class Watch:
    """Watches one directory while a command may write to it."""

    def __init__(self, root: str | bytes, *, bytes_max: int, free_bytes_min: int) -> None:
        """0 is no limit. A directory that holds more than ``bytes_max`` already may not grow."""
        self._root = root
        self._bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._walk: Walk | None = None
        self._walk_began = 0.0
        self._known = 0
        self._left_when_known = (0, 0)
        self._next_at = 0.0

    @property
    def is_walking(self) -> bool:
        return self._walk is not None

    def is_full(self) -> bool:
        """Whether the disk is."""
        return bool(self._free_bytes_min) and self._free() < self._free_bytes_min

    def is_over(self) -> bool:
        """Whether the directory is known to hold more than it may. Takes some milliseconds at most."""
        if not self._bytes_max:
            return False
        if self._walk is None and self._is_due():
            self._walk, self._walk_began = Walk(self._root), time.monotonic()
        if self._walk is None:
            return False
        # What is found so far is there, too.
        is_finished = self._walk.step()
        if self._walk.bytes > self._bytes_max:
            return True
        if is_finished:
            now = time.monotonic()
            self._known, self._left_when_known = self._walk.bytes, left_of(self._root)
            self._next_at = now + max(_EVERY_S, _SHARE_OF_TIME * (now - self._walk_began))
            self._walk = None
        return False

    def _is_due(self) -> bool:
        bytes_left, files_left = self._left_when_known
        now_left = left_of(self._root)
        # Empty files take no bytes of a disk, only files.
        written = max(bytes_left - now_left[0], (files_left - now_left[1]) * FILE_BYTES_MIN)
        return time.monotonic() >= self._next_at or written > (self._bytes_max - self._known) / 2

    def _free(self) -> int:
        try:
            return free_bytes(self._root)
        except OSError:
            return 1 << 62  # gone, or not ours to look at
