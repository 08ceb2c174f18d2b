"""The priority of a run, and when it may begin. Pure."""

from __future__ import annotations

from enum import IntEnum

LATEST_S = 366 * 86_400.0
"""The most seconds by which a run may be postponed."""


class Priority(IntEnum):
    """The priority of a run among its tenant's, when there are more runs than workers. The numbers stand in
    ``runs.priority``."""

    LOW = -1
    NORMAL = 0
    HIGH = 1

    @property
    def word(self) -> str:
        return self.name.lower()

    @classmethod
    def from_word(cls, word: str) -> Priority:
        """Parse a priority. Raises ``ValueError`` for an unknown word."""
        try:
            return cls[word.upper()]
        except KeyError:
            raise ValueError(f"{word!r} is no priority; it is one of {', '.join(PRIORITIES)}") from None


PRIORITIES = tuple(priority.word for priority in Priority)
