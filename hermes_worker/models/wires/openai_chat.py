"""The chat-completions wire, through the official ``openai`` SDK.

The SDK is given bytes and gives bytes back (design D13): its typed parameters are validated again on every call, which
at 100 messages costs 49 ms of CPU, and its typed stream 225 us per chunk. It keeps what it is good at: base URLs,
query, headers, timeouts and the classes of errors. Retries are off; the loop owns them.

One ``OpenAIChat`` serves every call of a process to one endpoint. Each call runs on its caller's thread and can be
aborted from any other (``connections``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import openai

from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import ModelRequest, dump_canonical_json
from hermes_worker.models.base import OnDelta
from hermes_worker.models.catalog import choose_output_cap_parameter
from hermes_worker.models.endpoint import Endpoint, check_endpoint
from hermes_worker.models.exchange import (
    Exchange,
    build_extra_fields,
    build_json_body,
    read_refusal_text,
)
from hermes_worker.models.wires.chat_reply import ReplyAssembler
from hermes_worker.models.wires.definitions import drop_patterns, fit_request, is_forced
from hermes_worker.models.wires.openai_client import OpenAIClient
from hermes_worker.models.wires.wire_provider import WireProvider

_OF_PATTERNS: Final = ("grammar", "pattern must", "json schema", "generate parser", "supported for string type")
"""Words by which servers refuse a definition for a pattern or a format: llama.cpp and vLLM, and Google's compatible
address.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The way of asking that this endpoint has been found to understand. Learned from its refusals, kept for the
    process.
    """

    streams: bool = True
    takes_stream_options: bool = True
    output_cap: str | None = None
    """The parameter for the output limit, once the server named it; ``None`` goes by host and model."""
    without_force: frozenset[str] = frozenset()
    """Models that refuse to be told which tool to call."""
    takes_patterns: bool = True
    """Whether the server makes a grammar of every pattern and format in the definitions of tools, or overlooks them."""


class OpenAIChat(WireProvider[Dialect]):
    """``Provider`` for any server that speaks OpenAI's chat completions."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises ``ConfigurationError`` when the endpoint cannot be used. Connects to nothing yet."""
        endpoint = check_endpoint(endpoint)
        self._client = OpenAIClient(endpoint)
        self._post = partial(self._client.send, "/chat/completions")
        super().__init__(
            endpoint, Dialect(takes_stream_options=endpoint.sends_stream_options), adapt_dialect, self._client.close
        )

    def build_exchange(self, request: ModelRequest, dialect: Dialect, on_delta: OnDelta) -> Exchange:
        return Exchange(
            endpoint=self.endpoint,
            model=request.model,
            messages=len(request.messages),
            body=build_request_body(request, self.endpoint, dialect),
            post=self._post,
            assembler=ReplyAssembler(on_delta),
            sdk_error=openai.OpenAIError,
            reply_name="a chat completion (for most servers the address ends in /v1)",
        )


def build_request_body(request: ModelRequest, endpoint: Endpoint, dialect: Dialect) -> bytes:
    """The JSON of a request, the conversation last (see ``build_json_body``).

    ``extra_body`` adds fields and cannot replace the ones that are built here.
    """
    request = fit_request(request)
    fields = build_extra_fields(request, endpoint)
    if request.output_tokens_max is not None:
        cap = dialect.output_cap or choose_output_cap_parameter(endpoint.base_url, request.model)
        fields[cap] = str(request.output_tokens_max)
    if endpoint.sends_cache_key and request.session_id:
        fields["prompt_cache_key"] = dump_canonical_json(_build_cache_key(request.session_id))
    if request.tools:
        tools = request.tools if dialect.takes_patterns else drop_patterns(tuple(request.tools))
        fields["tools"] = f"[{','.join(tools)}]"
        if is_forced(request, dialect.without_force):
            fields["tool_choice"] = dump_canonical_json(_build_tool_choice(request.forced_tools))
    if dialect.streams and dialect.takes_stream_options:
        fields["stream_options"] = '{"include_usage":true}'
    fields["stream"] = "true" if dialect.streams else "false"
    fields["model"] = dump_canonical_json(request.model)
    fields.pop("messages", None)
    return build_json_body(fields, "messages", request.messages)


def _build_tool_choice(forced: Sequence[str]) -> object:
    return {"type": "function", "function": {"name": forced[0]}} if len(forced) == 1 else "required"


def _build_cache_key(session_id: str) -> str:
    """The session id as a cache key, of which OpenAI takes at most 64 characters."""
    return session_id if len(session_id) <= 64 else hashlib.sha256(session_id.encode()).hexdigest()


def adapt_dialect(tried: Dialect, error: ModelCallError, *, request: ModelRequest) -> Dialect | None:
    """The dialect to ask in after this refusal; ``None`` when it was not about the way of asking.

    Each trait changes at most once, so asking again comes to an end.
    """
    if error.status not in (400, 422):
        return None
    text = error.message.lower()
    if is_forced(request, tried.without_force) and "tool_choice" in text:
        return replace(tried, without_force=tried.without_force | {request.model})
    if tried.streams and tried.takes_stream_options and "stream_options" in text:
        return replace(tried, takes_stream_options=False)
    if tried.takes_patterns and any(word in text for word in _OF_PATTERNS):
        return replace(tried, takes_patterns=False)
    if read_refusal_text(error) is None:
        return None
    if tried.output_cap is None and ("max_tokens" in text or "max_completion_tokens" in text):
        return replace(tried, output_cap=_read_accepted_cap(text))
    if tried.streams and "stream" in text:
        return replace(tried, streams=False)
    return None


def _read_accepted_cap(text: str) -> str:
    """The name of the output limit that the server did not complain of. OpenAI names both, the unwanted one first."""
    old = text.find("max_tokens")
    new = text.find("max_completion_tokens")
    return "max_completion_tokens" if old >= 0 and (new < 0 or old < new) else "max_tokens"
