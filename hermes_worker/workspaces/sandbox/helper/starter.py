"""The process that forks a keeper for each confined command of one worker process.

It is started once, by ``python -I -S`` with an empty environment, and imports what a keeper needs: starting an
interpreter for each command would take longer than most commands. It holds nothing of the worker. A request is a
handful of descriptors; the plan, with the command's environment in it, is read by the forked keeper alone.

A keeper is forked as a child of the *worker* (CLONE_PARENT), which waits for it as for any child of its own. The
starter's death therefore costs nothing but a new starter, and it ends when the worker's end of the socket is closed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal

    from hermes_worker.workspaces.sandbox.helper import keeper
else:
    import _signal as signal

    import keeper

_CLONE_PARENT = 0x00008000
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_DESCRIPTORS_MAX = 16
# The interpreter's lock is held: the child must find it as its own.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def main() -> None:
    """Answer each message, which carries the descriptors of a keeper, with the keeper's process number, or with minus
    the number of the error."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    while True:
        message, descriptors, _, _ = socket.recv_fds(channel, 16, _DESCRIPTORS_MAX)
        if not message:
            return
        pid = _fork_for_the_parent()
        if pid == 0:
            channel.close()
            keeper.main(descriptors)
        for number in descriptors:
            os.close(number)
        channel.send(b"%d" % pid)


def _fork_for_the_parent() -> int:
    """Fork as ``os.fork`` does, but make the child one of this process's parent. This process has one thread, so
    nothing has to be mended in the child."""
    flags = ctypes.c_ulong(_CLONE_PARENT | signal.SIGCHLD)
    none = ctypes.c_void_p(None)
    pid = int(_libc.syscall(_SYS_CLONE[os.uname().machine], flags, none, none, none, none))
    return -ctypes.get_errno() if pid < 0 else pid
