"""Build the policy of memories from the settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.review_rules import ReviewPolicy
from hermes_worker.features.memory.rules import MemoryPolicy, MemoryTarget
from hermes_worker.safety.threats import ThreatScope, scan_text
from hermes_worker.settings import Settings
from hermes_worker.settings.overriding import override_settings
from hermes_worker.store.engine.database import Database
from hermes_worker.store.runs.writers import RunWriters

if TYPE_CHECKING:
    from hermes_worker.features.memory.review_work import ReviewStarter
    from hermes_worker.features.skills.change_rules import SkillPolicy


def build_review_starter(database: Database, settings: Settings, skills: SkillPolicy) -> ReviewStarter | None:
    """Build what begins reviews under these settings; ``None`` where reviews are off or no model could learn
    anything.
    """
    from hermes_worker.features.memory.review_rows import Reviews
    from hermes_worker.features.memory.review_work import ReviewStarter
    from hermes_worker.features.memory.rows import Memories
    from hermes_worker.store.runs.calls import ToolCalls

    said = settings.memory
    policy = ReviewPolicy(turns=said.nudge_interval, iterations=settings.skills.creation_nudge_interval)
    if not policy.topics or settings.model.is_scripted:
        return None
    return ReviewStarter(
        policy=policy,
        rows=Reviews(database),
        memories=Memories(database),
        writers_of=RunWriters(database).load_writers,
        memory=build_memory_policy(settings),
        skills=skills,
        spec_of=ToolCalls(database).load_spec,
    )


def build_memory_policy(settings: Settings) -> MemoryPolicy:
    """The settings about memories. Text that is to be kept is scanned more strictly than text that is read."""
    said = settings.memory
    used = {MemoryTarget.MEMORY: said.is_enabled, MemoryTarget.USER: said.knows_user}
    return MemoryPolicy(
        limits={MemoryTarget.MEMORY: said.chars_max, MemoryTarget.USER: said.user_chars_max},
        targets=frozenset(target for target, is_used in used.items() if is_used),
        writers=frozenset(map(MemoryWriter, said.writers)),
        is_staged=said.write_approval,
        profile=said.profile,
        scan=partial(scan_text, scope=ThreatScope.STRICT),
    )


def make_memory_check(settings: Settings, database: Database) -> Callable[[str], bool]:
    """Build the check whether a run may write memories, by its id."""
    runs = RunWriters(database)

    def may_remember(run_id: str) -> bool:
        asker = runs.load_requester(run_id)
        return asker.writers <= build_memory_policy(override_settings(settings, asker.overrides)).writers

    return may_remember
