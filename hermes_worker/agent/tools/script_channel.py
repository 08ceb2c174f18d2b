"""Messages over the socket pair that a command of ours holds the other end of: a length in four bytes, and as much."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from typing import Final

_ENDED_S: Final = 30.0
"""How many seconds the answering thread has to notice that the command has ended."""


def send_message(channel: socket.socket, data: bytes) -> None:
    """Send one message. Raises ``OSError``."""
    channel.sendall(struct.pack(">I", len(data)) + data)


def receive_message(channel: socket.socket, bytes_max: int) -> bytes:
    """Wait for a message. Raises ``OSError`` at the end of the channel, ``ValueError`` for one that is too long."""
    (size,) = struct.unpack(">I", _receive_exactly(channel, 4))
    if size > bytes_max:
        raise ValueError("the message is too long")
    return _receive_exactly(channel, size)


@contextmanager
def answer_channel(talk: Callable[[socket.socket], None], over: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Yield the descriptor for a command, while ``talk`` speaks over the other end in a thread of its own. What the
    channel raises ends ``talk`` quietly. When the command has ended, ``over`` is called and the channel shut.
    """
    ours, theirs = socket.socketpair()

    def talk_quietly() -> None:
        with suppress(OSError, ValueError, RecursionError):
            talk(ours)
        with suppress(OSError):
            ours.shutdown(socket.SHUT_RDWR)

    with ours, theirs:
        speaker = threading.Thread(target=copy_context().run, args=(talk_quietly,), name="script", daemon=True)
        speaker.start()
        try:
            yield theirs.fileno()
        finally:
            over()
            with suppress(OSError):
                ours.shutdown(socket.SHUT_RDWR)
            speaker.join(_ENDED_S)


def _receive_exactly(channel: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = channel.recv(min(size - len(data), 65_536))
        if not piece:
            raise ConnectionResetError("nobody is at the other end")
        data += piece
    return bytes(data)
