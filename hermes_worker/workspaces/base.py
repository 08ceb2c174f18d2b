"""The interface of a workspace, in which tools act. A workspace belongs to a session, not to a worker: any worker that
can reach it may run the next call, so it is described by a value (``WorkspaceRef``) that is stored with the session.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin

FILE_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of a file that are read at most: the worker holds them in memory, next to those of its other calls."""
PATH_BYTES_MAX: Final = 4_095
"""The longest path of Linux: ``PATH_MAX`` of limits.h, without the byte that ends it."""


FILES_KEY: Final = "workspace_files"
"""The session document that holds the id of the files that the session works on."""


class Ending(StrEnum):
    """Why a command is no longer running."""

    EXITED = "exited"
    """It ended by itself."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"


class ExceededLimit(StrEnum):
    """The limit that a command was ended for exceeding."""

    PROCESSES = "processes"
    DISK = "disk"
    WORKSPACE = "workspace"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of a command's terminal, in characters."""

    rows: int = 30
    columns: int = 120


EXCESS_SENTENCES: Final[Mapping[ExceededLimit, str]] = MappingProxyType(
    {
        ExceededLimit.PROCESSES: "the command was ended because it started more processes than a command may have",
        ExceededLimit.DISK: "the command was ended because the disk is nearly full; delete what is not needed any more",
        ExceededLimit.WORKSPACE: (
            "the command was ended because the workspace, or the command's $TMPDIR, held more than it may; delete what "
            "is not needed any more. A file counts as 16 KB at least"
        ),
        ExceededLimit.MEMORY: (
            "the command was ended because all its processes together, with what they wrote to /tmp, took more memory "
            "than a command may have; do the work in smaller parts, or with fewer processes at once"
        ),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The end of a command: its output, its exit code and what it left."""

    output: bytes
    """stdout and stderr, interleaved as written; the middle is dropped when it exceeds the limit asked for."""
    exit_code: int
    """124 after a time-out, 130 after a cancellation, as shells have it."""
    was_truncated: bool
    cwd: str | None
    """The directory the shell was in when it ended; ``None`` when that could not be read."""
    ending: Ending = Ending.EXITED
    """Tells a time-out from a command that exited with 124 by itself."""
    exported: Mapping[str, str] | None = None
    """The variables that the shell exported when it ended, without those that every command of the workspace is given;
    hand them to the next command as ``env``. ``None`` when they could not be read.
    """
    left_running: bool = False
    """Whether processes were still running in the background; they were ended."""
    excess: ExceededLimit | None = None
    """The limit that it was ended for, by its keeper or by the kernel; ``None`` for none."""
    sandbox: str | None = None
    """The sandbox that confined it; ``"none"`` when nothing confines commands here, ``None`` when the workspace was not
    told to.
    """
    network: str | None = None
    """The network it had (``sandbox.network.Network``), where a sandbox confined it."""
    refused: tuple[str, ...] = ()
    """The connections that the proxy refused, and why; the first few."""
    errors: bytes = b""
    """stderr, where it was asked for apart from ``output``."""


class WorkspaceError(Exception):
    """A path is outside the workspace, protected or unusable; the message may be shown to the model."""


class PathNotFound(WorkspaceError):
    """Nothing is at the path."""


def require_path(path: str) -> None:
    """Raise ``WorkspaceError`` for a text that no system takes as a path. Any other may be repeated in an error."""
    if not path:
        raise WorkspaceError("the path is empty")
    if "\0" in path:
        raise WorkspaceError("the path contains a NUL character")
    try:
        size = len(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError as error:
        raise WorkspaceError("the path is not valid text") from error
    if size > PATH_BYTES_MAX:
        raise WorkspaceError(f"the path has {size} bytes, and no path has more than {PATH_BYTES_MAX}")


class WorkspaceAway(WorkspaceError):
    """The workspace as a whole cannot be used now; it is not about a path."""


class HostUnreachable(WorkspaceAway):
    """The host of the workspace cannot be reached or refuses us. Nothing was begun there."""


class HostLost(WorkspaceAway):
    """The host of the workspace, or the connection to it, was lost while something ran there. It is unknown what it
    did.
    """


class WorkspaceReset(WorkspaceAway):
    """The files that the session worked on are not where this worker looks for them. Said once: afterwards the session
    begins with an empty workspace."""


@runtime_checkable
class KnownFiles(Protocol):
    """A workspace whose files have an id, by which a session recognises them."""

    @property
    def identity(self) -> str | None:
        """The id of the files; ``None`` before they were used."""

    def expect(self, identity: str | None) -> None:
        """Say which files the session worked on before; ``None`` when on none."""


class FileKeeper(Protocol):
    """Keeps the files of a workspace where every worker finds them."""

    def fetch(self) -> None:
        """Bring the files on this machine up to date. Raises ``WorkspaceAway``, ``UnavailableError``."""

    def keep(self) -> None:
        """Keep what changed. Raises ``HostLost`` when that is not possible, and ``UnavailableError``."""


@runtime_checkable
class RefreshedWorkspace(Protocol):
    """A workspace whose files may have changed on another machine since it was opened."""

    def refresh(self) -> None:
        """Bring the files up to date; called before each use. Raises ``WorkspaceAway``, ``UnavailableError``."""


class Workspace(Protocol):
    """Files and commands inside one root. Relative paths are resolved against the root."""

    @property
    def root(self) -> str: ...

    def resolve(self, path: str, *, cwd: str | None = None, for_write: bool = False) -> PurePosixPath:
        """The canonical path, links followed. Raises ``WorkspaceError`` when it leaves the root or is protected."""

    def may_read(self, canonical: str) -> bool:
        """Whether the file or folder may be read, given that its parent folder is canonical and may be. False for a
        link and for what is gone. Cheap enough to ask of 100,000 names."""

    def read_bytes(self, path: str, *, limit: int = FILE_BYTES_MAX) -> bytes:
        """The first ``limit`` bytes of the content. Raises ``PathNotFound``, or ``WorkspaceError`` for anything that
        is not a regular file."""

    def write_bytes(self, path: str, data: bytes) -> None:
        """Atomic: readers see the old or the new content, never a part. Missing folders are made; the permissions of
        a file that was there are kept."""

    def remove(self, path: str) -> None:
        """Delete one file. Raises ``PathNotFound`` when there is none."""

    def require_folder(self, path: str) -> None:
        """Raise ``PathNotFound``, or ``WorkspaceError`` for anything that is not a folder that can be opened."""

    def entries(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; the names of folders, and of links to folders, end in ``/``."""

    def execute(
        self,
        command: str,
        *,
        cwd: str | None,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes_max: int,
        should_stop: Callable[[], bool],
        origin: RunOrigin = PEOPLE,
        on_output: Callable[[bytes], None] | None = None,
        terminal: TerminalSize | None = None,
    ) -> CommandResult:
        """Run a shell command in its own process group with an allow-listed environment plus ``env``, confined as the
        workspace's policy says for ``origin``. On time-out or when ``should_stop`` turns true the group gets SIGTERM,
        then SIGKILL. ``on_output`` is given the output piece by piece as it comes, all of it, in this thread. With
        ``terminal`` the command has a terminal of that size instead of pipes.

        Raises ``HostUnreachable`` or another ``WorkspaceError`` when it cannot be started, or not be confined as it
        must be, and ``HostLost`` when it was started and its end is unknown.
        """

    def require_free_space(self) -> None:
        """Raise ``WorkspaceError`` when the disk of the workspace is nearly full. A workspace that has reached its own
        limit passes here: ``write_bytes`` refuses then, and a command in it may only tidy up.
        """


@runtime_checkable
class EnvironmentFilesHolder(Protocol):
    """A workspace that can read its environment files, so that their values can be hidden in results."""

    def read_env_texts(self) -> tuple[str, ...]:
        """The texts of ``.env`` and its like near the root. Raises nothing."""


@runtime_checkable
class ConversingWorkspace(Protocol):
    """A workspace whose commands can speak with the worker while they run."""

    def converse(
        self,
        command: str,
        *,
        channel: int,
        cwd: str | None,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes_max: int,
        should_stop: Callable[[], bool],
        origin: RunOrigin = PEOPLE,
    ) -> CommandResult:
        """Run a command as ``Workspace.execute`` does, with ``channel``, a descriptor of a socket pair, as its standard
        input, and with stderr apart. The descriptor stays the caller's.
        """

    def confines(self, origin: RunOrigin) -> bool:
        """Whether a command from ``origin`` reaches only the files that the sandbox shows it, and no open network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptAnswer:
    """The output and exit of a script of ours on a host."""

    code: int
    output: bytes
    errors: bytes


@runtime_checkable
class ScriptHost(Protocol):
    """A workspace on a host on which scripts of ours are run beside the commands of agents."""

    @property
    def may_hold_kb(self) -> int:
        """Kilobytes that the files may take; 0 for no limit."""

    def run_script(self, script: str, *arguments: str, data: bytes = b"", bytes_max: int) -> ScriptAnswer:
        """Run a script with the root of the workspace and ``arguments``, and ``data`` as its input; one round trip. The
        workspace need not exist, and is not made. Raises ``WorkspaceAway`` where the host cannot be asked,
        ``WorkspaceError`` where it writes more than ``bytes_max``.
        """
