"""The system prompt of a new session, put together by whoever accepts its first run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from hermes_worker.agent.prompt.sources import ContextFacts, PromptBlock
from hermes_worker.agent.prompt.system import PromptParts, assembled_prompt
from hermes_worker.core.prompt_places import Assembled
from hermes_worker.services.context import asked_blocks, ordered, pure_blocks
from hermes_worker.services.prompt_blocks import BlockFacts
from hermes_worker.workspaces.ref import WorkspaceRef


def new_prompt(
    facts: BlockFacts,
    workspace: WorkspaceRef,
    *,
    provider: str,
    instructions: str,
    context: Sequence[PromptBlock] | None = None,
) -> Assembled:
    """The prompt with the gaps that rows and the workspace fill. ``provider`` is as prompts name it; ``context`` is
    what the context sources of others say, and ``None`` asks them now, which takes time."""
    told = ContextFacts(tenant=facts.tenant, source=facts.source, model=facts.model, workspace=workspace.root)
    asked = asked_blocks(told) if context is None else context
    return assembled_prompt(
        PromptParts(
            model=facts.model,
            provider=provider,
            today=datetime.now().astimezone().date(),
            tools=facts.tools,
            blocks=ordered((*pure_blocks(told), *asked)),
            instructions=instructions,
        )
    )
