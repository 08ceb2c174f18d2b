"""Definitions of tools on every wire: what is sent of bad ones, what is left out, and how calls find their way back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dialects import Said, ToolUse
from strict_server import StrictServer, status
from test_wires import ALL_RULES, WIRES, Wire, ask, provider

from hermes_worker.agent.tools.catalog import get_declared_catalog
from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.messages import (
    Delta,
    ModelRequest,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.core.tool_schemas import make_sendable_name
from hermes_worker.models.wires import definitions
from hermes_worker.models.wires.definitions import fit_request, fit_tools

TESTS = Path(__file__).parents[1]
REPORTS = [case for case in json.loads((TESTS / "cases/reports.json").read_text()) if case["kind"] == "mcp tool"]
USER = build_user_body("hi")
LEFT_OUT = "tool_definition.left_out"


@dataclass(frozen=True)
class SentTool:
    name: str
    schema: Mapping[str, Any]


@pytest.fixture(params=WIRES, ids=lambda wire: wire.name)
def wire(request: pytest.FixtureRequest) -> Wire:
    found: Wire = request.param
    return found


@pytest.fixture
def server() -> Iterator[StrictServer]:
    with StrictServer(ALL_RULES) as running:
        yield running


def tool(name: object, parameters: object) -> str:
    function = {"name": name, "description": "d", "parameters": parameters}
    return dump_canonical_json({"type": "function", "function": function})


def sent_tools(document: Mapping[str, Any]) -> list[SentTool]:
    """The tools of a request, whatever its wire."""
    if "toolConfig" in document:
        specs = [one["toolSpec"] for one in document["toolConfig"]["tools"]]
        return [SentTool(one["name"], one["inputSchema"]["json"]) for one in specs]
    tools = document.get("tools", [])
    if tools and "functionDeclarations" in tools[0]:
        return [SentTool(one["name"], one["parametersJsonSchema"]) for one in tools[0]["functionDeclarations"]]
    plain = [one.get("function", one) for one in tools]
    return [SentTool(one["name"], one.get("parameters", one.get("input_schema"))) for one in plain]


def request(*tools: str, rows: tuple[str, ...] = (USER,)) -> ModelRequest:
    return ModelRequest(model="strict", messages=rows, tools=tools)


@pytest.mark.parametrize("case", REPORTS, ids=lambda case: case["id"])
def test_a_reported_definition_is_sent_as_it_should_be(
    case: Mapping[str, Any], wire: Wire, server: StrictServer
) -> None:
    ask(provider(wire, server), request(tool("t", case["input"]["inputSchema"])))
    [sent] = sent_tools(server.accepted[-1])
    right = (
        case["right"]["sent on every wire"] if isinstance(case["right"], dict) else {"type": "object", "properties": {}}
    )
    assert {key: value for key, value in sent.schema.items() if key != "$schema"} == right


def test_a_tool_that_cannot_be_mended_costs_that_tool_and_is_named_in_the_log(
    wire: Wire, server: StrictServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tool("good", {"type": "object", "properties": {}})
    logged: list[Mapping[str, Any]] = []
    told = SimpleNamespace(warning=lambda event, **facts: logged.append({"event": event, **facts}))
    monkeypatch.setattr(definitions, "log", told)
    ask(provider(wire, server), request(tool(f"bad_{wire.name}", {"type": "array"}), good, good, tool(None, {})))
    assert [one.name for one in sent_tools(server.accepted[-1])] == ["good"]
    assert [(one["event"], one["tool"], one["reason"]) for one in logged] == [
        (LEFT_OUT, f"bad_{wire.name}", "takes a value of type 'array' and no object of arguments"),
        (LEFT_OUT, "good", "has the name of another one"),
        (LEFT_OUT, "None", "has no name"),
    ]


def test_a_call_comes_back_under_the_names_that_the_session_knows(wire: Wire, server: StrictServer) -> None:
    name = "files.read/" + "x" * 80
    schema = {"type": "object", "properties": {"$top": {"type": "integer"}}, "required": ["$top"]}
    asked = request(tool(name, schema), tool("7zip", {"type": "object", "properties": {}}))
    [first, second] = (make_sendable_name(name), make_sendable_name("7zip"))
    [top] = fit_request(asked).tools[0].split('"properties":{"')[1].split('"')[:1]
    calls = ToolUse(id="call_1", name=first, arguments=f'{{"{top}": 3}}'), ToolUse(id="call_2", name=second)
    server.says(Said(calls=calls))
    seen: list[Delta] = []
    reply = provider(wire, server).ask(asked, on_delta=seen.append, abort=AbortSignal())
    assert [(one.name, json.loads(one.arguments)) for one in reply.tool_requests] == [(name, {"$top": 3}), ("7zip", {})]
    assert [one.tool_name for one in seen if one.tool_name] == [name, "7zip"]
    assert [one.name for one in sent_tools(server.accepted[-1])] == [first, second]

    rows = (USER, build_assistant_body(reply), *(build_tool_body(one.id, "done") for one in reply.tool_requests))
    ask(provider(wire, server), request(*asked.tools, rows=rows))
    assert server.refusals == []
    assert name not in json.dumps(server.accepted[-1]), "servers judge the names of earlier calls as well"


def test_two_names_that_would_be_sent_alike_are_sent_apart() -> None:
    shadow = make_sendable_name("files.read")
    fits = {"type": "object", "properties": {}}
    texts = tuple(tool(name, fits) for name in ("files.read", shadow, "files/read"))
    fitted = fit_tools(texts)
    first, second, third = (json.loads(text)["function"]["name"] for text in fitted.texts)
    assert (second, fitted.texts[1]) == (shadow, texts[1]), "a name that can be sent is sent to the byte"
    assert len({first, second, third}) == 3
    assert fitted.names == {first: "files.read", third: "files/read"}


def test_definitions_that_fit_are_sent_to_the_byte() -> None:
    catalog = get_declared_catalog()
    own = catalog.render_definitions(catalog.names)
    assert fit_request(asked := request(*own)) is asked
    assert fit_tools(own).texts == own


def test_a_server_that_cannot_read_a_pattern_is_asked_without(server: StrictServer) -> None:
    chat = next(one for one in WIRES if one.name == "chat")
    schema = {"type": "object", "properties": {"pattern": {"type": "string", "pattern": "^a", "format": "date"}}}
    server.faults(status(400, "failed to parse grammar: Pattern must start with '^' and end with '$'"))
    ask(provider(chat, server), request(tool("t", schema)))
    [sent] = sent_tools(server.accepted[-1])
    assert sent.schema == {"type": "object", "properties": {"pattern": {"type": "string"}}}
