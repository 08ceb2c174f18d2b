"""The places of a session's system prompt, in order, and how a place is filled later.

A prompt has three tiers, from what seldom changes to what often does, so that
sessions share a beginning. A contributor names its place and passes a text; only this module decides where it stands.
Some texts are known when the prompt is assembled (who the agent is), some in the transaction that opens the session
(memory, skills: rows), and one only in the workspace (the project's files). So a prompt is text with *gaps*: positions
for places that are still empty.

    stable      identity, working, tools, family, skills, environment
    context     caller, project, sources
    volatile    memory, user, provider, runtime
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

BETWEEN = "\n\n"
"""Stands between two sections."""


class Tier(StrEnum):
    """The tiers of a prompt, by how long their texts stay the same."""

    STABLE = "stable"
    """Who the agent is and how it works: the same for many sessions."""
    CONTEXT = "context"
    """Texts of the caller and the project."""
    VOLATILE = "volatile"
    """What is remembered, the day, the model."""


class PromptPlace(Enum):
    """The places of a system prompt, in order."""

    IDENTITY = ("identity", Tier.STABLE)
    """``SOUL.md``, or the default text about who the agent is."""
    WORKING = ("working", Tier.STABLE)
    """How to work with tools in general."""
    TOOLS = ("tools", Tier.STABLE)
    """How to use the available tools."""
    FAMILY = ("family", Tier.STABLE)
    """Advice for models of this family."""
    SKILLS = ("skills", Tier.STABLE)
    """The index of skills."""
    ENVIRONMENT = ("environment", Tier.STABLE)
    """Where the tools act, which people can be asked, what the platform can show; context sources of a low order."""
    CALLER = ("caller", Tier.CONTEXT)
    """The caller's own system message."""
    PROJECT = ("project", Tier.CONTEXT)
    """The files of the project that are written for agents."""
    SOURCES = ("sources", Tier.CONTEXT)
    """Context sources of others."""
    MEMORY = ("memory", Tier.VOLATILE)
    """The agent's own notes."""
    USER = ("user", Tier.VOLATILE)
    """What it knows about the user."""
    PROVIDER = ("provider", Tier.VOLATILE)
    """The text of the memory provider."""
    RUNTIME = ("runtime", Tier.VOLATILE)
    """The day, the model and its provider: always the last lines."""

    def __init__(self, label: str, tier: Tier) -> None:
        self.label = label
        self.tier = tier


_RANK: Mapping[PromptPlace, int] = {place: rank for rank, place in enumerate(PromptPlace)}


@dataclass(frozen=True, slots=True)
class Gap:
    """``place`` is empty and will stand at position ``at`` of the text, after the section that ends there."""

    place: PromptPlace
    at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssembledPrompt:
    """A prompt, and the gaps that may still be filled."""

    text: str
    gaps: tuple[Gap, ...] = ()


def join_sections(
    sections: Iterable[tuple[PromptPlace, str]], open_places: Iterable[PromptPlace] = ()
) -> AssembledPrompt:
    """Join the sections in the order of their places, and sections of one place in the order given; empty ones are left
    out. The places of ``open_places`` get a gap after their sections."""
    of_place: dict[PromptPlace, list[str]] = {place: [] for place in PromptPlace}
    for place, text in sections:
        if text:
            of_place[place].append(text)
    still_open = set(open_places)
    text, gaps = "", list[Gap]()
    for place, texts in of_place.items():
        for section in texts:
            text = f"{text}{BETWEEN}{section}" if text else section
        if place in still_open:
            gaps.append(Gap(place, len(text)))
    return AssembledPrompt(text=text, gaps=tuple(gaps))


def fill_gaps(prompt: AssembledPrompt, blocks: Mapping[PromptPlace, str]) -> AssembledPrompt:
    """Fill the gaps with ``blocks``. Blocks without a gap are ignored: a place is filled once, so doing it again
    changes nothing. The gaps that were not filled stay open."""
    text, shift, left = prompt.text, 0, list[Gap]()
    for gap in sorted(prompt.gaps, key=lambda gap: _RANK[gap.place]):
        at = gap.at + shift
        block = blocks.get(gap.place, "").strip("\n")
        if not block.strip():
            left.append(Gap(gap.place, at))
            continue
        section = f"{BETWEEN}{block}" if at else f"{block}{BETWEEN}"
        text = f"{text[:at]}{section}{text[at:]}"
        shift += len(section)
    return AssembledPrompt(text=text, gaps=tuple(left))


def find_gap(gaps: Sequence[Gap], place: PromptPlace) -> int | None:
    """Find the position at which ``place`` will stand; ``None`` when it has no gap."""
    return next((gap.at for gap in gaps if gap.place is place), None)
