"""A workspace whose files are on this machine while somebody works there, and in object storage for good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from hermes_worker.workspaces.base import CommandResult, FileKeeper, WorkspaceError
from hermes_worker.workspaces.local import LocalWorkspace
from hermes_worker.workspaces.opening import open_directory
from hermes_worker.workspaces.processes import ProcessOrder
from hermes_worker.workspaces.ref import OpeningOptions

_NO_PROCESSES: Final = (
    "this workspace may go on on another machine, where a background process would not be: run the command in the "
    "foreground"
)


class KeptWorkspace(LocalWorkspace):
    """A directory of this machine that is brought up to date when it is opened, and kept after every change."""

    def __init__(self, root: str, keeper: FileKeeper, **local: Any) -> None:
        super().__init__(root, **local)
        self._keeper = keeper

    def refresh(self) -> None:
        """Bring the files up to date. Raises ``WorkspaceAway``, ``UnavailableError``."""
        self._keeper.fetch()

    def write_bytes(self, path: str, data: bytes) -> None:
        super().write_bytes(path, data)
        self._keeper.keep()

    def remove(self, path: str) -> None:
        super().remove(path)
        self._keeper.keep()

    def execute(self, command: str, **given: Any) -> CommandResult:
        """Run a command, see ``Workspace``. Raises ``HostLost`` as well, when what it did cannot be kept."""
        result = super().execute(command, **given)
        self._keeper.keep()
        return result

    def start_process(self, name: str, order: ProcessOrder) -> None:
        raise WorkspaceError(_NO_PROCESSES)

    def __reduce__(self) -> tuple[Callable[[], LocalWorkspace], tuple[()]]:
        raise TypeError(_NO_PROCESSES)


def open_kept_workspace(root: str, options: OpeningOptions) -> KeptWorkspace:
    """Open a workspace that is kept in object storage. Raises ``WorkspaceError``."""
    if (open_keeper := options.open_keeper) is None:
        raise WorkspaceError("workspaces in object storage are not set up on this worker: set HERMES_OBJECT_STORAGE")

    def make(root: str, **local: Any) -> KeptWorkspace:
        try:
            keeper = open_keeper(root)
        except OSError as error:
            raise WorkspaceError(f"the workspace {root!r} cannot be made: {error.strerror}") from error
        except ValueError as error:
            raise WorkspaceError(str(error)) from error
        return KeptWorkspace(root, keeper, **local)

    return open_directory(root, options, make)
