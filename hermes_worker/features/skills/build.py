"""Build the shelf of skills and the policy of their changes from the settings."""

from __future__ import annotations

from collections.abc import Mapping

from hermes_worker.core.questions import AskedCall
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.skills.change_rules import SKILL_MANAGE_TOOL, SkillPolicy, SkillWrites
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database

_CHANGE = AskedCall(
    remark="changes what later conversations are told",
    refusal="Nobody is there who could allow a change of a skill. Go on without.",
)


def build_shelf(settings: Settings, database: Database) -> SkillShelf:
    """Build the shelf of skills of a database, and of the folders of this machine."""
    chosen = settings.skills
    return SkillShelf(Skills(database), settings.home, external=chosen.external_dirs, disabled=chosen.disabled)


def build_skill_policy(settings: Settings) -> SkillPolicy:
    """The settings about agents that change skills."""
    said = settings.skills
    return SkillPolicy(writes=SkillWrites(said.writes), writers=frozenset(map(MemoryWriter, said.writers)))


def build_asked_calls(settings: Settings) -> Mapping[str, AskedCall]:
    """The tools of skills whose every call a person must allow, by name."""
    return {SKILL_MANAGE_TOOL: _CHANGE} if settings.skills.writes == SkillWrites.ASK else {}
