"""Opening a workspace that a session remembers: each kind by the extension that declares it."""

from __future__ import annotations

from pathlib import Path

from hermes_worker import installed
from hermes_worker.extension import load
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.ref import OpeningOptions, WorkspaceRef

__all__ = ["OpeningOptions", "open_local", "open_workspace"]


def open_workspace(ref: WorkspaceRef, options: OpeningOptions) -> Workspace:
    """The workspace that ``ref`` names. Raises ``WorkspaceError`` when it cannot be opened from this machine."""
    declared = installed.current().workspaces.get(ref.kind)
    if declared is None:
        raise WorkspaceError(
            f"no enabled extension brings workspaces of the kind {ref.kind!r}: enable it on every worker for tools"
        )
    workspace: Workspace = load(declared.implementation)(ref.root, options)
    return workspace


def open_local(root: str, options: OpeningOptions) -> Workspace:
    """A directory of this machine; it is made if it is not there yet. Raises ``WorkspaceError``."""
    try:
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise WorkspaceError(f"the workspace {root!r} cannot be made: {error.strerror}") from error
    return LocalWorkspace(
        root,
        base_env=options.base_env,
        env_passthrough=options.env_passthrough,
        hermes_home=options.hermes_home,
        sandbox=options.sandbox,
        free_bytes_min=options.free_bytes_min,
        bytes_max=options.bytes_max,
        umask=options.umask,
        processes_dir=options.processes_dir,
    )
