"""``memory``: what an agent keeps between conversations (docs/memory.md).

Of class ``keyed``: a change is known by the key of the call that asked for it, so a call whose worker vanished is made
again and changes nothing twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.features.memory import MEMORY, MEMORY_FAILURES_KEY
from hermes_worker.features.memory.rules import (
    CONSOLIDATION,
    FAILURES_MAX,
    MemoryChangeOutcome,
    MemoryOperation,
    MemoryRefusal,
    MemoryRefused,
    MemoryRules,
    MemoryTarget,
    format_usage,
    parse_operation,
    parse_operations,
    redact_attacks,
)

_NOTE: Final = (
    "Kept for later conversations. This conversation's system prompt shows what was there when it began, so do not "
    "write the same again."
)


class AgentMemory(Protocol):
    """Keeps memories. ``features.memory.work``."""

    def get_rules(self, target: MemoryTarget, context: ToolContext) -> MemoryRules:
        """Return the rules of a memory. Raises ``MemoryRefused`` when it is not in use."""

    def change(
        self, target: MemoryTarget, operations: Sequence[MemoryOperation], context: ToolContext
    ) -> MemoryChangeOutcome:
        """Apply all operations or none. Raises ``MemoryRefused``, ``UnavailableError``."""


class MemoryTool:
    """Passes the model's request on to the ``AgentMemory``."""

    def __init__(self, memories: AgentMemory) -> None:
        self._memories = memories

    spec: Final = MEMORY

    def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolResult:
        target = MemoryTarget(arguments["target"])
        try:
            operations = _parse_operations(arguments)
            _require_no_secret(operations, context)
            changed = self._memories.change(target, operations, context)
        except MemoryRefused as refused:
            return self._render_refusal(refused, target, context)
        rules = self._memories.get_rules(target, context)
        contents = [entry.content for entry in changed.entries]
        told: dict[str, object] = {
            "success": True,
            "done": True,
            "target": target.value,
            "usage": format_usage(contents, rules.limit),
            "entry_count": len(contents),
            "message": changed.message,
            "note": _NOTE,
        }
        if changed.staged_id is not None:
            told |= {"staged": changed.staged_id, "note": "A person decides whether it is kept; do not wait for that."}
        # Failures count in a row: a long turn may well meet a full memory now and then.
        forgiven = {MEMORY_FAILURES_KEY: None} if _count_failures(context) else {}
        return ToolResult(text=dump_canonical_json(told), session_updates=forgiven)

    def _render_refusal(self, refused: MemoryRefused, target: MemoryTarget, context: ToolContext) -> ToolResult:
        if refused.kind not in CONSOLIDATION:
            return ToolResult(text=dump_canonical_json({"success": False, "error": str(refused)}), is_error=True)
        failures = _count_failures(context) + 1
        updates = {MEMORY_FAILURES_KEY: {"run": context.run_id, "count": failures}}
        if failures > FAILURES_MAX:
            said = (
                f"This failed {failures} times in this turn. Stop trying: leave the memory as it is and answer the "
                "user. What you wanted to keep can be kept in a later turn."
            )
            text = dump_canonical_json({"success": False, "done": True, "error": said})
            return ToolResult(text=text, is_error=True, session_updates=updates)
        told: dict[str, object] = {"success": False, "error": str(refused)}
        if refused.matches:
            told["matches"] = list(refused.matches)
        rules = self._memories.get_rules(target, context)
        contents = [entry.content for entry in refused.entries]
        told |= {
            "current_entries": list(redact_attacks(contents, target, rules)),
            "usage": format_usage(contents, rules.limit).rpartition(" — ")[2].removesuffix(" chars"),
        }
        return ToolResult(text=dump_canonical_json(told), is_error=True, session_updates=updates)


def _parse_operations(arguments: Mapping[str, Any]) -> tuple[MemoryOperation, ...]:
    wanted = arguments.get("operations")
    if wanted is not None:
        return parse_operations(wanted)
    if arguments.get("action") is None:
        raise MemoryRefused(MemoryRefusal.INVALID, "Give an action, or operations for several at once.")
    return (parse_operation({name: arguments.get(name) for name in ("action", "content", "old_text", "new_text")}),)


def _require_no_secret(operations: Sequence[MemoryOperation], context: ToolContext) -> None:
    for operation in operations:
        if operation.content is not None and context.redactor.redact_text(operation.content) != operation.content:
            raise MemoryRefused(
                MemoryRefusal.THREAT,
                "Blocked: the text holds what looks like a secret. Entries stand in every system prompt; say where the "
                "secret is kept, and not the secret.",
            )


def _count_failures(context: ToolContext) -> int:
    """How often this turn was told to make room."""
    kept = context.session.get(MEMORY_FAILURES_KEY)
    if not isinstance(kept, Mapping) or kept.get("run") != context.run_id:
        return 0
    count = kept.get("count")
    return count if isinstance(count, int) else 0
