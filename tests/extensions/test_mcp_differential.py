"""Our client of MCP beside that of the reference SDK: both are given the same answers of a server, and have to make the
same tools, results and errors of them. Where we mean to differ, the case says what each makes of it and why."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from support.mcp_servers import misbehaving, saying

from hermes_worker.core.tool_schemas import NO_ARGUMENTS
from hermes_worker.mcp.protocol import McpAnswer, McpError
from hermes_worker.mcp.requests import McpExchange, call_tool, list_tools
from hermes_worker.mcp.servers import WITH_SESSIONS, McpServer
from hermes_worker.mcp.sessions import McpSession

JSON, EVENTS = "application/json", "text/event-stream"
ERROR = "an error"
SELL = {"name": "sell", "inputSchema": {"type": "object"}}
OFFERED = {"tools": [SELL]}
_PATIENCE_S = 3.0


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a server answers, ``@`` being the number of the request, and what both make of it."""

    body: str
    media_type: str = JSON
    status: int = 200
    ours: Any = None
    """Where it is another one than theirs."""
    why: str = ""


def result(said: Any, **more: Any) -> Case:
    return Case(body='{"jsonrpc": "2.0", "id": @, "result": ' + json.dumps(said) + "}", **more)


def error(said: Any, **more: Any) -> Case:
    return Case(body='{"jsonrpc": "2.0", "id": @, "error": ' + json.dumps(said) + "}", **more)


def tools(*offered: Any, **more: Any) -> Case:
    return result({"tools": list(offered)}, **more)


def content(*parts: Any, **more: Any) -> Case:
    return result({"content": list(parts)}, **more)


def text(said: Any) -> dict[str, Any]:
    return {"type": "text", "text": said}


def events(body: str, **more: Any) -> Case:
    return Case(body=body, media_type=EVENTS, **more)


SOLD = '{"jsonrpc": "2.0", "id": @, "result": {"content": [{"type": "text", "text": "sold"}]}}'
NEWS = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x"}}'
OBJECT = {"type": "object"}
ALONE = "one strange tool is no reason to be without the others"

LISTS: dict[str, Case] = {
    "plain": tools(SELL),
    "none": tools(),
    "described": tools({**SELL, "description": "Sell."}),
    "null description": tools({**SELL, "description": None}),
    "titled": tools({**SELL, "title": "Sale", "annotations": {"readOnlyHint": True}}),
    "unknown members": tools({**SELL, "x-own": [1, {"a": None}], "icons": []}),
    "schema with properties": tools(
        {"name": "a", "inputSchema": {**OBJECT, "properties": {"p": {"type": "integer"}}, "required": ["p"]}}
    ),
    "schema with references": tools({"name": "a", "inputSchema": {**OBJECT, "$defs": {"x": {"type": "null"}}}}),
    "output schema": tools({**SELL, "outputSchema": OBJECT}),
    "dots and slashes": tools({"name": "a.b/c", "inputSchema": OBJECT}),
    "several": tools(SELL, {"name": "buy", "inputSchema": OBJECT}),
    "description in other letters": tools({**SELL, "description": "売る \U0001f600 \u202e"}),
    "null cursor": result({"tools": [SELL], "nextCursor": None}),
    "list in events": events('data: {"jsonrpc": "2.0", "id": @, "result": {"tools": []}}\n\n'),
    "no list": result({}),
    "list of another kind": result({"tools": {"sell": SELL}}),
    "null": result(None),
    "refused": error({"code": -32601, "message": "no such method"}),
    "html": Case(body="<html>", media_type="text/html"),
    "html 502": Case(body="<html>", media_type="text/html", status=502),
    "no schema": tools(SELL, {"name": "a"}, ours=[("a", "", NO_ARGUMENTS), ("sell", "", OBJECT)], why=ALONE),
    "a number as name": tools(SELL, {"name": 3, "inputSchema": OBJECT}, ours=[("sell", "", OBJECT)], why=ALONE),
    "text as schema": tools(
        SELL, {"name": "a", "inputSchema": "{}"}, ours=[("a", "", NO_ARGUMENTS), ("sell", "", OBJECT)], why=ALONE
    ),
    "null as tool": tools(SELL, None, ours=[("sell", "", OBJECT)], why=ALONE),
    "schema of a text": tools(
        SELL,
        {"name": "a", "inputSchema": {"type": "string"}},
        ours=[("sell", "", OBJECT)],
        why="no provider of models takes arguments that are no object",
    ),
    "name in other letters": tools(SELL, {"name": "verkäufe", "inputSchema": OBJECT}),
    "name with a space": tools(SELL, {"name": "a b", "inputSchema": OBJECT}),
    "twice": tools(
        SELL,
        {**SELL, "description": "Another one."},
        ours=[("sell", "", OBJECT)],
        why="a name means one tool, and that is the first",
    ),
    "very long": tools(
        SELL,
        {"name": "a", "description": "x" * 60_000, "inputSchema": OBJECT},
        ours=[("sell", "", OBJECT)],
        why="a definition goes to a model at each turn, so it has a limit",
    ),
}

CALLS: dict[str, Case] = {
    "text": content(text("sold")),
    "texts": content(text("one"), text("two")),
    "other letters": content(text("売った \U0001f600")),
    "an error of the tool": result({"content": [text("no paper")], "isError": True}),
    "empty": content(),
    "structured beside text": result({"content": [text("{}")], "structuredContent": {"sold": 3}}),
    "picture": content({"type": "image", "data": "aGk=", "mimeType": "image/png"}),
    "sound": content({"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}),
    "embedded text": content({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}),
    "embedded file": content({"type": "resource", "resource": {"uri": "file:///a", "blob": "aGk="}}),
    "meta": result({"content": [text("sold")], "_meta": {"a": 1}}),
    "unknown member": result({"content": [text("sold")], "x-own": 1}),
    "annotated": content({**text("sold"), "annotations": {"audience": ["user"], "priority": 0.5}}),
    "refused": error({"code": -32602, "message": "no such tool"}),
    "internal": error({"code": -32603, "message": "broken"}),
    "code of its own": error({"code": 4711, "message": "no", "data": {"a": 1}}),
    "null result": result(None),
    "text as result": result("sold"),
    "list as result": result([text("sold")]),
    "content of another kind": result({"content": "sold"}, ours=(False, ""), why="a result of any shape is text"),
    "half": Case(body=SOLD[:-9]),
    "no body": Case(body=""),
    "broken event": events("data: {\n\n"),
    "html": Case(body="<html>", media_type="text/html"),
    "html 404": Case(body="<html>", media_type="text/html", status=404),
    "html 502": Case(body="<html>", media_type="text/html", status=502),
    "accepted": Case(body="", status=202),
    "another's": Case(body=SOLD.replace("@", "@1")),
    "in an event": events(f"data: {SOLD}\n\n"),
    "named event": events(f"event: message\nid: 1\ndata: {SOLD}\n\n"),
    "comments": events(f": begun\n\n:\n\ndata: {SOLD}\n\n"),
    "carriage returns": events(f": begun\r\n\r\ndata: {SOLD}\r\n\r\n"),
    "returns alone": events(f"data: {SOLD}\r\r"),
    "lines": events("".join(f"data: {line}\n" for line in SOLD.replace(", ", ",\n").splitlines()) + "\n"),
    "no space": events(f"data:{SOLD}\n\n"),
    "news first": events(f"data: {NEWS}\n\ndata: {SOLD}\n\n"),
    "other events": events(f"event: endpoint\ndata: /x\n\ndata: {SOLD}\n\n"),
    "unknown fields": events(f"x: y\nretry: 5\ndata: {SOLD}\n\n"),
    "answers twice": events(f"data: {SOLD}\n\ndata: {SOLD.replace('sold', 'again')}\n\n"),
    "parameter of the type": Case(body=f"data: {SOLD}\n\n", media_type="text/event-stream; charset=utf-8"),
    "byte order mark": events(
        f"\ufeffdata: {SOLD}\n\n", ours=(False, "sold"), why="the standard of events lets a stream begin with one"
    ),
    "empty stream": events(""),
    "only news": events(f"data: {NEWS}\n\n"),
    "cut in the event": events(f"data: {SOLD[:40]}"),
}


Made = Any
Work = Callable[[Client], Awaitable[Made]]


def server_of(case: Case, method: str) -> Callable[[Any], None]:
    """It answers ``method`` as the case has it, and what comes before as it should."""

    def reply(handler: Any) -> None:
        asked, number = handler.said.get("method", handler.command), json.dumps(handler.said.get("id"))
        if asked == method:
            saying(case.status, case.body.replace("@", number).encode(), case.media_type)(handler)
        elif asked == "initialize":
            told = {"protocolVersion": WITH_SESSIONS, "capabilities": {"tools": {}}, "serverInfo": _NAMED}
            saying(200, result(told).body.replace("@", number).encode())(handler)
        elif asked == "tools/list":
            saying(200, result(OFFERED).body.replace("@", number).encode())(handler)
        else:
            saying(405 if asked == "GET" else 202, b"")(handler)

    return reply


_NAMED = {"name": "desk", "version": "1"}


def of_sdk(url: str, work: Work) -> Made:
    async def run() -> Made:
        async with httpx2.AsyncClient(timeout=_PATIENCE_S) as http:
            transport = streamable_http_client(url, http_client=http)
            async with Client(transport, mode="legacy", read_timeout_seconds=_PATIENCE_S, cache=None) as client:
                try:
                    return await work(client)
                except Exception:
                    return ERROR

    try:
        return asyncio.run(run())
    except BaseExceptionGroup:  # what its tasks could not hand to the call
        return ERROR


async def listed_by_sdk(client: Client) -> Made:
    found = await client.list_tools()
    return [(one.name, one.description or "", one.input_schema) for one in found.tools]


async def called_by_sdk(client: Client) -> Made:
    found = await client.call_tool("sell", {})
    parts = [_part(one.model_dump(mode="json", by_alias=True, exclude_none=True)) for one in found.content]
    return (bool(found.is_error), "\n".join(parts))


def _part(one: Mapping[str, Any]) -> str:
    held = one.get("resource", one)
    return str(held["text"]) if "text" in held else f"<{held.get('data') or held.get('blob')}>"


def listed_by_us(url: str) -> Made:
    try:
        found = list_tools(McpServer(url=url, protocol=WITH_SESSIONS, timeout_s=_PATIENCE_S), None)
    except McpError:
        return ERROR
    return [(str(one["name"]), one.get("description") or "", one["inputSchema"]) for one in found]


def called_by_us(url: str) -> Made:
    server = McpServer(url=url, protocol=WITH_SESSIONS, timeout_s=_PATIENCE_S)
    asking = McpExchange(server=server, token=None, ends_at=time.monotonic() + _PATIENCE_S, session=McpSession(url=url))
    try:
        answer = call_tool(asking, "sell", {}, "key", threading.Event())
    except McpError:
        return ERROR
    assert isinstance(answer, McpAnswer)
    said = answer.text.removeprefix("(an empty result)")
    for file in answer.files:
        said = said.replace(file.mark, f"<{base64.b64encode(file.content).decode()}>")
    return (answer.is_error, said)


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS)
def test_both_make_the_same_tools_of_a_list(case: Case) -> None:
    with misbehaving(server_of(case, "tools/list")) as (url, _):
        theirs, ours = of_sdk(url, listed_by_sdk), listed_by_us(url)
    compare(case, sorted(theirs, key=str) if isinstance(theirs, list) else theirs, ours)


@pytest.mark.parametrize("case", CALLS.values(), ids=CALLS)
def test_both_make_the_same_of_the_answer_to_a_call(case: Case) -> None:
    with misbehaving(server_of(case, "tools/call")) as (url, _):
        theirs, ours = of_sdk(url, called_by_sdk), called_by_us(url)
    compare(case, theirs, ours)


def compare(case: Case, theirs: Made, ours: Made) -> None:
    if case.why:
        assert ours == case.ours, (ours, theirs)
        assert ours != theirs, "there is no difference any more: take the reason away"
    else:
        assert ours == theirs


def test_the_set_is_large() -> None:
    assert len(LISTS) + len(CALLS) >= 50
