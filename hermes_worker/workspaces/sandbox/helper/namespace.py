"""A process namespace for one command, made by its keeper where it may: for root, who has the rights.

Two things come of it that root has no other way to get without cgroups. The namespace has a highest process number of
its own (Linux 6.14 or later), which bounds how many processes there can be; ``RLIMIT_NPROC`` does not hold for root.
And the kernel ends all of its processes, whatever they did to hide, when the first one is killed; that one ends last.

Others are bound by ``RLIMIT_NPROC``, and bubblewrap makes a process namespace for them.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
else:
    import _signal as signal

_CLONE_NEWNS, _CLONE_NEWPID = 0x20000, 0x20000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
_PR_SET_PDEATHSIG = 1
_PID_MAX = "/proc/sys/kernel/pid_max"
_OWN_PID_MAX_SINCE = (6, 14)
"""Before, the number belonged to the whole machine: it must not be written there."""
_LOW_NUMBERS = 310
"""The kernel gives the first 300 process numbers out once; and ours are among those of the namespace."""
_STATUS = struct.Struct("i")
_BOUNDED = -1
"""Told instead of a status: the number of processes is bounded."""
_libc = ctypes.CDLL(None, use_errno=True)


class Started:
    """A started command, as its keeper sees it."""

    def __init__(
        self, *, command: int | None = None, init: int | None = None, told: int | None = None, is_bounded: bool = False
    ) -> None:
        self.init = init
        """The first process of the command's namespace; ``None`` without one."""
        self.is_bounded = is_bounded
        """Whether the kernel bounds how many processes there can be."""
        self._command = command
        self._told = told
        self._status: int | None = None

    def note_end(self, pid: int, status: int) -> None:
        if pid == self._command:
            self._status = status

    def find_status(self, *, is_over: bool) -> int | None:
        """How the command itself ended, as ``wait`` has it; ``None`` while it runs. ``is_over``: nothing runs."""
        while self._told is not None:
            try:
                text = os.read(self._told, _STATUS.size)
            except BlockingIOError:
                break
            if not text:
                os.close(self._told)
                self._told = None
                break
            (value,) = _STATUS.unpack(text)
            if value == _BOUNDED:
                self.is_bounded = True
            else:
                self._status = value
        if self._status is None and is_over:
            return int(signal.SIGKILL)
        return self._status


def start(become: Callable[[], None], descriptors: list[int], processes_max: int) -> Started:
    """Fork a child that calls ``become``, which never returns; in a process namespace of its own, if possible.

    SIGIO is sent to this process when the command has ended; it must be blocked. ``descriptors`` are the command's.
    """
    is_root = os.geteuid() == 0
    own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC) if is_root else -1
    if not is_root or _libc.unshare(_CLONE_NEWPID) != 0:
        command = os.fork()
        if command == 0:
            become()
        return Started(command=command, is_bounded=not is_root)
    read_end, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    init = os.fork()
    if init == 0:
        os.close(read_end)
        _run_as_init(become, descriptors, processes_max, write_end)
    # As long as the next child would be another namespace's, no thread can be started.
    _libc.setns(own, _CLONE_NEWPID)
    os.close(own)
    os.close(write_end)
    fcntl.fcntl(read_end, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(read_end, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)
    return Started(init=init, told=read_end)


def _run_as_init(become: Callable[[], None], descriptors: list[int], processes_max: int, told: int) -> None:
    """Be the first process of the namespace: start the command, and take leave of everything that ends there."""
    # Also when the keeper is killed.
    _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    _mount_proc()
    if processes_max and _limit_processes(processes_max + _LOW_NUMBERS):
        os.write(told, _STATUS.pack(_BOUNDED))
    command = os.fork()
    if command == 0:
        become()
    for number in descriptors:
        os.close(number)
    try:
        while True:
            pid, status = os.wait()
            if pid == command:
                os.write(told, _STATUS.pack(status))
    except ChildProcessError:
        os._exit(0)


def _mount_proc() -> None:
    """Let /proc show the namespace: bubblewrap looks up its child there by the number that the child has in it. Where
    that is forbidden, bubblewrap cannot mount one either, and Landlock needs none."""
    if _libc.unshare(_CLONE_NEWNS) == 0:
        _libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC | _MS_SLAVE), None)
        _libc.mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV | _MS_NOEXEC), None)


def _limit_processes(pid_max: int) -> bool:
    release = os.uname().release.split(".")
    try:
        if (int(release[0]), int(release[1])) < _OWN_PID_MAX_SINCE:
            return False
        with open(_PID_MAX, "r+b", buffering=0) as file:  # noqa: PTH123 - pathlib would double the time to start
            file.write(b"%d" % pid_max)
    except (OSError, ValueError, IndexError):
        return False  # /proc/sys is read-only in most containers
    return True
