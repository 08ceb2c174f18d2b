"""The OpenAPI document: what FastAPI cannot know is corrected or added here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hermes_worker.api.auth import is_signed_address, needs_key
from hermes_worker.api.deprecations import DEPRECATED, Deprecated, mark
from hermes_worker.api.idempotency import describe
from hermes_worker.api.limits import JSON
from hermes_worker.stream.events import build_event_schemas

OPENAPI_VERSION = "3.2.0"
"""The first version that can describe one event of a stream (``itemSchema``)."""
COMMON_VERSION = "3.1.0"
"""The version that generators of clients read."""
EVENT_STREAM = "text/event-stream"
KEY_SCHEME = "key"


def complete(document: dict[str, Any], deprecated: Sequence[Deprecated] = DEPRECATED) -> dict[str, Any]:
    """Correct what FastAPI says in the document, and add what it does not know. Idempotent."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = {KEY_SCHEME: {"type": "http", "scheme": "bearer"}}
    if any(_is_streamed(operation) for its in document["paths"].values() for operation in its.values()):
        components.setdefault("schemas", {}).update(build_event_schemas())
    components["responses"] = {"MethodNotAllowed": _METHOD_NOT_ALLOWED}
    for unused in ("HTTPValidationError", "ValidationError"):  # FastAPI's own; we answer 400
        components.get("schemas", {}).pop(unused, None)
    document["info"] |= {"contact": {"name": "The Hermes worker authors"}, "license": _LICENSE}
    document["servers"] = [{"url": "/", "description": "The server that gave this document."}]
    _name_operations(document["paths"])
    _declare_tags(document)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            operation["security"] = [{KEY_SCHEME: []}] if needs_key(path) else []
            if needs_key(path):
                operation["responses"]["401"] = _WRONG_KEY
            if is_signed_address(path):
                operation["responses"].pop("403", None)  # any page may lead there
            describe(path, method, operation)
            _correct(operation)
    mark(document, deprecated)
    _link(document["paths"])
    return document


def to_common_version(document: Mapping[str, Any]) -> dict[str, Any]:
    """Write the document in OpenAPI 3.1, in which the schema of a stream is that of one of its events."""
    written: dict[str, Any] = _rename_item_schemas(document)
    del written["components"]["responses"]  # nothing refers to them: they are answers of every path
    return {**written, "openapi": COMMON_VERSION}


def _rename_item_schemas(part: Any) -> Any:
    if isinstance(part, Mapping):
        return {("schema" if key == "itemSchema" else key): _rename_item_schemas(each) for key, each in part.items()}
    return [_rename_item_schemas(each) for each in part] if isinstance(part, list) else part


_LICENSE = {"name": "MIT", "identifier": "MIT"}
_TAGS = {
    "runs": "Submit runs, follow them, stop them, and read what they did.",
    "openai": "OpenAI's chat completions, responses, conversations, files and models.",
    "sessions": "Conversations, and the runs that share them.",
    "jobs": "Tasks on a schedule.",
    "approvals": "Questions to people, and their answers.",
    "artifacts": "Files that runs left.",
    "checkpoints": "Workspaces as they were before a run changed them.",
    "deliveries": "Answers that are sent to targets.",
    "webhooks": "Addresses for events from outside, and what they start.",
    "inbound": "Messages of chat platforms.",
    "gateway": "Accounts of chat platforms, and the people who may write to them.",
    "mcp": "The MCP server, and the MCP servers that agents use.",
    "memory": "What agents remember.",
    "skills": "Skills that agents follow.",
    "settings": "Settings of the fleet, of tenants and of sessions.",
    "tenants": "Tenants, their keys, limits and spending.",
    "retention": "How long rows are kept, legal holds, export and erasure.",
    "audit": "Who changed what.",
    "capabilities": "What this server can do.",
    "health": "Whether the server and its fleet work.",
    "page": "What the web page keeps.",
}


def _declare_tags(document: dict[str, Any]) -> None:
    """Declare the tags that operations have. A tag that an extension of others brings gets a general description."""
    used = {tag for its in document["paths"].values() for operation in its.values() for tag in operation["tags"]}
    named = [*(tag for tag in _TAGS if tag in used), *sorted(used - set(_TAGS))]
    document["tags"] = [{"name": tag, "description": _TAGS.get(tag, f"Operations of {tag}.")} for tag in named]


def _name_operations(paths: dict[str, Any]) -> None:
    """Name each operation as its function is called; the second of one name keeps FastAPI's, with its path."""
    taken: set[str] = set()
    for path, operations in paths.items():
        for method, operation in operations.items():
            operation.setdefault("tags", ["extensions"])
            short = operation["operationId"].removesuffix(re.sub(r"\W", "_", f"{path}_{method}"))
            if short not in taken:
                operation["operationId"] = short
            taken.add(short)
            if (example := _EXAMPLES.get(short)) is not None:
                operation["requestBody"]["content"][JSON]["example"] = example


_PROMPT = "Summarise the open issues."
_EXAMPLES: Mapping[str, Any] = {
    "create_run": {"input": _PROMPT, "tags": ["nightly"], "max_cost_usd": 0.5},
    "submit_batch": {"runs": [{"input": _PROMPT}, {"input": "List the files here."}]},
    "steer_run": {"text": "Only those of this week."},
    "create_chat_completion": {"model": "hermes-agent", "messages": [{"role": "user", "content": _PROMPT}]},
    "create_response": {"model": "hermes-agent", "input": _PROMPT},
    "create_conversation": {"metadata": {"topic": "issues"}},
    "create_session": {"title": "Issues"},
    "chat": {"message": _PROMPT},
    "create_job": {"name": "nightly", "schedule": "0 2 * * *", "prompt": _PROMPT},
    "answer_question": {"text": "Yes, both.", "wait_id": 7},
    "answer_approval": {"choice": "once", "wait_id": 7},
    "create_tenant": {"name": "acme"},
    "add_webhook_route": {"name": "review", "prompt": _PROMPT},
}
"""What people send to the operations that they use most, by name."""


def _is_streamed(operation: dict[str, Any]) -> bool:
    return any(EVENT_STREAM in response.get("content", {}) for response in operation["responses"].values())


_ERROR_CONTENT = {JSON: {"schema": {"$ref": "#/components/schemas/ErrorDocument"}}}
_WRONG_KEY = {
    "description": "No API key, or a wrong one.",
    "headers": {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}},
    "content": _ERROR_CONTENT,
}
_METHOD_NOT_ALLOWED = {
    "description": "The answer of every path to a method that it does not take.",
    "headers": {
        "Allow": {"required": True, "schema": {"type": "string"}, "description": "The methods that it takes."},
    },
    "content": _ERROR_CONTENT,
}


_MADE_BY = {
    "run_id": (("post", "/v1/runs", "202", "/run_id"),),
    "response_id": (("post", "/v1/responses", "200", "/id"),),
    "conversation_id": (("post", "/v1/conversations", "200", "/id"),),
    "item_id": (("get", "/v1/conversations/{conversation_id}/items", "200", "/data/0/id"),),
    "session_id": (
        ("post", "/api/sessions", "201", "/session/id"),
        ("post", "/api/sessions/{session_id}/fork", "201", "/session/id"),
    ),
    "job_id": (("post", "/api/jobs", "200", "/job/id"),),
    "delivery_id": (("get", "/v1/deliveries", "200", "/data/0/delivery_id"),),
    "file_id": (("post", "/v1/files", "200", "/id"),),
    "artifact_id": (("get", "/v1/runs/{run_id}/artifacts", "200", "/data/0/id"),),
    "call": (("get", "/v1/runs/{run_id}/calls", "200", "/data/0/call"),),
    "worker_id": (("get", "/v1/workers", "200", "/data/0/worker_id"),),
    "model": (("get", "/v1/models", "200", "/data/0/id"),),
}
"""Which answers bring the ids that paths name, and at which place of the answer."""


def _link(paths: dict[str, Any]) -> None:
    """Add links: what can be done with the id that an answer brings."""
    for parameter, sources in _MADE_BY.items():
        names = [
            operation["operationId"]
            for path, operations in paths.items()
            if f"{{{parameter}}}" in path
            for operation in operations.values()
        ]
        for method, path, status, place in sources:
            source = paths.get(path, {}).get(method)
            if source is None:
                continue  # its extension is disabled
            given = {f"path.{parameter}": f"$response.body#{place}"}
            source["responses"][status]["links"] = {name: {"operationId": name, "parameters": given} for name in names}


def _correct(operation: dict[str, Any]) -> None:
    operation["responses"].pop("422", None)  # FastAPI's own; we answer 400
    operation["responses"] = dict(sorted(operation["responses"].items()))
    for status, response in operation["responses"].items():
        content = response.get("content", {})
        if EVENT_STREAM in content and not status.startswith("2"):
            # FastAPI believes that the errors of a route that streams are streams, too.
            content |= {JSON: content.pop(EVENT_STREAM)}
        elif EVENT_STREAM in content:
            content[EVENT_STREAM].pop("schema", None)  # it says that a whole stream is a text
    for parameter in operation.get("parameters", ()):
        # A parameter that may be left out still cannot be null: in an address that would be the word "null".
        described = parameter["schema"]
        if choices := [choice for choice in described.get("anyOf", ()) if choice != {"type": "null"}]:
            del described["anyOf"]
            described |= choices[0] if len(choices) == 1 else {"anyOf": choices}
