"""How urgent a run is, and when it may begin. Pure."""

from __future__ import annotations

from enum import IntEnum

LATEST_S = 366 * 86_400.0
"""How far ahead a run may be put off, in seconds."""


class Priority(IntEnum):
    """Which of a tenant's runs go first when there are more than workers. The numbers stand in ``runs.priority``."""

    LOW = -1
    NORMAL = 0
    HIGH = 1

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def of(cls, word: str) -> Priority:
        """Raises ``ValueError`` for a word that is none."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"{word!r} is no priority; it is one of {', '.join(PRIORITIES)}") from None


PRIORITIES = tuple(priority.word for priority in Priority)
