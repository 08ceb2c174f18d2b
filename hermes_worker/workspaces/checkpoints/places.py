"""Where the checkpoints of a workspace are: in the home, which no confined command sees, and apart for each tenant."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from pathlib import Path

from hermes_worker.core.checkpoints import CheckpointLimits
from hermes_worker.observe import log
from hermes_worker.workspaces.checkpoints.shadow import NotKept, ShadowStore
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef


def checkpoints_dir(home: Path, tenant: str) -> Path:
    """Where the stores of a tenant are."""
    return home / "checkpoints" / tenant


def store_of(home: Path, tenant: str, workspace: str, limits: CheckpointLimits | None = None) -> ShadowStore | None:
    """The checkpoints of the workspace that a session's stored description names; ``None`` for one of another kind
    than ``local``, whose files are not ours to read."""
    ref = WorkspaceRef.from_json(workspace)
    if ref.kind != WorkspaceKind.LOCAL:
        return None
    root = os.path.realpath(ref.root)
    key = hashlib.sha256(os.fsencode(root)).hexdigest()[:32]
    return ShadowStore(checkpoints_dir(home, tenant) / key, root, limits)


def forget_checkpoints(directory: Path, over: Callable[[Collection[str]], Set[str]]) -> int:
    """Remove the checkpoints below ``directory`` of the sessions that are ``over`` among those asked for, whosever
    workspace they are of; how many went. Idempotent; safe for several processes."""
    removed = 0
    with suppress(FileNotFoundError):
        for place in sorted(directory.iterdir()):
            if place.name.endswith(".gone"):
                shutil.rmtree(place, ignore_errors=True)  # whoever renamed it died
                continue
            with suppress(OSError):
                store = ShadowStore(place, os.fsdecode((place / "workspace").read_bytes()))
                if gone := over(sorted(store.sessions())):
                    try:
                        removed += store.forget(gone)
                    except NotKept as error:
                        log.warning("checkpoint.not_removed", reason=str(error))
    return removed
