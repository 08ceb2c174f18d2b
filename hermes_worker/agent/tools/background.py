"""The interface of ``terminal`` and ``process`` to the rows of a session's background processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hermes_worker.core.processes import ProcessRow


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

    def list_processes(self) -> Sequence[ProcessRow]: ...

    def find(self, process_id: str) -> ProcessRow | None: ...

    def mark_reported(self, process_id: str, state: str, exit_code: int | None) -> None:
        """Record that the model is shown that the process has ended."""
