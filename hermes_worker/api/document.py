"""The OpenAPI document: what FastAPI cannot know is corrected or added here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hermes_worker.api.auth import is_signed_address, needs_key
from hermes_worker.api.deprecations import DEPRECATED, Deprecated, mark
from hermes_worker.api.idempotency import describe
from hermes_worker.api.limits import JSON
from hermes_worker.stream.events import build_event_schemas

OPENAPI_VERSION = "3.2.0"
"""The first version that can describe one event of a stream (``itemSchema``)."""
EVENT_STREAM = "text/event-stream"
KEY_SCHEME = "key"


def complete(document: dict[str, Any], deprecated: Sequence[Deprecated] = DEPRECATED) -> dict[str, Any]:
    """Correct what FastAPI says in the document, and add what it does not know. Idempotent."""
    components = document.setdefault("components", {})
    components["securitySchemes"] = {KEY_SCHEME: {"type": "http", "scheme": "bearer"}}
    if any(_is_streamed(operation) for its in document["paths"].values() for operation in its.values()):
        components.setdefault("schemas", {}).update(build_event_schemas())
    components["responses"] = {"MethodNotAllowed": _METHOD_NOT_ALLOWED}
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
