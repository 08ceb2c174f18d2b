"""Changes that runs make to memories. The run's row says who the run acts for, and so whether it may make them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from hermes_worker.agent.tools.base import ToolContext
from hermes_worker.core.run_writers import MemoryWriter
from hermes_worker.features.memory.rows import Memories
from hermes_worker.features.memory.rules import (
    MemoryAuthor,
    MemoryChangeOutcome,
    MemoryKey,
    MemoryOperation,
    MemoryPolicy,
    MemoryRefusal,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
    require_writer,
)
from hermes_worker.observe import count, log
from hermes_worker.store.access.audit import Actor, set_actor


class AgentMemories:
    """``features.memory.tool.AgentMemory`` of one database. Thread-safe."""

    def __init__(self, memories: Memories, writers_of: Callable[[str], Collection[MemoryWriter]]) -> None:
        """``writers_of`` returns the roles of a run by its id."""
        self._memories = memories
        self._writers_of = writers_of

    def get_rules(self, target: MemoryTarget, context: ToolContext) -> MemoryRules:
        """Return the rules of a memory. Raises ``MemoryRefused`` when it is not in use."""
        policy = context.policies.find(MemoryPolicy)
        if target not in policy.targets:
            raise MemoryRefused(MemoryRefusal.NOT_ALLOWED, f"The memory {target.value!r} is not in use here.")
        return policy.build_rules(target)

    def change(
        self, target: MemoryTarget, operations: Sequence[MemoryOperation], context: ToolContext
    ) -> MemoryChangeOutcome:
        """Apply all operations or none. Raises ``MemoryRefused``, ``UnavailableError``."""
        rules, policy = self.get_rules(target, context), context.policies.find(MemoryPolicy)
        try:
            require_writer(self._writers_of(context.run_id), policy.writers)
        except MemoryRefused as refused:
            count("memory.refused")
            log.info("memory.refused", reason=str(refused))
            raise
        tenant, name = context.origin.tenant, f"agent:{context.session_id}"
        place = MemoryKey(tenant=tenant, profile=policy.profile, target=target)
        author = MemoryAuthor(name=name, run_id=context.run_id, call_key=context.idempotency_key)
        act = self._memories.stage if policy.is_staged else self._memories.change
        with set_actor(Actor(tenant=tenant, name=name)):
            changed = act(place, operations, rules, author)
        count("memory.changed")
        return changed
