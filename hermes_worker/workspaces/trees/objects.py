"""Contents under their hashes, as git keeps them: any program that reads git's files can read these.

Theory of operation. An object is written to a file of its own and renamed to its name, which is the hash of what it
holds. So an object is there whole or not at all, writing it twice changes nothing, and a reader can tell whether it is
what it should be. We write the format ourselves: it is a header, zlib and SHA-1, and starting ``git`` several times for
each call, with its configuration, hooks and locks, takes longer than all that is done here.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

FILE: Final = 0o100644
EXECUTABLE: Final = 0o100755
LINK: Final = 0o120000
FOLDER: Final = 0o040000
EMPTY_FOLDER: Final = 0o040001
"""A folder without anything in it, as the trees of whole workspaces name one; git has no such thing."""
PARTS: Final = 0o001000
"""Set in the mode of a file whose object lists the objects of its parts, a name on each line."""
_MODE_BITS: Final = 18
"""FileTrees of whole workspaces hold the time of a file's last change above its mode."""
_OBJECT_BYTES_MAX: Final = 64 * 1024**2
"""A tree of the largest folder that is looked at is smaller."""


class StoreDamaged(Exception):
    """An object is missing or is not what its name says."""


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """A name in a folder."""

    mode: int
    name: bytes
    sha: str
    mtime_ns: int = 0
    """The time of the last change; 0 where it is not kept."""


class ObjectReader(Protocol):
    """Reads objects by their names."""

    def get(self, kind: str, sha: str) -> bytes:
        """Read an object. Raises ``StoreDamaged`` and ``OSError``."""


class ObjectWriter(Protocol):
    """Keeps objects under their names."""

    def put(self, kind: str, body: bytes) -> str:
        """Keep an object, and return its name. Idempotent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A file that differs."""

    path: str
    """Below the workspace; characters that are no text stand as they do in Python's file names."""
    before: TreeEntry | None
    after: TreeEntry | None


class ObjectStore:
    """The objects of one store. Safe for any number of writers; ``remove`` needs the store for itself."""

    def __init__(self, directory: Path, algorithm: str = "sha1") -> None:
        self._directory = directory
        self._algorithm = algorithm
        self._chars = 2 * hashlib.new(algorithm, usedforsecurity=False).digest_size

    def has(self, sha: str) -> bool:
        return self._locate_object(sha).exists()

    def put(self, kind: str, body: bytes) -> str:
        """Write an object unless it is there, and return its name. Idempotent."""
        whole = encode_object(kind, body)
        sha = self._compute_name(whole)
        path = self._locate_object(sha)
        if not path.exists():
            _write_whole(path, zlib.compress(whole, 1))
        return sha

    def get(self, kind: str, sha: str) -> bytes:
        """Read an object. Raises ``StoreDamaged``, and ``OSError`` when the disk cannot be read."""
        try:
            packed = self._locate_object(sha).read_bytes()
            reading = zlib.decompressobj()
            whole = reading.decompress(packed, _OBJECT_BYTES_MAX)
        except (FileNotFoundError, zlib.error) as error:
            raise StoreDamaged(f"the object {sha[:12]} is missing or cannot be read") from error
        header, _, body = whole.partition(b"\0")
        if self._compute_name(whole) != sha or header.partition(b" ")[0] != kind.encode():
            raise StoreDamaged(f"the object {sha[:12]} is not what it was")
        return body

    def list_objects(self) -> Iterator[tuple[str, int]]:
        """Yield every object and the bytes that it takes on the disk."""
        for folder in self._list_folders():
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(entry.name) == self._chars - 2:
                        yield folder.name + entry.name, entry.stat(follow_symlinks=False).st_size

    def _list_folders(self) -> list[Path]:
        with suppress(FileNotFoundError):
            return [each for each in self._directory.iterdir() if len(each.name) == 2 and each.is_dir()]
        return []

    def remove(self, shas: Iterable[str]) -> None:
        """Remove objects. Idempotent."""
        for sha in shas:
            self._locate_object(sha).unlink(missing_ok=True)

    def sweep_drafts(self) -> None:
        """Remove the unfinished files of writers that died."""
        for folder in self._list_folders():
            for draft in folder.glob("*.draft"):
                draft.unlink(missing_ok=True)

    def _locate_object(self, sha: str) -> Path:
        if len(sha) != self._chars or not set(sha) <= set("0123456789abcdef"):
            raise StoreDamaged("a name of an object is none")
        return self._directory / sha[:2] / sha[2:]

    def _compute_name(self, whole: bytes) -> str:
        return hashlib.new(self._algorithm, whole, usedforsecurity=False).hexdigest()


def _write_whole(path: Path, data: bytes) -> None:
    draft = path.parent / f"{secrets.token_hex(8)}.draft"
    try:
        try:
            draft.write_bytes(data)
        except FileNotFoundError:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft.write_bytes(data)
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_whole(path: Path, data: bytes) -> None:
    """Put a file in its place, whole and on the disk, or leave what was there."""
    draft = path.parent / f"{secrets.token_hex(8)}.draft"
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def compute_name(kind: str, body: bytes) -> str:
    """The name of an object, as git computes it."""
    return hashlib.sha1(encode_object(kind, body), usedforsecurity=False).hexdigest()


def encode_object(kind: str, body: bytes) -> bytes:
    """The bytes of an object, of which its name is the hash."""
    return b"%s %d\0%s" % (kind.encode(), len(body), body)


def encode_tree(entries: Iterable[TreeEntry]) -> bytes:
    """The tree of a folder, in git's order: as if the names of folders ended in a slash."""
    ordered = sorted(entries, key=lambda each: each.name + b"/" if each.mode == FOLDER else each.name)
    return b"".join(
        b"%o %s\0%s" % (each.mode | each.mtime_ns << _MODE_BITS, each.name, bytes.fromhex(each.sha)) for each in ordered
    )


def decode_tree(body: bytes, sha_bytes: int = 20) -> list[TreeEntry]:
    """The entries of a tree. Raises ``StoreDamaged``. Names are checked: none leads anywhere else."""
    found: list[TreeEntry] = []
    at = 0
    while at < len(body):
        end = body.find(b"\0", at)
        mode, _, name = body[at : max(end, at)].partition(b" ")
        at = end + 1
        sha = body[at : at + sha_bytes]
        at += sha_bytes
        if end < 0 or len(sha) != sha_bytes or not mode.isdigit() or not name or b"/" in name or name in (b".", b".."):
            raise StoreDamaged("a folder in the store cannot be read")
        number = int(mode, 8)
        found.append(TreeEntry(number & (1 << _MODE_BITS) - 1, name, sha.hex(), number >> _MODE_BITS))
    return found


@dataclass(frozen=True, slots=True)
class FileTrees:
    """Reads the trees of one store."""

    objects: ObjectReader
    sha_bytes: int = 20

    def read_entries(self, tree: str | None) -> dict[bytes, TreeEntry]:
        """The entries of a folder by their names; none for ``None``. Raises ``StoreDamaged``."""
        if tree is None:
            return {}
        return {entry.name: entry for entry in decode_tree(self.objects.get("tree", tree), self.sha_bytes)}

    def find_differences(self, before: str | None, after: str | None, path: str = "") -> Iterator[ChangedFile]:
        """Yield the files that differ between two trees, by path. Raises ``StoreDamaged``."""
        if before == after:
            return
        left, right = self.read_entries(before), self.read_entries(after)
        for name in sorted(left.keys() | right.keys()):
            old, new = left.get(name), right.get(name)
            if old == new:
                continue
            inside = f"{path}/{os.fsdecode(name)}" if path else os.fsdecode(name)
            old_tree = old.sha if old and old.mode == FOLDER else None
            new_tree = new.sha if new and new.mode == FOLDER else None
            old_file = old if old and not old_tree else None
            new_file = new if new and not new_tree else None
            yield from self.find_differences(old_tree, new_tree, inside)
            if old_file != new_file:
                yield ChangedFile(path=inside, before=old_file, after=new_file)

    def mark_needed(self, tree: str, needed: set[str]) -> None:
        """Add the names of a tree and of all that it holds to ``needed``. Raises ``StoreDamaged``."""
        if tree in needed:
            return
        needed.add(tree)
        for entry in self.read_entries(tree).values():
            if entry.mode == FOLDER:
                self.mark_needed(entry.sha, needed)
                continue
            needed.add(entry.sha)
            if entry.mode & PARTS:
                needed.update(self.read_parts(entry.sha))

    def read_parts(self, sha: str) -> list[str]:
        """The names of the parts of a file. Raises ``StoreDamaged``."""
        return self.objects.get("parts", sha).decode("ascii", "replace").split()
