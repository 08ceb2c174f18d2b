"""Gemini's own wire (``generateContent``): bytes through our own connections.

google-genai is not imported: it validates every chunk of a stream, and its client cannot be handed bytes. Its types
judge our requests in the tests, and its parser our stand-in's replies. Unverified live: Gemini was never called from
here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

import httpx2

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, dump_canonical_json
from hermes_worker.core.model_families import find_traits
from hermes_worker.models.base import OnDelta
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import (
    Exchange,
    build_json_body,
    read_refusal_text,
)
from hermes_worker.models.wires.conversions import gemini as conversion
from hermes_worker.models.wires.definitions import fit_request, is_forced
from hermes_worker.models.wires.gemini_reply import GeminiAssembler
from hermes_worker.models.wires.plain_client import PlainClient, RefusedRequest, build_usual_headers
from hermes_worker.models.wires.wire_provider import WireProvider

_COMPATIBLE = "/openai"
"""Ends the address of Google's OpenAI-compatible API, below which this one is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of asking that this endpoint has been found to understand. Learned from its refusals, kept for the
    process.
    """

    streams: bool = True
    without_force: frozenset[str] = frozenset()
    """Models that refuse to be told which tool to call."""
    without_thinking: frozenset[str] = frozenset()
    """Models that refuse the question to think."""


class GeminiGenerate(WireProvider[Dialect]):
    """``Provider`` for Google's Gemini API."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        endpoint = check_endpoint(replace(endpoint, base_url=endpoint.base_url.removesuffix(_COMPATIBLE)))
        self._headers = {**build_usual_headers(endpoint), **build_credential_headers(endpoint)}
        self._client = PlainClient(endpoint)
        super().__init__(endpoint, Dialect(), adapt_dialect, self._client.close)

    def build_exchange(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta) -> Exchange:
        return Exchange(
            endpoint=self.endpoint,
            model=request.model,
            messages=len(request.messages),
            body=build_request_body(request, self.endpoint, dialect),
            post=partial(self._post, self._build_request_address(request.model, dialect)),
            assembler=GeminiAssembler(on_delta),
            sdk_error=RefusedRequest,
            reply_name="a reply of the Gemini API (the address ends in /v1beta)",
        )

    def _build_request_address(self, model: str, dialect: Dialect) -> str:
        name = quote(model.removeprefix("models/").removeprefix("google/"), safe="")
        if dialect.streams:
            return self._client.build_address(f"/models/{name}:streamGenerateContent", alt="sse")
        return self._client.build_address(f"/models/{name}:generateContent")

    def _post(self, address: str, body: bytes, *, read_timeout_s: float) -> httpx2.Response:
        return self._client.send(address, self._headers, body, read_timeout_s=read_timeout_s)


def build_credential_headers(endpoint: Endpoint) -> Mapping[str, str]:
    """The header with the credential: a key has a header of its own; an access token is a bearer token."""
    if not endpoint.api_key:
        return {}
    if endpoint.is_access_token:
        return {"Authorization": f"Bearer {endpoint.api_key}"}
    return {"x-goog-api-key": endpoint.api_key}


def build_request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request, the conversation last (see ``build_json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    known = find_traits(request.model)
    is_leveled = bool(known.thinks_by_level)
    prompt = conversion.to_contents([json.loads(row) for row in request.messages], demands_signatures=is_leveled)
    fields = {name: dump_canonical_json(value) for name, value in {**endpoint.body, **request.extra_body}.items()}
    if options := _build_generation_options(request, dialect, is_leveled=is_leveled):
        fields["generationConfig"] = dump_canonical_json(options)
    if prompt.system:
        fields["systemInstruction"] = dump_canonical_json({"parts": [{"text": prompt.system}]})
    if request.tools:
        fields["tools"] = _render_tools(tuple(request.tools))
        if is_forced(request, dialect.without_force):
            forced = {"mode": "ANY", "allowedFunctionNames": list(request.forced_tools)}
            fields["toolConfig"] = dump_canonical_json({"functionCallingConfig": forced})
    fields.pop("contents", None)
    return build_json_body(fields, "contents", map(dump_canonical_json, prompt.contents))


def _build_generation_options(request: ModelRequest, dialect: Dialect, *, is_leveled: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if request.output_tokens_max is not None:
        options["maxOutputTokens"] = request.output_tokens_max
    effort = None if request.model in dialect.without_thinking else request.reasoning_effort
    if thinking := conversion.build_thinking_config(effort, is_leveled=is_leveled):
        options["thinkingConfig"] = thinking
    return options


@lru_cache(maxsize=64)
def _render_tools(definitions: tuple[str, ...]) -> str:
    """The tools as this wire sends them. Cached: a session's tools never change, and most sessions have the same."""
    return dump_canonical_json(conversion.to_tools([json.loads(definition) for definition in definitions]))


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once for a model, so asking again comes to an end.
    """
    text = read_refusal_text(error)
    if text is None:
        return None
    words = ("tool_config", "function_calling", "function calling")
    if is_forced(request, tried.without_force) and any(word in text for word in words):
        return replace(tried, without_force=tried.without_force | {request.model})
    if request.model not in tried.without_thinking and ("thinking" in text or "thought" in text):
        return replace(tried, without_thinking=tried.without_thinking | {request.model})
    if tried.streams and "stream" in text:
        return replace(tried, streams=False)
    return None
