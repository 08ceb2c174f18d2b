"""What ``/mcp`` says of itself to clients: the server, and its tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from hermes_worker.api import schema
from hermes_worker.api.mcp.envelope import OLDER, STATELESS, TASKS

WAIT_S_MAX: Final = 25.0
"""Longest wait in seconds: shorter than the time-outs of usual clients and proxies."""
_SERVER = {"name": "hermes-worker", "title": "Hermes worker", "version": schema.VERSION}
_INSTRUCTIONS = (
    "Agents that work for you elsewhere. run_agent starts a run and does not wait for its end; a client that knows "
    "Tasks gets one, others ask get_run. A run may wait for an answer: get_run shows what it asks, answer answers."
)
_TTL_MS = 300_000
_RUN_ID = {"type": "string", "description": "As run_agent gave it.", "maxLength": 80}


def _build_schema(required: Sequence[str], **properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_TOOLS: Sequence[Mapping[str, Any]] = (
    {
        "name": "run_agent",
        "title": "Run an agent",
        "description": "Give an agent a task. The run goes on after this answers; get_run says how far it is.",
        "inputSchema": _build_schema(
            ["input"],
            input={"type": "string", "description": "What the agent shall do.", "minLength": 1},
            instructions={"type": "string", "description": "How it shall behave; for a new session."},
            session_id={"type": "string", "description": "Continue this conversation, or begin one of this name."},
            model={"type": "string", "description": "Default: the configured one."},
            max_iterations={"type": "integer", "minimum": 1, "description": "Model calls at most."},
            max_wall_s={"type": "number", "exclusiveMinimum": 0, "description": "Seconds until it expires."},
            max_cost_usd={"type": "number", "exclusiveMinimum": 0, "description": "US dollars at most."},
        ),
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": True},
    },
    {
        "name": "get_run",
        "title": "Look at a run",
        "description": "The status of a run, its answer once it has ended, and what it asks while it waits.",
        "inputSchema": _build_schema(
            ["run_id"],
            run_id=_RUN_ID,
            wait_s={
                "type": "number",
                "minimum": 0,
                "maximum": WAIT_S_MAX,
                "description": "Answer when the run has ended, or after so many seconds. Default: at once.",
            },
        ),
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    },
    {
        "name": "answer",
        "title": "Answer a run",
        "description": "Answer what a run asks: a question with 'text', a request for approval with 'choice'.",
        "inputSchema": _build_schema(
            ["run_id", "wait_id"],
            run_id=_RUN_ID,
            text={"type": "string", "description": "The answer, or the number of a choice."},
            choice={"type": "string", "enum": ["once", "session", "always", "deny"]},
            reason={"type": "string", "description": "For the agent, when it is denied.", "maxLength": 10_000},
            wait_id={
                "type": "integer",
                "minimum": 1,
                "description": "The question seen: 'id' in get_run.",
            },
        ),
        "annotations": {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False},
    },
    {
        "name": "steer",
        "title": "Steer a run",
        "description": "Say something to a run at work; the agent reads it with its next tool result.",
        "inputSchema": _build_schema(["run_id", "text"], run_id=_RUN_ID, text={"type": "string", "minLength": 1}),
        "annotations": {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False},
    },
    {
        "name": "stop",
        "title": "Stop a run",
        "description": "Stop a run and all that it caused.",
        "inputSchema": _build_schema(["run_id"], run_id=_RUN_ID),
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": True,
            "idempotentHint": True,
            "openWorldHint": False,
        },
    },
)
NAMES: Final = frozenset(str(tool["name"]) for tool in _TOOLS)
RUN_ARGUMENTS: Final = frozenset(_TOOLS[0]["inputSchema"]["properties"])


def build_discovery() -> dict[str, Any]:
    """Build the result of ``server/discover``."""
    return {
        "resultType": "complete",
        "supportedVersions": [STATELESS, *reversed(OLDER)],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}, "extensions": {TASKS: {}}},
        "instructions": _INSTRUCTIONS,
        "ttlMs": _TTL_MS,
        "cacheScope": "public",
        "_meta": {"io.modelcontextprotocol/serverInfo": _SERVER},
    }


def build_initialization(version: str) -> dict[str, Any]:
    """Build the result of ``initialize`` for a revision."""
    return {
        "protocolVersion": version,
        "capabilities": {name: {"listChanged": False} for name in ("tools", "resources", "prompts")},
        "serverInfo": _SERVER,
        "instructions": _INSTRUCTIONS,
    }


def build_tool_list() -> dict[str, Any]:
    """Build the result of ``tools/list``: every key sees all tools, on one page."""
    return {"resultType": "complete", "tools": list(_TOOLS), "ttlMs": _TTL_MS, "cacheScope": "public"}
