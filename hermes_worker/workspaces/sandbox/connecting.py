"""How an open network is kept from link-local and metadata addresses: what a rung hands to the connector of a command
(``helper/connector.py``), and whether that works on this machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hermes_worker.net.urls import METADATA_SPELLINGS
from hermes_worker.workspaces.sandbox import probing, seccomp
from hermes_worker.workspaces.sandbox.base import Confinement


def plan_connector(*, serves_paths: bool) -> dict[str, Any]:
    """Build the part of the keeper's plan for the connector. ``serves_paths`` says whether the command may have Unix
    sockets with a path. Raises ``KeyError`` for a machine whose system calls are not known here."""
    return {
        "program": seccomp.build_connecting_program(),
        "refused": METADATA_SPELLINGS,
        "serves_paths": serves_paths,
    }


def try_with_connector(confined: Callable[[bool], Confinement]) -> tuple[str | None, str | None]:
    """Why no command can be started as ``confined`` says, and why none can have a connector. It is called with whether
    there is one. Raises ``OSError``."""
    if not seccomp.is_known_machine():
        return probing.probe_confinement(confined(False)), "the system calls of this processor are not known"
    reason = probing.probe_confinement(confined(True))
    if reason is None:
        return None, None
    return probing.probe_confinement(confined(False)), reason


def tell_open_addresses(reason: str | None) -> str:
    """What an open network lets a command reach, for people. ``reason`` says why there is no connector."""
    if reason is None:
        return "private addresses while the network is open, and datagrams that sendmsg takes to link-local ones"
    return f"addresses, those of metadata services among them, while the network is open (no connector: {reason})"
