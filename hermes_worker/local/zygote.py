"""The process that ``forking.Zygote`` starts: it imports, waits, and forks children for the process that started it.

It opens no connection, starts no thread and reads no secret, so its children have nothing that they are not given.
``forking`` has the theory of operation. Requests are served one at a time:

1. A message on the line brings descriptors: the description of the child, its output, and those that it keeps.
2. A fork makes the process in between, which forks the child (``_fork_and_end``).
3. The process in between writes the child's number into a pipe and ends. The child waits for that, until the kernel has
   given it another parent, and only then does its work: before, it would die with the wrong one.
4. The zygote reaps the process in between, sends the number over the line and waits for the next message. When the
   line ends, it ends too; its children live on.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from hermes_worker.local.forking import RESET_SIGNALS, ChildEntry, ChildPlan, run_child
from hermes_worker.local.process import die_with, title_process
from hermes_worker.settings.secret_transfer import begin_program

_DESCRIPTORS_MAX = 64
_LOOK_AGAIN_S = 0.0005


def main(arguments: Sequence[str]) -> None:
    """Import and serve. ``arguments`` are the descriptor of the line, and the function to call first: its place and its
    words.
    """
    number, *preload = arguments
    title_process("fork server")
    signal.pthread_sigmask(signal.SIG_BLOCK, RESET_SIGNALS)
    line = socket.socket(fileno=int(number))  # open to the end: who asks may hear of it only when all has been said
    if preload:
        ChildEntry(preload[0], preload[1:])()
    while _serve_request(line):
        pass


def _serve_request(line: socket.socket) -> bool:
    """Fork one child; return false when the line has ended."""
    message, descriptors, _, _ = socket.recv_fds(line, 1, _DESCRIPTORS_MAX)
    if not message:
        return False
    request, output, *held = descriptors
    life, parent, kept = ChildPlan.from_bytes(os.pread(request, os.fstat(request).st_size, 0))
    gc.freeze()  # nothing of ours is collected in the child, where its descriptors have other owners
    reader, writer = os.pipe()
    between = os.fork()
    if between == 0:
        _fork_and_end(life, parent, writer, output, dict(zip(kept, held, strict=True)))
    os.waitpid(between, 0)
    line.send(os.read(reader, 32))
    for descriptor in (*descriptors, reader, writer):
        os.close(descriptor)
    return True


def _fork_and_end(life: ChildPlan, parent: int, writer: int, output: int, kept: dict[int, int]) -> None:
    """Fork the child, say its number and end, so that the kernel gives the child to ``parent``. Never returns."""
    try:
        own = os.getpid()
        pid = os.fork()
        if pid == 0:
            while os.getppid() == own:
                time.sleep(_LOOK_AGAIN_S)
            die_with(parent)
            run_child(life, output, kept)
        os.write(writer, str(pid).encode())
    finally:
        os._exit(0)


if __name__ == "__main__":
    begin_program()
    main(sys.argv[1:])
