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
from hermes_worker.core.messages import ModelReply, ModelRequest, canonical_json
from hermes_worker.core.model_capabilities import ThinkingPolicy
from hermes_worker.models.base import Abort, OnDelta
from hermes_worker.models.catalog import find_issuer, hostname, provider_of_host, thinking_policy
from hermes_worker.models.connections import DirectClient, Line, build_timeouts
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import (
    DialectLearner,
    Exchange,
    carry_out,
    extra_fields,
    json_body,
    patience_s,
    refusal_text,
)
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.models.wires.conversions import anthropic as conversion
from hermes_worker.models.wires.definitions import fit_request, fit_tools, is_forced
from hermes_worker.models.wires.templates import RequestTemplates

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


class AnthropicMessages:
    """``Provider`` for Anthropic and for any server that speaks its Messages API."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        self._endpoint = check_endpoint(endpoint)
        self._issuer = find_issuer(hostname(endpoint.base_url))
        self._client = _Client(self._endpoint)
        self._learner = DialectLearner(Dialect())

    def close(self) -> None:
        """Close idle connections. Calls in flight are not touched."""
        self._client.close()

    def ask(self, request: ModelRequest, *, on_delta: OnDelta, abort: Abort) -> ModelReply:
        """See ``Provider``. A refusal that only concerns how we ask is answered inside, by asking differently."""
        fitted = fit_tools(tuple(request.tools))

        def attempt(dialect: Dialect, line: Line) -> ModelReply:
            exchange = Exchange(
                endpoint=self._endpoint,
                model=request.model,
                messages=len(request.messages),
                body=request_body(request, self._endpoint, dialect),
                post=partial(self._client.send, takes_betas=dialect.takes_betas),
                assembler=MessageAssembler(fitted.wrap_on_delta(on_delta), issuer=self._issuer),
                sdk_error=anthropic.AnthropicError,
                reply_name="a reply of the Messages API",
            )
            return carry_out(exchange, line, read_timeout_s=patience_s(self._endpoint, request))

        return fitted.restore(self._learner.ask(attempt, partial(adapt_dialect, request=request), abort))


class _Client(anthropic.Anthropic):
    """The SDK's client for one endpoint, deaf to the environment and to the profiles of other programs."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._fixed_headers = request_headers(endpoint)
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


def request_headers(endpoint: Endpoint) -> dict[str, str | anthropic.Omit]:
    """The headers of every request to this endpoint."""
    return {
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",  # small events gain nothing from compression and are held back by it
        "Content-Type": "application/json",
        "User-Agent": "hermes-worker",
        "anthropic-version": API_VERSION,
        **endpoint.headers,
        **_credential_headers(endpoint),
    }


def _credential_headers(endpoint: Endpoint) -> Mapping[str, str]:
    """Keys have a header of their own on this wire; access tokens, and the keys of some hosts, are bearer tokens."""
    key = endpoint.api_key
    if not key:
        return {}
    if endpoint.is_access_token:
        return {"Authorization": f"Bearer {key}"}
    if endpoint.key_header.lower() != "authorization":
        return {endpoint.key_header: key}
    home = provider_of_host(endpoint.base_url)
    wants_bearer = (home is not None and home.is_bearer) or _TOKEN.match(key)
    return {"Authorization": f"Bearer {key}"} if wants_bearer else {"x-api-key": key}


def request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request, the conversation last (see ``json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    host = hostname(endpoint.base_url)
    policy = thinking_policy(host=host, model=request.model)
    if not request.replays_reasoning:
        policy = ThinkingPolicy.STRIP
    prompt = conversion.to_messages([json.loads(row) for row in request.messages], policy)
    limit = conversion.output_tokens_max(request.model, requested=request.output_tokens_max, window=request.window)
    fields = extra_fields(request, endpoint)
    fields["max_tokens"] = str(limit)
    fields |= {name: canonical_json(value) for name, value in _thinking_fields(request, dialect, limit).items()}
    if prompt.system:
        fields["system"] = canonical_json(prompt.system)
    if request.tools:
        fields["tools"] = _render_tools(tuple(request.tools))
        if is_forced(request, dialect.without_force):
            fields["tool_choice"] = canonical_json(_tool_choice(request.forced_tools))
    fields["model"] = canonical_json(conversion.model_name(request.model))
    fields["stream"] = "true" if dialect.streams else "false"
    fields.pop("messages", None)
    return json_body(fields, "messages", map(canonical_json, conversion.begin_with_user(prompt.messages)))


def _tool_choice(forced: Sequence[str]) -> Mapping[str, str]:
    return {"type": "tool", "name": forced[0]} if len(forced) == 1 else {"type": "any"}


def _thinking_fields(request: ModelRequest, dialect: Dialect, output_tokens: int) -> Mapping[str, Any]:
    """The request's fields about thinking: none unless an effort is asked for, as in the original. A model that is told
    which tool to call cannot think before."""
    effort = request.reasoning_effort
    if (
        effort in (None, "none")
        or request.model in dialect.without_thinking
        or is_forced(request, dialect.without_force)
    ):
        return {}
    return conversion.thinking_fields(request.model, effort, output_tokens=output_tokens)


@lru_cache(maxsize=64)
def _render_tools(definitions: tuple[str, ...]) -> str:
    """The tools as this wire sends them. Cached: a session's tools never change, and most sessions have the same."""
    return canonical_json(conversion.to_tools([json.loads(definition) for definition in definitions]))


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once, so asking again comes to an end.
    """
    text = refusal_text(error)
    if text is None:
        return None
    if is_forced(request, tried.without_force) and "tool_choice" in text:
        return replace(tried, without_force=tried.without_force | {request.model})
    if tried.takes_betas and "beta" in text and "long context" not in text:
        return replace(tried, takes_betas=False)
    if _thinking_fields(request, tried, 0) and any(word in text for word in ("thinking", "output_config", "effort")):
        return replace(tried, without_thinking=tried.without_thinking | {request.model})
    if tried.streams and "stream" in text:
        return replace(tried, streams=False)
    return None
