"""Put files back where they were, through no link, in a workspace that a hostile command may be changing."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import PurePosixPath
from typing import Final

from hermes_worker.core.errors import format_reason
from hermes_worker.features.checkpoints.files.objects import EXECUTABLE, LINK, ChangedFile, StoreDamaged, TreeEntry
from hermes_worker.features.checkpoints.files.scanning import FOLDER_FLAGS

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def put_back(
    root: str, changes: Sequence[ChangedFile], content: Callable[[str], bytes], *, umask: int | None
) -> dict[str, str]:
    """Give each file its state ``after``; return the paths that failed, and why. Files to remove come first: a folder
    may have to stand where one was.
    """
    failed: dict[str, str] = {}
    for change in changes:
        if change.after is None:
            _try_change(failed, change, partial(_remove, root))
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


def _remove(root: str, path: str) -> None:
    with suppress(FileNotFoundError), _open_folder(root, PurePosixPath(path).parts[:-1]) as folder:
        os.unlink(PurePosixPath(path).name, dir_fd=folder)
    # Folders are not kept, so one that is empty now is one that was not there.
    for above in PurePosixPath(path).parents:
        if not above.parts:
            return
        try:
            with _open_folder(root, above.parts[:-1]) as folder:
                os.rmdir(above.name, dir_fd=folder)
        except OSError:
            return


def _write(root: str, path: str, *, entry: TreeEntry, content: Callable[[str], bytes], umask: int | None) -> None:
    name = PurePosixPath(path).name
    whole = content(entry.sha)
    with _open_folder(root, PurePosixPath(path).parts[:-1], umask=umask, creates=True) as folder:
        draft = f".{secrets.token_hex(8)}.hermes-tmp"
        try:
            if entry.mode == LINK:
                os.symlink(os.fsdecode(whole), draft, dir_fd=folder)
            else:
                _write_new(draft, whole, _choose_mode(name, folder, entry, umask), folder)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise


def _choose_mode(name: str, folder: int, entry: TreeEntry, umask: int | None) -> int | None:
    """The permissions of the file: the present ones, where they agree about running it; ``None`` where the system
    decides.
    """
    with suppress(OSError):
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and bool(status.st_mode & stat.S_IXUSR) == (entry.mode == EXECUTABLE):
            return stat.S_IMODE(status.st_mode) & 0o777
    usual = 0o777 if entry.mode == EXECUTABLE else 0o666
    if umask is not None:
        return usual & ~umask
    return 0o755 if entry.mode == EXECUTABLE else None


def _write_new(name: str, content: bytes, mode: int | None, folder: int) -> None:
    with os.fdopen(os.open(name, _NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
