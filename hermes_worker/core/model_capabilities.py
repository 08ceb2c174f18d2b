"""Model and endpoint capabilities: the values in rows of ``families`` and of the provider catalogue. Plain data, so
that prompts, conversions and wires read them without knowing which rows they come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Wire(StrEnum):
    """The wires that come with the product. A wire is known by its name, so an extension's is any other text; the names
    are the values of the ``api_mode`` setting."""

    CHAT_COMPLETIONS = "chat_completions"
    CODEX_RESPONSES = "codex_responses"
    ANTHROPIC_MESSAGES = "anthropic_messages"
    BEDROCK_CONVERSE = "bedrock_converse"
    GEMINI_GENERATE = "gemini_generate"
    CODEX_APP_SERVER = "codex_app_server"


UNSIGNED = "skip_thought_signature_validator"
"""Stands for the signature in a call of another model's turn where signatures are demanded (Google's page on thought
signatures)."""


@dataclass(frozen=True, slots=True)
class WireNeeds:
    """The needs of an endpoint in its messages beyond the standard; the standard rejects every field it does not
    know."""

    echoes_reasoning: bool = False
    """Wants ``reasoning_content`` back on each assistant row, and rejects its absence."""
    keeps_thought_signatures: bool = False
    """Wants ``extra_content`` of tool calls back (Gemini)."""
    keeps_reasoning_details: bool = False
    """Wants opaque reasoning blocks back, as OpenRouter does."""
    keeps_response_items: bool = False
    """Messages will be converted to Responses items, so what those are made of stays in."""
    keeps_anthropic_blocks: bool = False
    """Messages will be converted to Anthropic's, so blocks that were stored in their order stay in, with the model that
    signed them."""
    takes_short_ids_only: bool = False
    """Refuses ids of calls that are not nine letters or digits (Mistral)."""
    insists_on_signature: bool = False
    """Refuses calls of a turn of which the first is not signed (Gemini from 3 on)."""
    thinker: str = ""
    """The model whose own reasoning is echoed: reasoning of another model is not passed off as its own."""

    def __or__(self, other: WireNeeds) -> WireNeeds:
        """Everything that either wants."""
        return WireNeeds(*(mine or theirs for mine, theirs in zip(self._flags, other._flags, strict=True)))

    @property
    def _flags(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self.__slots__)


STANDARD = WireNeeds()


class CacheLayout(StrEnum):
    """The places where a cache mark may stand."""

    NATIVE = "native"
    """Anywhere: the conversion to Anthropic's messages moves a mark on a row into its last block. The assistant's rows
    are marked as a whole, because for some of them the conversion takes stored blocks instead of the content."""
    ENVELOPE = "envelope"
    """In content parts only. On an empty row it would be ignored, and on an empty tool row some servers hang."""


class ThinkingPolicy(StrEnum):
    """The treatment of thinking in messages that are sent again over Anthropic's wire."""

    NATIVE = "native"
    """Anthropic itself: all thinking that it signed goes back. A running round of calls has to keep it; thinking of
    earlier turns that the model does not use any more is left out by the API itself, and is not billed
    (https://docs.claude.com/en/docs/build-with-claude/extended-thinking, 2026)."""
    STRIP = "strip"
    """Endpoints that imitate the wire cannot check the signatures."""
    KEEP = "keep"
    """Kimi checks nothing and wants it all back."""
    UNSIGNED = "unsigned"
    """DeepSeek wants unsigned thinking back and refuses signed."""


class ThinkingRequest(StrEnum):
    """The ways to ask a model to think over Anthropic's wire."""

    NEVER = "never"
    BUDGET = "budget"
    """Up to a number of tokens, which counts against the output limit and demands temperature 1."""
    ADAPTIVE = "adaptive"
    """The model decides by itself how much an effort means."""


class Billing(StrEnum):
    """The ways in which a provider bills."""

    TOKENS = "tokens"
    """By counted tokens and a price list."""
    STATED = "stated"
    """It states with every reply what it billed."""
    SUBSCRIPTION = "subscription"
    """By a monthly subscription."""
    FREE = "free"
    """It costs nothing, for certain."""
