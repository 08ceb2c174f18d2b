"""The files of a workspace on this machine, and their snapshots in object storage.

Theory of operation. A snapshot is a tree of objects under their hashes, as a checkpoint is (``workspaces.trees``), and
one row names the snapshot that counts. Before a call the files are brought to that snapshot, and after a change the
files are scanned, what is new is uploaded, and then the row moves, by compare-and-set. A worker that dies on the way
has changed nothing that counts: its objects are swept, and its files stay on its machine for the next snapshot there.

Calls of one session may run on several machines at once. Each machine remembers the snapshot that its files began with,
its *base*; what changed between the base and the row's snapshot is theirs, what changed between the base and the files
is ours. Both are joined by path. Where both changed a file, the one that is kept later wins, as on a shared volume.

An object is taken to be in the bucket only if the row's snapshot has it: everything else is written again, since an
object without a reference may be removed at any moment. So a snapshot must be finished within the time that such
objects stay at least.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final

from hermes_worker.features.object_storage.head_rows import WorkspaceHead, WorkspaceHeads
from hermes_worker.features.object_storage.rules import PART_BYTES, SnapshotName
from hermes_worker.features.object_storage.sealed_files import ALGORITHM, SHA_BYTES, SealedObjects, SnapshotObjects
from hermes_worker.observe import log
from hermes_worker.system import faults
from hermes_worker.system.faults import FaultPoint
from hermes_worker.system.open_files import try_lock
from hermes_worker.workspaces.base import HostLost, WorkspaceAway
from hermes_worker.workspaces.trees.objects import (
    EMPTY_FOLDER,
    PARTS,
    ChangedFile,
    FileTrees,
    ObjectStore,
    StoreDamaged,
    TreeEntry,
    write_whole,
)
from hermes_worker.workspaces.trees.putting import Content, put_back
from hermes_worker.workspaces.trees.scanning import FolderScan, Known, NotScanned, ScanRules

_RULES: Final = ScanRules(files_max=200_000, depth_max=200, left_out_max=10, is_whole=True, part_bytes=PART_BYTES)
_FILE_BYTES_MAX: Final = 1024**4
_TRIES: Final = 20
_LOCK_PATIENCE_S: Final = 900.0
_LOCK_EVERY_S: Final = 0.05
KEEPING_S_MAX: Final = 1_800.0
"""A snapshot that takes longer is begun anew: what it wrote first might be removed before the row names it."""
_AHEAD: Final = 16


class SnapshotKeeper:
    """Brings the files of one workspace to its snapshot, and keeps what changed. Safe for any number of threads and
    processes, on any number of machines."""

    def __init__(
        self,
        root: str,
        state: Path,
        name: SnapshotName,
        heads: WorkspaceHeads,
        open_stored: Callable[[bytes], SealedObjects],
        *,
        umask: int | None = None,
    ) -> None:
        """``state`` is a directory of this machine that no command sees. ``open_stored`` opens the objects under a
        secret."""
        self._root = root
        self._state = state
        self._name = name
        self._heads = heads
        self._open_stored = open_stored
        self._umask = umask
        self._trees = ObjectStore(state / "trees", ALGORITHM)

    def fetch(self) -> None:
        """Bring the files to the snapshot that counts; one round trip to the database where they are there. Raises
        ``WorkspaceAway``, ``UnavailableError``."""
        head = self._heads.find_head(self._name)
        if head is None or head.tree is None or head.tree == self._read_base():
            return
        with self._translate_errors("brought here"), self._lock():
            self._bring_here(head, head.tree, prefers_ours=False)

    def keep(self) -> None:
        """Make a snapshot of the files, if they changed. Raises ``HostLost`` when that is not possible: the files are
        on this machine alone then, until the next call here. Raises ``UnavailableError``."""
        try:
            with self._translate_errors("kept"), self._lock():
                for _ in range(_TRIES):
                    if self._try_to_keep(self._heads.add_head(self._name)):
                        return
        except WorkspaceAway as error:
            raise HostLost(str(error)) from error
        raise HostLost("the files cannot be kept in object storage: other workers change them all the time")

    def release(self) -> bool:
        """Remove the files from this machine, where all of them are in the snapshot that counts. False where they are
        not, or none are here."""
        if not Path(self._root).is_dir() and not self._state.is_dir():
            return False
        with self._translate_errors("released"), self._lock():
            head = self._heads.find_head(self._name)
            if head is None or head.tree is None:
                return False
            with closing(self._open_objects(head, uploads=False)) as objects:
                if self._scan(objects)[0] != head.tree:
                    return False
            self.discard()
        return True

    def list_needed_keys(self, head: WorkspaceHead) -> set[str]:
        """The keys of all objects that the snapshot of ``head`` needs. Raises ``WorkspaceAway``."""
        with self._translate_errors("listed"), closing(self._open_objects(head, uploads=False)) as objects:
            return {objects.name_key(sha) for sha in objects.find_known()}

    def discard(self) -> None:
        """Remove what this machine has of the workspace. Idempotent."""
        shutil.rmtree(self._root, ignore_errors=True)
        shutil.rmtree(self._state, ignore_errors=True)

    # --- with the lock ------------------------------------------------------------------------------------------------

    def _try_to_keep(self, head: WorkspaceHead) -> bool:
        """Make a snapshot on top of ``head``; False when another worker moved the row meanwhile."""
        if head.tree is not None and head.tree != self._read_base():
            self._bring_here(head, head.tree, prefers_ours=True)
        began = time.monotonic()
        with closing(self._open_objects(head, uploads=True)) as objects:
            tree, folders = self._scan(objects)
            written = objects.finish()
        faults.pass_point(FaultPoint.SNAPSHOT_AFTER_UPLOAD, self._name.name)
        if tree != head.tree:
            if time.monotonic() - began > KEEPING_S_MAX or self._heads.move_head(self._name, head, tree) is None:
                return False
            faults.pass_point(FaultPoint.SNAPSHOT_AFTER_HEAD, self._name.name)
            log.debug("snapshot.kept", objects=written, duration_s=round(time.monotonic() - began, 3))
        self._write_base(tree)
        write_whole(self._state / "scan.json", json.dumps({"tree": tree, "folders": folders}).encode())
        return True

    def _bring_here(self, head: WorkspaceHead, tree: str, *, prefers_ours: bool) -> None:
        """Join the files with ``tree``, the snapshot of ``head``, which is their base afterwards."""
        base = self._read_base()
        with closing(self._open_objects(head, uploads=False)) as objects:
            trees = FileTrees(objects, SHA_BYTES)
            here = self._scan(objects)[0]
            ours = {each.path: each for each in trees.find_differences(base or here, here)}
            theirs = list(trees.find_differences(base or here, tree))
            doing = list(_join_changes(theirs, ours, prefers_ours=prefers_ours))
            reading = _ReadAhead(objects, trees, [each.after for each in doing if each.after is not None])
            failed = put_back(self._root, doing, reading.take, umask=self._umask)
        if failed:
            path, reason = next(iter(failed.items()))
            raise WorkspaceAway(f"{len(failed)} files of the workspace cannot be written here; {path!r}: {reason}")
        self._write_base(tree)
        log.info("snapshot.fetched", files=len(doing))

    def _scan(self, objects: SnapshotObjects) -> tuple[str, Known]:
        """The tree of the files as they are, and the memory of the scan."""
        remembered = self._read_memory()
        known: Known = remembered.get("folders", {})
        if objects.head.tree != remembered.get("tree"):
            known = _forget_unknown(known, objects.find_known())
        scan = FolderScan(
            objects=objects, rules=_RULES, known=known, now_ns=self._read_clock_ns(), file_bytes_max=_FILE_BYTES_MAX
        )
        tree = scan.scan_root(self._root)
        if scan.left_out_total:
            log.warning("snapshot.left_out", files=scan.left_out_total, first=scan.left_out[0])
        return tree, scan.found

    def _open_objects(self, head: WorkspaceHead, *, uploads: bool) -> SnapshotObjects:
        return SnapshotObjects(head, self._open_stored(bytes.fromhex(head.secret)), self._trees, uploads=uploads)

    def _read_memory(self) -> Mapping[str, Any]:
        with suppress(OSError, ValueError):
            document = json.loads((self._state / "scan.json").read_bytes())
            if isinstance(document, dict):
                return document
        return {}

    def _read_base(self) -> str | None:
        """The snapshot that the files here began with; ``None`` where they, or what is remembered of them, went."""
        with suppress(OSError, ValueError):
            tree, folder = (self._state / "base").read_text().split()
            return tree if folder == self._name_folder() else None
        return None

    def _write_base(self, tree: str) -> None:
        write_whole(self._state / "base", f"{tree} {self._name_folder()}".encode())

    def _name_folder(self) -> str:
        """A name for the directory as it is, and not for another one that was made in its place."""
        status = Path(self._root).stat()
        return f"{status.st_dev}:{status.st_ino}"

    def _read_clock_ns(self) -> int:
        """The earlier of two readings: the clock that stamps files may be another machine's."""
        os.utime(self._state / "lock")
        return min(time.time_ns(), (self._state / "lock").stat().st_mtime_ns)

    @contextmanager
    def _lock(self) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
            Path(self._root).mkdir(mode=0o700, parents=True, exist_ok=True)
            with (self._state / "lock").open("a") as file:
                if try_lock(file) and self._is_ours(file):
                    yield
                    return
            if time.monotonic() > deadline:
                raise WorkspaceAway("another process works on the files of this workspace")
            time.sleep(_LOCK_EVERY_S)

    def _is_ours(self, file: IO[str]) -> bool:
        """Whether the file is still in its place: what is here may have been removed while we waited."""
        with suppress(FileNotFoundError):
            return (self._state / "lock").stat().st_ino == os.fstat(file.fileno()).st_ino and Path(self._root).is_dir()
        return False

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except (NotScanned, StoreDamaged) as error:
            raise WorkspaceAway(f"the files of the workspace cannot be {what}: {error}") from error
        except OSError as error:
            raise WorkspaceAway(f"the files of the workspace cannot be {what}: {error.strerror}") from error


def _forget_unknown(folders: Known, known: Set[str]) -> Known:
    """What an earlier scan found, without the objects that may not be in the bucket."""
    kept: Known = {}
    for path, folder in folders.items():
        shas = {name: sha for name, sha in folder["shas"].items() if sha in known}
        kept[path] = {
            "tree": folder["tree"] if folder["tree"] in known else None,
            "stamps": {name: folder["stamps"].get(name, "") for name in shas},
            "shas": shas,
            "folders": folder["folders"],
        }
    return kept


def _join_changes(
    theirs: Iterable[ChangedFile], ours: Mapping[str, ChangedFile], *, prefers_ours: bool
) -> Iterator[ChangedFile]:
    """Yield what has to be done to files with ``ours`` so that they have ``theirs`` as well."""
    for change in theirs:
        above = {str(each) for each in PurePosixPath(change.path).parents}
        touching = [
            each
            for path, each in ours.items()
            if path == change.path or path in above or path.startswith(f"{change.path}/")
        ]
        if any(each.path == change.path and each.after == change.after for each in touching):
            continue  # both did the same
        if touching:
            log.info("snapshot.conflict", path=change.path, is_ours=prefers_ours)
            if prefers_ours:
                continue
        yield from (
            ChangedFile(path=each.path, before=each.after, after=None)
            for each in touching
            if each.path != change.path and each.after is not None and change.after is not None
        )
        yield change


class _ReadAhead:
    """The contents of files in the order in which they are written, some of which are read beside that."""

    def __init__(self, objects: SnapshotObjects, trees: FileTrees, entries: Sequence[TreeEntry]) -> None:
        self._objects = objects
        self._trees = trees
        self._left = deque(each for each in entries if each.mode != EMPTY_FOLDER)
        self._begun: deque[Future[bytes] | None] = deque()

    def take(self, entry: TreeEntry) -> Content:
        """The content of the next file. Raises ``StoreDamaged``, ``BucketAway``."""
        while self._left and len(self._begun) < _AHEAD:
            later = self._left.popleft()
            self._begun.append(None if later.mode & PARTS else self._objects.fetch_later(later.sha))
        faults.pass_point(FaultPoint.SNAPSHOT_BETWEEN_FILES)
        begun = self._begun.popleft()
        if begun is not None:
            return begun.result()
        return (self._objects.get("blob", part) for part in self._trees.read_parts(entry.sha))
