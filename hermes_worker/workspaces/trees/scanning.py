"""Read the files of a workspace as a tree of objects, while a hostile command may be changing them.

Theory of operation. Folders are walked by descriptors and no link is followed: a link is kept as the text that it is. A
file is opened without following a link or waiting, looked at, and read up to a limit. What was read of a file is
remembered beside what the system said of it (times, size, number, mode); a file of which it says the same again is not
read. A command can set the time of a change (``mtime``) but not that of the last change to the entry (``ctime``), so it
cannot hide one. A file that was changed in the moment of a scan may be changed again without any of the figures moving;
so what is younger than two seconds is read again the next time.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from hermes_worker.system.plainfiles import open_plain, read_plain
from hermes_worker.workspaces.descriptors import FOLDER_FLAGS
from hermes_worker.workspaces.trees.objects import (
    EMPTY_FOLDER,
    EXECUTABLE,
    FILE,
    FOLDER,
    LINK,
    PARTS,
    ChangedFile,
    ObjectStore,
    ObjectWriter,
    TreeEntry,
    encode_tree,
)

_YOUNG_NS: Final = 2_000_000_000

Known = dict[str, Any]
"""The memory of an earlier scan, by the path of a folder: its tree, what the system said of its files (empty where that
proves nothing), their objects (``None`` where they are left out), and its folders. A scan makes a new one, and shares
with the old what did not change.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRules:
    """What a scan takes of a workspace."""

    files_max: int
    """A workspace with more files is not scanned."""
    depth_max: int
    """Folders between the workspace and a file; deeper ones are left out."""
    left_out_max: int
    """How many names of files that were left out are kept."""
    ignores_file: Callable[[str], bool] = lambda name: False
    ignores_folder: Callable[[str], bool] = lambda name: False
    is_whole: bool = False
    """Empty folders and the times of files are kept as well."""
    part_bytes: int = 0
    """A larger file is kept in parts of this size; 0 keeps every file whole."""


class NotScanned(Exception):
    """The workspace cannot be kept as a whole; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanMemory:
    """The memory of a workspace's last scan, for the next one. It may be lost at any time."""

    folders: Known = field(default_factory=dict)
    listing: Mapping[str, Any] = field(default_factory=dict)
    """The memory of ``host_files`` beside the folders."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOrder:
    """The inputs of a scan."""

    objects: ObjectStore
    memory: ScanMemory
    now_ns: int
    """The time by the clock of this machine's file system, as far as it is known."""
    file_bytes_max: int
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """The result of a scan."""

    tree_id: str
    files: int
    left_out: tuple[str, ...]
    left_out_total: int
    memory: ScanMemory | None
    """The new memory; ``None`` when it is the old one."""


class WorkspaceFiles(Protocol):
    """The files of a workspace, on any host, as checkpoints see them."""

    def holds(self, directory: Path) -> bool:
        """Whether a directory of this machine is among them."""

    def require_there(self) -> None:
        """Raise ``NotScanned`` where the workspace does not exist."""

    def scan(self, order: ScanOrder) -> ScanResult:
        """Read what changed. Raises ``NotScanned``, ``OSError``."""

    def put_back(
        self, changes: Sequence[ChangedFile], content: Callable[[str], bytes], *, umask: int | None
    ) -> dict[str, str]:
        """Give each file its state ``after``; return the paths that failed, and why. Files to remove come first: a
        folder may have to stand where one was. ``content`` raises ``StoreDamaged``.
        """


@dataclass(slots=True)
class FolderScan:
    """One walk over a workspace."""

    objects: ObjectWriter
    rules: ScanRules
    known: Known
    now_ns: int
    """The time by the clock of the file system, as far as it is known."""
    file_bytes_max: int
    should_stop: Callable[[], bool] = lambda: False
    found: Known = field(default_factory=dict)
    files: int = 0
    left_out: list[str] = field(default_factory=list)
    """Files that are too large or cannot be read; the first of them."""
    left_out_total: int = 0

    def scan_root(self, root: str) -> str:
        """The tree of the workspace at ``root``. Raises ``NotScanned``, ``OSError``."""
        descriptor = os.open(root, FOLDER_FLAGS)
        try:
            return self._scan_folder(descriptor, "", 0) or self._put_empty()
        finally:
            os.close(descriptor)

    def _scan_folder(self, descriptor: int, path: str, depth: int) -> str | None:
        """The tree of a folder; ``None`` when there is nothing to keep in it."""
        before = self.known.get(path) or {"tree": None, "stamps": {}, "shas": {}, "folders": {}}
        old_stamps, old_shas = before["stamps"], before["shas"]
        stamps: dict[str, str] = {}
        shas: dict[str, str | None] = {}
        folders: dict[str, str] = {}
        changed: list[tuple[str, os.stat_result]] = []
        with os.scandir(descriptor) as scanned:
            for entry in scanned:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if (
                        not self.rules.ignores_folder(name)
                        and (tree := self._scan_inner_folder(descriptor, name, path, depth)) is not None
                    ):
                        folders[name] = tree
                    continue
                if name not in old_stamps and self.rules.ignores_file(name):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # it is gone
                stamp = f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size} {status.st_ino} {status.st_mode}"
                stamps[name] = stamp
                if old_stamps.get(name) == stamp:
                    shas[name] = sha = old_shas[name]
                    if sha is None:
                        self._leave_out(f"{path}/{name}" if path else name)  # again
                else:
                    changed.append((name, status))
        self._count_files(len(stamps))
        if not changed and before["tree"] and len(stamps) == len(old_stamps) and folders == before["folders"]:
            self.found[path] = before
            known: str = before["tree"]
            return known
        young = self.now_ns - _YOUNG_NS
        modes = {name: int(stamp.rpartition(" ")[2]) for name, stamp in stamps.items()}
        sizes = {name: int(stamp.split(" ", 3)[2]) for name, stamp in stamps.items()}
        times = {name: int(stamp.partition(" ")[0]) if self.rules.is_whole else 0 for name, stamp in stamps.items()}
        for name, status in changed:
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                del stamps[name]  # a socket or a pipe: nothing that could be put back
                continue
            shas[name] = self._read_file(descriptor, name, f"{path}/{name}" if path else name, status)
            if max(status.st_mtime_ns, status.st_ctime_ns) >= young:
                stamps[name] = ""
        entries = [
            TreeEntry(self._choose_entry_mode(modes[name], sizes[name]), os.fsencode(name), sha, max(0, times[name]))
            for name, sha in shas.items()
            if sha
        ]
        empty = self._put_empty() if self.rules.is_whole and folders else None
        entries += [
            TreeEntry(EMPTY_FOLDER if sha == empty else FOLDER, os.fsencode(name), sha) for name, sha in folders.items()
        ]
        made = self.objects.put("tree", encode_tree(entries)) if entries else None
        self.found[path] = {"tree": made, "stamps": stamps, "shas": shas, "folders": folders}
        return made

    def _scan_inner_folder(self, descriptor: int, name: str, path: str, depth: int) -> str | None:
        inside = f"{path}/{name}" if path else name
        if depth >= self.rules.depth_max:
            self._leave_out(inside)
            return None
        try:
            inner = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
        except OSError:
            self._leave_out(inside)  # it became a link, went, or is closed to us
            return None
        try:
            return self._scan_folder(inner, inside, depth + 1) or (self._put_empty() if self.rules.is_whole else None)
        finally:
            os.close(inner)

    def _put_empty(self) -> str:
        return self.objects.put("tree", b"")

    def _count_files(self, files: int) -> None:
        self.files += files
        if self.files > self.rules.files_max:
            raise NotScanned(f"the workspace has more than {self.rules.files_max:,} files")
        if self.should_stop():
            raise NotScanned("the call was stopped")

    def _read_file(self, folder: int, name: str, path: str, status: os.stat_result) -> str | None:
        """The object of a file; ``None`` for one that is left out."""
        content = None
        if self._is_in_parts(status.st_mode, status.st_size) and status.st_size <= self.file_bytes_max:
            return self._read_parts(folder, name, path)
        bytes_max = min(self.file_bytes_max, self.rules.part_bytes or self.file_bytes_max)
        # What cannot be read is left out; what cannot be written to the store ends the scan.
        with suppress(OSError):
            if stat.S_ISLNK(status.st_mode):
                content = os.fsencode(os.readlink(name, dir_fd=folder))
            elif status.st_size <= bytes_max:
                content = read_plain(name, folder=folder, bytes_max=bytes_max + 1, follows_links=False)
        if content is None or len(content) > bytes_max:
            self._leave_out(path)
            return None
        return self.objects.put("blob", content)

    def _is_in_parts(self, mode: int, size: int) -> bool:
        return stat.S_ISREG(mode) and 0 < self.rules.part_bytes < size

    def _choose_entry_mode(self, mode: int, size: int) -> int:
        return _choose_git_mode(mode) | (PARTS if self._is_in_parts(mode, size) else 0)

    def _read_parts(self, folder: int, name: str, path: str) -> str | None:
        """The object of a large file, of which one part at a time is in memory; ``None`` for one that is left out."""
        parts: list[str] = []
        with suppress(OSError), open_plain(name, folder=folder, follows_links=False) as file:
            while len(parts) * self.rules.part_bytes <= self.file_bytes_max:
                if not (piece := file.read(self.rules.part_bytes)):
                    return self.objects.put("parts", "\n".join(parts).encode())
                parts.append(self.objects.put("blob", piece))
        self._leave_out(path)
        return None

    def _leave_out(self, path: str) -> None:
        self.left_out_total += 1
        if len(self.left_out) < self.rules.left_out_max:
            self.left_out.append(path)


def _choose_git_mode(mode: int) -> int:
    if stat.S_ISLNK(mode):
        return LINK
    return EXECUTABLE if mode & stat.S_IXUSR else FILE
