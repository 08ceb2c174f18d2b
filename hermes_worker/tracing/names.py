"""The names of spans and attributes, all of them.

Those that begin with ``gen_ai`` are of OpenTelemetry's semantic conventions for generative AI, version 0.1.0 of their
own repository (read in November 2026), where all of them still have the status *Development*: they may change with it,
and only here. The others are ours. What people, models and tools wrote has names of its own, which nothing is noted
under unless the settings ask for it (``tracing.texts``).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

OPERATION: Final = "gen_ai.operation.name"
AGENT: Final = "gen_ai.agent.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
TOOL: Final = "gen_ai.tool.name"
CALL: Final = "gen_ai.tool.call.id"
SERVER: Final = "server.address"
ERROR: Final = "error.type"

KNOWN_PROVIDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "azure": "azure.ai.openai",
        "bedrock": "aws.bedrock",
        "google": "gcp.gemini",
        "mistral": "mistral_ai",
        "openai-codex": "openai",
        "vertex": "gcp.vertex_ai",
        "xai": "x_ai",
        "xai-oauth": "x_ai",
    }
)
"""The conventions' names of providers that our catalogue calls otherwise; every other has the catalogue's name."""

INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"

INVOKE_AGENT: Final = "invoke_agent"
CHAT: Final = "chat"
EXECUTE_TOOL: Final = "execute_tool"
PREPARE: Final = "prepare"
"""Reading the workspace before the first model call: a name of our own."""

RUN: Final = "hermes.run.id"
ITERATION: Final = "hermes.iteration"
POSITION: Final = "hermes.position"
ATTEMPT: Final = "hermes.attempt"
QUEUE: Final = "hermes.queue"
STATUS: Final = "hermes.status"
EXIT_REASON: Final = "hermes.exit_reason"
COST_USD: Final = "hermes.cost_usd"
PLATFORM: Final = "hermes.platform"
DELIVERY: Final = "hermes.delivery.id"
SOURCE: Final = "hermes.source"
REQUEST: Final = "hermes.request.id"
"""The id of the HTTP request that submitted a run, as its answer and the logs of the API say it."""
TRACESTATE: Final = "hermes.caller.tracestate"

SUBMIT: Final = "submit"
DELIVER: Final = "deliver"
AGENT_NAME: Final = "hermes-worker"
