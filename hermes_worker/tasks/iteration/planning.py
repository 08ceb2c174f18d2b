"""Turn a model's reply into the calls that will run: names repaired, repeats dropped, segments and classes assigned."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import lru_cache

from hermes_worker.agent.source_tools import strip_private_keys
from hermes_worker.agent.tools.catalog import ToolCatalog
from hermes_worker.agent.tools.planning import find_replay_class, only_reads, plan_call, resolve_lexically
from hermes_worker.agent.tools.tool_search import find_meant_tool
from hermes_worker.core import segments
from hermes_worker.core.client_tools import CLIENT_SOURCE
from hermes_worker.core.deferred_tools import CALL, select_shown_definitions, unwrap_call
from hermes_worker.core.events import PlannedCall
from hermes_worker.core.guardrails import GUARD_FIELD, find_precedents
from hermes_worker.core.messages import Message, ModelReply, ToolRequest, dump_canonical_json
from hermes_worker.core.recovery.repair import drop_repeated_calls, repair_tool_name
from hermes_worker.core.replay import Replay
from hermes_worker.extension import ToolSpec

_NO_TOOL_TIMEOUT_S = 10.0
"""The time limit of a call that names no tool, in seconds: all that happens is that its error is written."""


def plan_calls(reply: ModelReply, catalog: ToolCatalog) -> tuple[ModelReply, tuple[PlannedCall, ...]]:
    """The reply as it will be stored, and its calls in order.

    A call that names no tool stays in: it is answered with an error that lists the tools there are.
    """
    if not reply.tool_requests:
        return reply, ()
    requests = tuple(_repair_name(request, catalog) for request in drop_repeated_calls(reply.tool_requests))
    meant = [_unwrap_call(request, catalog) for request in requests]
    specs = [_find_spec(request.name, catalog) for request in meant]
    drafts = [
        plan_call(spec, request.name, request.arguments, canonical=resolve_lexically)
        for request, spec in zip(meant, specs, strict=True)
    ]
    calls = tuple(
        PlannedCall(
            name=request.name,
            replay=find_replay_class(spec, request.arguments) if spec else Replay.PURE,
            segment=segment,
            timeout_s=spec.timeout_s if spec else _NO_TOOL_TIMEOUT_S,
        )
        for request, spec, segment in zip(
            meant, specs, _move_client_calls_last(segments.plan_segments(drafts), specs), strict=True
        )
    )
    return replace(reply, tool_requests=requests), calls


def add_precedents(reply: ModelReply, rows: Sequence[Message], catalog: ToolCatalog) -> ModelReply:
    """``reply`` with a note of what each call repeats in this turn, where a guardrail has something to say. ``rows``
    are the transcript before it.
    """
    calls = [(request.name, request.arguments) for request in reply.tool_requests]
    readers = {name for name, _ in calls if name in catalog.names and only_reads(catalog.get_spec(name))}
    found = find_precedents(rows, calls, readers)
    if not found:
        return reply
    documents = {str(position): precedent.document for position, precedent in found.items()}
    return replace(reply, row_fields={**reply.row_fields, GUARD_FIELD: documents})


def _move_client_calls_last(planned: Sequence[int], specs: Sequence[ToolSpec | None]) -> Sequence[int]:
    """Move the client's calls into one segment behind all others: the server's calls do not wait for a client, and the
    client is asked once.
    """
    are_clients = [spec is not None and spec.toolset == CLIENT_SOURCE for spec in specs]
    last = max(planned, default=0) + 1
    moved = [last if is_clients else segment for segment, is_clients in zip(planned, are_clients, strict=True)]
    numbers = {segment: number for number, segment in enumerate(sorted(set(moved)))}
    return [numbers[segment] for segment in moved]


def list_unknown_names(reply: ModelReply, offered: Collection[str], catalog: ToolCatalog) -> tuple[str, ...]:
    """The names in the reply's calls that no tool of the session has, even after repair."""
    return tuple(
        request.name
        for request in reply.tool_requests
        if request.name not in offered and _repair_name(request, catalog).name not in offered
    )


def _find_spec(name: str, catalog: ToolCatalog) -> ToolSpec | None:
    return catalog.get_spec(name) if name in catalog.names else None


def _unwrap_call(request: ToolRequest, catalog: ToolCatalog) -> ToolRequest:
    """The call that a ``tool_call`` request stands for; any other request unchanged."""
    if request.name != CALL or not catalog.deferred:
        return request
    found = unwrap_call(request.arguments)
    name = None if found is None else find_meant_tool(request.name, found, catalog.deferred)
    return request if found is None or name is None else replace(request, name=name, arguments=found[1])


def _repair_name(request: ToolRequest, catalog: ToolCatalog) -> ToolRequest:
    if request.name in catalog.names:
        return request
    name = repair_tool_name(request.name, catalog.names)
    return request if name is None else replace(request, name=name)


@lru_cache(maxsize=256)
def read_tool_texts(tools: str) -> Sequence[str]:
    """A session's stored tool definitions as models are sent them, each as its own canonical JSON."""
    return tuple(
        dump_canonical_json(strip_private_keys(definition))
        for definition in json.loads(select_shown_definitions(tools))
    )


@lru_cache(maxsize=256)
def read_tool_names(tools: str) -> frozenset[str]:
    """The names of a session's stored tools."""
    return frozenset(str(definition["function"]["name"]) for definition in json.loads(tools))
