"""The definitions of a request's tools as every wire sends them, and the calls of the reply as the session knows them.

Each wire fits its request before it writes it, and restores its reply (``core.tool_schemas`` says what is mended). A
definition that cannot be mended costs that tool: it is left out, and said in the log once per process.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from hermes_worker.core.messages import Delta, ModelReply, ModelRequest, ToolRequest, dump_canonical_json
from hermes_worker.core.tool_schemas import (
    UnfitDefinition,
    fit_schema,
    make_sendable_name,
    remove_keywords,
    restore_arguments,
)
from hermes_worker.models.base import OnDelta
from hermes_worker.observe import log


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedTools:
    """The definitions to send, and what was changed to send them."""

    texts: Sequence[str]
    names: Mapping[str, str]
    """Tools that are sent under another name: each one's own name by the sent one."""
    renamed: Mapping[str, object]
    """Tools with properties that are sent under other names: their own schemas, by the tools' own names."""

    def restore(self, reply: ModelReply) -> ModelReply:
        """The reply with the names that the session knows."""
        if not self.names and not self.renamed:
            return reply
        calls = tuple(self._restore_call(call) for call in reply.tool_requests)
        dropped = tuple(self.names.get(name, name) for name in reply.dropped_calls)
        return replace(reply, tool_requests=calls, dropped_calls=dropped)

    def _restore_call(self, call: ToolRequest) -> ToolRequest:
        name = self.names.get(call.name, call.name)
        if name not in self.renamed:
            return replace(call, name=name)
        try:
            arguments = restore_arguments(json.loads(call.arguments), self.renamed[name])
        except (ValueError, RecursionError):
            return replace(call, name=name)  # the next reader says what is wrong with it
        return replace(call, name=name, arguments=dump_canonical_json(arguments))

    def wrap_on_delta(self, on_delta: OnDelta) -> OnDelta:
        """Wrap ``on_delta`` so that it gets pieces with the names that the session knows."""
        names = self.names
        if not names:
            return on_delta

        def tell(delta: Delta) -> None:
            on_delta(replace(delta, tool_name=names.get(delta.tool_name, delta.tool_name)))

        return tell


def fit_request(request: ModelRequest) -> ModelRequest:
    """The request with tools that every server takes; the same object when its tools need no change."""
    fitted = fit_tools(tuple(request.tools))
    if fitted.texts == tuple(request.tools):
        return request
    sent = {ours: name for name, ours in fitted.names.items()}
    messages = [_rename_in_row(row, sent) for row in request.messages] if sent else request.messages
    forced = [sent.get(name, name) for name in request.forced_tools]
    return replace(request, tools=fitted.texts, messages=messages, forced_tools=forced)


def is_forced(request: ModelRequest, refusing: Container[str]) -> bool:
    """Return whether the model is told which tool to call: where that is asked for, and the model is none of those that
    refused it."""
    return bool(request.forced_tools) and request.model not in refusing


@lru_cache(maxsize=64)
def drop_patterns(definitions: tuple[str, ...]) -> Sequence[str]:
    """The definitions for a server that builds a grammar from them and cannot read the patterns or formats in one."""
    return tuple(
        _rewrite_definition(text, name, remove_keywords(function["parameters"], ("pattern", "format")))
        if '"pattern":' in text or '"format":' in text
        else text
        for text in definitions
        for function in [_parse_function(text)]
        for name in [function["name"]]
    )


@lru_cache(maxsize=64)
def fit_tools(definitions: tuple[str, ...]) -> FittedTools:
    """Fit the definitions. Cached: a session's tools never change, and most sessions have the same."""
    texts: list[str] = []
    names: dict[str, str] = {}
    renamed: dict[str, object] = {}
    seen: set[str] = set()
    # A tool whose name can be sent keeps it, wherever it stands among the others.
    taken = {name for text in definitions if make_sendable_name(name := _find_name(text)) == name}
    for text in definitions:
        try:
            name, schema = _fit_definition(text)
            if name in seen:
                raise UnfitDefinition("has the name of another one")
        except UnfitDefinition as error:
            log.warning("tool_definition.left_out", reason=f"{str(error)[:200]}", tool=_find_name(text)[:80])
            continue
        sent = make_sendable_name(name, taken)
        seen.add(name)
        taken.add(sent)
        texts.append(text if schema is None and sent == name else _rewrite_definition(text, sent, schema))
        if sent != name:
            names[sent] = name
        if schema is not None and fit_schema(_parse_function(text).get("parameters"), renames=False) != schema:
            renamed[name] = _parse_function(text).get("parameters")
    return FittedTools(texts=tuple(texts), names=names, renamed=renamed)


def _fit_definition(text: str) -> tuple[str, Mapping[str, Any] | None]:
    """The name of a tool, and its schema where another one is sent. Raises ``UnfitDefinition``."""
    function = _parse_function(text)
    name = function.get("name")
    if not isinstance(name, str) or not name.strip():
        raise UnfitDefinition("has no name")
    parameters = function.get("parameters")
    fitted = fit_schema(parameters)
    return name, None if fitted is parameters else fitted


def _parse_function(text: str) -> Mapping[str, Any]:
    function = json.loads(text).get("function")
    return function if isinstance(function, Mapping) else {}


def _find_name(text: str) -> str:
    return str(_parse_function(text).get("name"))


def _rewrite_definition(text: str, name: str, schema: Mapping[str, Any] | None) -> str:
    tool = json.loads(text)
    changes = {"name": name} if schema is None else {"name": name, "parameters": schema}
    return dump_canonical_json({**tool, "function": {**tool["function"], **changes}})


def _rename_in_row(row: str, sent: Mapping[str, str]) -> str:
    """A row of the transcript with the names that are sent: servers judge names in earlier calls as well."""
    if not any(dump_canonical_json(name) in row for name in sent):
        return row
    document = json.loads(row)
    for function in _iterate_named_objects(document):
        function["name"] = sent.get(function["name"], function["name"])
    return dump_canonical_json(document)


def _iterate_named_objects(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each object of a row that names a tool."""
    calls, blocks = document.get("tool_calls"), document.get("anthropic_content_blocks")
    places = [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    places += [block for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    places += [document] if document.get("role") == "tool" else []
    yield from (place for place in places if isinstance(place, dict) and isinstance(place.get("name"), str))
