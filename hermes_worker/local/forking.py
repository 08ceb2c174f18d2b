"""Child processes that are forked from one which has imported everything, instead of started from nothing.

A worker's imports cost one to two seconds of CPU. A child that is forked shares them, in time and in memory, and after
a crash the next one is there at once. It behaves like a started one in everything that matters here: a session, an
environment and descriptors of its own, default signals, dead when its parent is. Linux only: on macOS the system's
libraries do not survive a fork.

Theory of operation. A forked process has all that its parent's memory held, so a process that knows a secret must not
fork. The children come out of a *zygote* instead, a process that is started from nothing, imports and knows no secret
(``zygote``). It forks twice: the process in between ends at once, so that the child becomes its grandparent's, which is
the nearest subreaper. Secrets pass through the zygote as a descriptor that only the child reads.

    keeper (subreaper, knows secrets) ---- one socket ---- zygote (knows none)
      |                                                      | 1. request: what the child is to be, and descriptors
      |                                                      +-- between     2. forks the child, tells its number, ends
      +-- child  <------- 3. the kernel gives it to the keeper ----+
            4. reads its secrets from its descriptor

A zygote that died is started again by the next ``fork``; its children live on, since they are the keeper's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import IO

from hermes_worker.local.process import become_subreaper, die_with_parent_hook, name_process
from hermes_worker.settings.secret_transfer import begin_program, open_sealed

RESET_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGTTOU)
"""Signals that a child treats as any program does. The forking process blocks them meanwhile: one that came at once
would be lost.
"""
_FIRST_FREE_DESCRIPTOR = 3
_PATIENCE_S = 60.0
"""How many seconds the zygote may take to answer. The first start on a slow disk compiles every module."""
_PID_BYTES_MAX = 32


@dataclass(frozen=True, slots=True)
class ChildEntry:
    """A function for another process to call: its name, and its arguments as words."""

    place: str
    """``module:function``."""
    arguments: Sequence[str] = ()

    @property
    def argv(self) -> list[str]:
        """The program that calls it, for systems where processes cannot be forked."""
        return [sys.executable, "-P", "-m", __name__, self.place, *self.arguments]

    def __call__(self) -> None:
        module, _, function = self.place.partition(":")
        getattr(import_module(module), function)(self.arguments)


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The description of a child to fork."""

    name: str
    main: ChildEntry
    """Ends the child by returning (0), by raising ``SystemExit`` with its code, or with an error (1)."""
    env: Mapping[str, str]

    def to_bytes(self, parent: int, kept: Sequence[int]) -> bytes:
        main = [self.main.place, *self.main.arguments]
        return json.dumps([self.name, main, dict(self.env), parent, list(kept)]).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> tuple[ChildPlan, int, list[int]]:
        """Parse a description; also return the process that is to be its parent, and the numbers of the descriptors
        that it keeps.
        """
        name, (place, *arguments), env, parent, kept = json.loads(data)
        return cls(name, ChildEntry(place, arguments), env), parent, kept


class ForkedProcess:
    """A forked child, with the part of ``subprocess.Popen`` that ``children`` uses."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        """The output of the child, stdout and stderr together."""
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, unless its end is known."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the end; return the exit status, or minus the signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def can_fork() -> bool:
    """Whether children may be forked on this system."""
    return sys.platform == "linux"


class Zygote:
    """Forks children for this process, which becomes a subreaper. Only for the main thread."""

    def __init__(self, preload: ChildEntry | None = None, *, output: int = 2) -> None:
        """``preload`` imports what the children have in common. Complaints of the zygote itself go to the descriptor
        ``output``.
        """
        self._preload = preload
        self._output = output
        self._line: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, env: Mapping[str, str]) -> socket.socket:
        """Let it begin to import, with an environment that is not secret, and return the line to it. Idempotent while
        it lives."""
        if self._line is not None:
            return self._line
        become_subreaper()
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._line.settimeout(_PATIENCE_S)
        words = [self._preload.place, *self._preload.arguments] if self._preload else []
        with theirs:
            self._process = subprocess.Popen(
                # -P: no modules from the current directory, where an agent may work.
                [sys.executable, "-P", "-m", "hermes_worker.local.zygote", str(theirs.fileno()), *words],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(theirs.fileno(),),
                preexec_fn=die_with_parent_hook(signal.SIGKILL),
            )
        return self._line

    def fork(self, life: ChildPlan, pass_fds: Collection[int] = ()) -> ForkedProcess:
        """Fork a child that keeps the descriptors ``pass_fds`` beside the standard ones, under the same numbers.

        Raises ``OSError`` when no zygote can be started.
        """
        reader, writer = os.pipe()
        try:
            pid = self._request_fork(life, writer, sorted(pass_fds)) or self._request_fork(
                life, writer, sorted(pass_fds)
            )
            if not pid:
                raise OSError(errno.ECHILD, "the process that was to fork it ended")
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        return ForkedProcess(pid, os.fdopen(reader, "rb", buffering=0))

    def close(self) -> None:
        """End it; its children live on. Idempotent."""
        if self._line is not None:
            self._line.close()
            self._line = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _request_fork(self, life: ChildPlan, output: int, kept: Sequence[int]) -> int:
        """The number of the child; 0 when the zygote has ended, or does not answer."""
        line = self.start(life.env)
        with open_sealed(life.to_bytes(os.getpid(), kept)) as request:
            try:
                socket.send_fds(line, [b"f"], [request, output, *kept])
                pid = int(line.recv(_PID_BYTES_MAX) or 0)
            except (ConnectionError, TimeoutError):
                pid = 0
        if not pid:
            self.close()
        return pid


def run_child(life: ChildPlan, output: int, kept: Mapping[int, int]) -> None:
    """The whole life of a child in a process that has just been forked. ``kept`` says which descriptor it is to have
    under which number. Never returns."""
    status = 1
    try:
        os.setsid()
        _take_descriptors(output, kept)
        signal.set_wakeup_fd(-1)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        os.environ.clear()
        os.environ.update(life.env)
        name_process(life.name)
        life.main()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _take_descriptors(output: int, kept: Mapping[int, int]) -> None:
    # Out of the way first, because one's number may be another's place.
    above = max(_FIRST_FREE_DESCRIPTOR, *kept, *kept.values(), output) + 1
    moved = {number: fcntl.fcntl(held, fcntl.F_DUPFD_CLOEXEC, above) for number, held in kept.items()}
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    first = _FIRST_FREE_DESCRIPTOR
    for number in sorted(moved):
        os.dup2(moved[number], number, inheritable=False)
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # Objects of their own: the parent's may write elsewhere, and hold what the parent has not flushed.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, errors="replace", closefd=False) for number in (1, 2))


if __name__ == "__main__":
    begin_program()
    ChildEntry(sys.argv[1], sys.argv[2:])()
