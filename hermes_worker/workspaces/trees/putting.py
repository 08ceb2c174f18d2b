"""Put files back where they were, through no link, in a workspace that a hostile command may be changing."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath

from hermes_worker.core.errors import format_reason
from hermes_worker.workspaces.descriptors import FOLDER_FLAGS, write_new_file
from hermes_worker.workspaces.trees.objects import (
    EMPTY_FOLDER,
    EXECUTABLE,
    LINK,
    PARTS,
    ChangedFile,
    StoreDamaged,
    TreeEntry,
)

Content = bytes | Iterable[bytes]


def put_back(
    root: str, changes: Sequence[ChangedFile], content: Callable[[TreeEntry], Content], *, umask: int | None
) -> dict[str, str]:
    """Give each file its state ``after``; return the paths that failed, and why. Files to remove come first: a folder
    may have to stand where one was. ``content`` gives the bytes of a file, whole or piece by piece.
    """
    failed: dict[str, str] = {}
    for change in changes:
        if change.after is None:
            is_folder = change.before is not None and change.before.mode == EMPTY_FOLDER
            _try_change(failed, change, partial(_remove_folder if is_folder else _remove, root))
    for change in changes:
        if change.after is not None:
            _try_change(failed, change, partial(_write, root, entry=change.after, content=content, umask=umask))
    return failed


def _try_change(failed: dict[str, str], change: ChangedFile, do: Callable[[str], None]) -> None:
    try:
        do(change.path)
    except OSError as error:
        failed[change.path] = format_reason(error)
    except StoreDamaged as error:
        failed[change.path] = str(error)


def _remove_folder(root: str, path: str) -> None:
    """Remove a folder that was empty; one that is not any more stays."""
    _remove_empty(root, (PurePosixPath(path), *PurePosixPath(path).parents))


def _remove(root: str, path: str) -> None:
    with suppress(FileNotFoundError), _open_folder(root, PurePosixPath(path).parts[:-1]) as folder:
        os.unlink(PurePosixPath(path).name, dir_fd=folder)
    _remove_empty(root, PurePosixPath(path).parents)


def _remove_empty(root: str, folders: Iterable[PurePosixPath]) -> None:
    """Remove folders, the innermost first, up to one that is not empty. A folder is kept with its files, or as an empty
    one, so one that became empty was not there."""
    for each in folders:
        if not each.parts:
            return
        try:
            with _open_folder(root, each.parts[:-1]) as folder:
                os.rmdir(each.name, dir_fd=folder)
        except OSError:
            return


def _write(
    root: str, path: str, *, entry: TreeEntry, content: Callable[[TreeEntry], Content], umask: int | None
) -> None:
    if entry.mode == EMPTY_FOLDER:
        with _open_folder(root, PurePosixPath(path).parts, umask=umask, creates=True):
            return
    name = PurePosixPath(path).name
    found = content(entry)
    pieces = (found,) if isinstance(found, bytes) else found
    with _open_folder(root, PurePosixPath(path).parts[:-1], umask=umask, creates=True) as folder:
        draft = f".{secrets.token_hex(8)}.hermes-tmp"
        try:
            if entry.mode == LINK:
                os.symlink(os.fsdecode(b"".join(pieces)), draft, dir_fd=folder)
            else:
                write_new_file(draft, pieces, _choose_mode(name, folder, entry, umask), folder)
                if entry.mtime_ns:
                    os.utime(draft, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=folder, follow_symlinks=False)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise


def _choose_mode(name: str, folder: int, entry: TreeEntry, umask: int | None) -> int | None:
    """The permissions of the file: the present ones, where they agree about running it; ``None`` where the system
    decides.
    """
    is_executable = entry.mode & ~PARTS == EXECUTABLE
    with suppress(OSError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IXUSR) == is_executable:
            return stat.S_IMODE(status.st_mode) & 0o777
    usual = 0o777 if is_executable else 0o666
    if umask is not None:
        return usual & ~umask
    return 0o755 if is_executable else None


@contextmanager
def _open_folder(root: str, parts: Iterable[str], *, umask: int | None = None, creates: bool = False) -> Iterator[int]:
    """A descriptor of a folder, opened from the root down without following links."""
    descriptor = os.open(root, FOLDER_FLAGS)
    try:
        for name in parts:
            if creates:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o777 if umask is None else 0o777 & ~umask, dir_fd=descriptor)
            inner = os.open(name, FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)
