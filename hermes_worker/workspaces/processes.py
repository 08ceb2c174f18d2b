"""Background processes of a workspace: commands that outlive the call that started them, and the worker that made it.

Each has a name, which is the id of its row. All that is known of it stands where it runs, beside the workspace and out
of the reach of commands: its last output, whether it runs, how it ended. So any worker that reaches the workspace may
look at it, write to it and end it. Each ends by itself when its time is over, even when no worker is left to watch it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol, runtime_checkable

from hermes_worker.workspaces.base import TerminalSize
from hermes_worker.workspaces.sandbox.network import PEOPLE, RunOrigin

LOG_BYTES_MAX: Final = 200_000
"""How many bytes at the end of a process's output are kept."""
INPUT_BYTES_MAX: Final = 65_536
"""How many bytes may be written to a process at once."""
PROCESS_NAME: Final = re.compile(r"proc_[0-9a-f]{12}")


class ProcessState(StrEnum):
    """Whether a process runs, and if not, why."""

    RUNNING = "running"
    EXITED = "exited"
    """It ended by itself."""
    KILLED = "killed"
    """It was ended on request."""
    TIMED_OUT = "timed_out"
    """It had run as long as it may."""
    FAILED = "failed"
    """It was not started."""
    LOST = "lost"
    """It ended in an unknown way: what watched it was killed, or its machine went away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOrder:
    """A process to start."""

    command: str
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    origin: RunOrigin = PEOPLE
    lifetime_s: float
    """After so many seconds it is ended."""
    terminal: TerminalSize | None = None
    """``None`` for pipes."""
    log_bytes_max: int = LOG_BYTES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLook:
    """The state of a process and its last output."""

    state: ProcessState
    output: bytes = b""
    """The last of what it wrote to stdout and stderr."""
    total: int = 0
    """How many bytes it wrote in all; ``output`` is the end of them."""
    exit_code: int | None = None
    note: str | None = None
    """Anything else to say, such as why it was ended."""
    sandbox: str | None = None
    network: str | None = None

    @property
    def is_running(self) -> bool:
        return self.state is ProcessState.RUNNING


@runtime_checkable
class ProcessHost(Protocol):
    """A workspace in which processes outlive calls. Thread-safe."""

    def start_process(self, name: str, order: ProcessOrder) -> None:
        """Start a process under a name that is not taken, with every limit and wall that a command has. Raises
        ``WorkspaceError`` when it was not started, and ``HostLost`` when that is unknown.
        """

    def look_at_process(self, name: str) -> ProcessLook:
        """Read the state of a process. Raises ``PathNotFound`` when there is none of the name."""

    def write_to_process(self, name: str, data: bytes, *, is_last: bool = False) -> None:
        """Write to its standard input, and end that when ``is_last``. Not idempotent. Raises ``PathNotFound``, or
        ``WorkspaceError`` when it has ended or reads nothing."""

    def end_process(self, name: str) -> None:
        """Order a process to end, with all that it started. Idempotent; returns before it has ended. Raises
        ``PathNotFound``.
        """

    def remove_process(self, name: str) -> None:
        """Remove the state of a process, and end it if it runs. Idempotent."""
