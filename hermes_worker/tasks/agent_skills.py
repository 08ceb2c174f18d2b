"""What runs see of skills: of the set that their row names, and of nothing that came later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.core.skills import SkillEntry, SkillFile, SkillNotFound, SkillSet, shown_of
from hermes_worker.skill_shelf import SkillShelf, surroundings
from hermes_worker.tasks.iteration.planning import tool_names


class AgentSkills:
    """``agent.tools.skills.SkillsOfRun`` of one database. Thread-safe."""

    def __init__(self, shelf: SkillShelf, tools_of: Callable[[str], str]) -> None:
        """``tools_of`` gives the stored tool definitions of a run's session."""
        self._shelf = shelf
        self._tools_of = tools_of

    def shown(self, context: ToolContext) -> Sequence[SkillEntry]:
        """Raises ``SkillError``, ``UnavailableError``."""
        around = surroundings(tool_names(self._tools_of(context.run_id)), self._shelf.disabled)
        return tuple(entry for entry in shown_of(self._set(context), around) if not entry.facts.bundle)

    def named(self, name: str, context: ToolContext) -> tuple[SkillEntry, Sequence[SkillFile]]:
        """Raises ``SkillNotFound``, ``SkillError``, ``UnavailableError``."""
        entry = self._set(context).find(name)
        if entry is None or entry.facts.bundle or not self._shelf.is_usable(entry.facts):
            raise SkillNotFound(f"Skill {name[:80]!r} not found.")
        return entry, self._shelf.folder(context.origin.tenant, entry.hash)

    def _set(self, context: ToolContext) -> SkillSet:
        tenant = context.origin.tenant
        digest = self._shelf.rows_of(tenant).run(context.run_id).skills_hash
        return self._shelf.stored_set(tenant, digest) if digest is not None else SkillSet()
