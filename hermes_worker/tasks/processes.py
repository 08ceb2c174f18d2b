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
from hermes_worker.agent.tools.screen import render_screen
from hermes_worker.agent.tools.shell_variables import find_secrets
from hermes_worker.core.errors import UnavailableError
from hermes_worker.core.processes import (
    COOL_OFF_S,
    advance_watch,
    build_end_message,
    build_watch_message,
    describe_end,
    extract_new_text,
    find_matching_lines,
    shorten_lines,
)
from hermes_worker.observe import count, log, poll_forever
from hermes_worker.safety.redaction import Redactor
from hermes_worker.safety.untrusted import wrap_untrusted
from hermes_worker.store.runs.calls import ToolCalls
from hermes_worker.store.runs.processes import DueProcess, Processes, ProcessReading
from hermes_worker.tasks.context import Sender
from hermes_worker.workspaces.base import PathNotFound, Workspace, WorkspaceError
from hermes_worker.workspaces.process_daemon.client import remove_orphans
from hermes_worker.workspaces.processes import PROCESS_NAME, ProcessHost, ProcessLook, ProcessState

_LOOK_EVERY_S: Final = 2.0
_WATCHED_S: Final = 2.0
_UNWATCHED_S: Final = 15.0
"""Seconds until the next look at a process whose output and end are not told by a message."""
_FORGET_S: Final = 1800.0
_AWAY_S: Final = 60.0
_STRAYS_EVERY_S: Final = 60.0
_OUTPUT_CHARS: Final = 4_000


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchContext:
    """The parts that a worker needs to watch background processes."""

    rows: Processes
    calls: ToolCalls
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

    def __init__(self, parts: WatchContext, *, is_on: bool = True) -> None:
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
        poll_forever(self._end, _LOOK_EVERY_S, self.poll_once, event="process.unwatched")

    def poll_once(self) -> int:
        """Look at each process that is due; return how many there were."""
        due = self._parts.rows.claim_due()
        for one in due:
            try:
                self._check_process(one)
            except UnavailableError:
                raise
            except Exception as error:
                log.error("process.unwatched", process=one.process_id, reason=str(error), exc_info=error)
        if time.monotonic() >= self._next_strays:
            self._next_strays = time.monotonic() + _STRAYS_EVERY_S
            self.remove_orphans()
        return len(due)

    def remove_orphans(self) -> list[str]:
        """End processes of this machine that have no row any more, and remove their directories."""
        directory = self._parts.processes_dir
        if not directory.is_dir():
            return []
        names = [entry.name for entry in directory.iterdir() if PROCESS_NAME.fullmatch(entry.name)]
        strays = remove_orphans(directory, names, self._parts.rows.find_known(names) if names else ())
        if strays:
            log.info("process.forgotten", count=len(strays))
        return strays

    def _check_process(self, due: DueProcess) -> None:
        rows = self._parts.rows
        workspace: ProcessHost | None = None
        try:
            opened = self._parts.workspace(due.workspace)
            if not isinstance(opened, ProcessHost):
                raise PathNotFound("this kind of workspace has no processes")
            workspace = opened
            found = workspace.look_at_process(due.process_id)
        except PathNotFound:
            if due.state == "starting" and not due.is_overdue_to_start:
                rows.postpone_look(due, _WATCHED_S)
                return
            found = ProcessLook(state=ProcessState.LOST, note="nothing is left of it where it ran")
            workspace = None
        except (WorkspaceError, ValueError) as error:
            log.debug("process.unwatched", process=due.process_id, reason=str(error))
            rows.postpone_look(due, _AWAY_S)
            return
        if workspace is not None and found.is_running and due.is_forsaken:
            workspace.end_process(due.process_id)
            rows.postpone_look(due, _WATCHED_S)
            count("process.reaped")
            log.info("process.reaped", process=due.process_id)
            return
        if not due.is_open:
            self._remove_process(due, workspace)
            return
        self._record_look(due, found)

    def _remove_process(self, due: DueProcess, workspace: ProcessHost | None) -> None:
        """Remove the directory of a process that has ended and about which nothing more is to be told."""
        if not due.may_be_forgotten:
            self._parts.rows.postpone_look(due, _FORGET_S)
            return
        if workspace is not None:
            workspace.remove_process(due.process_id)
        over = ProcessReading(state=due.state, exit_code=due.exit_code, seen=due.seen, watch=due.watch, again_s=None)
        self._parts.rows.record_look(due, over, turns_max=0)

    def _record_look(self, due: DueProcess, found: ProcessLook) -> None:
        is_over = not found.is_running
        text, seen = extract_new_text(found.output, found.total, due.seen, is_over=is_over)
        lines = find_matching_lines(text, due.patterns) if due.patterns else []
        watch, tells = advance_watch(due.watch, len(lines), due.now)
        notifies = due.notifies or watch.is_off
        told = None
        if is_over and notifies and not due.is_consumed:
            how = describe_end(found.state.value, found.exit_code, due.now - due.started_at, found.note)
            tail = found.output.decode("utf-8", "replace")[-_OUTPUT_CHARS:]
            told = build_end_message(due.process_id, how=how, command=due.command, output=self._clean(due, tail))
        elif tells:
            if self._parts.rows.is_flooded():
                self._parts.rows.postpone_look(due, COOL_OFF_S)
                return
            told = build_watch_message(
                due.process_id,
                command=due.command,
                output=self._clean(due, shorten_lines(lines)),
                suppressed=due.watch.suppressed,
            )
        if tells and told is not None and is_over and notifies:
            watch = replace(watch, told_at=due.watch.told_at)
        again_s = _FORGET_S + 1.0 if is_over else _WATCHED_S if due.patterns or notifies else _UNWATCHED_S
        wanted = ProcessReading(
            state=found.state.value, exit_code=found.exit_code, seen=seen, watch=watch, again_s=again_s, told=told
        )
        written, hints = self._parts.rows.record_look(due, wanted, turns_max=self._parts.turns_max)
        if not written:
            self._parts.rows.postpone_look(due, _WATCHED_S)
            return
        if told is not None:
            count("process.told")
            log.info("process.told", process=due.process_id, state=found.state.value)
        if hints:
            self._parts.sender.send(hints)

    def _clean(self, due: DueProcess, text: str) -> str:
        """Output as a message holds it: without secrets, and wrapped as text that is no instruction."""
        documents = self._parts.calls.load_documents(due.session_pk, (ENV_KEY,))
        redactor = self._parts.redactor
        plain = redactor.remove_secrets(render_screen(text), find_secrets(documents.get(ENV_KEY)))
        return wrap_untrusted(redactor.redact_result(plain), "process").text
