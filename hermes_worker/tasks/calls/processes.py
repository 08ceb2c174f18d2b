"""The rows of a session's background processes, as a tool call reads and writes them under its claim."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_worker.core.delegation import may_be_background
from hermes_worker.core.processes import ProcessRow
from hermes_worker.store.runs.calls import CallClaim
from hermes_worker.store.runs.processes import NewProcess, Processes

if TYPE_CHECKING:
    from hermes_worker.tasks.context import WorkerContext


class ClaimedProcesses:
    """The background processes of the session of one claimed call."""

    def __init__(self, parts: WorkerContext, rows: Processes, claim: CallClaim) -> None:
        self._parts = parts
        self._rows = rows
        self._claim = claim

    @property
    def cannot_tell(self) -> str | None:
        if self._parts.rules.delegation.turns_max < 1:
            return "no turn may begin here that nobody asked for"
        source = self._parts.rows.calls.load_spec(self._claim.run_pk).source_kind
        if not may_be_background(depth=self._claim.loaded.depth, source=source):
            return "this run has nobody to tell once it has ended"
        return None

    def begin(
        self, command: str, *, lifetime_s: float, has_terminal: bool, notifies: bool, patterns: Sequence[str]
    ) -> str:
        new = NewProcess(
            command=command,
            lifetime_s=lifetime_s,
            has_terminal=has_terminal,
            notifies=notifies,
            patterns=tuple(patterns),
        )
        return self._rows.begin(self._claim, self._claim.session_pk, new)

    def mark_started(self, process_id: str) -> None:
        self._rows.mark_started(process_id)

    def mark_not_started(self, process_id: str) -> None:
        self._rows.mark_not_started(process_id)

    def list_processes(self) -> Sequence[ProcessRow]:
        return self._rows.list_of_session(self._claim.session_pk)

    def find(self, process_id: str) -> ProcessRow | None:
        return self._rows.find(self._claim.session_pk, process_id)

    def mark_reported(self, process_id: str, state: str, exit_code: int | None) -> None:
        self._rows.mark_consumed(process_id, state, exit_code)
