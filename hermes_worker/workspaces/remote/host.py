"""The interface of a host that is not ours: it starts programs and talks to them. One module per kind of host.

A host knows nothing of workspaces; ``workspace.RemoteWorkspace`` makes one of it with a shell and the programs that
every Linux has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class WrittenPiece:
    """A piece of output of a program."""

    is_error: bool
    """Whether it came over stderr."""
    data: bytes


class RemoteProgram(Protocol):
    """A program that was started. One thread uses it, from ``receive`` to ``close``."""

    def send(self, data: bytes) -> None:
        """Write to its standard input. Raises ``HostLost``."""

    def receive(self, timeout_s: float) -> WrittenPiece | None:
        """The next piece of output; ``None`` when there was none in time, or when there is no more (``has_ended``).
        Raises ``HostLost`` when the way to the host is gone before the program's end was told."""

    @property
    def has_ended(self) -> bool: ...

    @property
    def exit_code(self) -> int:
        """The exit code once it has ended; 128 and the signal's number when a signal ended it."""

    def hang_up(self) -> None:
        """End its standard input. The programs that we start take that for the order to end everything."""

    def close(self) -> None:
        """Let go of it. Idempotent. A program that still runs sees its input end."""


class Host(Protocol):
    """Starts programs on one host. Thread-safe."""

    @property
    def name(self) -> str:
        """The name for messages, such as ``ssh host build.example.org``."""

    @property
    def wall(self) -> str:
        """The name, in events, of what confines its programs; ``none`` when nothing does."""

    @property
    def network(self) -> str | None:
        """The network that its programs have (``sandbox.network.Network``), where that is known."""

    def start(self, argv: Sequence[str]) -> RemoteProgram:
        """Start a program with pipes. Raises ``HostUnreachable``; a program that was started all the same sees its
        input end, so it must do nothing before it has read all of that, or be safe to repeat.
        """
