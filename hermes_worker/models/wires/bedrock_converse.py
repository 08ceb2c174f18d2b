"""The Converse wire of Amazon Bedrock: bytes through our own connections, signed and framed by botocore.

botocore's own client is not used: it cannot be cut off from another thread, and it retries. Only two parts of it are:
how a request is signed (``SigV4Auth``) and how an event stream is framed (``EventStreamBuffer``). The rest is one POST.
Unverified live: Bedrock was never called from here; botocore's service model judges the requests in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any
from urllib.parse import quote

import httpx2
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, dump_canonical_json
from hermes_worker.core.model_capabilities import ThinkingPolicy
from hermes_worker.core.model_families import find_traits
from hermes_worker.models.base import OnDelta
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import Exchange, build_json_body, read_refusal_text
from hermes_worker.models.wires import event_stream
from hermes_worker.models.wires.converse_reply import ConverseAssembler
from hermes_worker.models.wires.conversions import anthropic
from hermes_worker.models.wires.conversions import converse as conversion
from hermes_worker.models.wires.definitions import fit_request, is_forced
from hermes_worker.models.wires.plain_client import PlainClient, RefusedRequest, build_usual_headers
from hermes_worker.models.wires.wire_provider import WireProvider

_SERVICE = "bedrock"
_ERROR_HEADER = "x-amzn-errortype"


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of asking that this endpoint has been found to understand. Learned from its refusals, kept for the
    process.
    """

    without_streams: frozenset[str] = frozenset()
    """Models that answer in one piece only."""
    without_marks: frozenset[str] = frozenset()
    """Models that have no prompt cache."""
    without_force: frozenset[str] = frozenset()
    """Models that refuse to be told which tool to call."""
    without_thinking: frozenset[str] = frozenset()


class BedrockConverse(WireProvider[Dialect]):
    """``Provider`` for Amazon Bedrock. A key is a Bedrock API key, or ``ID:SECRET`` or ``ID:SECRET:TOKEN`` of AWS."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        endpoint = check_endpoint(endpoint)
        self._client = PlainClient(endpoint)
        super().__init__(endpoint, Dialect(), adapt_dialect, self._client.close)

    def build_exchange(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta) -> Exchange:
        return Exchange(
            endpoint=self.endpoint,
            model=request.model,
            messages=len(request.messages),
            body=build_request_body(request, self.endpoint, dialect),
            post=partial(self._post, self._client.build_address(build_request_path(request.model, dialect))),
            assembler=ConverseAssembler(on_delta, model=request.model, issuer=anthropic.ISSUER),
            sdk_error=RefusedRequest,
            reply_name="a reply of the Converse API (the address has no path)",
            frames=event_stream.read_documents,
        )

    def _post(self, address: str, body: bytes, *, read_timeout_s: float) -> httpx2.Response:
        headers = {**build_usual_headers(self.endpoint), **build_credential_headers(self.endpoint, address, body)}
        return self._client.send(address, headers, body, read_timeout_s=read_timeout_s, code_header=_ERROR_HEADER)


def build_request_path(model: str, dialect: Dialect) -> str:
    """The path for a model, whose name is escaped: ARNs hold slashes and colons."""
    verb = "converse" if model in dialect.without_streams else "converse-stream"
    return f"/model/{quote(model, safe='')}/{verb}"


def build_credential_headers(endpoint: Endpoint, address: str, body: bytes) -> Mapping[str, str]:
    """The headers with the credential: a Bedrock API key is a bearer token; a pair of AWS keys signs each request."""
    key = endpoint.api_key
    if not key:
        return {}
    identity, _, secret = key.partition(":")
    if endpoint.is_access_token or not secret:
        return {"Authorization": f"Bearer {key}"}
    secret, _, token = secret.partition(":")
    signed = AWSRequest(method="POST", url=address, data=body, headers={"Content-Type": "application/json"})
    SigV4Auth(Credentials(identity, secret, token or None), _SERVICE, endpoint.region or "us-east-1").add_auth(signed)
    return {name: str(value) for name, value in signed.headers.items()}


def build_request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request, the conversation last (see ``build_json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    is_claude = find_traits(request.model).family == "claude"
    policy = ThinkingPolicy.NATIVE if is_claude and request.replays_reasoning else ThinkingPolicy.STRIP
    prompt = conversion.to_messages(
        [json.loads(row) for row in request.messages],
        policy,
        has_tools=bool(request.tools),
        marks=request.model not in dialect.without_marks,
    )
    fields = {name: dump_canonical_json(value) for name, value in {**endpoint.body, **request.extra_body}.items()}
    options = _build_inference_options(request, dialect, is_claude=is_claude)
    fields |= {name: dump_canonical_json(value) for name, value in options.items() if value}
    if prompt.system:
        fields["system"] = dump_canonical_json(prompt.system)
    if request.tools:
        tools = _render_tools(tuple(request.tools))
        choice = (
            f',"toolChoice":{_build_tool_choice(request.forced_tools)}'
            if is_forced(request, dialect.without_force)
            else ""
        )
        fields["toolConfig"] = f'{{"tools":{tools}{choice}}}'
    if endpoint.service_tier:
        fields["serviceTier"] = dump_canonical_json({"type": endpoint.service_tier})
    fields.pop("messages", None)
    return build_json_body(fields, "messages", map(dump_canonical_json, prompt.messages))


def _build_tool_choice(forced: Sequence[str]) -> str:
    return dump_canonical_json({"tool": {"name": forced[0]}} if len(forced) == 1 else {"any": {}})


def _build_inference_options(
    request: ModelRequest, dialect: Dialect, *, is_claude: bool
) -> dict[str, Mapping[str, Any]]:
    """The output limit, and for Claude the effort of thinking; without a limit the model's own counts. A model that is
    told which tool to call cannot think before."""
    limit = request.output_tokens_max
    inference: dict[str, Any] = {} if limit is None else {"maxTokens": limit}
    effort = request.reasoning_effort
    is_thoughtless = request.model in dialect.without_thinking or is_forced(request, dialect.without_force)
    if effort in (None, "none") or not is_claude or is_thoughtless:
        return {"inferenceConfig": inference}
    usual = anthropic.choose_output_tokens_max(request.model, requested=limit, window=request.window)
    asked = dict(anthropic.build_thinking_fields(request.model, effort, output_tokens=usual))
    for ours, theirs in (("max_tokens", "maxTokens"), ("temperature", "temperature")):
        if ours in asked:
            inference[theirs] = asked.pop(ours)
    return {"inferenceConfig": inference, "additionalModelRequestFields": asked}


@lru_cache(maxsize=64)
def _render_tools(definitions: tuple[str, ...]) -> str:
    """The tools as this wire sends them. Cached: a session's tools never change, and most sessions have the same."""
    return dump_canonical_json(conversion.to_tools([json.loads(definition) for definition in definitions]))


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once for a model, so asking again comes to an end.
    """
    text, model = read_refusal_text(error), request.model
    if text is None:
        return None
    if is_forced(request, tried.without_force) and ("toolchoice" in text or "tool_choice" in text):
        return replace(tried, without_force=tried.without_force | {model})
    if model not in tried.without_marks and ("cachepoint" in text or "prompt caching" in text):
        return replace(tried, without_marks=tried.without_marks | {model})
    if model not in tried.without_thinking and any(word in text for word in ("thinking", "output_config", "effort")):
        return replace(tried, without_thinking=tried.without_thinking | {model})
    if model not in tried.without_streams and "stream" in text:
        return replace(tried, without_streams=tried.without_streams | {model})
    return None
