"""What keeps files, as processes are given it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hermes_worker.features.object_storage.rules import KIND
from hermes_worker.observe import log
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.ref import WorkspaceRef

if TYPE_CHECKING:
    from hermes_worker.features.object_storage.snapshot_files import SnapshotKeeper
    from hermes_worker.features.object_storage.target_files import ObjectTarget
    from hermes_worker.store.artifacts.contents import ContentStore


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectParts:
    """What keeps files, with object storage or without."""

    contents: ContentStore
    open_keeper: Callable[[str], SnapshotKeeper] | None = None
    """Opens what keeps the files of the workspace at a root; ``None`` without object storage."""
    target: ObjectTarget | None = None

    def fetch_files(self, workspace: str) -> None:
        """Bring the files of the workspace that a session's stored description names to this machine, where they are in
        object storage. Raises nothing: without them nobody finds the file that was looked for."""
        try:
            ref = WorkspaceRef.from_json(workspace)
            if self.open_keeper is not None and ref.kind == KIND:
                self.open_keeper(ref.root).fetch()
        except (WorkspaceError, ValueError) as error:
            log.warning("snapshot.not_fetched", reason=str(error))
