"""Build the system prompt of a new session, when its first run is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path

from hermes_worker.agent.prompt.sources import ContextFacts, PromptBlock, shorten_text
from hermes_worker.agent.prompt.system import CONTEXT_CHARS_MIN
from hermes_worker.local.paths import get_soul_path
from hermes_worker.observe import count, log
from hermes_worker.safety.origins import TextOrigin, judge_text
from hermes_worker.services.context import ask_for_blocks, compute_pure_blocks, sort_blocks
from hermes_worker.system.plainfiles import read_plain


def read_identity(home: Path, tenant: str) -> str:
    """Read who the agents of a tenant are: the tenant's ``SOUL.md``, else the operator's; empty where there is none,
    where it cannot be read and where it looks like an attack."""
    for path in dict.fromkeys((get_soul_path(home, tenant), get_soul_path(home))):
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTexts:
    """Texts and facts from outside for the prompt of a new session, as they were read for it."""

    blocks: Sequence[PromptBlock]
    """The blocks of all context sources, in their order."""
    identity: str
    today: date


def read_prompt_texts(facts: ContextFacts, home: Path, context: Sequence[PromptBlock] | None = None) -> PromptTexts:
    """Read who the agent is, and ask the context sources. ``context`` are the blocks of extensions' sources; ``None``
    asks those now, which takes time."""
    asked = ask_for_blocks(facts) if context is None else context
    return PromptTexts(
        blocks=sort_blocks((*compute_pure_blocks(facts), *asked)),
        identity=read_identity(home, facts.tenant),
        today=datetime.now().astimezone().date(),
    )
