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


def measure_room(path: str | bytes) -> tuple[int, int | None]:
    """How many bytes, and how many files, this user may still write to the disk of ``path``; ``None`` for files where
    the file system does not count them. Raises ``OSError``."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None


def measure_free_bytes(path: str | bytes) -> int:
    """What this user may still write to the disk of ``path``. No free files count as no space. Raises ``OSError``."""
    bytes_left, files_left = measure_room(path)
    return bytes_left if files_left is None else min(bytes_left, files_left * FILE_BYTES_MIN)


class Content:
    """What a directory was found to hold, and how long that is good enough to know."""

    def __init__(self, root: str | bytes, held_bytes: int) -> None:
        """``held_bytes`` is what a walk has just found."""
        self.bytes = held_bytes
        self._root = root
        self._room = _find_room(root)

    def may_have_outgrown(self, bytes_max: int) -> bool:
        """Whether so much was written to the disk since, by whomever, that it could matter to ``bytes_max``. What
        cannot be looked at may hold anything."""
        return self._measure_written() > (bytes_max - self.bytes) / 2

    def _measure_written(self) -> float:
        now = _find_room(self._root)
        if self._room is None or now is None:
            return float("inf")
        (bytes_before, files_before), (bytes_left, files_left) = self._room, now
        # Empty files take no bytes of a disk, only files.
        files = 0 if files_before is None or files_left is None else files_before - files_left
        return max(bytes_before - bytes_left, files * FILE_BYTES_MIN)


def _find_room(path: str | bytes) -> tuple[int, int | None] | None:
    try:
        return measure_room(path)
    except OSError:
        return None  # gone, or not ours to look at


class Walk:
    """Adds up what is below ``root``, a step at a time. What comes and goes meanwhile may be missed."""

    def __init__(self, root: str | bytes) -> None:
        self.bytes = 0
        self._links: set[tuple[int, int]] = set()
        self._steps = self._walk(root)

    def step(self) -> bool:
        """Look at some more entries; return whether those were the last."""
        return next(self._steps, True)

    def finish(self, deadline: float) -> bool:
        """Walk to the end, or until ``deadline`` (``time.monotonic``); return whether the end was reached."""
        while not self.step():
            if time.monotonic() >= deadline:
                return False
        return True

    def _walk(self, root: str | bytes) -> Iterator[bool]:
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
        self._content: Content | None = None
        self._next_at = 0.0

    @property
    def is_walking(self) -> bool:
        return self._walk is not None

    def is_full(self) -> bool:
        """Whether the disk is."""
        return bool(self._free_bytes_min) and self._measure_free_bytes() < self._free_bytes_min

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
            self._content = Content(self._root, self._walk.bytes)
            self._next_at = now + max(_EVERY_S, _SHARE_OF_TIME * (now - self._walk_began))
            self._walk = None
        return False

    def _is_due(self) -> bool:
        if self._content is None or time.monotonic() >= self._next_at:
            return True
        return self._content.may_have_outgrown(self._bytes_max)

    def _measure_free_bytes(self) -> int:
        try:
            return measure_free_bytes(self._root)
        except OSError:
            return 1 << 62  # gone, or not ours to look at
