"""The Messages wire, through the official ``anthropic`` SDK, which is given bytes and gives bytes back (design D13).

The SDK's own reading of a stream would hide a broken one: it raises nothing when a stream just ends, carries on after a
chunk that is no JSON, and lets errors of its HTTP client through as they are (``reference/sdk-facts.md``). Here the
bytes are read as on every other wire (``calling``), and each of these is noticed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import anthropic
import httpx2

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, dump_canonical_json
from hermes_worker.core.model_capabilities import ThinkingPolicy
from hermes_worker.models.base import OnDelta
from hermes_worker.models.catalog import choose_thinking_policy, find_issuer, find_provider_by_host, parse_hostname
from hermes_worker.models.connections import DirectClient, build_timeouts
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import (
    Exchange,
    build_extra_fields,
    build_json_body,
    read_refusal_text,
)
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.models.wires.conversions import anthropic as conversion
from hermes_worker.models.wires.definitions import fit_request, is_forced
from hermes_worker.models.wires.templates import RequestTemplates
from hermes_worker.models.wires.wire_provider import WireProvider

API_VERSION = "2023-06-01"
BETAS = "interleaved-thinking-2025-05-14,fine-grained-tool-streaming-2025-05-14"
"""Thinking between tool calls, and arguments that are streamed as they are written."""
_BETA_HEADER = "anthropic-beta"
_CREDENTIALS = frozenset({"authorization", "x-api-key"})
"""Headers that the SDK takes for a credential."""

_TOKEN = re.compile(r"sk-ant-(?!api)|eyJ|cc-")
"""The beginning of access tokens, in contrast to API keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of asking that this endpoint has been found to understand. Learned from its refusals, kept for the
    process.
    """

    streams: bool = True
    takes_betas: bool = True
    without_force: frozenset[str] = frozenset()
    """Models that refuse to be told which tool to call."""
    without_thinking: frozenset[str] = frozenset()
    """Models that refuse the question to think."""


class AnthropicMessages(WireProvider[Dialect]):
    """``Provider`` for Anthropic and for any server that speaks its Messages API."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        endpoint = check_endpoint(endpoint)
        self._issuer = find_issuer(parse_hostname(endpoint.base_url))
        self._client = _Client(endpoint)
        super().__init__(endpoint, Dialect(), adapt_dialect, self._client.close)

    def build_exchange(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta) -> Exchange:
        return Exchange(
            endpoint=self.endpoint,
            model=request.model,
            messages=len(request.messages),
            body=build_request_body(request, self.endpoint, dialect),
            post=partial(self._client.send, takes_betas=dialect.takes_betas),
            assembler=MessageAssembler(on_delta, issuer=self._issuer),
            sdk_error=anthropic.AnthropicError,
            reply_name="a reply of the Messages API",
        )


class _Client(anthropic.Anthropic):
    """The SDK's client for one endpoint, deaf to the environment and to the profiles of other programs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._fixed_headers = build_request_headers(endpoint)
        # A server of the user's own may ask for no credential. The SDK insists on one unless its header is explicitly
        # left out of the call.
        has_credential = bool(_CREDENTIALS.intersection(map(str.lower, self._fixed_headers)))
        self._call_headers = {} if has_credential else {"Authorization": anthropic.omit}
        self._connect_timeout_s = endpoint.connect_timeout_s
        http = DirectClient(proxy_url=endpoint.proxy_url)
        self._templates = RequestTemplates(http)
        super().__init__(
            api_key="none",  # the real one is among the fixed headers
            webhook_key="",
            base_url=endpoint.plain_url.removesuffix("/v1"),  # the SDK's paths bring it
            default_query=endpoint.query,
            max_retries=0,
            timeout=build_timeouts(connect_s=endpoint.connect_timeout_s, read_s=endpoint.read_timeout_s),
            open_telemetry=False,
            http_client=http,
        )
        # ANTHROPIC_CUSTOM_HEADERS would win over ours.
        self._custom_headers = {}

    @property
    def default_headers(self) -> dict[str, str | anthropic.Omit]:
        return self._fixed_headers

    def _build_request(self, options: Any, *, retries_taken: int = 0) -> httpx2.Request:
        request = super()._build_request(options, retries_taken=retries_taken)
        return self._templates.keep((options.timeout.read, _BETA_HEADER in options.headers), request)

    def send(self, body: bytes, *, read_timeout_s: float, takes_betas: bool) -> httpx2.Response:
        """Post a message request; the response's body is still unread. Raises what the SDK raises, and
        ``httpx2.TransportError``."""
        first = partial(self._post_bytes, body, read_timeout_s, takes_betas)
        to_error = self._make_status_error_from_response
        return self._templates.send((read_timeout_s, takes_betas), body, first=first, to_error=to_error)

    def _post_bytes(self, body: bytes, read_timeout_s: float, takes_betas: bool) -> httpx2.Response:
        timeout = build_timeouts(connect_s=self._connect_timeout_s, read_s=read_timeout_s)
        betas = {_BETA_HEADER: BETAS} if takes_betas else {}
        response: object = self.post(
            "/v1/messages",
            content=body,
            cast_to=httpx2.Response,
            options={"headers": {**self._call_headers, **betas}, "timeout": timeout},
            stream=True,
            stream_cls=anthropic.Stream[Any],
        )
        assert isinstance(response, httpx2.Response)  # what ``cast_to`` asks for; the SDK's types cannot say so
        return response


def build_request_headers(endpoint: Endpoint) -> dict[str, str | anthropic.Omit]:
    """The headers of every request to this endpoint."""
    return {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",  # small events gain nothing from compression and are held back by it
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
        "anthropic-version": API_VERSION,
        **endpoint.headers,
        **_build_credential_headers(endpoint),
    }


def _build_credential_headers(endpoint: Endpoint) -> Mapping[str, str]:
    """Keys have a header of their own on this wire; access tokens, and the keys of some hosts, are bearer tokens."""
    key = endpoint.api_key
    if not key:
        return {}
    if endpoint.is_access_token:
        return {"Authorization": f"Bearer {key}"}
    if endpoint.key_header.lower() != "authorization":
        return {endpoint.key_header: key}
    home = find_provider_by_host(endpoint.base_url)
    wants_bearer = (home is not None and home.is_bearer) or _TOKEN.match(key)
    return {"Authorization": f"Bearer {key}"} if wants_bearer else {"x-api-key": key}


def build_request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request, the conversation last (see ``build_json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    host = parse_hostname(endpoint.base_url)
    policy = choose_thinking_policy(host=host, model=request.model)
    if not request.replays_reasoning:
        policy = ThinkingPolicy.STRIP
    prompt = conversion.to_messages([json.loads(row) for row in request.messages], policy)
    limit = conversion.choose_output_tokens_max(
        request.model, requested=request.output_tokens_max, window=request.window
    )
    fields = build_extra_fields(request, endpoint)
    fields["max_tokens"] = str(limit)
    fields |= {
        name: dump_canonical_json(value) for name, value in _build_thinking_fields(request, dialect, limit).items()
    }
    if prompt.system:
        fields["system"] = dump_canonical_json(prompt.system)
    if request.tools:
        fields["tools"] = _render_tools(tuple(request.tools))
        if is_forced(request, dialect.without_force):
            fields["tool_choice"] = dump_canonical_json(_build_tool_choice(request.forced_tools))
    fields["model"] = dump_canonical_json(conversion.spell_model_name(request.model))
    fields["stream"] = "true" if dialect.streams else "false"
    fields.pop("messages", None)
    return build_json_body(fields, "messages", map(dump_canonical_json, conversion.begin_with_user(prompt.messages)))


def _build_tool_choice(forced: Sequence[str]) -> Mapping[str, str]:
    return {"type": "tool", "name": forced[0]} if len(forced) == 1 else {"type": "any"}


def _build_thinking_fields(request: ModelRequest, dialect: Dialect, output_tokens: int) -> Mapping[str, Any]:
    """The request's fields about thinking: none unless an effort is asked for, as in the original. A model that is told
    which tool to call cannot think before."""
    effort = request.reasoning_effort
    if (
        effort in (None, "none")
        or request.model in dialect.without_thinking
        or is_forced(request, dialect.without_force)
    ):
        return {}
    return conversion.build_thinking_fields(request.model, effort, output_tokens=output_tokens)


@lru_cache(maxsize=64)
def _render_tools(definitions: tuple[str, ...]) -> str:
    """The tools as this wire sends them. Cached: a session's tools never change, and most sessions have the same."""
    return dump_canonical_json(conversion.to_tools([json.loads(definition) for definition in definitions]))


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once, so asking again comes to an end.
    """
    text = read_refusal_text(error)
    if text is None:
        return None
    if is_forced(request, tried.without_force) and "tool_choice" in text:
        return replace(tried, without_force=tried.without_force | {request.model})
    if tried.takes_betas and "beta" in text and "long context" not in text:
        return replace(tried, takes_betas=False)
    if _build_thinking_fields(request, tried, 0) and any(
        word in text for word in ("thinking", "output_config", "effort")
    ):
        return replace(tried, without_thinking=tried.without_thinking | {request.model})
    if tried.streams and "stream" in text:
        return replace(tried, streams=False)
    return None
