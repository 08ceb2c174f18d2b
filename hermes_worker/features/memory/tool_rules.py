"""The name of the tool for memories, and the words of its arguments. Declarations import it, so it is small."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

MEMORY_TOOL: Final = "memory"
"""The name of the tool."""


class MemoryTarget(StrEnum):
    """The two memories."""

    MEMORY = "memory"
    """The agent's own notes."""
    USER = "user"
    """Facts about the user."""


class MemoryAction(StrEnum):
    """The kinds of operations."""

    ADD = "add"
    REPLACE = "replace"
    REMOVE = "remove"
