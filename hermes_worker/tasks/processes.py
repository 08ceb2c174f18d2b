"""A thread of a worker for tools that looks at background processes by their rows, tells their sessions, and ends
processes whose time is over.

No process belongs to a worker. A row that is due for a look is taken by one of them, and a turn that tells of what it
saw begins in the transaction that writes it down. The directory of a process whose row was deleted with its session is
removed, which ends the process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from hermes_worker.agent.tools.builtin import ENV_KEY
from hermes_worker.agent.tools.screen import shown
from hermes_worker.agent.tools.shell_variables import secrets_of
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.processes import (
    COOL_OFF_S,
    ended_message,
    excerpt,
    how_it_ended,
    matched,
    matching,
    new_text,
    watched_message,
)
from hermes_worker.observe import count, keep_looking, log
from hermes_worker.safety.redaction import Redactor
from hermes_worker.safety.untrusted import marked
from hermes_worker.store.runs.processes import DueProcess, Processes, Seen
from hermes_worker.tasks.parts import CallStore, Sender
from hermes_worker.workspaces.base import PathNotFound, Workspace, WorkspaceError
from hermes_worker.workspaces.minding.talking import forget_strays
from hermes_worker.workspaces.processes import PROCESS_NAME, KeepsProcesses, ProcessLook, ProcessState

_LOOK_EVERY_S: Final = 2.0
_WATCHED_S: Final = 2.0
_UNWATCHED_S: Final = 15.0
"""Seconds until the next look at a process whose output and end are not told by a message."""
_FORGET_S: Final = 1800.0
_AWAY_S: Final = 60.0
_STRAYS_EVERY_S: Final = 60.0
_OUTPUT_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchParts:
    """The parts that a worker needs to watch background processes."""

    rows: Processes
    calls: CallStore
    sender: Sender
    workspace: Callable[[str], Workspace]
    """Opens the workspace that a session's stored description names."""
    processes_dir: Path
    """The directory in which local workspaces keep the state of their processes."""
    redactor: Redactor = field(default_factory=Redactor)
    turns_max: int = 0
    """How many turns of a chain may begin without a person's request."""


class ProcessWatcher:
    """Watches background processes in a thread of this process."""

    def __init__(self, parts: WatchParts, *, is_on: bool = True) -> None:
        self._parts = parts
        self._is_on = is_on
        self._end = threading.Event()
        self._next_strays = 0.0

    def start(self) -> None:
        if self._is_on:
            threading.Thread(target=self._run, name="hermes_processes", daemon=True).start()

    def stop(self) -> None:
        """Stop watching. Idempotent; does not wait."""
        self._end.set()

    def _run(self) -> None:
        keep_looking(self._end, _LOOK_EVERY_S, self.look, event="process.unwatched")

    def look(self) -> int:
        """Look at each process that is due; return how many there were."""
        due = self._parts.rows.due()
        for one in due:
            try:
                self._look_at(one)
            except UnavailableError:
                raise
            except Exception as error:
                log.error("process.unwatched", process=one.process_id, reason=str(error), exc_info=error)
        if time.monotonic() >= self._next_strays:
            self._next_strays = time.monotonic() + _STRAYS_EVERY_S
            self.forget_strays()
        return len(due)

    def forget_strays(self) -> list[str]:
        """End processes of this machine that have no row any more, and remove their directories."""
        directory = self._parts.processes_dir
        if not directory.is_dir():
            return []
        names = [entry.name for entry in directory.iterdir() if PROCESS_NAME.fullmatch(entry.name)]
        strays = forget_strays(directory, names, self._parts.rows.known(names)) if names else []
        if strays:
            log.info("process.forgotten", count=len(strays))
        return strays

    def _look_at(self, due: DueProcess) -> None:
        rows = self._parts.rows
        workspace: KeepsProcesses | None = None
        try:
            opened = self._parts.workspace(due.workspace)
            if not isinstance(opened, KeepsProcesses):
                raise PathNotFound("this kind of workspace has no processes")
            workspace = opened
            found = workspace.look_at_process(due.process_id)
        except PathNotFound:
            if due.state == "starting" and not due.is_overdue_to_start:
                rows.look_again(due, _WATCHED_S)
                return
            found = ProcessLook(state=ProcessState.LOST, note="nothing is left of it where it ran")
            workspace = None
        except (WorkspaceError, ValueError) as error:
            log.debug("process.unwatched", process=due.process_id, reason=str(error))
            rows.look_again(due, _AWAY_S)
            return
        if workspace is not None and found.is_running and due.is_forsaken:
            workspace.end_process(due.process_id)
            rows.look_again(due, _WATCHED_S)
            count("process.reaped")
            log.info("process.reaped", process=due.process_id)
            return
        if not due.is_open:
            self._forget(due, workspace)
            return
        self._write_down(due, found)

    def _forget(self, due: DueProcess, workspace: KeepsProcesses | None) -> None:
        """Remove the directory of a process that has ended and about which nothing more is to be told."""
        if not due.may_be_forgotten:
            self._parts.rows.look_again(due, _FORGET_S)
            return
        if workspace is not None:
            workspace.forget_process(due.process_id)
        over = Seen(state=due.state, exit_code=due.exit_code, seen=due.seen, watch=due.watch, again_s=None)
        self._parts.rows.saw(due, over, turns_max=0)

    def _write_down(self, due: DueProcess, found: ProcessLook) -> None:
        is_over = not found.is_running
        text, seen = new_text(found.output, found.total, due.seen, is_over=is_over)
        lines = matching(text, due.patterns) if due.patterns else []
        watch, tells = matched(due.watch, len(lines), due.now)
        notifies = due.notifies or watch.is_off
        told = None
        if is_over and notifies and not due.is_consumed:
            how = how_it_ended(found.state.value, found.exit_code, due.now - due.started_at, found.note)
            tail = found.output.decode("utf-8", "replace")[-_OUTPUT_CHARS:]
            told = ended_message(due.process_id, how=how, command=due.command, output=self._clean(due, tail))
        elif tells:
            if self._parts.rows.is_flooded():
                self._parts.rows.look_again(due, COOL_OFF_S)
                return
            told = watched_message(
                due.process_id,
                command=due.command,
                output=self._clean(due, excerpt(lines)),
                suppressed=due.watch.suppressed,
            )
        if tells and told is not None and is_over and notifies:
            watch = replace(watch, told_at=due.watch.told_at)
        again_s = _FORGET_S + 1.0 if is_over else _WATCHED_S if due.patterns or notifies else _UNWATCHED_S
        wanted = Seen(
            state=found.state.value, exit_code=found.exit_code, seen=seen, watch=watch, again_s=again_s, told=told
        )
        written, hints = self._parts.rows.saw(due, wanted, turns_max=self._parts.turns_max)
        if not written:
            self._parts.rows.look_again(due, _WATCHED_S)
            return
        if told is not None:
            count("process.told")
            log.info("process.told", process=due.process_id, state=found.state.value)
        if hints:
            self._parts.sender.send(hints)

    def _clean(self, due: DueProcess, text: str) -> str:
        """Output as a message holds it: without secrets, and wrapped as text that is no instruction."""
        documents = self._parts.calls.session_documents(due.session_pk, (ENV_KEY,))
        redactor = self._parts.redactor
        plain = redactor.without(shown(text), secrets_of(documents.get(ENV_KEY)))
        return marked(redactor.result(plain), "process").text
