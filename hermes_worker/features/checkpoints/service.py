"""The checkpoints of a run's workspace: list, compare, restore. This process must have access to the home."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import HermesError
from hermes_worker.features.checkpoints.build import build_checkpoint_limits
from hermes_worker.features.checkpoints.files.places import find_store
from hermes_worker.features.checkpoints.files.shadow import (
    Checkpoint,
    CheckpointNotFound,
    NotKept,
    ShadowStore,
    normalize_path,
)
from hermes_worker.features.checkpoints.rules import CheckpointLimits, Moment
from hermes_worker.features.checkpoints.schema import (
    CheckpointDiffObject,
    CheckpointObject,
    FileChangeObject,
    RestoreObject,
)
from hermes_worker.safety.redaction import redact
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.rewinds import Rewind, match_calls_settled_since
from hermes_worker.store.runs.workspaces import RunWorkspace, RunWorkspaces
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.build import build_copy_rule, make_workspace_opener
from hermes_worker.workspaces.opening import CopyRule
from hermes_worker.workspaces.ref import WorkspaceRef
from hermes_worker.workspaces.trees.objects import EXECUTABLE, LINK, ChangedFile, TreeEntry

DIFF_FILES_MAX: Final = 200
DIFF_CHARS_MAX: Final = 400_000
_FILE_BYTES_MAX: Final = 400_000
_FILE_LINES_MAX: Final = 5_000
RESTORE_FILES_MAX: Final = 100
"""Most paths that one request may name."""
_PATHS_SHOWN_MAX: Final = 1_000
_CLOCKS_APART_S: Final = 10.0
"""Seconds by which the clock of the worker that made a checkpoint may be ahead of the database's."""
_TAKEN_BACK: Final = frozenset({"write_file", "patch"})
"""Tools whose only effect is in files, which a restore takes back."""
_FILES_NOTE: Final = (
    "[Note of the system: a person put the files of the workspace back to what they were before run {run} called "
    "{tool}: {files} files changed. Read files again before you rely on them.]"
)


class NoCheckpoint(HermesError):
    """This run's workspace has no such checkpoint."""


class CheckpointsAway(HermesError):
    """The checkpoints, or the files, are not where this process looks, or cannot be used."""


class WorkspaceBusy(HermesError):
    """A run is at work in the workspace whose files were to be restored."""


class RunCheckpoints:
    """The checkpoints of runs of one installation."""

    def __init__(
        self,
        database: Database,
        home: Path,
        limits: CheckpointLimits,
        *,
        umask: int | None = None,
        opened: Callable[[str], Workspace] | None = None,
        rule: CopyRule | None = None,
    ) -> None:
        """``opened`` opens workspaces on other hosts, whose files are compared and restored there. ``rule`` says whose
        files may be looked at."""
        self._rule = rule
        self._places = RunWorkspaces(database)
        self._opened = opened
        self._home = home
        self._limits = limits
        self._umask = umask

    def list_all(self, run_id: str) -> list[CheckpointObject]:
        """List all checkpoints of the run's workspace, the newest first. Raises ``RunNotFound``,
        ``CheckpointsAway``."""
        return [
            _build_object(each)
            for each in reversed(self._open_shadow(self._places.load_workspace(run_id)).list_checkpoints())
        ]

    def diff(self, run_id: str, written: str | None = None) -> CheckpointDiffObject:
        """Compare the files of a run's workspace with the checkpoint ``written``; ``None`` names the run's first.
        Raises ``RunNotFound``, ``NoCheckpoint``, ``CheckpointsAway``."""
        store = self._open_store(self._places.load_workspace(run_id))
        wanted = _choose_checkpoint(store, run_id, written)
        try:
            changes = store.list_changes(wanted)
            text, is_cut = _build_unified_diff(store, changes)
        except NotKept as error:
            raise CheckpointsAway(str(error)) from None
        return CheckpointDiffObject(
            checkpoint_id=wanted.id,
            files=[
                FileChangeObject(path=_decode_path(each.path), change=_classify_change(each))
                for each in changes[:_PATHS_SHOWN_MAX]
            ],
            files_total=len(changes),
            text=redact(text),
            is_cut=is_cut,
        )

    def restore(self, run_id: str, written: str, paths: Sequence[str] = ()) -> RestoreObject:
        """Restore a checkpoint; with ``paths`` only these files and folders. Raises ``RunNotFound``, ``NoCheckpoint``,
        ``CheckpointsAway``, and ``WorkspaceBusy`` while any run is at work there."""
        place = self._places.load_workspace(run_id)
        store = self._open_store(place)
        wanted = _choose_checkpoint(store, run_id, written)
        try:
            meant = [normalize_path(path) for path in paths]
        except NotKept as error:
            raise NoCheckpoint(str(error)) from None
        if at_work := self._places.list_open_runs(place):
            raise WorkspaceBusy(f"run {at_work[0]!r} works in these files; stop it first")
        moment = Moment(session_id=place.session_id, run_id=run_id, iteration=0, tool="restore")
        try:
            done = store.restore(wanted, moment, paths=meant, umask=self._umask)
        except NotKept as error:
            raise CheckpointsAway(str(error)) from None
        files = len(done.written) + len(done.removed)
        rewind = Rewind(
            calls=match_calls_settled_since(wanted.at - _CLOCKS_APART_S),
            files_note=_FILES_NOTE.format(files=files, run=wanted.moment.run_id, tool=_decode_path(wanted.moment.tool)),
            besides=_TAKEN_BACK,
        )
        self._places.record_restore(run_id, wanted.id, before=done.before.id, files=files, rewind=rewind)
        return RestoreObject(
            checkpoint_id=wanted.id,
            before=done.before.id,
            written=[_decode_path(path) for path in done.written[:_PATHS_SHOWN_MAX]],
            removed=[_decode_path(path) for path in done.removed[:_PATHS_SHOWN_MAX]],
            failed=[f"{_decode_path(path)}: {why}" for path, why in list(done.failed.items())[:_PATHS_SHOWN_MAX]],
        )

    def _open_shadow(self, place: RunWorkspace) -> ShadowStore:
        try:
            store = find_store(self._home, place.tenant, place.workspace, self._limits, opened=self._opened)
        except ValueError:
            raise CheckpointsAway("where the session works cannot be read") from None
        if store is None:
            raise CheckpointsAway("no checkpoints are made of workspaces that extensions bring")
        return store

    def _open_store(self, place: RunWorkspace) -> ShadowStore:
        """Open the checkpoints of a workspace whose files must be there as well. Raises ``CheckpointsAway``."""
        store = self._open_shadow(place)
        try:
            if self._rule is not None:
                self._rule.require_own(WorkspaceRef.from_json(place.workspace))
            store.require_there()
        except (NotKept, WorkspaceError) as error:
            raise CheckpointsAway(str(error)) from None
        return store


def build_run_checkpoints(database: Database, settings: Settings) -> RunCheckpoints:
    """Build the checkpoints as settings say; for workspaces on other hosts where this process reaches them."""
    rule = build_copy_rule(settings, database)
    return RunCheckpoints(
        database,
        settings.home,
        build_checkpoint_limits(settings),
        umask=settings.terminal.umask,
        opened=make_workspace_opener(settings, None, rule),
        rule=rule,
    )


def _choose_checkpoint(store: ShadowStore, run_id: str, written: str | None) -> Checkpoint:
    if written is not None:
        try:
            return store.find_checkpoint(written)
        except CheckpointNotFound as error:
            raise NoCheckpoint(str(error)) from None
    found = [each for each in store.list_checkpoints() if each.moment.run_id == run_id]
    if not found:
        raise NoCheckpoint("there is no checkpoint of this run: it changed no files, or it is too long ago")
    return found[0]


def _build_object(found: Checkpoint) -> CheckpointObject:
    return CheckpointObject(
        id=found.id,
        created_at=found.at,
        run_id=found.moment.run_id,
        iteration=found.moment.iteration,
        tool=_decode_path(found.moment.tool),
        files=found.files,
        left_out=found.left_out_total,
    )


def _classify_change(change: ChangedFile) -> str:
    if change.before is None:
        return "added"
    return "removed" if change.after is None else "changed"


def _decode_path(path: str) -> str:
    """Decode a path for people: names are bytes, and what is no text is shown as such."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _build_unified_diff(store: ShadowStore, changes: Sequence[ChangedFile]) -> tuple[str, bool]:
    parts: list[str] = []
    left = DIFF_CHARS_MAX
    for number, change in enumerate(changes):
        if number >= DIFF_FILES_MAX or left <= 0:
            return "".join(parts), True
        text = "".join(_render_file_diff(store, change))
        parts.append(text[:left])
        left -= len(text)
    return "".join(parts), left < 0


def _render_file_diff(store: ShadowStore, change: ChangedFile) -> Iterator[str]:
    path = _decode_path(change.path).replace("\n", "\\n")
    yield f"diff {_classify_change(change)} {path}{_describe_mode_change(change.before, change.after)}\n"
    sides = [_read_lines(store, each) for each in (change.before, change.after)]
    before, after = sides
    if before is None or after is None:
        yield "the content is not text, or too long to compare\n"
        return
    for line in difflib.unified_diff(before, after, f"a/{path}", f"b/{path}"):
        yield line if line.endswith("\n") else f"{line}\n"


def _describe_mode_change(before: TreeEntry | None, after: TreeEntry | None) -> str:
    modes = [each.mode for each in (before, after) if each is not None]
    if LINK in modes:
        return " (a link)"
    return " (may be executed)" if EXECUTABLE in modes and len(set(modes)) == 2 else ""


def _read_lines(store: ShadowStore, entry: TreeEntry | None) -> list[str] | None:
    if entry is None:
        return []
    content = store.read_content(entry.sha)
    if len(content) > _FILE_BYTES_MAX or b"\0" in content:
        return None
    lines = content.decode("utf-8", "replace").split("\n")
    return (
        None
        if len(lines) > _FILE_LINES_MAX
        else [f"{line}\n" for line in lines[:-1]] + [each for each in lines[-1:] if each]
    )
