"""Model families: which family a model belongs to by its name, and what is true of the family wherever it is served.
Pure.

A rule about models is a field of a row here and never a test on a name somewhere else; what depends on the provider is
a field of the provider's row (``models.catalog``). Several rows may match one name: the first that sets a field decides
it, so narrow rows stand above wide ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from hermes_worker.core.model_capabilities import ThinkingPolicy, ThinkingRequest, Wire


def is_host(host: str, *domains: str) -> bool:
    """Whether the bare host name is one of ``domains`` or below one. Look-alikes (``notopenai.com``) are not."""
    host = host.strip().lower().rstrip(".")
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTraits:
    """The traits of a model that follow from its name; a field is ``None`` when nothing is known."""

    family: str | None = None
    """The vendor's line of models, for rules of providers: ``claude``, ``kimi``, ``qwen``."""
    wire: str | None = None
    """The wire that it needs, where the provider leaves that to the model."""
    output_cap: str | None = None
    """The name of the output limit in a chat completion, where the usual one is rejected."""
    silence_s: float | None = None
    """Seconds for which it may think without sending a byte."""
    echoes_reasoning: bool | None = None
    keeps_thought_signatures: bool | None = None
    takes_short_ids_only: bool | None = None
    thinking: ThinkingPolicy | None = None
    """What happens to its thinking on Anthropic's wire, whichever provider serves it."""
    thinking_request: ThinkingRequest | None = None
    efforts: Mapping[str, str] | None = None
    """Efforts that it does not know, and those to send instead."""
    thinks_by_level: bool | None = None
    """Over Gemini's own wire: it is asked for a level of thinking instead of a budget, and insists on signatures."""
    messages_output_max: int | None = None
    """Output tokens it can write over Anthropic's wire, which demands a limit."""
    hyphenates_versions: bool | None = None
    """Its vendor spells versions with hyphens where others write dots."""
    announces: bool | None = None
    """It tends to describe an action instead of taking it, and its prompt says not to."""
    window: int | None = None
    """Context window in tokens, as its vendor states it; a server may have less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFamily:
    """A row of the table."""

    pattern: str
    """Searched in the name as it was given, in lower case, vendor and all."""
    traits: ModelTraits
    source: str = ""
    """Where and when the traits were looked up."""


def _match_line(*names: str) -> str:
    """A pattern for names that begin with one of ``names`` after the vendor: ``o1-mini`` is an ``o1``; ``o1x`` and
    ``gpt-4omni`` are not."""
    return rf"(?:^|/)(?:{'|'.join(map(re.escape, names))})(?![^\W_])[^/]*$"


def _match_part(*names: str) -> str:
    """A pattern for names that contain one of ``names`` anywhere, versions with dots or hyphens."""
    return "|".join(re.escape(name).replace(r"\-", "[-.]") for name in names)


_KIMI = r"moonshot|(?:^|/)(?:(?:kimi|moonshot)[-_]|k[123][.-]|k25|k3$)[^/]*$"
_BUDGETED = r"claude-(?:3|(?:opus|sonnet)-4[.-][01](?!\d)|(?:opus|sonnet)-4-2025|(?:opus|sonnet|haiku)-4[.-]5)"


def _build_row(pattern: str, source: str = "", **traits: Any) -> ModelFamily:
    return ModelFamily(pattern=pattern, traits=ModelTraits(**traits), source=source)


_LOOP = "Hermes Agent 0.19, as looked up in July 2026"
_WINDOWS = "models.dev, as stored in November 2026"

FAMILIES: tuple[ModelFamily, ...] = (
    # Product lines.
    _build_row(_match_part("claude"), family="claude"),
    _build_row(_KIMI, _LOOP, family="kimi", thinking=ThinkingPolicy.KEEP, thinking_request=ThinkingRequest.ADAPTIVE),
    _build_row(_match_part("qwen"), family="qwen"),
    # Models that want their reasoning back in a chat completion.
    _build_row(_match_part("deepseek"), _LOOP, family="deepseek", echoes_reasoning=True),
    _build_row(_match_part("mimo"), _LOOP, family="mimo", echoes_reasoning=True),
    _build_row(_match_part("gemini", "gemma"), _LOOP, keeps_thought_signatures=True),
    # Models that accept only call ids of nine letters or digits (the vendor's API, templates of the open models).
    _build_row(
        _match_part("mistral", "mixtral", "ministral", "magistral", "codestral", "devstral", "pixtral"),
        "docs.mistral.ai and chat templates of mistralai on Hugging Face, November 2026",
        takes_short_ids_only=True,
    ),
    _build_row(
        r"(?:^|/)gemini-[3-9][^/]*$", "ai.google.dev/gemini-api/docs/thinking, November 2026", thinks_by_level=True
    ),
    # OpenAI's newer models.
    _build_row(r"(?:^|/)gpt-5[^/]*$", _LOOP, wire=Wire.CODEX_RESPONSES),
    _build_row(
        _match_line("gpt-4o", "chatgpt-4o", "gpt-4.1", "gpt-5", "o1", "o3", "o4"),
        _LOOP,
        output_cap="max_completion_tokens",
    ),
    _build_row(_match_line("gpt-4o", "chatgpt-4o"), _WINDOWS, window=128_000),
    _build_row(_match_line("gpt-oss"), _WINDOWS, window=131_072),
    _build_row(_match_part("gpt-5.6"), _LOOP, efforts=MappingProxyType({"ultra": "max"})),
    # How long models may think without sending a byte.
    _build_row(_match_line("deepseek-r1", "deepseek-reasoner", "o1", "o3", "o4"), _LOOP, silence_s=600.0),
    _build_row(_match_line("claude-opus-4"), _LOOP, silence_s=240.0),
    _build_row(_match_line("qwen3", "qwq"), _LOOP, silence_s=180.0),
    # How thinking is requested over Anthropic's wire. Models up to 4.5 take a budget; later ones decide themselves,
    # and the first of those do not know the second-highest effort.
    _build_row("haiku", _LOOP, thinking_request=ThinkingRequest.NEVER),
    _build_row(_BUDGETED, _LOOP, thinking_request=ThinkingRequest.BUDGET),
    _build_row(r"claude-(?:opus|sonnet)-4[.-]6", _LOOP, efforts=MappingProxyType({"xhigh": "max"})),
    _build_row(_match_part("claude"), _LOOP, thinking_request=ThinkingRequest.ADAPTIVE),
    _build_row(r"^(?:anthropic/)?claude-", _LOOP, hyphenates_versions=True),
    # Output limits over Anthropic's wire.
    _build_row(
        _match_part("claude-fable", "claude-sonnet-5", "claude-opus-4-8", "claude-opus-4-7", "claude-opus-4-6"),
        _LOOP,
        messages_output_max=128_000,
    ),
    _build_row(
        _match_part("claude-sonnet-4-6", "claude-opus-4-5", "claude-sonnet-4-5", "claude-haiku-4-5"),
        _LOOP,
        messages_output_max=64_000,
    ),
    _build_row(_match_part("claude-opus-4"), _LOOP, messages_output_max=32_000),
    _build_row(_match_part("claude-sonnet-4"), _LOOP, messages_output_max=64_000),
    _build_row(_match_part("claude-3-7-sonnet"), _LOOP, messages_output_max=128_000),
    _build_row(_match_part("claude-3-5-sonnet", "claude-3-5-haiku"), _LOOP, messages_output_max=8_192),
    _build_row(_match_part("claude-3-opus", "claude-3-sonnet", "claude-3-haiku"), _LOOP, messages_output_max=4_096),
    _build_row(_match_part("minimax"), _LOOP, messages_output_max=131_072),
    _build_row(_match_part("qwen3"), _LOOP, messages_output_max=65_536),
    # Models that announce what they will do unless they are told to act.
    _build_row(
        _match_part("gpt", "codex", "gemini", "gemma", "grok", "glm", "qwen", "deepseek"), _LOOP, announces=True
    ),
)


@lru_cache(maxsize=1_024)
def find_traits(model: str) -> ModelTraits:
    """Find everything that the table says about a model."""
    name = model.strip().lower()
    found: dict[str, Any] = {}
    for row in FAMILIES:
        if re.search(row.pattern, name):  # compiled when first asked: most processes never ask
            for each in _FIELDS:
                said = getattr(row.traits, each)
                if said is not None:
                    found.setdefault(each, said)
    return ModelTraits(**found)


_FIELDS = tuple(each.name for each in fields(ModelTraits))
