"""How this process gets keepers: from its starter (``helper/starter.py``), which it starts when the first is needed."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from hermes_worker.workspaces.sandbox.helper import keeper

_HELPERS: Final = str(Path(keeper.__file__).parent)
# By this name it is compiled once, not for every worker.
_START: Final = f"import sys; sys.path.insert(0, {_HELPERS!r}); import starter; starter.main()"
_PATIENCE_S: Final = 15.0
_STOP_GRACE_S: Final = 1.0
_WAITING_TICK_S: Final = 0.005


class KeeperStarter:
    """The starter of this process; another one is started if somebody killed it. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_registered = False

    def fork(self, descriptors: Sequence[int]) -> int:
        """A new keeper, a child of this process, that waits for its plan; its process number. Raises ``OSError``."""
        with self._lock:
            try:
                return self._request_fork(descriptors)
            except (ConnectionError, EOFError, TimeoutError):
                # A keeper that nobody knows of reads no plan, and ends.
                self._close()
                try:
                    return self._request_fork(descriptors)
                except EOFError as error:
                    raise OSError(str(error)) from error

    def _request_fork(self, descriptors: Sequence[int]) -> int:
        channel = self._channel or self._start()
        socket.send_fds(channel, [b"fork"], descriptors)
        answer = channel.recv(32)
        if not answer:
            raise EOFError("the process that starts commands has ended")
        if int(answer) < 0:
            raise OSError(-int(answer), os.strerror(-int(answer)))
        return int(answer)

    def forget_in_child(self) -> None:
        """Called in a forked child: the starter is the parent's."""
        self._lock = threading.Lock()
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            # Not this process's child, so there is nothing to wait for and nothing to warn about.
            self._process.returncode = 0
        self._process = self._channel = None

    def stop(self) -> None:
        """Called when the worker exits in an orderly way."""
        with self._lock:
            self._close()

    def _start(self) -> socket.socket:
        if not self._is_registered:
            os.register_at_fork(after_in_child=self.forget_in_child)
            atexit.register(self.stop)
            self._is_registered = True
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            ours.settimeout(_PATIENCE_S)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _START, str(its.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={"PATH": "/usr/bin:/bin"},
                    cwd="/",
                    pass_fds=(its.fileno(),),
                    # Its own session: a signal to the worker's group must not take it along.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        self._channel = ours
        return ours

    def _close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            try:
                self._process.wait(_STOP_GRACE_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class KeeperProcess:
    """A keeper, a child of this process, with what is used of ``subprocess.Popen``."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        """``None`` until it was waited for."""

    def wait(self, timeout: float) -> int:
        """The exit code. Raises ``subprocess.TimeoutExpired``."""
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                pid, status = self.pid, 0  # somebody else waited for it
            if pid == self.pid:
                self.returncode = os.waitstatus_to_exitcode(status)
            elif time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("confined command", timeout)
            else:
                time.sleep(_WAITING_TICK_S)
        return self.returncode


starter = KeeperStarter()
