"""Take the connections of a confined command, on the worker's side.

The command's first process sends one descriptor through a socket pair and closes its end before it becomes the command:

* with a network of its own, a socket that listens on the loopback of that network. The worker accepts from it: only
  processes of that network can connect to it;
* without namespaces, the listener of a seccomp filter that asks about each ``connect``. The worker answers by putting a
  connection of its own, which leads to the proxy, in the place of the command's socket. Whatever address the command
  named is not even looked at, so it makes no difference when the command changes it meanwhile either.

Numbers: include/uapi/linux/seccomp.h of Linux 6.18.
"""

from __future__ import annotations

import array
import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
from pathlib import Path
from typing import Final, Protocol, Self

from hermes_worker.workspaces.sandbox.helper.connector import ANSWER, IS_VALID, NOTICE, RECEIVE, REPLY
from hermes_worker.workspaces.sandbox.helper.keeper import LISTENS

_ADD: Final = 0x40182103
"""SECCOMP_IOCTL_NOTIF_ADDFD"""
_IN_PLACE: Final = 1
"""SECCOMP_ADDFD_FLAG_SETFD"""


class IncomingConnections(Protocol):
    """Connections of one command, as they come in."""

    async def accept(self) -> socket.socket | None:
        """The worker's end of the next connection; ``None`` when there will be no more. Raises ``OSError``."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


async def receive_descriptor(channel: socket.socket) -> IncomingConnections | None:
    """Receive the descriptor of the command's first process; ``None`` when it ended without sending one. Raises
    ``OSError``.
    """
    channel.setblocking(False)
    await _wait_readable(channel.fileno())
    kind, ancillary, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(array.array("i").itemsize))
    descriptors = array.array("i")
    for level, what, data in ancillary:
        if (level, what) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    if not descriptors:
        return None
    return _ListenerConnections(descriptors[0]) if kind == LISTENS else _SeccompConnections(descriptors[0])


async def _wait_readable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


class _ListenerConnections:
    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)

    async def accept(self) -> socket.socket | None:
        client, _ = await asyncio.get_running_loop().sock_accept(self._socket)
        return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


class _SeccompConnections:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    async def accept(self) -> socket.socket | None:
        while True:
            await _wait_readable(self._descriptor)
            if _has_ended(self._descriptor):
                return None
            if (client := self._answer_connect()) is not None:
                return client

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # From here on the kernel answers ``connect`` with an error.
        os.close(self._descriptor)

    def _answer_connect(self) -> socket.socket | None:
        """Answer one ``connect``; the worker's end when it was given a connection."""
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self._descriptor, RECEIVE, notice)
        except OSError:
            return None  # whoever asked is gone
        number, task, _, _, _, _, first, *_ = NOTICE.unpack(notice)
        wanted = first & 0xFFFFFFFF
        ours, refusal = self._inject_connection(number, task, wanted)
        try:
            fcntl.ioctl(self._descriptor, ANSWER, REPLY.pack(number, 0, -refusal, 0))
        except OSError:
            if ours is not None:
                ours.close()
            return None
        return ours

    def _inject_connection(self, number: int, task: int, wanted: int) -> tuple[socket.socket | None, int]:
        """The worker's end of a connection whose other end now has the command's number ``wanted``, or an error."""
        try:
            flags = _read_socket_flags(task, wanted)
            # The task may have ended and its number may mean another, unless it still waits for this answer.
            fcntl.ioctl(self._descriptor, IS_VALID, struct.pack("=Q", number))
            ours, theirs = _make_connected_pair()
        except OSError as error:
            return None, error.errno or errno.EACCES
        try:
            with theirs:
                theirs.setblocking(not flags & os.O_NONBLOCK)
                placed = struct.pack("=QIIII", number, _IN_PLACE, theirs.fileno(), wanted, flags & os.O_CLOEXEC)
                fcntl.ioctl(self._descriptor, _ADD, placed)
        except OSError as error:
            ours.close()
            return None, error.errno or errno.EACCES
        return ours, 0


def _has_ended(descriptor: int) -> bool:
    """Whether no process is left that could ask."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return any(event & (select.POLLHUP | select.POLLERR) and not event & select.POLLIN for _, event in poller.poll(0))


def _read_socket_flags(task: int, descriptor: int) -> int:
    """The flags of a socket of another process. Raises ``OSError`` when it is no socket."""
    process = Path(f"/proc/{task}")
    try:
        if not str((process / "fd" / str(descriptor)).readlink()).startswith("socket:"):
            raise OSError(errno.ENOTSOCK, "not a socket")
        said = (process / "fdinfo" / str(descriptor)).read_text()
    except FileNotFoundError:
        raise OSError(errno.EBADF, "not open") from None
    return next((int(line.split()[1], 8) for line in said.splitlines() if line.startswith("flags:")), 0)


def _make_connected_pair() -> tuple[socket.socket, socket.socket]:
    """Make the two ends of a TCP connection within this machine, which no other process can take. Raises
    ``OSError``.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        theirs = socket.create_connection(listener.getsockname())
        try:
            ours, peer = listener.accept()
            if peer != theirs.getsockname():
                # Another process found the socket in the moment that it listened.
                ours.close()
                raise OSError(errno.ECONNREFUSED, "disturbed")
        except OSError:
            theirs.close()
            raise
    return ours, theirs
