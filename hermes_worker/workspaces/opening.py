"""Opening a workspace that a session remembers: each kind by the extension that declares it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from hermes_worker import installed
from hermes_worker.core.home_paths import is_shared_with_copies
from hermes_worker.extension import load_reference
from hermes_worker.workspaces.base import Workspace, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.ref import OpeningOptions, WorkspaceKind, WorkspaceRef

__all__ = ["CopyRule", "OpeningOptions", "open_directory", "open_local", "open_workspace"]

L = TypeVar("L", bound=LocalWorkspace)


@dataclass(frozen=True, slots=True)
class CopyRule:
    """A restored copy opens no workspace that its original may be at work in."""

    homes: Sequence[str]
    """The spellings of the home's path."""
    is_copy: Callable[[], bool]

    def require_own(self, ref: WorkspaceRef) -> None:
        """Raise ``WorkspaceError`` for a workspace outside the home of a copy."""
        self.require_own_folder(ref.root, kind=ref.kind)

    def require_own_folder(self, path: str, *, kind: str = WorkspaceKind.LOCAL) -> None:
        """Raise ``WorkspaceError`` for a folder outside the home of a copy."""
        if is_shared_with_copies(kind, path, self.homes) and self.is_copy():
            raise WorkspaceError(
                f"this is a restored copy, and {path!r} is outside its home, where the original may still be at work. "
                "When nothing runs there any more, somebody has to say so: 'hermes-worker data restore --original-gone'"
            )


def open_workspace(ref: WorkspaceRef, options: OpeningOptions) -> Workspace:
    """Open the workspace that ``ref`` names. Raises ``WorkspaceError`` when it cannot be opened from this machine."""
    declared = installed.get_installed().workspaces.get(ref.kind)
    if declared is None:
        raise WorkspaceError(
            f"no enabled extension brings workspaces of the kind {ref.kind!r}: enable it on every worker for tools"
        )
    workspace: Workspace = load_reference(declared.implementation)(ref.root, options)
    return workspace


def open_local(root: str, options: OpeningOptions) -> LocalWorkspace:
    """Open a directory of this machine; it is made if it does not exist. Raises ``WorkspaceError``."""
    return open_directory(root, options, LocalWorkspace)


def open_directory(root: str, options: OpeningOptions, make: Callable[..., L]) -> L:
    """Make the directory if it does not exist, and call ``make`` with its path and the other arguments of a
    ``LocalWorkspace``. Raises ``WorkspaceError``."""
    try:
        Path(root).mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise WorkspaceError(f"the workspace {root!r} cannot be made: {error.strerror}") from error
    return make(
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
