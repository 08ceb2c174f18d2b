"""What a run that begins now is offered of skills: the set that its row names, the index in its prompt, and the texts
that it is to follow."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from hermes_worker import installed
from hermes_worker.core.skills import SkillError, SkillSet, SkillSurroundings, instructed, shown_of, skill_index
from hermes_worker.skill_shelf import SkillShelf

_VIEW_TOOL = "skill_view"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSkills:
    """Skills for one run."""

    found: SkillSet | None = None
    """All that there are; ``None`` for none."""
    texts: tuple[str, ...] = ()
    """What the run is to follow, to stand before its input."""
    disabled: Set[str] = frozenset()

    @property
    def set_hash(self) -> str | None:
        """What the run's row names."""
        return self.found.hash if self.found is not None else None

    def index(self, tools: Set[str]) -> str:
        """The block of the system prompt of a session with these tools; empty where it could load no skill."""
        if self.found is None or _VIEW_TOOL not in tools:
            return ""
        return skill_index(shown_of(self.found, surroundings(tools, self.disabled)))

    def before(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]:
        """The input of the run, behind the texts that it is to follow."""
        if not self.texts:
            return asked
        if isinstance(asked, str):
            return instructed(self.texts, asked)
        return [{"type": "text", "text": instructed(self.texts, "")}, *asked]


NO_SKILLS = OfferedSkills()


def surroundings(tools: Set[str], disabled: Set[str]) -> SkillSurroundings:
    """What the conditions of skills are looked at with, in a session with these tools."""
    declared = installed.current().tools
    toolsets = {declared[name].spec.toolset for name in tools if name in declared}
    return SkillSurroundings(tools=tools, toolsets=toolsets, platform=sys.platform, disabled=disabled)


def offered(shelf: SkillShelf, tenant: str, names: Sequence[str] = ()) -> OfferedSkills:
    """What there is for a tenant now. Raises ``SkillError`` for a name that nothing has, ``UnavailableError``."""
    if not names:
        return OfferedSkills(found=shelf.current(tenant), disabled=shelf.disabled)
    named = shelf.named(tenant, names)
    if named.missing:
        raise SkillError(f"there is no skill {named.missing[0]!r}; 'GET /v1/skills' lists those there are")
    found = shelf.stored_set(tenant, named.set_hash) if named.set_hash is not None else None
    return OfferedSkills(found=found, texts=named.texts, disabled=shelf.disabled)
