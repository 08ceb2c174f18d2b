"""A child process that is forked from one which has imported everything, instead of started from nothing.

A worker's imports cost one to two seconds of CPU. A child that is forked shares them, in time and in memory, and after
a crash the next one is there at once. It behaves like a started one in everything that matters here: a session, an
environment and descriptors of its own, default signals, dead when its parent is. Linux only: on macOS the system's
libraries do not survive a fork.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import IO, NamedTuple

from hermes_worker.embedded.process import dies_with_parent, name_process

_RESET = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGTTOU)
_FIRST_FREE_DESCRIPTOR = 3


class ForkedProcess:
    """What ``children`` uses of ``subprocess.Popen``."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        """What the child writes to stdout and stderr."""
        self._status: int | None = None

    def send_signal(self, number: int) -> None:
        """To the process, unless its end is known."""
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """The exit status, or minus the signal."""
        if self._status is None:
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._status


def can_fork() -> bool:
    """Whether children may be forked on this system."""
    return sys.platform == "linux"


def fork(
    name: str, main: Callable[[], object], env: Mapping[str, str], pass_fds: Collection[int] = ()
) -> ForkedProcess:
    """Run ``main`` in a child with the environment ``env`` and the descriptors ``pass_fds`` beside the standard ones.
    Only from the main thread of a process without others.

    ``main`` ends the child by returning (0), by raising ``SystemExit`` with its code, or with an error (1).
    """
    ask_for_death_signal = dies_with_parent(signal.SIGKILL)
    reader, writer = os.pipe()
    gc.freeze()  # nothing of ours is collected in the child, where its descriptors belong to somebody else
    with _signals_held_back():
        pid = os.fork()
        if pid == 0:
            _live(_Life(name, main, env, writer, pass_fds), ask_for_death_signal)
    os.close(writer)
    return ForkedProcess(pid, os.fdopen(reader, "rb", buffering=0))


@contextlib.contextmanager
def _signals_held_back() -> Iterator[None]:
    """Flushes what is buffered, too: the child would write it a second time."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _RESET)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _Life(NamedTuple):
    name: str
    main: Callable[[], object]
    env: Mapping[str, str]
    output: int
    kept: Collection[int]


def _live(life: _Life, ask_for_death_signal: Callable[[], None] | None) -> None:
    """The child's whole life. Never returns."""
    status = 1
    try:
        if ask_for_death_signal is not None:
            ask_for_death_signal()
        os.setsid()
        _take_descriptors(life.output, life.kept)
        signal.set_wakeup_fd(-1)
        for number in _RESET:
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


def _take_descriptors(output: int, kept: Collection[int]) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    first = _FIRST_FREE_DESCRIPTOR
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # Objects of their own: the parent's may write elsewhere, and hold what the parent has not flushed.
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, errors="replace", closefd=False) for number in (1, 2))
