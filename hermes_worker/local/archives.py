"""The archive of a home: an uncompressed tar of plain files, written whole or not at all, and read with suspicion.

An archive may come from anywhere. Only plain files with names below the home are taken, no links, no devices, no sparse
files; and because nothing is compressed, what comes out is no larger than what went in.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hermes_worker.core.errors import HermesError, format_reason
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint

DATABASE = "hermes-worker.db"
_MANIFEST = "manifest.json"
_FORMAT = "hermes-worker home 1"
_DATABASE_FILES = tuple(f"{DATABASE}{ending}" for ending in ("", "-wal", "-shm", "-journal"))
_LEFT_OUT = frozenset({"run", "logs", "valkey", *_DATABASE_FILES})
"""Files that a home makes anew: locks, logs and hints; and the database, which is copied and not read as a file."""
WORKSPACES = "workspaces"
RESTORING = "restore"
_RESTORED = Path("run", "restored")
"""The folder of unpacked files, from the moment a restore takes effect until all of them are in their places."""
_REPLACED = Path("run", "replaced")
"""The folder of the files that were in those places before."""
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_MANIFEST_BYTES_MAX = 65_536
_NAME_BYTES_MAX = 4_096
_FOLDERS_MAX = 200
"""How deep a file may lie in a home: the walk through folders is recursive."""


class ArchiveExists(HermesError):
    """A file is where the archive should go."""


class InvalidArchive(HermesError):
    """The archive is none of ours, is cut off, or holds what an archive of ours never does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSummary:
    """The contents of an archive that was written."""

    files: int
    bytes: int
    left_out: int
    """Links, devices and files that could not be read, in workspaces and elsewhere."""


def write_archive(target: Path, home: Path, database: Path, *, has_workspaces: bool, replaces: bool) -> ArchiveSummary:
    """Write the files of ``home``, and ``database`` for its database, to ``target``, readable by its owner only.

    At every moment there is a whole archive or none. Raises ``ArchiveExists`` unless it may replace one, ``OSError``.
    """
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            found = _write(file, home, database, has_workspaces)
            file.flush()
            os.fsync(file.fileno())
        _put_archive(draft, target, replaces)
    finally:
        draft.unlink(missing_ok=True)
    return found


def _put_archive(draft: Path, target: Path, replaces: bool) -> None:
    if replaces:
        draft.replace(target)
        return
    try:
        os.link(draft, target)  # unlike a rename, this fails when another process was faster
    except FileExistsError:
        raise ArchiveExists(
            f"{str(target)!r} is there already; name another file, or replace it with --force"
        ) from None


def _write(file: io.BufferedWriter, home: Path, database: Path, has_workspaces: bool) -> ArchiveSummary:
    files, size, left_out = 0, 0, 0
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        manifest = json.dumps({"format": _FORMAT, "made_at": time.time()}).encode()
        _add(tar, _MANIFEST, io.BytesIO(manifest), len(manifest), 0o600)
        for name, path in (*_list_home_files(home, has_workspaces), (DATABASE, database)):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                left_out += 1
                continue
            if path.is_dir():  # a folder that lies too deep
                os.close(descriptor)
                left_out += 1
                continue
            with os.fdopen(descriptor, "rb") as content:
                status = os.fstat(content.fileno())
                if not stat.S_ISREG(status.st_mode):
                    left_out += 1
                    continue
                _add(tar, name, content, status.st_size, status.st_mode & 0o700)
                files, size = files + 1, size + status.st_size
    return ArchiveSummary(files=files, bytes=size, left_out=left_out)


def _add(tar: tarfile.TarFile, name: str, content: io.BufferedIOBase, size: int, mode: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = size, mode, int(time.time())
    tar.addfile(member, _Padded(content, size))


class _Padded(io.RawIOBase):
    """So many bytes of a file that may become shorter while it is read: missing bytes become zeros."""

    def __init__(self, content: io.BufferedIOBase, size: int) -> None:
        self._content = content
        self._left = size

    def read(self, size: int = -1) -> bytes:
        wanted = self._left if size < 0 else min(size, self._left)
        found = self._content.read(wanted)
        self._left -= wanted
        return found + bytes(wanted - len(found))


def _list_home_files(home: Path, has_workspaces: bool) -> Iterator[tuple[str, Path]]:
    """Every file but links, directories and what a home makes anew, by the names in the archive. A folder that lies too
    deep is named in place of its files.
    """
    skipped = _LEFT_OUT if has_workspaces else _LEFT_OUT | {WORKSPACES}
    for directory, folders, names in os.walk(home):
        at_top = Path(directory) == home
        if len(Path(directory).relative_to(home).parts) >= _FOLDERS_MAX:
            yield from ((Path(directory, name).relative_to(home).as_posix(), Path(directory, name)) for name in folders)
            folders.clear()
        folders[:] = [name for name in folders if not (at_top and name in skipped)]
        for name in names:
            if not (at_top and name in skipped):
                path = Path(directory, name)
                yield path.relative_to(home).as_posix(), path


def unpack(archive: Path, into: Path, *, bytes_max: int) -> None:
    """Write the files of an archive below the empty directory ``into``. Raises ``InvalidArchive``; what was written
    until then is for the caller to remove."""
    try:
        with tarfile.open(archive, mode="r:") as tar:
            _unpack(tar, into, bytes_max)
    except (tarfile.TarError, EOFError, UnicodeError, ValueError, KeyError, RecursionError) as error:
        raise InvalidArchive(f"{str(archive)!r} is not an archive of a home, or is cut off: {error}") from error
    except OSError as error:
        raise InvalidArchive(f"{str(archive)!r} cannot be unpacked: {format_reason(error)}") from error


def _unpack(tar: tarfile.TarFile, into: Path, bytes_max: int) -> None:
    first = tar.next()
    if first is None or first.name != _MANIFEST or first.size > _MANIFEST_BYTES_MAX:
        raise InvalidArchive("the archive does not begin with a manifest of ours")
    content = tar.extractfile(first)
    manifest = json.loads(content.read()) if content is not None else None
    if not isinstance(manifest, dict) or manifest.get("format") != _FORMAT:
        raise InvalidArchive("the archive was not made by 'hermes-worker data backup', or by a newer version")
    left = bytes_max
    seen: set[str] = set()
    while (member := tar.next()) is not None:
        name = check_name(member)
        left -= member.size
        if left < 0:
            raise InvalidArchive(f"the archive holds more than {bytes_max:,} bytes; allow more with --size-max-gb")
        if name in seen:
            raise InvalidArchive(f"the archive holds {name!r} twice")
        seen.add(name)
        _unpack_file(tar, member, into / name)
    if DATABASE not in seen:
        raise InvalidArchive("the archive holds no database; it is cut off")


def check_name(member: tarfile.TarInfo) -> str:
    """The name of a member below a home. Raises ``InvalidArchive``."""
    path = PurePosixPath(member.name)
    is_plain = member.type in _PLAIN and not member.sparse and member.size >= 0
    if not is_plain:
        raise InvalidArchive(f"{member.name[:200]!r} in the archive is no plain file")
    is_below = not path.is_absolute() and path.parts and ".." not in path.parts and "\0" not in member.name
    if not is_below or len(member.name.encode("utf-8", "surrogateescape")) > _NAME_BYTES_MAX:
        raise InvalidArchive(f"{member.name[:200]!r} in the archive is no name below a home")
    if len(path.parts) > _FOLDERS_MAX + 1:
        raise InvalidArchive(f"{member.name[:80]!r}... in the archive lies deeper than {_FOLDERS_MAX} folders")
    if path.parts[0] in _LEFT_OUT - {DATABASE} or (path.parts[0] == DATABASE and len(path.parts) > 1):
        raise InvalidArchive(f"{member.name[:200]!r} in the archive is nothing that a backup holds")
    return path.as_posix()


def _unpack_file(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    content = tar.extractfile(member)
    assert content is not None  # the library's type: ``check_name`` lets plain files pass alone
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mode = 0o700 if member.mode & 0o100 else 0o600
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        left = member.size
        while left and (piece := content.read(min(left, 1 << 20))):
            file.write(piece)
            left -= len(piece)
        if left:
            raise InvalidArchive(f"{member.name[:200]!r} in the archive is cut off")
        os.fsync(file.fileno())


@contextmanager
def make_staging(home: Path, work: str) -> Iterator[Path]:
    """An empty directory in a home, for its owner only, which is gone when the block ends."""
    path = home / "run" / f"{work}.{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def put_in_place(staged: Path, home: Path) -> None:
    """Move the unpacked files into the home, which the caller holds. A restore takes effect with one rename: before it
    the home is as it was, and after it the next holder of the home does what is left of it.
    """
    for directory, _, _ in os.walk(staged):
        _sync(Path(directory))
    staged.rename(home / _RESTORED)
    _sync(home / "run")
    finish_restore(home)


def finish_restore(home: Path) -> None:
    """Complete a restore that was cut off; the caller holds the home. Idempotent; may be cut off itself, anywhere.

    The home has a whole database at every moment, the old one or the new one, which comes last.
    """
    for draft in (home / "run").glob(f"{RESTORING}.*"):
        shutil.rmtree(draft, ignore_errors=True)  # of one that had not taken effect
    restored, replaced = home / _RESTORED, home / _REPLACED
    if restored.is_dir():
        replaced.mkdir(mode=0o700, exist_ok=True)
        for name in sorted(path.name for path in restored.iterdir() if path.name != DATABASE):
            _put_aside(home / name, replaced)
            faults.pass_point(FaultPoint.RESTORE_BETWEEN_FILES)
            (restored / name).rename(home / name)
        _put_aside(home / "valkey", replaced)  # hints of another time, and nothing else
        faults.pass_point(FaultPoint.RESTORE_BETWEEN_FILES)
        if (restored / DATABASE).exists():
            for name in _DATABASE_FILES[1:]:
                (home / name).unlink(missing_ok=True)
            faults.pass_point(FaultPoint.RESTORE_BETWEEN_FILES)
            (restored / DATABASE).rename(home / DATABASE)
        faults.pass_point(FaultPoint.RESTORE_BETWEEN_FILES)
        _sync(home)
        restored.rmdir()
    shutil.rmtree(replaced, ignore_errors=True)


def _put_aside(path: Path, into: Path) -> None:
    if path.is_symlink() or path.exists():
        path.rename(into / f"{path.name}.{secrets.token_hex(4)}")


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
