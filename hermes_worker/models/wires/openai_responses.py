"""The Responses wire, through the official ``openai`` SDK, which is given bytes and gives bytes back (design D13).

Nothing is kept on the server (``store`` is false): reasoning travels encrypted in our transcript, and only the endpoint
that sealed it gets it back. See ``openai_chat`` for what the wires have in common.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import openai

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, dump_canonical_json
from hermes_worker.models.base import OnDelta
from hermes_worker.models.catalog import find_issuer, parse_hostname
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import (
    Exchange,
    build_extra_fields,
    build_json_body,
    read_refusal_text,
)
from hermes_worker.models.wires.conversions import responses as conversion
from hermes_worker.models.wires.definitions import fit_request, is_forced
from hermes_worker.models.wires.openai_client import OpenAIClient
from hermes_worker.models.wires.responses_reply import ResponseAssembler
from hermes_worker.models.wires.wire_provider import WireProvider

DEFAULT_EFFORT = "medium"
DEFAULT_INSTRUCTIONS = "You are a helpful assistant."
"""Sent where a call has no system prompt: the ChatGPT backend refuses a request without instructions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of asking that this endpoint has been found to understand. Learned from its refusals, kept for the
    process.
    """

    streams: bool = True
    takes_cache_key: bool = True
    takes_output_cap: bool = True
    takes_parallel_calls: bool = True
    seals_reasoning: bool = True
    """Whether the server gives encrypted reasoning for us to keep."""
    without_force: frozenset[str] = frozenset()
    """Models that refuse to be told which tool to call."""
    without_reasoning: frozenset[str] = frozenset()
    """Models that refuse every question about reasoning."""


class OpenAIResponses(WireProvider[Dialect]):
    """``Provider`` for any server that speaks OpenAI's Responses API."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        endpoint = check_endpoint(endpoint)
        self._client = OpenAIClient(endpoint)
        self._post = partial(self._client.send, "/responses")
        self._issuer = find_issuer(parse_hostname(endpoint.base_url))
        super().__init__(
            endpoint,
            Dialect(
                takes_cache_key=self._issuer != conversion.GITHUB,
                takes_output_cap=self._issuer != conversion.CODEX,
            ),
            adapt_dialect,
            self._client.close,
        )

    def build_exchange(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta) -> Exchange:
        return Exchange(
            endpoint=self.endpoint,
            model=request.model,
            messages=len(request.messages),
            body=build_request_body(request, self._issuer, dialect, self.endpoint),
            post=self._post,
            assembler=ResponseAssembler(on_delta, issuer=self._issuer),
            sdk_error=openai.OpenAIError,
            reply_name="a reply of the Responses API (for most servers the address ends in /v1)",
        )


def build_request_body(request: ModelRequest, issuer: str, dialect: Dialect, endpoint: Endpoint) -> bytes:
    """The JSON of a request, the conversation last (see ``build_json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    replays = request.replays_reasoning and dialect.seals_reasoning
    rows = [json.loads(row) for row in request.messages]
    prompt = conversion.to_input(rows, issuer=issuer, replays_reasoning=replays)
    instructions = prompt.instructions or DEFAULT_INSTRUCTIONS
    fields = build_extra_fields(request, endpoint)
    fields |= {
        name: dump_canonical_json(value)
        for name, value in _build_reasoning_fields(request, issuer, dialect, replays).items()
    }
    if request.output_tokens_max is not None and dialect.takes_output_cap:
        fields["max_output_tokens"] = str(request.output_tokens_max)
    tools = _render_tools(tuple(request.tools))
    if request.tools:
        fields["tools"] = tools.text
        forced = is_forced(request, dialect.without_force)
        fields["tool_choice"] = dump_canonical_json(_build_tool_choice(request.forced_tools) if forced else "auto")
        if dialect.takes_parallel_calls:
            fields["parallel_tool_calls"] = "true"
    if dialect.takes_cache_key:
        key = conversion.derive_prompt_cache_key(instructions, tools.items, session_id=request.session_id)
        fields["prompt_cache_key"] = dump_canonical_json(key)
    fields["instructions"] = dump_canonical_json(instructions)
    fields["model"] = dump_canonical_json(request.model)
    fields["store"] = "false"
    fields["stream"] = "true" if dialect.streams else "false"
    fields.pop("input", None)
    return build_json_body(fields, "input", map(dump_canonical_json, prompt.input))


def _build_tool_choice(forced: Sequence[str]) -> object:
    return {"type": "function", "name": forced[0]} if len(forced) == 1 else "required"


def _build_reasoning_fields(request: ModelRequest, issuer: str, dialect: Dialect, replays: bool) -> Mapping[str, Any]:
    effort = request.reasoning_effort or DEFAULT_EFFORT
    if effort == "none" or request.model in dialect.without_reasoning:
        return {}
    return conversion.build_reasoning_fields(request.model, effort, issuer=issuer, replays_reasoning=replays)


@dataclass(frozen=True, slots=True)
class _Tools:
    items: Sequence[conversion.Item]
    text: str


@lru_cache(maxsize=64)
def _render_tools(definitions: tuple[str, ...]) -> _Tools:
    """The tools as this wire sends them. Cached: a session's tools never change, and most sessions have the same."""
    items = conversion.to_tools([json.loads(definition) for definition in definitions])
    return _Tools(items, dump_canonical_json(items))


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once, so asking again comes to an end.
    """
    text = read_refusal_text(error)
    if text is None:
        return None
    for is_open, words, better in (
        (tried.takes_cache_key, ("prompt_cache_key",), replace(tried, takes_cache_key=False)),
        (tried.takes_output_cap, ("max_output_tokens",), replace(tried, takes_output_cap=False)),
        (tried.takes_parallel_calls, ("parallel_tool_calls",), replace(tried, takes_parallel_calls=False)),
        (
            is_forced(request, tried.without_force),
            ("tool_choice",),
            replace(tried, without_force=tried.without_force | {request.model}),
        ),
        (tried.seals_reasoning, ("encrypted_content", "include"), replace(tried, seals_reasoning=False)),
        (
            request.model not in tried.without_reasoning,
            ("reasoning",),
            replace(tried, without_reasoning=tried.without_reasoning | {request.model}),
        ),
        (tried.streams, ("stream",), replace(tried, streams=False)),
    ):
        if is_open and any(word in text for word in words):
            return better
    return None
