"""The command line, and Python as ``python -c``, forked from a process that has imported everything.

For tests that need no cold start, which costs one to three seconds of CPU, nearly all of it imports. What is forked
runs the same ``main`` with an environment, a session, a directory and streams of its own. ``warm_server`` is the
process that forks; it says what such a command does not show.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

REQUEST_BYTES_MAX = 1 << 17
_TESTS = Path(__file__).parents[1]


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
def warm_programs() -> Path:
    """A directory for a PATH, with a ``hermes-worker`` that forks as well and starts in a hundredth of the time. It
    ends with the process of the tests."""
    _server()
    return _directory()


@cache
def _directory() -> Path:
    directory = Path(tempfile.mkdtemp(prefix="hermes-warm-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    program = directory / "hermes-worker"
    program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).with_name('warm_program.py').read_text()}")
    program.chmod(0o755)
    return directory


@cache
def _server() -> socket.socket:
    """One for all tests of this process; gone when the process ends."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    programs = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    programs.bind(str(_directory() / "socket"))
    programs.listen()
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH") if name in os.environ}
    with theirs, programs:
        numbers = (theirs.fileno(), programs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "support.warm_server", *map(str, numbers)],
            cwd=_TESTS,
            env={**kept, "PYTHONUNBUFFERED": "1"},
            pass_fds=numbers,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    atexit.register(process.wait)
    atexit.register(process.kill)  # runs first; the end of the socket would do, if nobody inherited ours
    return ours
