"""Reviews: runs that look back at a conversation for what to remember. When there is one, its topic, and its limits.
Pure.

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
"""The source in its submission; the source of its chain stands in its row, as for a child."""
ITERATIONS_MAX: Final = 16
"""Model calls of a review; the original's."""
WALL_S_MAX: Final = 1_800.0
RECORD_CHARS_MAX: Final = 60_000
"""The most characters of the conversation that are read, from the newest."""


class ReviewTopic(StrEnum):
    """The topics of reviews."""

    MEMORY = "memory"
    """What should be remembered about the user and their work."""
    SKILLS = "skills"
    """How tasks are done that will come again."""

    @property
    def tag(self) -> str:
        """The tag by which runs of this topic are found, and from which turns are counted."""
        return f"{REVIEW_SOURCE}:{self.value}"


TOOLS: Final = {
    ReviewTopic.MEMORY: frozenset({MEMORY_TOOL}),
    ReviewTopic.SKILLS: frozenset({"skills_list", "skill_view", "skill_manage"}),
}
"""The tools of a review, where its conversation has them."""
KEEPING: Final = {ReviewTopic.MEMORY: MEMORY_TOOL, ReviewTopic.SKILLS: "skill_manage"}
"""The tool without which a review is pointless; a call of it counts like a review."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewPolicy:
    """When conversations are reviewed. 0 for never."""

    turns: int = 0
    """Turns of people without a call of ``memory``."""
    iterations: int = 0
    """Model calls without a call of ``skill_manage``."""
    tokens_max: int = 200_000
    """Tokens of one review."""

    @property
    def topics(self) -> frozenset[ReviewTopic]:
        """The topics with reviews."""
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
    """The amount of conversation since something of it was kept, or since it was reviewed."""

    run_pk: int
    """The last run before that; 0 for none."""
    turns: int
    """Turns that people asked for."""
    iterations: int


def select_review_tools(topics: Collection[ReviewTopic]) -> frozenset[str]:
    """Select the tools of a review about ``topics``."""
    return frozenset(name for topic in topics for name in TOOLS[topic])
