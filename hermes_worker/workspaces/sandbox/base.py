"""The interface of a rung of the sandbox's ladder, and the plan that it gives for a command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_worker.workspaces.sandbox.policy import SandboxPolicy


class ProxySocket(Protocol):
    """The way of one command to the proxy."""

    def serve(self) -> AbstractContextManager[int]:
        """Yield the descriptor that the command's first process is given; the proxy serves while the block runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """The confinement of one command: a plan for the keeper (``helper/keeper.py``), which starts it."""

    prefix: tuple[str, ...] = ()
    """Words before the command's own."""
    plan: Mapping[str, Any] = field(default_factory=dict)
    program: bytes = b""
    """A seccomp program that the prefix reads from a descriptor, whose number takes the place of ``SECCOMP_FD``."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables for the command's environment."""
    needs_door: bool = False
    """Whether it reaches the network through a proxy only; the number of the ``door``'s descriptor takes the place of
    ``DOOR_FD``.
    """
    door: ProxySocket | None = None
    private_tmp: str | None = None
    """A directory that was made for this command; the code that runs the command removes it."""


SECCOMP_FD = "{seccomp}"
DOOR_FD = "{door}"
ENVIRON_FD = "{environ}"
"""Stands, in a prefix that is a program of its own, for a descriptor with more words for it, which set the command's
environment. Such a program is started with an empty one, because it is not confined yet, and the variables of a session
are an agent's.
"""


class Rung(Protocol):
    """One way to confine commands."""

    @property
    def name(self) -> str: ...

    def find_unavailable(self) -> str | None:
        """The reason why it does not work on this machine, found by using it; ``None`` when it does."""

    def find_refusal(self, policy: SandboxPolicy) -> str | None:
        """The reason why it cannot enforce ``policy``, and what to do; ``None`` when it can."""

    def plan_confinement(self, policy: SandboxPolicy) -> Confinement:
        """Plan how to start a command under ``policy``. Raises ``OSError``."""

    def list_gaps(self) -> Sequence[str]:
        """What it does not stop here, as phrases for people."""
