"""The interface of ``terminal`` and ``process`` to the rows of a session's background processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class KnownProcess(Protocol):
    """A row. Times are epoch seconds by the database's clock."""

    @property
    def process_id(self) -> str: ...
    @property
    def command(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def has_terminal(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def ended_at(self) -> float | None: ...
    @property
    def now(self) -> float: ...


class SessionProcesses(Protocol):
    """The background processes of the calling session. Implemented by ``tasks.calls.processes``."""

    @property
    def cannot_tell(self) -> str | None:
        """Why no turn can begin when a process ends; ``None`` when one can."""

    def begin(
        self, command: str, *, lifetime_s: float, has_terminal: bool, notifies: bool, patterns: Sequence[str]
    ) -> str:
        """Write down that a process is about to be started; return its id. Raises ``HermesError``, with a message for
        the model when the session has as many as it may.
        """

    def mark_started(self, process_id: str) -> None: ...

    def mark_not_started(self, process_id: str) -> None: ...

    def list_processes(self) -> Sequence[KnownProcess]: ...

    def find(self, process_id: str) -> KnownProcess | None: ...

    def mark_reported(self, process_id: str, state: str, exit_code: int | None) -> None:
        """Record that the model is shown that the process has ended."""
