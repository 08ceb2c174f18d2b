"""What agents remember between conversations, and the reviews that look for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hermes_worker.core.replay import Replay
from hermes_worker.extension import (
    CommandDeclaration,
    Extension,
    PromptBlockDeclaration,
    RouterDeclaration,
    ToolDeclaration,
    ToolSpec,
)
from hermes_worker.features.memory.tool_rules import MEMORY_TOOL, MemoryAction, MemoryTarget

MEMORY_FAILURES_KEY: Final = "memory_failures"
"""How often the newest turn that changed a memory was told to make room."""

_MEMORY_OPERATION: Final[Mapping[str, object]] = {
    "action": {"type": "string", "enum": [action.value for action in MemoryAction]},
    "content": {"type": "string", "description": "For add and replace: the entry, short and complete in itself."},
    "old_text": {"type": "string", "description": "For replace and remove: a piece of the entry that only it has."},
}

MEMORY = ToolSpec(
    name=MEMORY_TOOL,
    description=(
        "Keep what will matter in later conversations; it stands in their system prompts. Targets: 'user' (who the "
        "user is: name, preferences, habits) and 'memory' (your own notes: facts about the environment, conventions, "
        "lessons). Write when the user corrects you, states a preference or asks you to remember, and when you learn "
        "something lasting. Do not keep the progress of a task, what is easily found again, or secrets. Space is "
        "limited: when it is full, merge, shorten or remove entries in one call with operations, which are made "
        "together or not at all."
    ),
    parameters={
        "type": "object",
        "properties": {
            "target": {"type": "string", "enum": [target.value for target in MemoryTarget]},
            **_MEMORY_OPERATION,
            "operations": {
                "type": "array",
                "description": "Instead of action: several, made together or not at all.",
                "items": {"type": "object", "properties": dict(_MEMORY_OPERATION), "required": ["action"]},
            },
        },
        "required": ["target"],
    },
    toolset="memory",
    is_untrusted=False,
    # The store knows a change by the key of its call.
    replay=Replay.KEYED,
    timeout_s=30,
    refuses_markers=(
        "nothing was kept: the text contains a «redacted» marker, which stands for a secret that is hidden from you"
    ),
    session_keys=(MEMORY_FAILURES_KEY,),
)

EXTENSION = Extension(
    name="hermes-memory",
    version="1",
    summary="What agents remember between conversations, and the reviews that look for it",
    tools=(
        ToolDeclaration(
            spec=MEMORY, implementation="hermes_worker.features.memory.tool:MemoryTool", needs=("memories",)
        ),
    ),
    joins=(),
    routers=(
        RouterDeclaration(
            name="memory",
            implementation="hermes_worker.features.memory.routes:router",
            paths=(
                "/v1/memory",
                "/v1/memory/{target}",
                "/v1/memory/{target}/undo",
                "/v1/memory/{target}/settle",
                "/v1/memory/{target}/redact",
                "/v1/memory/{target}/history",
            ),
        ),
    ),
    commands=(
        CommandDeclaration(
            name="memory",
            summary="Show and change what agents remember, undo changes, and move memories in and out.",
            implementation="hermes_worker.features.memory.verbs:memory",
            section="Conversations",
        ),
    ),
    prompt_blocks=(
        PromptBlockDeclaration(
            name="memories", implementation="hermes_worker.features.memory.prompt_service:read_blocks"
        ),
    ),
)
