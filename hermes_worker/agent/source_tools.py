"""The definitions of tools from tool sources (``agent.tools.sources``), as sessions and rows store them. Pure.

A stored definition is what models are sent, and beside it, under a private key, what is decided by the tool's
declaration: its source, replay class and time limit. So a session goes on with the tools it began with.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hermes_worker.core.client_tools import CLIENT_SOURCE, ClientTool
from hermes_worker.core.deferred_tools import (
    BRIDGE,
    BRIDGE_SOURCE,
    CALL,
    DEFERRED_KEY,
    DESCRIBE,
    SEARCH,
    exceeds_share,
    mark_deferred,
)
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.replay import Replay
from hermes_worker.core.tool_schemas import LeftOutTool, UnfitDefinition, explain_unusable_name, fit_schema
from hermes_worker.extension import ToolSpec

TOOLS_MAX = 500
DEFINITIONS_CHARS_MAX = 1_000_000
"""Characters of the definitions of one source: every session that has its tools stores them, and every request sends
them.
"""
_KEY = "_sourced"
_MARK = f'"{_KEY}":'


def build_definitions(source: str, offered: object, taken: Collection[str]) -> tuple[list[str], list[LeftOutTool]]:
    """The definitions of the tools that a source offers, sorted by name, and the tools that are left out. ``taken`` are
    names that it may not use: those of tools that exist without it. A name that no model could be sent is allowed: it
    is mapped when it is sent (``models.wires.definitions``), and the source is called by its own. Raises ``TypeError``,
    ``ValueError`` for an offer that cannot be used at all.
    """
    if not isinstance(offered, Iterable):
        raise TypeError(f"it offered a {type(offered).__name__} and no tools")
    found: dict[str, str] = {}
    left_out: list[LeftOutTool] = []
    for spec in offered:
        if problem := _find_problem(spec, taken, found):
            left_out.append(LeftOutTool(spec.name if isinstance(spec, ToolSpec) else type(spec).__name__, problem))
        else:
            found[spec.name] = _render_definition(source, replace(spec, toolset=source))
    if len(found) > TOOLS_MAX or sum(map(len, found.values())) > DEFINITIONS_CHARS_MAX:
        raise ValueError(f"it offers more than {TOOLS_MAX} tools, or {DEFINITIONS_CHARS_MAX:,} characters of them")
    return [found[name] for name in sorted(found)], left_out


def _find_problem(spec: object, taken: Collection[str], found: Collection[str]) -> str:
    if not isinstance(spec, ToolSpec):
        return "is no ToolSpec"
    if problem := explain_unusable_name(spec.name):
        return problem
    if spec.name in taken or spec.name in found:
        return "has the name of a tool that is there already"
    if not isinstance(spec.replay, Replay):
        return "says no replay class"
    try:
        dump_canonical_json({"d": spec.description, "p": spec.parameters, "t": spec.timeout_s})
        fit_schema(spec.parameters)
    except UnfitDefinition as error:
        return str(error)
    except (TypeError, ValueError) as error:
        return f"cannot be written as JSON: {error}"
    return ""


def _render_definition(source: str, spec: ToolSpec) -> str:
    facts: dict[str, Any] = {
        "source": source,
        "replay": spec.replay.value,
        "is_untrusted": spec.is_untrusted,
        "timeout_s": spec.timeout_s,
        "result_chars_max": spec.result_chars_max,
        "is_parallel_safe": spec.is_parallel_safe,
    }
    if spec.session_keys:  # written only where there are some, so that all other definitions keep their bytes
        facts["session_keys"] = list(spec.session_keys)
    function = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
    return dump_canonical_json({_KEY: facts, "type": "function", "function": function})


def render_client_definition(tool: ClientTool, timeout_s: float) -> str:
    """The stored definition of a client's tool, whose client has ``timeout_s`` seconds for a call. A call has no effect
    here: acting on it is the client's part, and the client may be told of it again.
    """
    spec = ToolSpec(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        toolset=CLIENT_SOURCE,
        replay=Replay.PURE,
        is_untrusted=False,
        timeout_s=timeout_s,
        is_parallel_safe=True,
    )
    return _render_definition(CLIENT_SOURCE, spec)


def defer_definitions(definitions: Mapping[str, str], may_wait: Collection[str], window: int | None) -> tuple[str, ...]:
    """A new session's definitions, by name, as it stores them: where those in ``may_wait`` would take too much of the
    window, they are marked, and the three tools that lead to them stand among the others, by name.
    """
    waiting = {name: definition for name, definition in definitions.items() if name in may_wait}
    if BRIDGE & definitions.keys() or not exceeds_share(tuple(waiting.values()), window):
        return tuple(definitions[name] for name in sorted(definitions))
    stored = {name: mark_deferred(text) if name in waiting else text for name, text in definitions.items()}
    stored |= {spec.name: _render_definition(BRIDGE_SOURCE, spec) for spec in build_bridge_specs(len(waiting))}
    return tuple(stored[name] for name in sorted(stored))


def build_bridge_specs(count: int) -> tuple[ToolSpec, ...]:
    """The three tools, for a session that puts off ``count`` others."""
    name = {"type": "string", "description": f"Of the tool, as {SEARCH} names it."}
    said = {
        SEARCH: (
            f"You have {count} more tools than are listed here. Find them by words of what they do; the result names "
            f"the best matches. Then read one with {DESCRIBE} and call it with {CALL}.",
            {"query": {"type": "string", "description": "A few words."}, "limit": {"type": "integer", "minimum": 1}},
            ["query"],
        ),
        DESCRIBE: (f"The description and parameters of a tool that {SEARCH} found.", {"name": name}, ["name"]),
        CALL: (
            f"Call a tool that {SEARCH} found. It is the same as a call of the tool itself.",
            {"name": name, "arguments": {"type": "object", "description": f"As {DESCRIBE} shows them."}},
            ["name", "arguments"],
        ),
    }
    return tuple(
        ToolSpec(
            name=tool,
            description=description,
            parameters={"type": "object", "properties": properties, "required": required},
            toolset=BRIDGE_SOURCE,
            # They look at what the session stores. A call that names a tool is that tool's, with its class.
            replay=Replay.PURE,
            is_untrusted=False,
            timeout_s=10.0,
            is_parallel_safe=tool != CALL,
        )
        for tool, (description, properties, required) in said.items()
    )


def read_client_tools(tools: str) -> tuple[ClientTool, ...]:
    """The client's tools among a session's stored definitions, by name."""
    found = [spec for source, spec in iterate_frozen_specs(tools) if source == CLIENT_SOURCE]
    return tuple(
        ClientTool(name=spec.name, description=spec.description, parameters=spec.parameters)
        for spec in sorted(found, key=lambda spec: spec.name)
    )


def strip_private_keys(definition: Mapping[str, Any]) -> Mapping[str, Any]:
    """A stored definition as models are sent it."""
    return {key: value for key, value in definition.items() if key not in (_KEY, DEFERRED_KEY)}


def iterate_frozen_specs(tools: str) -> Iterator[tuple[str, ToolSpec]]:
    """The source and the spec, as it was when stored, of each tool from a source among a session's stored
    definitions.
    """
    if _MARK in tools:
        yield from (parse_definition(definition) for definition in json.loads(tools) if _KEY in definition)


def parse_definition(definition: Mapping[str, Any]) -> tuple[str, ToolSpec]:
    """The source and the spec of a stored definition. Raises ``KeyError``, ``ValueError`` for one that makes no
    sense.
    """
    facts, function = definition[_KEY], definition["function"]
    spec = ToolSpec(
        name=function["name"],
        description=function["description"],
        parameters=function["parameters"],
        toolset=facts["source"],
        replay=Replay(facts["replay"]),
        is_untrusted=facts["is_untrusted"],
        timeout_s=facts["timeout_s"],
        result_chars_max=facts["result_chars_max"],
        is_parallel_safe=facts["is_parallel_safe"],
        session_keys=tuple(facts.get("session_keys", ())),
    )
    return facts["source"], spec
