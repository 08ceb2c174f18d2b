"""What memory says in the prompts of new sessions."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.engine import Connection

from hermes_worker.core.prompt_places import PromptPlace
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.build import build_memory_policy
from hermes_worker.features.memory.rows import load_entries
from hermes_worker.features.memory.rules import MEMORY_TOOL, MemoryPolicy, MemoryTarget, render_memory_block
from hermes_worker.services.prompt_blocks import BlockFacts, read_once
from hermes_worker.store.runs.writers import is_guest

_MEMORIES = {PromptPlace.MEMORY: MemoryTarget.MEMORY, PromptPlace.USER: MemoryTarget.USER}


def read_blocks(connection: Connection, facts: BlockFacts) -> Mapping[PromptPlace, str]:
    """Read the memories as the session begins, by the settings that its run is accepted with."""
    return read_memories(connection, facts, build_memory_policy(facts.settings))


def read_memories(connection: Connection, facts: BlockFacts, policy: MemoryPolicy) -> Mapping[PromptPlace, str]:
    """Read the memories, if the session has the memory tool: one statement, and one more for a key that was given out.
    A guest gets nothing, as ``GET /v1/memory`` would refuse it."""
    if MEMORY_TOOL not in facts.tools:
        return {}
    if MemoryWriter.GUEST not in policy.writers and read_once(is_guest, connection, facts.tenant, facts.principal):
        return {}
    entries = read_once(load_entries, connection, facts.tenant, policy.profile)
    return {
        place: render_memory_block([entry.content for entry in entries[target]], target, policy.build_rules(target))
        for place, target in _MEMORIES.items()
        if target in policy.targets
    }
