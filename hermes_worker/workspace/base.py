"""Where tools act. A workspace belongs to a session, not to a worker: any worker that can reach it may run the next
call, so it is described by a value (``WorkspaceRef``) that is stored with the session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a command ended."""

    output: bytes
    """stdout and stderr, interleaved as written; the middle is dropped when it exceeds the limit asked for."""
    exit_code: int
    """124 after a time-out, 130 after a cancellation, as shells have it."""
    was_truncated: bool
    cwd: str | None
    """The directory the shell was in when it ended; ``None`` when that could not be read."""


class WorkspaceError(Exception):
    """A path is outside the workspace, protected or unusable; the message may be shown to the model."""


class Workspace(Protocol):
    """Files and commands inside one root. Relative paths are resolved against the root."""

    @property
    def root(self) -> str: ...

    def resolve(self, path: str, *, cwd: str | None = None, for_write: bool = False) -> PurePosixPath:
        """The canonical path, links followed. Raises ``WorkspaceError`` when it leaves the root or is protected."""

    def read_bytes(self, path: str, *, limit: int | None = None) -> bytes: ...

    def write_bytes(self, path: str, data: bytes) -> None:
        """Atomic: readers see the old or the new content, never a part."""

    def execute(
        self,
        command: str,
        *,
        cwd: str | None,
        env: Mapping[str, str],
        timeout_s: float,
        output_bytes_max: int,
        should_stop: Callable[[], bool],
    ) -> CommandResult:
        """Run a shell command in its own process group with an allow-listed environment plus ``env``. On time-out
        or when ``should_stop`` turns true the group gets SIGTERM, then SIGKILL."""
