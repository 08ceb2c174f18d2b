"""What a run that begins now is offered of skills (the set that its row names, the index in its prompt, and the texts
that it is to follow)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from hermes_worker.features.skills.rules import (
    SkillError,
    SkillSet,
    prepend_skills,
    render_skill_index,
    select_offered,
)
from hermes_worker.features.skills.shelf_files import SkillShelf, build_surroundings

_VIEW_TOOL = "skill_view"


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedSkills:
    """The skills for one run."""

    found: SkillSet | None = None
    """The set of all skills; ``None`` for none."""
    texts: tuple[str, ...] = ()
    """The texts that the run is to follow, to be put before its input."""
    disabled: Set[str] = frozenset()

    @property
    def set_hash(self) -> str | None:
        """The set's hash, which the run's row names; ``None`` for no set."""
        return self.found.hash if self.found is not None else None

    def build_index(self, tools: Set[str]) -> str:
        """Build the block of the system prompt of a session with these tools; empty where it could load no skill."""
        if self.found is None or _VIEW_TOOL not in tools:
            return ""
        return render_skill_index(select_offered(self.found, build_surroundings(tools, self.disabled)))

    def prepend_texts(self, asked: str | Sequence[Mapping[str, Any]]) -> str | Sequence[Mapping[str, Any]]:
        """Put the texts that the run is to follow before its input."""
        if not self.texts:
            return asked
        if isinstance(asked, str):
            return prepend_skills(self.texts, asked)
        return [{"type": "text", "text": prepend_skills(self.texts, "")}, *asked]


NO_SKILLS = OfferedSkills()


def find_offered_skills(shelf: SkillShelf, tenant: str, names: Sequence[str] = ()) -> OfferedSkills:
    """Find the skills that a tenant has now. Raises ``SkillError`` for a name that no skill has,
    ``UnavailableError``."""
    if not names:
        return OfferedSkills(found=shelf.current_set(tenant), disabled=shelf.disabled)
    named = shelf.load_named(tenant, names)
    if named.missing:
        raise SkillError(f"there is no skill {named.missing[0]!r}; 'GET /v1/skills' lists those there are")
    found = shelf.load_set(tenant, named.set_hash) if named.set_hash is not None else None
    return OfferedSkills(found=found, texts=named.texts, disabled=shelf.disabled)
