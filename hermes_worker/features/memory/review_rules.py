"""A look back at a conversation: when there is one, what it is about, and how much it may take. Pure.

Agents forget to remember. So after some turns in which nothing was kept, a run of its own reads what was said since and
keeps what later conversations need (docs/memory.md, "Reviews"). It is a run like any other: it belongs to the chain of
the turn that it follows, has a budget of its own, and stands in lists, trees and bills.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hermes_worker.features.memory.rules import MEMORY_TOOL

REVIEW_SOURCE: Final = "review"
"""What asked for it, in its spec; where its chain came from stands in its row, as in that of a child."""
ITERATIONS_MAX: Final = 16
"""Model calls of a review; the original's."""
WALL_S_MAX: Final = 1_800.0
RECORD_CHARS_MAX: Final = 60_000
"""Of what was said, the newest so many characters are read."""


class ReviewTopic(StrEnum):
    """What a review looks for."""

    MEMORY = "memory"
    """What is to be remembered of the user and of their work."""
    SKILLS = "skills"
    """How something is done that will be done again."""

    @property
    def tag(self) -> str:
        """The tag by which runs of the kind are found, and counted from."""
        return f"{REVIEW_SOURCE}:{self.value}"


TOOLS: Final = {
    ReviewTopic.MEMORY: frozenset({MEMORY_TOOL}),
    ReviewTopic.SKILLS: frozenset({"skills_list", "skill_view", "skill_manage"}),
}
"""What a review may use, where its conversation has it."""
KEEPING: Final = {ReviewTopic.MEMORY: MEMORY_TOOL, ReviewTopic.SKILLS: "skill_manage"}
"""The tool without which there is nothing to review for; a call of it is as good as a review."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewPolicy:
    """When conversations are looked back at. 0 for never."""

    turns: int = 0
    """Turns of people without a call of ``memory``."""
    iterations: int = 0
    """Model calls without a call of ``skill_manage``."""
    tokens_max: int = 200_000
    """Tokens of one review."""

    @property
    def topics(self) -> frozenset[ReviewTopic]:
        """Those that there are reviews for."""
        counted = {ReviewTopic.MEMORY: self.turns, ReviewTopic.SKILLS: self.iterations}
        return frozenset(topic for topic, least in counted.items() if least)

    def is_due(self, topic: ReviewTopic, since: SinceKept) -> bool:
        match topic:
            case ReviewTopic.MEMORY:
                return 0 < self.turns <= since.turns
            case ReviewTopic.SKILLS:
                return 0 < self.iterations <= since.iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class SinceKept:
    """What happened in a conversation since something was kept of it, or it was reviewed."""

    run_pk: int
    """The last run of before; 0 for none."""
    turns: int
    """Of people."""
    iterations: int


def review_tools(topics: Collection[ReviewTopic]) -> frozenset[str]:
    """The tools of a review about ``topics``."""
    return frozenset(name for topic in topics for name in TOOLS[topic])
