"""From a model's reply to the calls that will run: names repaired, repeats dropped, segments and classes assigned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from hermes_worker.core import segments
from hermes_worker.core.events import PlannedCall
from hermes_worker.core.messages import ModelReply, ToolRequest, canonical_json
from hermes_worker.core.repair import ArgumentsOutcome, assess_arguments, dedupe, repair_tool_name
from hermes_worker.core.replay import Replay
from hermes_worker.tools.base import ToolSpec
from hermes_worker.tools.catalog import Catalog


def plan_calls(reply: ModelReply, catalog: Catalog) -> tuple[ModelReply, tuple[PlannedCall, ...]]:
    """The reply as it will be stored, and its calls in order.

    A call that names no tool stays in: dispatch answers it with an error that lists the tools there are.
    """
    if not reply.tool_requests:
        return reply, ()
    requests = tuple(_repaired(request, catalog) for request in dedupe(reply.tool_requests))
    specs = [catalog.spec(request.name) for request in requests]
    drafts = [_draft(request, spec) for request, spec in zip(requests, specs, strict=True)]
    calls = tuple(
        PlannedCall(
            name=request.name,
            replay=spec.replay if spec else Replay.PURE,
            segment=segment,
            timeout_s=spec.timeout_s if spec else 10.0,
        )
        for request, spec, segment in zip(requests, specs, segments.plan(drafts), strict=True)
    )
    return replace(reply, tool_requests=requests), calls


def _repaired(request: ToolRequest, catalog: Catalog) -> ToolRequest:
    if catalog.spec(request.name) is not None:
        return request
    name = repair_tool_name(request.name, catalog.names)
    return request if name is None else replace(request, name=name)


def _draft(request: ToolRequest, spec: ToolSpec | None) -> segments.PlannedCall:
    if spec is None:
        return segments.PlannedCall(name=request.name, is_barrier=True)
    arguments = _arguments(request)
    if arguments is None:
        return segments.PlannedCall(name=request.name, is_barrier=True)
    path = arguments.get(spec.path_argument) if spec.path_argument else None
    return segments.PlannedCall(
        name=request.name,
        is_parallel_safe=spec.is_parallel_safe,
        path=path if isinstance(path, str) and path else None,
        is_read_only=spec.replay is Replay.PURE,
    )


def _arguments(request: ToolRequest) -> dict[str, Any] | None:
    """The arguments object; ``None`` when they cannot be read as one."""
    assessed = assess_arguments(request.arguments)
    if assessed.outcome is not ArgumentsOutcome.OK:
        return None
    value = json.loads(assessed.arguments)
    return value if isinstance(value, dict) else None


@lru_cache(maxsize=256)
def tool_texts(tools: str) -> Sequence[str]:
    """A session's stored tool definitions, each as its own canonical JSON."""
    return tuple(canonical_json(definition) for definition in json.loads(tools))
