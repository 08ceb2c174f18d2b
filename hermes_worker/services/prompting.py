"""Build the system prompt of a new session, when its first run is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from hermes_worker.agent.prompt.sources import ContextFacts, PromptBlock, shorten_text
from hermes_worker.agent.prompt.system import CONTEXT_CHARS_MIN, PromptParts, assemble_prompt
from hermes_worker.core.prompt_places import AssembledPrompt
from hermes_worker.local.paths import soul_path
from hermes_worker.observe import count, log
from hermes_worker.safety.origins import TextOrigin, judge_text
from hermes_worker.services.context import ask_for_blocks, compute_pure_blocks, sort_blocks
from hermes_worker.services.prompt_blocks import BlockFacts
from hermes_worker.system.plainfiles import read_plain
from hermes_worker.workspaces.ref import WorkspaceRef


def read_identity(home: Path, tenant: str) -> str:
    """Read who the agents of a tenant are: the tenant's ``SOUL.md``, else the operator's; empty where there is none,
    where it cannot be read and where it looks like an attack."""
    for path in dict.fromkeys((soul_path(home, tenant), soul_path(home))):
        try:
            text = read_plain(path, bytes_max=4 * CONTEXT_CHARS_MIN).decode("utf-8", "replace")
        except OSError:
            continue
        judged = judge_text(text.removeprefix("\ufeff").strip(), TextOrigin.CONTEXT_FILE)
        if judged.is_blocked:
            count("context.left_out")
            log.warning("context.left_out", context_source=path.name, reason=", ".join(judged.threats))
            return ""
        if judged.text:
            return shorten_text(judged.text, CONTEXT_CHARS_MIN)
    return ""


def build_prompt(
    facts: BlockFacts,
    workspace: WorkspaceRef,
    *,
    home: Path,
    provider: str,
    instructions: str,
    context: Sequence[PromptBlock] | None = None,
) -> AssembledPrompt:
    """Build the prompt with the gaps that rows and the workspace fill. ``provider`` is the name that prompts use for
    it; ``context`` are the blocks of extensions' context sources, and ``None`` asks them now, which takes time."""
    told = ContextFacts(tenant=facts.tenant, source=facts.source, model=facts.model, workspace=workspace.root)
    asked = ask_for_blocks(told) if context is None else context
    return assemble_prompt(
        PromptParts(
            model=facts.model,
            provider=provider,
            today=datetime.now().astimezone().date(),
            tools=facts.tools,
            blocks=sort_blocks((*compute_pure_blocks(told), *asked)),
            identity=read_identity(home, facts.tenant),
            instructions=instructions,
        )
    )
