"""One server as a child process: it never outlives us, its last words are kept, and stopping it has an end."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import setproctitle

from hermes_worker.core.errors import ConfigurationError

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_POLL_S = 0.002
_KILL_PATIENCE_S = 30.0
"""A process in uninterruptible sleep can outlast a SIGKILL for a while."""
_LOOKS_AT_OURSELVES = 3


def die_with_parent_hook(with_signal: signal.Signals = signal.SIGKILL) -> Callable[[], None] | None:
    """A ``preexec_fn`` after which the child gets ``with_signal`` the moment its parent is gone, however it went.

    Linux sends the signal when the *thread* that started the child ends, so from any thread but the main one, and on
    other systems, this is ``None`` and the child has only ``atexit`` to end it.
    """
    if sys.platform != "linux" or threading.current_thread() is not threading.main_thread():
        return None
    return functools.partial(_set_death_signal, _load_prctl(), int(with_signal), os.getpid())


def die_with(parent: int) -> None:
    """Have this process killed the moment its parent, ``parent``, is gone. Linux only."""
    _set_death_signal(_load_prctl(), int(signal.SIGKILL), parent)


def _set_death_signal(prctl: Callable[..., int], number: int, parent: int) -> None:
    prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        # It died before the line above, so its signal will never come.
        os._exit(1)


def become_subreaper() -> None:
    """Make orphans among our descendants our children from now on, instead of init's. Linux only."""
    if sys.platform == "linux":
        _load_prctl()(_PR_SET_CHILD_SUBREAPER, 1)


def name_process(name: str) -> None:
    """Show ``name``, or its first 15 bytes, as the name of this process in ``ps`` and ``top``. Linux only."""
    if sys.platform == "linux":
        _load_prctl()(_PR_SET_NAME, name.encode()[:15])


def format_root_warning() -> str | None:
    """The warning for a user who runs a program of ours as root; ``None`` for any other user."""
    if os.geteuid() != 0:
        return None
    return (
        "this runs as root, from whom neither its secrets nor this machine can be kept; run it as a user of its own, "
        "in a container for example with 'user: 65534:65534'"
    )


def title_process(role: str) -> None:
    """Show ``hermes-worker: ROLE`` as the command line of this process in ``ps``; its short name stays as it is."""
    name = _read_short_name()
    setproctitle.setproctitle(f"hermes-worker: {role}")
    if name:
        name_process(name)


def _read_short_name() -> str:
    try:
        return Path("/proc/self/comm").read_text().rstrip("\n")
    except OSError:
        return ""


@functools.cache
def _load_prctl() -> Any:
    """The function, looked up in the parent, because a freshly forked child should do next to nothing."""
    return ctypes.CDLL(None, use_errno=True).prctl


class ServerProcess:
    """A server in the foreground. Not thread-safe."""

    def __init__(self, name: str, log_path: Path) -> None:
        self._name = name
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """``None`` when it is not running."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        pass_fds: Sequence[int] = (),
        death_signal: signal.Signals = signal.SIGKILL,
        user: int | None = None,
        group: int | None = None,
    ) -> None:
        """Spawn it, with its output in the log file. ``user`` and ``group`` need root.

        Raises ``ServerFailed`` when the program cannot be run.
        """
        with self._log_path.open("wb") as log, self._explain_errors():
            self._process = subprocess.Popen(
                argv,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd="/",
                pass_fds=tuple(pass_fds),
                # A session of its own: Ctrl-C in our terminal is for us, and we then stop it in order.
                start_new_session=True,
                preexec_fn=die_with_parent_hook(death_signal),
                user=user,
                group=group,
                extra_groups=[] if user is not None else None,
            )
        atexit.register(self._stop_at_exit, os.getpid())

    @contextlib.contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except (OSError, subprocess.SubprocessError) as error:
            raise ServerFailed(f"{self._name} could not be started", str(error)) from error

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait for the server to work. Raises ``ServerFailed`` with its last words if it ends or takes too long."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self.pid is None:
                raise ServerFailed(f"{self._name} ended while starting", self.read_last_words())
            if time.monotonic() > deadline:
                self.kill()
                raise ServerFailed(f"{self._name} was not ready after {timeout_s:g} s", self.read_last_words())
            time.sleep(_POLL_S)

    def stop(self, *steps: tuple[signal.Signals, float]) -> None:
        """Send each signal in turn and wait its seconds for the end; then SIGKILL. Idempotent."""
        for number, patience_s in (*steps, (signal.SIGKILL, _KILL_PATIENCE_S)):
            process = self._process
            if process is None or process.poll() is not None:
                break
            process.send_signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience_s)
        atexit.unregister(self._stop_at_exit)

    def kill(self) -> None:
        """Kill the server and wait for its end. Idempotent."""
        self.stop()

    def read_last_words(self) -> str:
        """The end of its log, as one line."""
        try:
            lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return " | ".join(line.strip() for line in lines[-6:] if line.strip())

    def _stop_at_exit(self, owner_pid: int) -> None:
        # A forked child inherits the registration but not the server.
        if os.getpid() == owner_pid:
            self.stop((signal.SIGTERM, 2.0))


def list_child_processes(pid: int | None = None, *, recursive: bool = False) -> list[psutil.Process]:
    """The children of a process, and with ``recursive`` all that is below it; of this one, without ``pid``. Empty when
    the process is gone or may not be looked at, which is no error: it may end at any moment.
    """
    # This process is there, whatever psutil read while a clock was set or children came and went: look again.
    for _ in range(_LOOKS_AT_OURSELVES if pid is None else 1):
        with contextlib.suppress(psutil.Error):
            return psutil.Process(pid).children(recursive=recursive)
    return []


def wait_until_gone(processes: Iterable[psutil.Process], timeout_s: float = _KILL_PATIENCE_S) -> None:
    """Wait for killed processes that need not be our children. One that was not reaped yet counts as gone.

    Raises ``TimeoutError``.
    """
    deadline = time.monotonic() + timeout_s
    for process in processes:
        while _is_alive(process):
            if time.monotonic() > deadline:
                raise TimeoutError(f"process {process.pid} did not end within {timeout_s:g} s")
            time.sleep(_POLL_S)


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class ServerFailed(ConfigurationError):
    """A server could not be started. ``read_last_words`` is the end of its output."""

    def __init__(self, message: str, last_words: str) -> None:
        super().__init__(f"{message}: {last_words or 'it said nothing'}")
        self.last_words = last_words
