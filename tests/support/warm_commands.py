"""The command line, and Python as ``python -c``, forked from a process that has imported everything.

For tests that need no cold start, which costs one to three seconds of CPU, nearly all of it imports. What is forked
runs the same ``main`` with an environment, a session, a directory and streams of its own; only the finding of modules
is not shown by it. Run as a program, this module is that process: it takes requests with their descriptors from a
socket, answers each with the number of the process, and writes how that ended into the last of the descriptors.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import setproctitle

from hermes_worker.settings import secret_transfer as handover

REQUEST_BYTES_MAX = 1 << 17
_MODULES = ("scheduler.beat", "hermes_worker.api.server", "hermes_worker.models.scripted.__main__")


def _is_readable(descriptor: int, timeout_s: float | None) -> bool:
    """Also for numbers above 1,023, which ``select`` cannot take: a process that ran many tests has such."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(None if timeout_s is None else timeout_s * 1_000))


class WarmProcess:
    """What ``support.commandline`` uses of ``subprocess.Popen``."""

    def __init__(
        self, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path | None, streams: Sequence[IO[Any]]
    ) -> None:
        """``arguments`` are those of the command, or of Python if the first is ``-c``. ``streams`` are what it reads,
        and what it writes to as stdout and as stderr."""
        request = {"arguments": list(arguments), "environ": dict(environ), "cwd": str(cwd or Path.cwd())}
        self._ended, status_writer = os.pipe()
        server = _server()
        socket.send_fds(server, [json.dumps(request).encode()], [*(s.fileno() for s in streams), status_writer])
        os.close(status_writer)
        self.pid = int(server.recv(64))
        self._status: int | None = None

    def poll(self) -> int | None:
        return self._status_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("hermes-worker", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _status_within(self, timeout_s: float | None) -> int | None:
        if self._status is None and _is_readable(self._ended, timeout_s):
            self._status = int(os.read(self._ended, 64) or b"-9")
            os.close(self._ended)
        return self._status


@cache
def _server() -> socket.socket:
    """One for all tests of this process; gone when the process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH") if name in os.environ}
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        env={**kept, "PYTHONUNBUFFERED": "1"},
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(process.kill)  # runs first; the end of the socket would do, if nobody inherited ours
    return ours


def _serve(requests: socket.socket) -> None:
    _import_everything()
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, int] = {}
    while True:
        for ready in select.select([requests, reader], [], [])[0]:
            if ready == reader:
                os.read(reader, 4096)
            elif not _take_request(requests, running):
                return
        _report_ends(running)


def _import_everything() -> None:
    from hermes_worker import installed
    from hermes_worker.worker.warm import warm_up

    for name in (
        *_MODULES,
        *{str(one.implementation).partition(":")[0] for one in installed.get_installed().commands.values()},
    ):
        importlib.import_module(name)
    warm_up()
    setproctitle.getproctitle()  # finds where the title is, which a child with an environment of its own cannot


def _take_request(requests: socket.socket, running: dict[int, int]) -> bool:
    message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES_MAX, 4)
    if not message:
        return False
    *streams, status_writer = descriptors
    set_up, child_is_set_up = os.pipe()
    pid = os.fork()
    if pid == 0:
        _be_the_command(json.loads(message), streams, child_is_set_up)
    running[pid] = status_writer
    for descriptor in (*streams, child_is_set_up):
        os.close(descriptor)
    os.read(set_up, 1)  # its end: signals to its process group arrive from now on
    os.close(set_up)
    requests.send(str(pid).encode())
    return True


def _report_ends(running: dict[int, int]) -> None:
    """Told before it is reaped: a process that cannot be found any more is one whose end is known."""
    while running and (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
        status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        os.write(running[ended.si_pid], str(status).encode())
        os.close(running.pop(ended.si_pid))
        os.waitpid(ended.si_pid, 0)


def _be_the_command(request: Mapping[str, Any], streams: Sequence[int], child_is_set_up: int) -> None:
    """The child's whole life. Never returns."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        os.chdir(request["cwd"])
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.environ.clear()
        os.environ.update(request["environ"])
        handover.keep_files_private()
        handover.hide_memory()
        os.closerange(3, child_is_set_up)
        os.closerange(child_is_set_up + 1, 4096)
        os.close(child_is_set_up)
        # Objects of their own: what can be done with a stream is decided when it is opened.
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", 1, closefd=False) for number in (1, 2))
        _run(request["arguments"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _run(arguments: Sequence[str]) -> None:
    if arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})  # noqa: S102 - the test's own
        return
    from hermes_worker.cli.entry import main
    from hermes_worker.local.process import name_process

    sys.argv = ["hermes-worker", *arguments]
    name_process("hermes-worker")
    main(arguments)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
