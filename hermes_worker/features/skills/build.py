"""Build the shelf of skills and the policy of their changes from the settings."""

from __future__ import annotations

from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.skills.change_rules import SkillPolicy, SkillWrites
from hermes_worker.features.skills.rows import Skills
from hermes_worker.features.skills.shelf_files import SkillShelf
from hermes_worker.settings import Settings
from hermes_worker.store.engine.database import Database


def build_shelf(settings: Settings, database: Database) -> SkillShelf:
    """Build the shelf of skills of a database, and of the folders of this machine."""
    chosen = settings.skills
    return SkillShelf(Skills(database), settings.home, external=chosen.external_dirs, disabled=chosen.disabled)


def build_skill_policy(settings: Settings) -> SkillPolicy:
    """The settings about agents that change skills."""
    said = settings.skills
    return SkillPolicy(writes=SkillWrites(said.writes), writers=frozenset(map(MemoryWriter, said.writers)))
