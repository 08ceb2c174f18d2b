"""Read folders and archives of skills, as files that anybody may have put there.

A skill lies in ``NAME/`` or ``CATEGORY/NAME/`` below a directory of skills. Nothing that is a link, a device or a FIFO
is read; a folder that holds too much, or a name that leads out of it, is refused as a whole, before it is in memory.
"""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_worker.core.offered_skills import SkillError
from hermes_worker.features.skills.rules import (
    BUNDLE_FILE,
    CATEGORY_FILE,
    FILE_BYTES_MAX,
    FILES_MAX,
    PATH_PARTS_MAX,
    SKILL_BYTES_MAX,
    SKILL_FILE,
    SKILLS_MAX,
    SkillFile,
    require_files,
    require_path,
)
from hermes_worker.system.plainfiles import NotPlain, read_plain

ARCHIVE_BYTES_MAX = 2 * SKILL_BYTES_MAX
_LEFT_OUT = frozenset({"__pycache__", "node_modules"})
_CATEGORY_BYTES_MAX = 65_536
_ENTRIES_MAX = 5_000
"""How many names are looked at in one directory of skills."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillFolder:
    """The folder of a skill, and a stamp that differs after a change."""

    path: Path
    name: str
    category: str
    stamp: tuple[tuple[str, int, int, int], ...]
    """Path, size, time of change (ns) and mode of each file, the category's file among them."""

    def read_category_text(self) -> str:
        """The text of the category's file; empty where there is none that can be read."""
        if not self.category:
            return ""
        try:
            body = read_plain(self.path.parent / CATEGORY_FILE, bytes_max=_CATEGORY_BYTES_MAX, follows_links=False)
        except (OSError, NotPlain):
            return ""
        return body.decode("utf-8", "replace")


def find_skill_folders(root: Path) -> list[SkillFolder]:
    """The folders of skills below ``root``, by name; of two with one name the first by path counts. Reads no file."""
    found: dict[str, SkillFolder] = {}
    for category, folder in _find_candidates(root):
        if folder.name not in found and len(found) < SKILLS_MAX:
            stamp = (*_compute_stamp(folder), *(_compute_category_stamp(folder.parent) if category else ()))
            found[folder.name] = SkillFolder(path=folder, name=folder.name, category=category, stamp=stamp)
    return [found[name] for name in sorted(found)]


def _find_candidates(root: Path) -> Iterator[tuple[str, Path]]:
    for entry in _list_folders(root):
        if _is_skill(entry):
            yield "", entry
        else:
            yield from ((entry.name, inner) for inner in _list_folders(entry) if _is_skill(inner))


def _list_folders(root: Path) -> list[Path]:
    """Directories, no links, without hidden ones."""
    try:
        with os.scandir(root) as entries:
            named = [entry.name for _, entry in zip(range(_ENTRIES_MAX), entries, strict=False)]
    except OSError:
        return []
    shown = (root / name for name in sorted(named) if not name.startswith(".") and name not in _LEFT_OUT)
    return [path for path in shown if not path.is_symlink() and path.is_dir()]


def _is_skill(folder: Path) -> bool:
    return any((folder / name).is_file() and not (folder / name).is_symlink() for name in (SKILL_FILE, BUNDLE_FILE))


def _compute_stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    found = []
    try:
        for path, status in _walk_files(folder):
            found.append((path, status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode)))
    except (OSError, SkillError) as error:
        found.append((f"!{error}", 0, 0, 0))
    return tuple(found)


def _compute_category_stamp(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    try:
        status = (folder / CATEGORY_FILE).lstat()
    except OSError:
        return ()
    return ((f"../{CATEGORY_FILE}", status.st_size, status.st_mtime_ns, stat.S_IMODE(status.st_mode)),)


def _walk_files(folder: Path, inside: str = "", depth: int = 1) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the files of a folder without following links. Raises ``OSError``, ``SkillError``."""
    count = 0
    with os.scandir(folder / inside) as entries:
        for entry in sorted(entries, key=lambda each: each.name):
            count += 1
            if count > FILES_MAX * 2:
                raise SkillError(f"a skill has at most {FILES_MAX} files")
            if entry.name.startswith(".") or entry.name in _LEFT_OUT:
                continue
            path = f"{inside}/{entry.name}" if inside else entry.name
            if entry.is_symlink():
                raise SkillError(f"{path[:80]!r} is a link; a skill holds files only")
            if entry.is_dir():
                if depth >= PATH_PARTS_MAX:
                    raise SkillError(f"{path[:80]!r} lies too deep: at most {PATH_PARTS_MAX} folders")
                yield from _walk_files(folder, path, depth + 1)
            else:
                yield path, entry.stat(follow_symlinks=False)


def read_skill_folder(folder: Path) -> tuple[SkillFile, ...]:
    """The files of a skill. Hidden files are left out. Raises ``SkillError``."""
    files: list[SkillFile] = []
    total = 0
    try:
        for path, status in _walk_files(folder):
            left = min(FILE_BYTES_MAX, SKILL_BYTES_MAX - total)
            if len(files) >= FILES_MAX or status.st_size > left:
                raise SkillError(
                    f"{path[:80]!r} is too much: a skill has at most {FILES_MAX} files, {SKILL_BYTES_MAX:,} bytes, and "
                    f"{FILE_BYTES_MAX:,} in one file"
                )
            body = read_plain(folder / require_path(path), bytes_max=left + 1, follows_links=False)
            total += len(body)
            files.append(SkillFile(path=path, body=body, is_executable=bool(status.st_mode & stat.S_IXUSR)))
    except NotPlain:
        raise SkillError(f"{folder.name!r} holds something that is no plain file") from None
    except (OSError, UnicodeError) as error:
        raise SkillError(f"{folder.name!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    return require_files(files)


def read_skill_archive(body: bytes) -> tuple[str | None, tuple[SkillFile, ...]]:
    """The files of a ZIP archive of one skill, and the name of the folder that all of them are in, if they are.

    Its own figures about sizes are not trusted: it is unpacked in memory, piece by piece, and no further than a skill
    may go. Raises ``SkillError``.
    """
    if len(body) > ARCHIVE_BYTES_MAX:
        raise SkillError(f"an archive of a skill has at most {ARCHIVE_BYTES_MAX:,} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(body)) as archive:
            files = list(_unpack_files(archive))
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, OSError, EOFError, ValueError, zlib.error):
        raise SkillError("it is no ZIP archive that can be read: damaged, encrypted or of an unknown kind") from None
    tops = {file.path.partition("/")[0] for file in files}
    folder = tops.pop() if len(tops) == 1 and all("/" in file.path for file in files) else None
    if folder is not None:
        files = [
            SkillFile(path=file.path.partition("/")[2], body=file.body, is_executable=file.is_executable)
            for file in files
        ]
    return folder, require_files(files)


def _unpack_files(archive: zipfile.ZipFile) -> Iterator[SkillFile]:
    infos = archive.infolist()
    if len(infos) > 4 * FILES_MAX:
        raise SkillError(f"a skill has at most {FILES_MAX} files")
    left = SKILL_BYTES_MAX
    for info in infos:
        if info.is_dir():
            continue
        mode = info.external_attr >> 16
        if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
            raise SkillError(f"{info.filename[:80]!r} in the archive is no file")
        path = require_path(info.filename)
        if any(part.startswith(".") or part in (*_LEFT_OUT, "__MACOSX") for part in path.split("/")):
            continue
        with archive.open(info) as packed:
            body = packed.read(min(FILE_BYTES_MAX, left) + 1)
        left -= len(body)
        if left < 0 or len(body) > FILE_BYTES_MAX:
            raise SkillError(f"{path[:80]!r} in the archive is larger than a file of a skill may be")
        yield SkillFile(path=path, body=body, is_executable=bool(mode & stat.S_IXUSR))


def write_skill(folder: Path, files: Sequence[SkillFile]) -> None:
    """Write a skill into a folder that is not there yet. Raises ``OSError``."""
    folder.mkdir(parents=True)
    for file in require_files(files):
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.body)
        path.chmod(0o755 if file.is_executable else 0o644)
