"""What agents remember, as the API answers it, the client returns it and commands print it."""

from __future__ import annotations

from typing import Any, Literal

from hermes_worker.resource import ListOf, Resource


class MemoryEntryObject(Resource):
    """An entry as it stands."""

    entry_id: str
    version: int
    """Counted from 1."""
    content: str


class MemoryVersionObject(Resource):
    """What an entry said from some moment on."""

    object: Literal["hermes.memory.version"] = "hermes.memory.version"
    number: int
    """Grows with time."""
    target: str
    entry_id: str
    version: int
    act: str
    """``add``, ``replace``, ``remove``, ``undo``, or ``propose`` for a change that waits or waited for a person."""
    state: str
    """``current``, ``past``, ``staged``, ``approved`` or ``declined``."""
    content: str | None
    """``null`` for an entry that was removed, and for a text that was redacted."""
    author: str
    run_id: str | None
    at: float
    """Epoch seconds."""
    redacted_at: float | None


class StagedObject(Resource):
    """A change that waits for a person."""

    staged_id: str
    number: int
    """Grows with time."""
    target: str
    operations: list[dict[str, Any]]
    author: str
    run_id: str | None
    at: float
    """Epoch seconds."""


class OneMemory(Resource):
    """The entries of ``memory`` or of ``user``, and how full it is."""

    entries: list[MemoryVersionObject]
    chars: int
    """Characters of all entries together, with the delimiters between them."""
    limit: int


class MemoryObject(Resource):
    """Both memories of a profile."""

    object: Literal["hermes.memory"] = "hermes.memory"
    profile: str
    memory: OneMemory
    user: OneMemory
    staged: list[StagedObject]


class ChangedEntry(Resource):
    """An entry with the version that a change made of it."""

    entry_id: str
    version: int


class MemoryChangedObject(Resource):
    """The outcome of a change."""

    object: Literal["hermes.memory.changed"] = "hermes.memory.changed"
    target: str
    message: str
    changed: list[ChangedEntry]
    entries: list[MemoryEntryObject]
    """The entries of the memory after the change."""
    usage: str


class MemoryVersionList(ListOf[MemoryVersionObject]):
    """Versions, the newest first."""
