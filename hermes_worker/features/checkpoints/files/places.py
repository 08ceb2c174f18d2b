"""The location of a workspace's checkpoints: in the home, which no confined command sees, and apart for each tenant."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from hermes_worker.core.home_paths import SAID, find_path_in_home
from hermes_worker.features.checkpoints.files.host_files import HostFiles
from hermes_worker.features.checkpoints.files.shadow import NotKept, ShadowStore
from hermes_worker.features.checkpoints.rules import CheckpointLimits
from hermes_worker.observe import log
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.ref import WorkspaceKind, WorkspaceRef


def get_checkpoints_dir(home: Path, tenant: str) -> Path:
    """The directory with the stores of a tenant."""
    return home / "checkpoints" / tenant


_KINDS: Final = frozenset(WorkspaceKind) - {WorkspaceKind.LOCAL}
"""Kinds with checkpoints beside local ones; workspaces of extensions have none."""


def find_store(
    home: Path,
    tenant: str,
    workspace: str,
    limits: CheckpointLimits | None = None,
    *,
    opened: Callable[[str], Workspace] | None = None,
) -> ShadowStore | None:
    """The checkpoints of the workspace that a session's stored description names; ``None`` for a kind that has none.
    ``opened`` opens workspaces of other hosts, when their files are needed. Raises ``ValueError`` for a text that is no
    description.
    """
    ref = WorkspaceRef.from_json(workspace)
    if ref.kind == WorkspaceKind.LOCAL:
        root = os.path.realpath(ref.root)
        return ShadowStore(_find_local_directory(home, tenant, root, workspace), root, limits)
    if ref.kind not in _KINDS:
        return None
    root = f"{ref.kind}:{ref.root}"
    return ShadowStore(
        _locate_directory(home, tenant, root),
        root,
        limits,
        files=HostFiles(partial(opened or _refuse_to_open, workspace)),
    )


def _find_local_directory(home: Path, tenant: str, root: str, workspace: str) -> Path:
    """The store of a local workspace, named by the path below the home, so that it is found wherever the home is. In
    0.1 the name was made from the whole path, and a store from then keeps its name.
    """
    below = find_path_in_home(root, (str(home), os.path.realpath(home)))
    if below is None:
        return _locate_directory(home, tenant, root)
    own = _locate_directory(home, tenant, f"home:{below}")
    before = (_locate_directory(home, tenant, each) for each in (root, json.loads(workspace).get(SAID)) if each)
    return own if own.exists() else next((each for each in before if each.exists()), own)


def _locate_directory(home: Path, tenant: str, root: str) -> Path:
    return get_checkpoints_dir(home, tenant) / hashlib.sha256(os.fsencode(root)).hexdigest()[:32]


def _refuse_to_open(workspace: str) -> Workspace:
    raise WorkspaceError("this process opens no workspaces on other hosts")


def forget_sessions(home: Path, tenant: str, over: Callable[[Collection[str]], Set[str]]) -> int:
    """Remove this machine's checkpoints of the sessions that ``over`` picks; return how many stores went."""
    return forget_checkpoints(get_checkpoints_dir(home, tenant), over)


def forget_checkpoints(directory: Path, over: Callable[[Collection[str]], Set[str]]) -> int:
    """Remove the checkpoints below ``directory`` of the sessions that are ``over`` among those asked for, in any
    workspace; return how many were removed. Idempotent; safe for several processes.
    """
    removed = 0
    with suppress(FileNotFoundError):
        for place in sorted(directory.iterdir()):
            if place.name.endswith(".gone"):
                shutil.rmtree(place, ignore_errors=True)  # the process that renamed it died
                continue
            with suppress(OSError):
                store = ShadowStore(place, os.fsdecode((place / "workspace").read_bytes()))
                if gone := over(sorted(store.list_sessions())):
                    try:
                        removed += store.forget(gone)
                    except NotKept as error:
                        log.warning("checkpoint.not_removed", reason=str(error))
    return removed
