"""The checkpoints of one workspace: a repository in git's format that no command of an agent can reach.

Theory of operation. A checkpoint is a reference of its own to a commit without parents, so that any of them can be let
go. Everything is written beside its place and renamed: a process that dies leaves the checkpoints that were there, and
at most objects without a reference, which the next trim removes. To keep, restore or trim, a process holds a lock that
the kernel gives back when its holder dies. ``scan.json`` is a memory of the last scan and may be lost at any time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from hermes_worker.features.checkpoints.files.local_files import LocalFiles
from hermes_worker.features.checkpoints.rules import CheckpointLimits, Moment, is_worth_keeping
from hermes_worker.observe import log
from hermes_worker.system.open_files import try_lock
from hermes_worker.workspaces.trees.objects import ChangedFile, FileTrees, ObjectStore, StoreDamaged, write_whole
from hermes_worker.workspaces.trees.scanning import (
    NotScanned,
    ScanMemory,
    ScanOrder,
    ScanResult,
    WorkspaceFiles,
)

_LOCK_PATIENCE_S: Final = 20.0
_LOCK_EVERY_S: Final = 0.02
_NAME: Final = re.compile(r"(?P<at>\d{14})\.(?P<run>[A-Za-z0-9_-]{1,128})\.(?P<iteration>\d{1,9})")
_PART: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_VERSION: Final = 1
"""The version of ``scan.json``."""
_TRIM_EVERY: Final = 10


class NotKept(Exception):
    """No checkpoint could be made or used; the message says why."""


class CheckpointNotFound(NotKept):
    """There is no such checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The files of a workspace at one moment."""

    id: str
    """40 hexadecimal digits; their beginning is enough where people write it."""
    tree: str
    at: float
    moment: Moment
    files: int
    left_out: tuple[str, ...]
    """Files that are too large or could not be read; the first of them."""
    left_out_total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The result of a restore."""

    before: Checkpoint
    """The checkpoint of the files as they were just before."""
    written: tuple[str, ...]
    removed: tuple[str, ...]
    failed: Mapping[str, str] = field(default_factory=dict)
    """Paths that could not be put back, and why."""


class ShadowStore:
    """The checkpoints of the workspace at ``root``, kept in ``directory``. Holds nothing that changes; any number of
    processes may use one at a time."""

    def __init__(
        self,
        directory: Path,
        root: str,
        limits: CheckpointLimits | None = None,
        *,
        files: WorkspaceFiles | None = None,
    ) -> None:
        """Without ``files``, the files are those at ``root`` on this machine; with them, ``root`` is a name for
        people.
        """
        self.directory = directory
        self.root = root
        self._files = files or LocalFiles(root)
        self._limits = limits or CheckpointLimits()
        self._objects = ObjectStore(directory / "objects")
        self._trees = FileTrees(self._objects)
        self._references = directory / "refs" / "checkpoints"

    def keep_checkpoint(self, moment: Moment, *, should_stop: Callable[[], bool] = lambda: False) -> Checkpoint | None:
        """Make a checkpoint, unless the moment's iteration has one already, or nothing changed since the last one.
        Raises ``NotKept``.
        """
        try:
            with self._lock(should_stop):
                return self._keep_locked(moment, should_stop)
        except (NotScanned, StoreDamaged) as error:
            raise NotKept(str(error)) from error
        except OSError as error:
            raise NotKept(f"the store of checkpoints cannot be used ({error.strerror})") from error

    def require_there(self) -> None:
        """Raise ``NotKept`` when the files are not where this process looks for them."""
        try:
            self._files.require_there()
        except NotScanned as error:
            raise NotKept(str(error)) from error

    def list_checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, the oldest first, without those that cannot be read."""
        found = []
        for path in self._list_references():
            with suppress(StoreDamaged, OSError, ValueError, KeyError, TypeError):
                found.append(self._read_checkpoint(path.read_text().strip()))
        return found

    def find_checkpoint(self, written: str) -> Checkpoint:
        """The checkpoint that is meant by an id or its beginning. Raises ``CheckpointNotFound``."""
        found = [each for each in self.list_checkpoints() if len(written) >= 4 and each.id.startswith(written.lower())]
        if len(found) != 1:
            words = "several checkpoints have ids" if found else "there is no checkpoint whose id"
            raise CheckpointNotFound(f"{words} that begin{'' if found else 's'} with {written[:40]!r}")
        return found[0]

    def list_changes(self, before: Checkpoint, after: Checkpoint | None = None) -> list[ChangedFile]:
        """The files that differ, by path; ``after`` is ``None`` for the files as they are now. Raises ``NotKept``."""
        try:
            if after is not None:
                return list(self._trees.find_differences(before.tree, after.tree))
            with self._lock(lambda: False):
                scan = self._scan(lambda: False)
                spared = (*before.left_out, *scan.left_out)
                return [
                    each
                    for each in self._trees.find_differences(before.tree, scan.tree_id)
                    if not _is_below(each.path, spared)
                ]
        except (NotScanned, StoreDamaged) as error:
            raise NotKept(str(error)) from error
        except OSError as error:
            raise NotKept(f"the files cannot be read ({error.strerror})") from error

    def read_content(self, sha: str) -> bytes:
        """The content of a file, by its hash. Raises ``NotKept``."""
        try:
            return self._objects.get("blob", sha)
        except StoreDamaged as error:
            raise NotKept(str(error)) from error

    def restore(
        self, wanted: Checkpoint, moment: Moment, *, paths: Collection[str] = (), umask: int | None = None
    ) -> RestoreResult:
        """Make the files what they were; with ``paths`` only these, and what is below them. A checkpoint of the present
        files is made first. Files that checkpoints leave out stay as they are. Each file is replaced whole; a restore
        that is cut can be repeated. Raises ``NotKept``.
        """
        try:
            with self._lock(lambda: False):
                before = self._record_now(moment, lambda: False)
                meant = [
                    each
                    for each in self._trees.find_differences(before.tree, wanted.tree)
                    if not paths or _is_below(each.path, paths)
                ]
                # What was left out then may have become small enough since: its old content is unknown.
                spared = [each for each in meant if each.after is None and _is_below(each.path, wanted.left_out)]
                is_known = wanted.left_out_total == len(wanted.left_out)
                doing = [each for each in meant if each not in spared and (is_known or each.after is not None)]
                failed = self._files.put_back(doing, lambda sha: self._objects.get("blob", sha), umask=umask)
                if len(self._list_references()) > self._limits.checkpoints:
                    self._trim()
        except (NotScanned, StoreDamaged) as error:
            raise NotKept(str(error)) from error
        except OSError as error:
            raise NotKept(f"the files cannot be put back ({error.strerror})") from error
        done = [each for each in doing if each.path not in failed]
        return RestoreResult(
            before=before,
            written=tuple(each.path for each in done if each.after is not None),
            removed=tuple(each.path for each in done if each.after is None),
            failed=failed,
        )

    def list_sessions(self) -> set[str]:
        """The sessions that these checkpoints belong to."""
        with suppress(FileNotFoundError):
            return {each.name for each in self._references.iterdir() if _PART.fullmatch(each.name)}
        return set()

    def forget(self, sessions: Collection[str]) -> int:
        """Remove the checkpoints of sessions, and the store with the last one; return how many were removed. Raises
        ``NotKept``.
        """
        try:
            with self._lock(lambda: False):
                gone = [path for path in self._list_references() if path.parent.name in sessions]
                for path in gone:
                    path.unlink(missing_ok=True)
                for session in sessions:
                    with suppress(OSError):
                        (self._references / session).rmdir()
                if not self._list_references():
                    self._remove()
                elif gone:
                    # The memory of the last scan names contents that may not be needed any more.
                    (self.directory / "scan.json").unlink(missing_ok=True)
                    self._sweep()
        except StoreDamaged as error:
            raise NotKept(str(error)) from error
        except OSError as error:
            raise NotKept(f"the store of checkpoints cannot be used ({error.strerror})") from error
        return len(gone)

    # --- with the lock ------------------------------------------------------------------------------------------------

    def _record_now(self, moment: Moment, should_stop: Callable[[], bool]) -> Checkpoint:
        """Make a checkpoint in any case. None is taken away: it might be the one that is to be restored."""
        names = self._list_references()
        return self._record(self._scan(should_stop), moment, after=names[-1].name if names else "")

    def _keep_locked(self, moment: Moment, should_stop: Callable[[], bool]) -> Checkpoint | None:
        names = self._list_references()
        turn = f".{_check_path_part(moment.run_id)}.{moment.iteration}"
        seen = self.directory / "turn"
        if any(path.name.endswith(turn) for path in names) or _read_text(seen) == turn:
            return None
        found = self._scan(should_stop)
        last = self._find_last(names)
        known = (last.tree, last.moment) if last is not None else (None, None)
        if not is_worth_keeping(found.tree_id, moment, *known):
            write_whole(seen, turn.encode())
            return None
        kept = self._record(found, moment, after=names[-1].name if names else "")
        if len(names) >= self._limits.checkpoints or len(names) % _TRIM_EVERY == _TRIM_EVERY - 1:
            self._trim()
        return kept

    def _scan(self, should_stop: Callable[[], bool]) -> ScanResult:
        path = self.directory / "scan.json"
        order = ScanOrder(
            objects=self._objects,
            memory=_read_memory(path),
            now_ns=self._read_clock_ns(),
            file_bytes_max=self._limits.file_bytes,
            should_stop=should_stop,
        )
        found = self._files.scan(order)
        if (memory := found.memory) is not None:
            document = {"version": _VERSION, "folders": memory.folders, "listing": memory.listing}
            write_whole(path, json.dumps(document, separators=(",", ":")).encode())
        return found

    def _read_clock_ns(self) -> int:
        """The time by the clock that stamps files, which is another machine's on a shared volume; the earlier of two
        readings.
        """
        os.utime(self.directory / "lock")
        return min(time.time_ns(), (self.directory / "lock").stat().st_mtime_ns)

    def _record(self, found: ScanResult, moment: Moment, *, after: str) -> Checkpoint:
        at = time.time()
        told = {
            "session": moment.session_id,
            "run": moment.run_id,
            "iteration": moment.iteration,
            "tool": moment.tool,
            "at": at,
            "files": found.files,
            "left_out_total": found.left_out_total,
            "left_out": found.left_out,
        }
        who = f"hermes-worker <checkpoints@hermes-worker.invalid> {int(at)} +0000"
        text = f"tree {found.tree_id}\nauthor {who}\ncommitter {who}\n\n{json.dumps(told)}\n"
        commit = self._objects.put("commit", text.encode())
        # Names are in the order of time, also where two clocks differ.
        number = max(int(at * 1000), int(after[:14]) + 1 if after else 0)
        folder = self._references / _check_path_part(moment.session_id)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(
            folder / f"{number:014d}.{_check_path_part(moment.run_id)}.{moment.iteration}", f"{commit}\n".encode()
        )
        return self._read_checkpoint(commit)

    def _trim(self) -> None:
        paths = self._list_references()
        for path in paths[: max(0, len(paths) - self._limits.checkpoints)]:
            path.unlink(missing_ok=True)
        size = self._sweep()
        while size > self._limits.store_bytes and len(paths := self._list_references()) > 1:
            for path in paths[: (len(paths) + 1) // 2]:
                path.unlink(missing_ok=True)
            size = self._sweep()

    def _sweep(self) -> int:
        """Remove objects without a reference; return the bytes that are left."""
        needed: set[str] = set()
        for path in self._list_references():
            commit = path.read_text().strip()
            reached: set[str] = set()
            try:
                self._trees.mark_needed(self._read_checkpoint(commit).tree, reached)
            except (StoreDamaged, ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)  # it could not be put back whole
                log.warning("checkpoint.damaged", checkpoint=commit[:12])
                continue
            needed |= {commit, *reached}
        for folder in _read_memory(self.directory / "scan.json").folders.values():
            needed |= {folder["tree"], *folder["folders"].values(), *folder["shas"].values()}
        there = dict(self._objects.list_objects())
        self._objects.remove(there.keys() - needed)
        self._objects.sweep_drafts()
        return sum(size for sha, size in there.items() if sha in needed)

    def _remove(self) -> None:
        gone = self.directory.with_name(f"{self.directory.name}.{secrets.token_hex(4)}.gone")
        self.directory.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)

    # --- reading ------------------------------------------------------------------------------------------------------

    def _list_references(self) -> Sequence[Path]:
        """The references, the oldest first."""
        found: list[Path] = []
        for session in self.list_sessions():
            with suppress(FileNotFoundError):
                found += [path for path in (self._references / session).iterdir() if _NAME.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.name)

    def _find_last(self, paths: Sequence[Path]) -> Checkpoint | None:
        for path in reversed(paths):
            with suppress(StoreDamaged, OSError, ValueError, KeyError, TypeError):
                return self._read_checkpoint(path.read_text().strip())
        return None

    def _read_checkpoint(self, commit: str) -> Checkpoint:
        head, _, body = self._objects.get("commit", commit).partition(b"\n\n")
        told = json.loads(body)
        moment = Moment(
            session_id=str(told["session"]),
            run_id=str(told["run"]),
            iteration=int(told["iteration"]),
            tool=str(told["tool"]),
        )
        return Checkpoint(
            id=commit,
            tree=head.split(b"\n", 1)[0].removeprefix(b"tree ").decode("ascii"),
            at=float(told["at"]),
            moment=moment,
            files=int(told["files"]),
            left_out=tuple(map(str, told["left_out"])),
            left_out_total=int(told["left_out_total"]),
        )

    @contextmanager
    def _lock(self, should_stop: Callable[[], bool]) -> Iterator[None]:
        deadline = time.monotonic() + _LOCK_PATIENCE_S
        while True:
            self._prepare()
            descriptor = os.open(self.directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                if try_lock(descriptor) and self._is_ours(descriptor):
                    yield
                    return
            finally:
                os.close(descriptor)
            if should_stop() or time.monotonic() >= deadline:
                raise NotScanned("another process works on the checkpoints of this workspace")
            time.sleep(_LOCK_EVERY_S)

    def _is_ours(self, descriptor: int) -> bool:
        """Whether the file is still in its place: the store may have been removed while we waited."""
        with suppress(FileNotFoundError):
            return (self.directory / "lock").stat().st_ino == os.fstat(descriptor).st_ino
        return False

    def _prepare(self) -> None:
        """Make what is not there yet. A command may work in a folder above the store: then nothing is kept."""
        if self._files.holds(self.directory):
            raise NotScanned("the workspace holds the place where its checkpoints would be kept")
        if (self.directory / "HEAD").exists():
            return
        self._references.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self.directory / "objects").mkdir(mode=0o700, exist_ok=True)
        write_whole(self.directory / "workspace", os.fsencode(self.root))
        write_whole(self.directory / "config", b"[core]\n\trepositoryformatversion = 0\n\tbare = true\n")
        write_whole(self.directory / "HEAD", b"ref: refs/heads/checkpoints\n")


def _read_memory(path: Path) -> ScanMemory:
    with suppress(OSError, ValueError):
        document: Any = json.loads(path.read_bytes())
        if isinstance(document, dict) and document.get("version") == _VERSION:
            return ScanMemory(folders=document["folders"], listing=document.get("listing") or {})
    return ScanMemory()


def _read_text(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text()
    return ""


def _check_path_part(name: str) -> str:
    """``name`` as a part of a path; it is an id of ours, and nothing else is taken for one."""
    if not _PART.fullmatch(name):
        raise NotScanned(f"{name[:40]!r} is no id")
    return name


def _is_below(path: str, folders: Collection[str]) -> bool:
    return any(path == each or path.startswith(f"{each.rstrip('/')}/") for each in folders)


def normalize_path(path: str) -> str:
    """A path below a workspace in its one spelling. Raises ``NotKept`` for one that is not below it."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise NotKept(f"{path[:80]!r} is no path below the workspace")
    return "/".join(parts)
