"""Read the files that a run left, out of a workspace that a hostile command may be changing meanwhile.

Commands of an agent run as the worker's user, so a name may become a link, a FIFO or another file at any moment. A
directory of this machine is therefore walked by descriptors, without following a link anywhere; a file is looked at
once it is open, and what was looked at is what is read. A workspace of another kind is read through its own methods,
which have the same rules for its tools.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hermes_worker.features.artifacts.rules import DEPTH_MAX, NEVER_ENTERED, explain_refusal, matches_any
from hermes_worker.system.plainfiles import NotPlain, open_plain
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.descriptors import FOLDER_FLAGS
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef

_ENTRIES_MAX = 200_000
"""How many names are looked at in one workspace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFiles:
    """Selects the files to read."""

    patterns: Sequence[str]
    """Patterns as ``features.artifacts.rules`` reads them."""
    since: float
    """Epoch seconds, by the clock of this machine: older files were there before."""
    file_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A selected file, as it was when it was read."""

    path: str
    content: bytes
    modified_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """A selected file that cannot be taken."""

    path: str
    reason: str


Found = FoundFile | SkippedFile


@dataclass(slots=True)
class ArtifactQuota:
    """The number of files and bytes that may still be taken of one run."""

    files: int
    bytes: int

    def find_refusal(self, size: int) -> str | None:
        """The reason why a file of ``size`` bytes is not taken; ``None`` when it is."""
        if self.files == 0:
            return "the run left more files than are kept"
        return "the files of the run are larger than is kept in all" if size > self.bytes else None

    def take(self, size: int) -> None:
        self.files -= 1
        self.bytes -= size


class WorkspaceGone(WorkspaceError):
    """The workspace is not on this machine, or cannot be opened from it."""


def is_here(ref: WorkspaceRef) -> bool:
    """Whether this machine has the workspace. One of another kind finds that out when it is opened."""
    return ref.kind != WorkspaceKind.LOCAL or Path(ref.root).is_dir()


def gather_files(workspace: Workspace, wanted: WantedFiles, room: ArtifactQuota) -> Iterator[Found]:
    """Yield the selected files, in the order of their paths within each folder. Raises ``WorkspaceGone``."""
    try:
        if isinstance(workspace, LocalWorkspace):
            yield from _gather_local(workspace, wanted, room)
        else:
            yield from _gather_through_workspace(workspace, wanted, room)
    except OSError as error:
        raise WorkspaceGone(f"the workspace cannot be read ({error.strerror})") from error


def _gather_local(workspace: LocalWorkspace, wanted: WantedFiles, room: ArtifactQuota) -> Iterator[Found]:
    seen = 0
    folders = [""]
    while folders:
        folder = folders.pop()
        with suppress(FileNotFoundError, NotADirectoryError), _OpenedFolder(workspace.root, folder) as descriptor:
            with os.scandir(descriptor) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
            for entry in entries:
                seen += 1
                if seen > _ENTRIES_MAX:
                    yield SkippedFile(path=folder or ".", reason=f"the workspace has more than {_ENTRIES_MAX} entries")
                    return
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if _is_entered(path, workspace):
                        folders.append(path)
                elif matches_any(path, wanted.patterns):
                    found = _take_file(path, entry.name, descriptor, (workspace, wanted, room))
                    if found is not None:
                        yield found


class _OpenedFolder:
    """A descriptor of a folder below a root, opened from there without following links, each time it is entered."""

    def __init__(self, root: str, path: str) -> None:
        self._root = root
        self._path = path
        self._descriptor = -1

    def __enter__(self) -> int:
        descriptor = os.open(self._root, FOLDER_FLAGS)
        for name in PurePosixPath(self._path).parts:
            try:
                inner = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
            except OSError as error:
                os.close(descriptor)
                # It became a link, or went: what was here is not any more.
                raise FileNotFoundError(error.errno, error.strerror) from error
            os.close(descriptor)
            descriptor = inner
        self._descriptor = descriptor
        return descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _is_entered(path: str, workspace: Workspace) -> bool:
    name = PurePosixPath(path).name
    if name in NEVER_ENTERED or path.count("/") >= DEPTH_MAX - 1 or not _is_text(path):
        return False
    return workspace.may_read(f"{workspace.root}/{path}")


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in path


def _take_file(
    path: str, name: str, folder: int, looked_for: tuple[Workspace, WantedFiles, ArtifactQuota]
) -> Found | None:
    """Read one file; ``None`` for a file that was there before the run and was not changed."""
    workspace, wanted, room = looked_for
    if not _is_text(path):
        return SkippedFile(path=path.encode("utf-8", "replace").decode(), reason="its name is not plain text")
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:
        return None  # it is gone
    if max(status.st_mtime, status.st_ctime) < wanted.since:
        return None
    if stat.S_ISLNK(status.st_mode):
        return SkippedFile(path=path, reason="it is a link")
    reason = explain_refusal(path) or (None if workspace.may_read(f"{workspace.root}/{path}") else "it is protected")
    if reason is not None:
        return SkippedFile(path=path, reason=reason)
    if not stat.S_ISREG(status.st_mode):
        return SkippedFile(path=path, reason="it is not a regular file")
    try:
        return _read_file(path, name, folder, wanted, room)
    except NotPlain:
        return SkippedFile(path=path, reason="it is not a regular file")
    except OSError as error:
        return SkippedFile(path=path, reason=f"it cannot be read ({error.strerror})")


def _read_file(path: str, name: str, folder: int, wanted: WantedFiles, room: ArtifactQuota) -> Found:
    with open_plain(name, folder=folder, follows_links=False) as file:
        status = os.fstat(file.fileno())
        if status.st_nlink > 1:
            # Its other name may be outside the workspace, so its owner cannot be told.
            return SkippedFile(path=path, reason="it has another name (a hard link)")
        if status.st_size > wanted.file_bytes_max:
            return _skip_too_large(path, wanted)
        if (full := room.find_refusal(status.st_size)) is not None:
            return SkippedFile(path=path, reason=full)
        content = file.read(wanted.file_bytes_max + 1)
    if len(content) > wanted.file_bytes_max:
        return _skip_too_large(path, wanted)
    room.take(len(content))
    return FoundFile(path=path, content=content, modified_at=status.st_mtime)


def _skip_too_large(path: str, wanted: WantedFiles) -> SkippedFile:
    return SkippedFile(path=path, reason=f"it has more than {wanted.file_bytes_max} bytes")


# --- workspaces of other kinds ---------------------------------------------------------------------------------------


def _gather_through_workspace(workspace: Workspace, wanted: WantedFiles, room: ArtifactQuota) -> Iterator[Found]:
    """Read a workspace through its own methods. They tell no times, so every file that fits is taken."""
    seen = 0
    folders = [""]
    while folders:
        folder = folders.pop()
        for entry in _list_entries(workspace, folder):
            seen += 1
            if seen > _ENTRIES_MAX:
                yield SkippedFile(path=folder or ".", reason=f"the workspace has more than {_ENTRIES_MAX} entries")
                return
            path = f"{folder}/{entry.rstrip('/')}" if folder else entry.rstrip("/")
            if entry.endswith("/"):
                if _is_entered(path, workspace) and _is_no_link(workspace, path):
                    folders.append(path)
            elif matches_any(path, wanted.patterns):
                yield _take_through_workspace(workspace, path, wanted, room)


def _list_entries(workspace: Workspace, folder: str) -> Sequence[str]:
    try:
        return workspace.entries(folder or ".")
    except WorkspaceError as error:
        if folder:
            return ()
        raise WorkspaceGone(str(error)) from error


def _is_no_link(workspace: Workspace, path: str) -> bool:
    """Whether no link is on the way to the path."""
    try:
        return str(workspace.resolve(path)) == f"{workspace.root.rstrip('/')}/{path}"
    except WorkspaceError:
        return False


def _take_through_workspace(workspace: Workspace, path: str, wanted: WantedFiles, room: ArtifactQuota) -> Found:
    if not _is_text(path):
        return SkippedFile(path=path.encode("utf-8", "replace").decode(), reason="its name is not plain text")
    reason = explain_refusal(path) or (None if _is_no_link(workspace, path) else "it is a link, or protected")
    reason = reason or room.find_refusal(0)
    if reason is not None:
        return SkippedFile(path=path, reason=reason)
    try:
        content = workspace.read_bytes(path, limit=wanted.file_bytes_max + 1)
    except WorkspaceError as error:
        return SkippedFile(path=path, reason=str(error))
    if len(content) > wanted.file_bytes_max:
        return _skip_too_large(path, wanted)
    if (full := room.find_refusal(len(content))) is not None:
        return SkippedFile(path=path, reason=full)
    room.take(len(content))
    return FoundFile(path=path, content=content, modified_at=0.0)
