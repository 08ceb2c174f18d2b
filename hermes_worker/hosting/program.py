"""One program that a host runs for a session: started as confined as a stranger's command, spoken to over two pipes,
and ended with everything it started.

It sees the system's directories, its own folder and nothing else, its network is the proxy at most, and its environment
holds only what it is given. A shell inside starts it and reads a third pipe. The host writes a line to it with each
renewal of its leases: when the host is killed the pipe ends, and when it is frozen the lines stay out; either way the
shell ends, and the kernel or the keeper ends all that the program started.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from hermes_worker.core.errors import HermesError, format_reason
from hermes_worker.workspaces.base import WorkspaceError
from hermes_worker.workspaces.guardian import TAG_VARIABLE, guardian
from hermes_worker.workspaces.sandbox.backends import ConfinedCommand
from hermes_worker.workspaces.sandbox.helper.keeper import FIRST_DESCRIPTOR
from hermes_worker.workspaces.sandbox.kept_command import LaunchOptions, hold_command
from hermes_worker.workspaces.sandbox.policy import CommandLimits

SILENCE_S: Final = 20
"""After so many seconds without a line from its host a program ends itself."""
_FIRST = FIRST_DESCRIPTOR
_END_S: Final = 10.0


class NotStarted(HermesError):
    """A program could not be started; the message says what is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPlan:
    """A program to start, and its environment."""

    argv: Sequence[str]
    redirects: str = ""
    """The redirections, as shell text, by which the program has the two pipes, which the shell has as 3 (it reads) and
    4 (it writes).
    """
    cwd: str
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables beside ``PATH``, ``HOME``, ``LANG`` and those of the sandbox."""
    limits: CommandLimits = field(default_factory=CommandLimits)
    has_errors: bool = False
    """Whether its standard error can be read."""


class ConfinedProgram:
    """A running program. ``to_program`` is written to and ``from_program`` read from, as descriptors."""

    def __init__(self, plan: ProgramPlan, folder: Path, confined: ConfinedCommand) -> None:
        """Start it with ``folder``, which exists, as its home. The folder is removed at the end. Raises
        ``NotStarted``.
        """
        self._folder = folder
        self._held = ExitStack()
        self.errors: int | None = None
        """The descriptor to read its standard error from; ``None`` where that was not asked for."""
        try:
            self._start(plan, confined)
        except (OSError, ValueError, WorkspaceError) as error:
            self._held.close()
            self._remove()
            reason = format_reason(error) if isinstance(error, OSError) else str(error)
            raise NotStarted(reason) from error

    def _start(self, plan: ProgramPlan, confined: ConfinedCommand) -> None:
        tag = secrets.token_hex(8)
        command = self._held.enter_context(hold_command(confined.confinement, tag=tag, limits=plan.limits))
        with ExitStack() as theirs:
            to_them, self.to_program = self._make_pipe(theirs, is_read_by_us=False)
            from_them, self.from_program = self._make_pipe(theirs, is_read_by_us=True)
            life, self._life = self._make_pipe(theirs, is_read_by_us=False)
            nowhere = os.open(os.devnull, os.O_WRONLY)
            theirs.callback(os.close, nowhere)
            errors = nowhere
            if plan.has_errors:
                errors, self.errors = self._make_pipe(theirs, is_read_by_us=True)
            entrance = guardian.open_entrance()
            theirs.callback(os.close, entrance)
            own = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self._folder.resolve()), "LANG": "C.UTF-8"}
            launch = LaunchOptions(
                cwd=plan.cwd,
                env={**own, **command.variables, **plan.env, TAG_VARIABLE: tag},
                outputs=(nowhere, errors),
                entrance=entrance,
                for_command=(to_them, from_them, life),
            )
            shell = ["/bin/bash", "--noprofile", "--norc", "-c", _render_wrapper(plan.redirects), "hosted"]
            self._process = command.start([*shell, *plan.argv], launch)
        guardian.note_entered(self._process.pid, tag)
        os.set_blocking(self._life, False)

    def _make_pipe(self, theirs: ExitStack, *, is_read_by_us: bool) -> tuple[int, int]:
        """Make a pipe; return the program's end and ours."""
        read_end, write_end = os.pipe()
        their, our = (write_end, read_end) if is_read_by_us else (read_end, write_end)
        theirs.callback(os.close, their)
        self._held.callback(_close, our)
        return their, our

    @property
    def pid(self) -> int:
        """The id of the process that keeps it."""
        return self._process.pid

    def keep_alive(self) -> None:
        """Let it live ``SILENCE_S`` seconds longer."""
        with suppress(BlockingIOError, BrokenPipeError, OSError):
            os.write(self._life, b"\n")

    def end(self) -> None:
        """End all of its processes and delete its folder. Idempotent."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGUSR1)  # a keeper ends everything at once
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                return  # stuck in the kernel; the guardian keeps it listed
            guardian.release(self._process.pid)
            self._held.close()
        self._remove()

    def _remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _render_wrapper(redirects: str) -> str:
    return (
        f"exec 3<&{_FIRST} 4>&{_FIRST + 1} 5<&{_FIRST + 2} {_FIRST}<&- {_FIRST + 1}>&- {_FIRST + 2}<&-; "
        f'"$@" {redirects} 5<&- & exec 3<&- 4>&-; while read -r -t {SILENCE_S} -u 5 _; do :; done; exit 0'
    )


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)
