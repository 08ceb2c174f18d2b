"""Decide which roles a run has when it asks to change memories and skills. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from hermes_worker.core.sources import CHAT_SOURCE


class MemoryWriter(StrEnum):
    """The role of a run that decides whether it may change memories."""

    PERSON = "person"
    """A run that its owner submitted: at the command line, with the server's key or one that has the scope ``memory``,
    or in a chat, where the person is no guest."""
    GUEST = "guest"
    """A run submitted with a key without that scope, by a guest of a chat, or by an unknown principal."""
    CHILD = "child"
    """A run that another one delegated."""
    WEBHOOK = "webhook"
    """A run that another program's event began."""
    CRON = "cron"
    """A run that a schedule began."""


_OF_OWNERS: Final = frozenset({"api", "cli", CHAT_SOURCE})


def decide_writers(source: str, *, is_child: bool, is_guest: bool) -> frozenset[MemoryWriter]:
    """Decide the roles of a run, all of which must be allowed: a child of a scheduled run has two. ``source`` is the
    source of the first run of its chain."""
    found = {MemoryWriter.CHILD} if is_child else set()
    if source in (MemoryWriter.CRON, MemoryWriter.WEBHOOK):
        found.add(MemoryWriter(source))
    elif is_guest or source not in _OF_OWNERS:
        found.add(MemoryWriter.GUEST)
    return frozenset(found) or frozenset({MemoryWriter.PERSON})


def explain_not_writer(asking: Collection[MemoryWriter], allowed: Collection[MemoryWriter]) -> str:
    """Why a run with the roles ``asking`` may not write; empty when it may."""
    return " and ".join(_WHO[word] for word in sorted(writer.value for writer in asking if writer not in allowed))


_WHO: Final[Mapping[str, str]] = MappingProxyType(
    {
        MemoryWriter.PERSON: "runs may only read it here",
        MemoryWriter.GUEST: "whoever asked for it is a guest",
        MemoryWriter.CHILD: "it was delegated by another run",
        MemoryWriter.WEBHOOK: "another program's event began it",
        MemoryWriter.CRON: "a schedule began it",
    }
)
