"""One shell command from start to end: its process group, its output, its death.

The shell runs the command with ``eval`` and then writes where it is and what it exports to a private descriptor, from
an EXIT trap when the command calls ``exit``. The command could write there too, since it *is* that shell; what comes
back is therefore checked like any other outside input.
"""

from __future__ import annotations

import os
import re
import resource
import secrets
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO, Final

import psutil

from hermes_worker.core.errors import format_reason
from hermes_worker.workspaces.base import CommandResult, Ending, TerminalSize, WorkspaceError
from hermes_worker.workspaces.command_mark import MARK_LETTER, MARK_LIMIT, MARK_VARIABLE
from hermes_worker.workspaces.guardian import TAG_VARIABLE, guardian
from hermes_worker.workspaces.output import OutputBuffer
from hermes_worker.workspaces.sandbox.base import Confinement
from hermes_worker.workspaces.sandbox.helper import keeper
from hermes_worker.workspaces.sandbox.keeper_starter import KeeperProcess
from hermes_worker.workspaces.sandbox.kept_command import (
    OOM_SCORE,
    KeeperVerdict,
    KeptCommand,
    LaunchOptions,
    WatchedDirectory,
    hold_command,
    list_rlimits,
)
from hermes_worker.workspaces.sandbox.policy import CommandLimits

_SHELL: Final = ("/bin/bash", "--noprofile", "--norc", "-c")
_COMMAND_BYTES_MAX: Final = 128 * 1024 - 1
"""The longest single argument Linux passes to a program (MAX_ARG_STRLEN)."""
_POLL_S: Final = 0.03
_READ_BYTES: Final = 65_536
_END_SIGNALS: Final = {Ending.TIMED_OUT: signal.SIGTERM, Ending.CANCELLED: signal.SIGINT}
"""The signals that tell a keeper to end its command; how long the command may then take is the keeper's to say, and
holds for commands without one, too.
"""
_KEEPER_GRACE_S: Final = 3.0
"""How many seconds more than that to wait before its work is done for it."""
_KILL_GRACE_S: Final = 2.0
"""How many seconds to wait after SIGKILL; a process that is stuck in the kernel longer than this is given up."""
_FINISH_GRACE_S: Final = 0.3
"""How many seconds processes that outlive the shell may take to finish by themselves, like the ``gzip`` in ``make >
>(gzip > log.gz)``.
"""
_STRAY_GRACE_S: Final = 0.2
_EXIT_CODES: Final = {Ending.TIMED_OUT: 124, Ending.CANCELLED: 130}
_GONE_POLL_S: Final = 0.01
_STATE_BYTES_MAX: Final = 1_048_576
_BOOKKEEPING: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_", TAG_VARIABLE, MARK_VARIABLE})
_SHELL_CONTROL: Final = frozenset({"BASHOPTS", "BASH_ENV", "SHELLOPTS"})
"""Variables that would change the next shell before it reads its command."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# On one line, so that the line numbers in bash's messages are those of the command. The status of the command is the
# status of the last part, so that a trap set by the command still runs after it. Redirecting stderr hides our own parts
# from a command that turned tracing on (set -x, set -v).
_SCRIPT: Final = (
    "{enter}__hermes_state() {{ local status=$?; set +v; "
    "if [[ -z ${{__hermes_seen-}} ]]; then __hermes_seen=1; "
    "{{ builtin pwd -P; builtin printf '\\0'; /usr/bin/env -0; }} >&{state} || :; fi; "
    "return $status; }}; "
    "trap '{{ __hermes_state; }} 2>/dev/null' EXIT; "
    '__hermes_command=$1; shift; eval "$__hermes_command"; '
    "{{ __hermes_state; }} 2>/dev/null"
)

_READ_FROM: Final = "exec 0<&{stdin} {stdin}<&-; "
_IN_TERMINAL: Final = 'exec setsid --ctty --wait "$@" 0<&1'
# What a keeper does for confined commands, others do themselves.
_ENTER: Final = "trap '' PIPE; echo \"+ $$ {tag}\" >&{entrance}; trap - PIPE; exec {entrance}>&-; {limits}"
_ULIMITS: Final = (
    (resource.RLIMIT_NPROC, "u", 1),
    (resource.RLIMIT_NOFILE, "n", 1),
    (resource.RLIMIT_FSIZE, "f", 1024),
    (resource.RLIMIT_DATA, "d", 1024),
    (resource.RLIMIT_CPU, "t", 1),
    (resource.RLIMIT_CORE, "c", 1),
    (MARK_LIMIT, MARK_LETTER, 1),
)
"""The letters and units of bash's ``ulimit``."""


_Process = subprocess.Popen[bytes] | KeeperProcess


@dataclass(frozen=True, slots=True)
class TerminalPair:
    """Both sides of a terminal, as descriptors."""

    ours: int
    theirs: int

    @classmethod
    def open(cls, size: TerminalSize) -> TerminalPair:
        """Open a terminal. Raises ``OSError``."""
        ours, theirs = os.openpty()
        termios.tcsetwinsize(ours, (size.rows, size.columns))
        return cls(ours, theirs)

    def close(self) -> None:
        os.close(self.ours)
        os.close(self.theirs)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningCommand:
    """A command to run. ``base_env`` is given to every command of the workspace, ``env`` is this session's own."""

    text: str
    cwd: str
    base_env: Mapping[str, str]
    env: Mapping[str, str]
    timeout_s: float
    output_bytes_max: int
    confinement: Confinement | None = None
    """``None``: it can do whatever the worker's user can."""
    limits: CommandLimits | None = None
    has_own_errors: bool = False
    """Whether stderr is kept apart from stdout."""
    watched: Sequence[WatchedDirectory] = ()
    """Directories that must not become too full while it runs; only where something confines it."""
    umask: int | None = None
    """Permission bits that its new files do not get; ``None`` for the worker's own umask."""
    may_call_us: bool = False
    """Whether ``hermes-worker`` does its work when it is called from here."""
    on_output: Callable[[bytes], None] | None = None
    """Called with all output as it comes."""
    stdin: int | None = None
    """A descriptor that the command reads; ``None`` for one at its end. It stays the caller's."""
    terminal: TerminalPair | None = None
    """The terminal that the command has; ``None`` for pipes. It stays the caller's."""


def run_command(command: RunningCommand, *, should_stop: Callable[[], bool]) -> CommandResult:
    """Run ``command`` to its end, its time limit or the stop; nothing of it is left running.

    Raises ``WorkspaceError`` when it cannot be started.
    """
    check_command(command.text)
    with _open_state() as state:
        running = _StartedCommand(command, state_descriptor=state.fileno())
        try:
            ending = running.wait(should_stop)
            left_running = running.finish() if ending is Ending.EXITED else running.kill(ending)
        finally:
            # Reached with the command still running only when something outside interrupts this thread.
            running.close()
        state.seek(0)
        given = {**command.base_env, **running.variables}
        cwd, exported = parse_state(state.read(_STATE_BYTES_MAX + 1), given)
    if running.verdict.unconfined is not None:
        raise WorkspaceError(f"the command was not started, because confining it failed: {running.verdict.unconfined}")
    return CommandResult(
        output=running.output.render(),
        exit_code=_EXIT_CODES.get(ending, running.exit_code),
        was_truncated=running.output.was_truncated,
        cwd=cwd,
        ending=ending,
        exported=exported,
        left_running=left_running and ending is Ending.EXITED,
        excess=running.verdict.excess,
        errors=running.errors.render(),
    )


def check_command(text: str) -> None:
    """Raise ``WorkspaceError`` for a text that no shell can be given."""
    if "\0" in text:
        raise WorkspaceError("the command contains a NUL character")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise WorkspaceError("the command is not valid text") from error
    if size > _COMMAND_BYTES_MAX:
        raise WorkspaceError(
            f"the command is {size} bytes long, more than {_COMMAND_BYTES_MAX}; write it to a file with write_file "
            "and run the file"
        )


class _StartedCommand:
    """A started command. One thread uses it, from ``wait`` through ``finish`` or ``kill`` to ``close``."""

    def __init__(self, command: RunningCommand, *, state_descriptor: int) -> None:
        self.output = OutputBuffer(command.output_bytes_max)
        self.errors = OutputBuffer(command.output_bytes_max)
        self.verdict = KeeperVerdict()
        self.exit_code = 128 + signal.SIGKILL
        """The exit code as shells count, 128 and the signal's number when a signal ended it; set by ``close``."""
        self.variables: Mapping[str, str] = {}
        """The variables that its confinement added to its environment."""
        self._deadline = time.monotonic() + command.timeout_s
        self._tag = secrets.token_hex(8)
        self._tell = command.on_output
        self._kept: KeptCommand | None = None
        self._resources = ExitStack()
        try:
            self._process = self._open_and_start(command, state_descriptor)
        except (OSError, ValueError) as error:
            self._resources.close()
            raise WorkspaceError(f"the command could not be started: {format_reason(error)}") from error
        guardian.note_entered(self._process.pid, self._tag)
        self._process_descriptor = _open_process(self._process.pid)

    def _open_and_start(self, command: RunningCommand, state: int) -> _Process:
        """Start it with a pipe or two, whose reading ends are kept in ``_pipes``."""
        self._pipes: dict[int, OutputBuffer] = {}
        with ExitStack() as write_ends:
            ends = []
            if command.terminal is not None:
                # The command's side stays open here until it has ended, so nothing that it wrote is lost.
                ours = os.dup(command.terminal.ours)
                self._resources.callback(os.close, ours)
                os.set_blocking(ours, False)
                self._pipes[ours] = self.output
                return self._start(command, (command.terminal.theirs, command.terminal.theirs), state)
            for collected in (self.output, self.errors) if command.has_own_errors else (self.output,):
                read_end, write_end = os.pipe()
                self._resources.callback(os.close, read_end)
                write_ends.callback(os.close, write_end)
                os.set_blocking(read_end, False)
                self._pipes[read_end] = collected
                ends.append(write_end)
            return self._start(command, (ends[0], ends[-1]), state)

    def wait(self, should_stop: Callable[[], bool]) -> Ending:
        """Collect output until the shell exits, the time is over or ``should_stop`` turns true."""
        while True:
            self._collect(_POLL_S)
            if self._has_exited():
                return Ending.EXITED
            if time.monotonic() >= self._deadline:
                return Ending.TIMED_OUT
            if should_stop():
                return Ending.CANCELLED

    def finish(self) -> bool:
        """Take the rest of the output after the shell's own exit, and end what it left in the background. Returns
        whether anything had to be ended.

        Where no keeper holds the command together, daemons, which left the session on purpose, are spared.
        """
        left_running = False
        if self._kept is not None:
            self.verdict = self._kept.read_verdict()
            left_running = self.verdict.left_running
        if self._kept is None or self._was_keeper_killed():
            left_running = self._end_session()
        self._drain()
        return left_running

    def _was_keeper_killed(self) -> bool:
        """Whether the keeper could not do its work."""
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is None or ended.si_code != os.CLD_EXITED

    def _end_session(self) -> bool:
        are_gone = self._are_gone_within(_FINISH_GRACE_S, self._list_session)
        if not are_gone:
            self._signal(self._list_session(), signal.SIGTERM)
            if not self._are_gone_within(_STRAY_GRACE_S, self._list_session):
                self._kill_until_gone(self._list_session)
        return not are_gone

    def kill(self, ending: Ending) -> bool:
        """End the shell and everything it started, also what left its session. Returns true."""
        number = _END_SIGNALS[ending]
        if not self._is_ended_by_keeper(number):
            self._signal(self._list_family(), signal.SIGTERM)
            if not self._are_gone_within(keeper.STOP_SIGNALS[number], self._list_family):
                self._kill_until_gone(self._list_family)
        self._drain()
        return True

    def _is_ended_by_keeper(self, number: signal.Signals) -> bool:
        """Whether the keeper ended the command. It is the one that can tell when nothing of the command is left."""
        if self._kept is None:
            return False
        self._signal([self._process.pid], number)
        deadline = time.monotonic() + keeper.STOP_SIGNALS.get(number, 0) + _KEEPER_GRACE_S
        while not self._has_exited():
            if time.monotonic() >= deadline:
                return False
            self._collect(_POLL_S)
        return not self._was_keeper_killed()

    def close(self) -> None:
        """Release what the command held; kills it if it is still running."""
        if not self._has_exited() and not self._is_ended_by_keeper(signal.SIGUSR1):
            self._kill_until_gone(self._list_family)
        try:
            code = self._process.wait(_KILL_GRACE_S)
        except subprocess.TimeoutExpired:
            # Stuck in the kernel. The guardian keeps it listed; nothing else can be done about it.
            self._process.returncode = -signal.SIGKILL
        else:
            self.exit_code = 128 - code if code < 0 else code
            guardian.release(self._process.pid)
        self._resources.close()
        if self._process_descriptor is not None:
            os.close(self._process_descriptor)

    def _start(self, command: RunningCommand, outputs: tuple[int, int], state: int) -> _Process:
        entrance = guardian.open_entrance()
        try:
            if command.confinement is None:
                return self._start_unconfined(command, outputs, entrance, state)
            self._kept = self._resources.enter_context(
                hold_command(
                    command.confinement,
                    tag=self._tag,
                    limits=command.limits,
                    more_limits=_mark_limits(command),
                    watched=command.watched,
                )
            )
            self.variables = self._kept.variables
            enter = "" if command.stdin is None else _READ_FROM.format(stdin=keeper.FIRST_DESCRIPTOR + 1)
            script = _SCRIPT.format(enter=enter, state=keeper.FIRST_DESCRIPTOR)
            launch = LaunchOptions(
                cwd=command.cwd,
                env=self._build_environment(command),
                outputs=outputs,
                entrance=entrance,
                for_command=(state,) if command.stdin is None else (state, command.stdin),
                umask=command.umask,
            )
            return self._kept.start([*_build_terminal_words(command), *_SHELL, script, "bash", command.text], launch)
        finally:
            os.close(entrance)

    def _start_unconfined(
        self, command: RunningCommand, outputs: tuple[int, int], entrance: int, state: int
    ) -> subprocess.Popen[bytes]:
        enter = _ENTER.format(tag=self._tag, entrance=entrance, limits=_render_limits(command))
        script = _SCRIPT.format(enter=enter if command.terminal is None else "", state=state)
        return subprocess.Popen(
            [*_build_terminal_words(command, enter), *_SHELL, script, "bash", command.text],
            cwd=command.cwd,
            env=self._build_environment(command),
            stdin=subprocess.DEVNULL if command.stdin is None else command.stdin,
            stdout=outputs[0],
            stderr=outputs[1],
            pass_fds=(entrance, state),
            start_new_session=True,
            umask=-1 if command.umask is None else command.umask,
        )

    def _build_environment(self, command: RunningCommand) -> dict[str, str]:
        mark = {} if command.may_call_us else {MARK_VARIABLE: "1"}
        return {**command.base_env, **self.variables, **command.env, **mark, TAG_VARIABLE: self._tag}

    def _collect(self, timeout_s: float) -> None:
        """Wait for output or for the shell's exit, at most ``timeout_s``, and take one piece of output."""
        poller = select.poll()
        for pipe in self._pipes:
            poller.register(pipe, select.POLLIN)
        if self._process_descriptor is not None:
            poller.register(self._process_descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poller.poll(timeout_s * 1000)}
        for pipe in ready & self._pipes.keys():
            self._read(pipe)

    def _read(self, pipe: int) -> bool:
        """Take one piece of output; return whether there was any."""
        try:
            data = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""  # a terminal that no process has open any more
        self._pipes[pipe].append(data)
        if not data:
            del self._pipes[pipe]
        elif self._tell is not None:
            self._tell(data)
        return bool(data)

    def _drain(self) -> None:
        """Take what is in the pipes now. Bounded, because something that escaped us may still be writing."""
        for pipe in tuple(self._pipes):
            for _ in range(64):
                if not self._read(pipe):
                    break

    def _are_gone_within(self, seconds: float, members: Callable[[], list[int]]) -> bool:
        """Whether all ``members`` end in time; output is collected meanwhile."""
        deadline = time.monotonic() + seconds
        while members():
            if time.monotonic() >= deadline:
                return False
            if self._pipes:
                self._collect(_GONE_POLL_S)
            time.sleep(_GONE_POLL_S)
        return True

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def _kill_until_gone(self, members: Callable[[], list[int]]) -> None:
        """Send SIGKILL until no member is left: a process may fork between the look and the signal."""
        deadline = time.monotonic() + _KILL_GRACE_S
        while (pids := members()) and time.monotonic() < deadline:
            # The keeper goes last, and by itself: without it, a process that left the session could not be found.
            others = [pid for pid in pids if self._kept is None or pid != self._process.pid]
            self._signal(others, signal.SIGKILL)
            time.sleep(_GONE_POLL_S)
        if self._kept is not None and pids:
            self._signal(members(), signal.SIGKILL)

    def _has_exited(self) -> bool:
        """Whether the shell has exited. It is not reaped: until ``close`` the shell's id stays taken, so that none of
        the ids we signal can come to mean a stranger.
        """
        try:
            return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True

    def _list_session(self) -> list[int]:
        """The living processes of the command's session: all it started, except daemons. Cheap enough to ask after
        every command."""
        return [pid for pid in psutil.pids() if _find_session(pid) == self._process.pid and not _is_zombie(pid)]

    def _list_family(self) -> list[int]:
        """The session, every descendant of it and every process that carries the command's tag, parents first: a shell
        whose child is told to end before it goes on to its next line."""
        family = {self._process.pid, *self._list_session()}
        parents: dict[int, int] = {}
        for pid in psutil.pids():
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                parents[pid] = process.ppid()
                if self._kept is None and _has_tag(process, self._tag):
                    family.add(pid)
        while more := {pid for pid, parent in parents.items() if parent in family} - family:
            family |= more
        return [pid for pid in sort_parents_first(family, parents) if not _is_zombie(pid)]


def _build_terminal_words(command: RunningCommand, enter: str = "") -> tuple[str, ...]:
    """The words in front of the command that give it its terminal as the controlling one, after it did ``enter``."""
    return () if command.terminal is None else (*_SHELL, f"{enter}{_IN_TERMINAL}", "bash")


def _mark_limits(command: RunningCommand) -> list[tuple[int, int]]:
    """The resource limit that marks the command as an agent's."""
    return [] if command.may_call_us else [(MARK_LIMIT, 0)]


def _render_limits(command: RunningCommand) -> str:
    """Shell commands that limit an unconfined shell. What cannot be set here stays as it is."""
    values = dict([*(list_rlimits(command.limits) if command.limits else []), *_mark_limits(command)])
    wanted = [f"ulimit -{letter} {values[kind] // unit}" for kind, letter, unit in _ULIMITS if kind in values]
    if command.limits is not None:
        wanted.append(f"echo {OOM_SCORE} > /proc/self/oom_score_adj")
    return f"{{ {'; '.join([*wanted, ':'])}; }} 2>/dev/null; "


def _find_session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None


def sort_parents_first(pids: Collection[int], parents: Mapping[int, int]) -> list[int]:
    """The processes, each behind those of them that it descends from; ``parents`` maps every process to its parent."""

    def count_ancestors(pid: int) -> int:
        above = 0
        while (pid := parents.get(pid, 0)) in pids and above < len(pids):
            above += 1
        return above

    return sorted(pids, key=lambda pid: (count_ancestors(pid), pid))


def _is_zombie(pid: int) -> bool:
    """Whether the process has ended without being reaped, or is gone."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _has_tag(process: psutil.Process, tag: str) -> bool:
    try:
        return process.environ().get(TAG_VARIABLE) == tag
    except (psutil.Error, OSError):
        # Another user's process: not ours to read, and not ours to kill.
        return False


def _open_process(pid: int) -> int | None:
    """A descriptor that becomes readable when the process exits; ``None`` where the system has no such thing, and
    then its exit is noticed at the next poll."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _open_state() -> IO[bytes]:
    """A private file without a name, in memory where the system has such a thing."""
    try:
        return os.fdopen(os.memfd_create("hermes-state"), "w+b")
    except (AttributeError, OSError):
        return TemporaryFile()


def parse_state(data: bytes, base_env: Mapping[str, str]) -> tuple[str | None, Mapping[str, str] | None]:
    """The directory of the shell and the variables that it exported; ``None`` for what it did not write or wrote too
    much of.
    """
    if not data or len(data) > _STATE_BYTES_MAX:
        return None, None
    first, *rest = data.decode("utf-8", "replace").split("\0")
    variables = dict(entry.split("=", 1) for entry in rest if "=" in entry)
    exported = {
        name: value
        for name, value in variables.items()
        if _VARIABLE.fullmatch(name) and name not in _BOOKKEEPING | _SHELL_CONTROL and base_env.get(name) != value
    }
    # Without a single variable, env itself did not run.
    return first.removesuffix("\n") or None, exported if variables else None
