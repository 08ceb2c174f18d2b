"""Servers that answer in streams: those of revision 2024-11-05, streams that are taken up again, and questions for a
person in the middle of one. Judged by the servers of the reference SDK."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.streamable_http import EventMessage, EventStore
from pydantic import BaseModel
from support.mcp_calls import McpCalls, mcp_calls
from support.mcp_servers import answer, misbehaving, saying, serving_app
from support.patience import PATIENCE_S
from support.store import check, opened

from hermes_worker.agent.tools.base import ToolContext, ToolResult
from hermes_worker.core.remote_tasks import RemoteTask
from hermes_worker.core.run import CallStatus, RunStatus, WaitKind
from hermes_worker.mcp.protocol import McpError
from hermes_worker.mcp.requests import list_tools, negotiate_protocol
from hermes_worker.mcp.response_reader import ANSWER_BYTES_MAX
from hermes_worker.mcp.servers import WITH_EVENT_STREAM, WITH_SESSIONS, McpServer, approve_tools
from hermes_worker.mcp.source import McpSource
from hermes_worker.store.runs.waits import Waits

CALLED: list[str] = []


class KeptEvents(EventStore):
    """All events of a server, by their numbers."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, Any]] = []

    async def store_event(self, stream_id: str, message: Any) -> str:
        self.kept.append((stream_id, message))
        return f"e{len(self.kept)}"

    async def replay_events_after(self, last_event_id: str, send_callback: Any) -> str | None:
        first = int(last_event_id[1:])
        stream_id = self.kept[first - 1][0]
        for number, (stream, message) in enumerate(self.kept[first:], first + 1):
            if stream == stream_id and message is not None:
                await send_callback(EventMessage(message, f"e{number}"))
        return stream_id


class Copies(BaseModel):
    copies: int


def desk() -> MCPServer:
    server = MCPServer("desk")

    @server.tool()
    def look(what: str) -> str:
        """Look at something."""
        CALLED.append(what)
        return f"{what} is there"

    @server.tool()
    def keep(what: str) -> str:
        """Keep something."""
        raise ValueError(f"{what} does not fit")

    @server.tool()
    async def order(page: int, context: Context) -> str:  # type: ignore[type-arg]
        """Order copies, of which a person is asked how many."""
        CALLED.append(f"order {page}")
        said = await context.elicit(f"How many copies of page {page}?", Copies)
        CALLED.append(said.action)
        return f"{said.data.copies} of page {page}" if said.action == "accept" else f"nothing: {said.action}"

    @server.tool()
    async def twice(context: Context) -> str:  # type: ignore[type-arg]
        """Ask two questions."""
        first = await context.elicit("First?", Copies)
        second = await context.elicit("Second?", Copies)
        assert first.action == second.action == "accept"
        return f"{first.data.copies} and {second.data.copies}"

    @server.tool()
    async def slow(context: Context) -> str:  # type: ignore[type-arg]
        """Leave the caller for a while, as a server that is polled."""
        CALLED.append("slow")
        await context.close_sse_stream()
        return "it took a while"

    return server


@contextmanager
def with_sessions(**options: Any) -> Iterator[McpServer]:
    with serving_app(desk().streamable_http_app(**options)) as url:
        server = McpServer(url=f"{url}/mcp", protocol=WITH_SESSIONS, timeout_s=20)
        yield approve_tools(server, list_tools(server, None))


@pytest.fixture
def resumable() -> Iterator[McpServer]:
    CALLED.clear()
    with with_sessions(event_store=KeptEvents(), retry_interval=50) as server:
        yield server


def called(server: McpServer, context: ToolContext, tool: str, **arguments: Any) -> ToolResult:
    """On a worker that has nothing but what was kept."""
    return McpSource("desk", server, None).call(f"mcp_desk_{tool}", arguments, context)


def asked(result: ToolResult) -> str:
    assert result.question is not None and result.task is not None, result.text
    return str(result.question.request["question"])


def with_answer(context: ToolContext, before: ToolResult, said: str) -> ToolContext:
    assert before.task is not None
    return replace(context, task=replace(RemoteTask.from_json(before.task.to_json()), answer=said))


# --- questions in the middle of a call -------------------------------------------------------------------------------


def test_a_question_in_an_open_stream_parks_the_call_and_its_answer_goes_on(
    resumable: McpServer, context: ToolContext
) -> None:
    waiting = called(resumable, context, "order", page=7)
    assert "How many copies of page 7?" in asked(waiting)
    assert CALLED == ["order 7"]
    done = called(resumable, with_answer(context, waiting, "3"), "order", page=7)
    assert (done.text, done.is_error) == ("3 of page 7", False)
    assert CALLED == ["order 7", "accept"], "the call itself was sent once"
    session = done.session_updates["mcp-session:desk"]
    assert session["asks"] == "yes"
    kept = replace(context, session=dict(done.session_updates))
    assert called(resumable, kept, "look", what="it").text == "it is there", "another call of the same session"


def test_what_the_answer_does_not_fit_is_declined(resumable: McpServer, context: ToolContext) -> None:
    waiting = called(resumable, context, "order", page=7)
    assert called(resumable, with_answer(context, waiting, "some"), "order", page=7).text == "nothing: decline"


def test_a_call_may_ask_more_than_once(resumable: McpServer, context: ToolContext) -> None:
    first = called(resumable, context, "twice")
    second = called(resumable, with_answer(context, first, "3"), "twice")
    assert "Second?" in asked(second)
    assert called(resumable, with_answer(context, second, "4"), "twice").text == "3 and 4"


def test_two_calls_of_one_session_may_wait_for_their_persons_at_once(
    resumable: McpServer, context: ToolContext
) -> None:
    begun = called(resumable, context, "look", what="it")
    shared = replace(context, session=dict(begun.session_updates))
    one, other = called(resumable, shared, "order", page=1), called(resumable, shared, "order", page=2)
    assert called(resumable, with_answer(shared, other, "5"), "order", page=2).text == "5 of page 2"
    assert called(resumable, with_answer(shared, one, "6"), "order", page=1).text == "6 of page 1"


def test_a_server_that_was_started_anew_has_forgotten_the_question(context: ToolContext) -> None:
    with with_sessions(event_store=KeptEvents()) as server:
        waiting = called(server, context, "order", page=7)
    with with_sessions(event_store=KeptEvents()) as other:
        place = json.loads(waiting.task.server_state or "")  # type: ignore[union-attr]
        place["session"]["url"] = other.url
        moved = replace(waiting, task=replace(waiting.task, server_state=json.dumps(place)))  # type: ignore[type-var]
        lost = called(other, with_answer(context, moved, "3"), "order", page=7)
        assert lost.is_unknown and "would not have the answer (HTTP 404)" in lost.text
        elsewhere = called(other, with_answer(context, waiting, "3"), "order", page=7)
        assert elsewhere.is_unknown and "not open any more" in elsewhere.text


@pytest.mark.parametrize("options", [{}, {"json_response": True}, {"event_store": None}], ids=str)
def test_a_server_without_event_ids_is_not_told_that_a_person_can_be_asked(
    options: dict[str, Any], context: ToolContext
) -> None:
    with with_sessions(**options) as server:
        result = called(server, context, "order", page=7)
    assert result.is_error and result.question is None
    assert "asks" not in result.session_updates.get("mcp-session:desk", {})


def test_a_question_without_an_event_id_is_refused_and_the_call_says_why(context: ToolContext) -> None:
    """A server whose first answer had ids, and whose question has none."""

    def reply(handler: Any) -> None:
        method, number = handler.said.get("method"), handler.said.get("id")
        if method == "initialize":
            told = {"protocolVersion": "2025-06-18", "capabilities": {}}
            said = json.dumps({"jsonrpc": "2.0", "id": number, "result": told})
            return saying(200, f"id: 1\ndata: {said}\n\n".encode(), "text/event-stream", **{"Mcp-Session-Id": "s"})(
                handler
            )
        if method == "tools/call":
            asking = {"jsonrpc": "2.0", "id": 9, "method": "elicitation/create", "params": {"message": "How many?"}}
            said = json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": []}})
            body = f"data: {json.dumps(asking)}\n\ndata: {said}\n\n".encode()
            return saying(200, body, "text/event-stream")(handler)
        replies.append(handler.said)
        return saying(202, b"")(handler)

    replies: list[dict[str, Any]] = []
    with misbehaving(reply) as (url, _):
        server = McpServer(url=url, protocol=WITH_SESSIONS, tools={"sell": "x"})
        result = McpSource("desk", server, None).call("mcp_desk_sell", {}, context)
    assert not result.is_error and "refused here; a person can be asked only on a stream whose events have ids" in (
        result.text
    )
    assert [one["error"]["code"] for one in replies if one.get("id") == 9] == [-32601]


@pytest.fixture
def calls(database_url: str, tmp_path: Path, resumable: McpServer) -> Iterator[McpCalls]:
    with opened(database_url) as store, mcp_calls(store, tmp_path, resumable) as made:
        yield made


def test_a_run_waits_for_a_person_and_no_worker_waits_with_it(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("order", '{"page": 7}')
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_INPUT
    [wait] = Waits(store.database).list_open(kind=WaitKind.INPUT)
    assert "How many copies of page 7?" in wait.request["question"]
    assert store.due(run_id) == []
    Waits(store.database).reply(run_id, "3", by="cli:anna")
    assert calls.go_on(run_id) is RunStatus.RUNNING
    assert "3 of page 7" in store.results(run_id)[0]
    assert CALLED == ["order 7", "accept"]
    assert list(calls.closer.poll_once().values()) == ["ended"]
    check(store)


def test_a_run_that_is_stopped_at_such_a_question_tells_its_server(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("order", '{"page": 7}')
    calls.go_on(run_id)
    store.runs.stop_tree(run_id, by="cli:anna")
    assert store.status(run_id) is RunStatus.CANCELLED
    assert len(calls.closer.poll_once()) == 1 and calls.closer.poll_once() == {}
    ends_at = time.monotonic() + PATIENCE_S
    while len(CALLED) < 2 and time.monotonic() < ends_at:
        time.sleep(0.01)
    assert CALLED == ["order 7", "cancel"]


def test_an_answer_whose_worker_dies_is_not_given_twice(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("order", '{"page": 7}')
    calls.go_on(run_id)
    Waits(store.database).reply(run_id, "3", by="cli:anna")
    dying = store.worker("dying")
    [effect] = store.due(run_id)
    assert store.calls.claim(effect, dying.pk) is not None  # type: ignore[arg-type]
    store.vanish(dying)
    store.sweep()
    [call] = store.views.list_calls(run_id)
    assert call.status is CallStatus.UNKNOWN and CALLED == ["order 7"]
    check(store)


# --- streams that are taken up again ---------------------------------------------------------------------------------


def test_a_stream_that_its_server_leaves_is_taken_up_again(resumable: McpServer, context: ToolContext) -> None:
    assert called(resumable, context, "slow").text == "it took a while"
    assert CALLED == ["slow"]


def events(*texts: str, first: int = 1) -> bytes:
    return "".join(f"id: {number}\ndata: {text}\n\n" for number, text in enumerate(texts, first)).encode()


NEWS = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {}}'
Taken = Callable[[Any, int], None]


@contextmanager
def leaving(taken: Taken, begun: bytes = events(NEWS)) -> Iterator[tuple[McpServer, list[tuple[str, str | None]]]]:
    """A server whose answer to a call ends too early, and that says the rest as ``taken`` does: given the handler and
    the number of the call. And its requests after the session began, with their ``Last-Event-ID``."""
    seen: list[tuple[str, str | None]] = []
    number = [0]

    def reply(handler: Any) -> None:
        method = handler.said.get("method", handler.command)
        if method == "initialize":
            told = answer({"protocolVersion": "2025-03-26", "capabilities": {}})
            return saying(200, told, **{"Mcp-Session-Id": "s"})(handler)
        if method == "notifications/initialized":
            return saying(202, b"")(handler)
        seen.append((method, handler.headers.get("last-event-id")))
        if method == "tools/call":
            number[0] = handler.said["id"]
            return saying(200, b"retry: 10\n" + begun, "text/event-stream", **{"Content-Length": "90000"})(handler)
        return taken(handler, number[0])

    with misbehaving(reply) as (url, _):
        yield McpServer(url=url, protocol=WITH_SESSIONS, timeout_s=3, tools={"sell": "x"}), seen


def said(number: int, text: str) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}]}})


def test_the_rest_of_a_broken_stream_is_heard_where_it_broke(context: ToolContext) -> None:
    def taken(handler: Any, number: int) -> None:
        last = int(handler.headers["last-event-id"])
        body = events(said(number, "sold"), first=4) if last == 3 else events(NEWS, first=last + 1)
        saying(200, body, "text/event-stream")(handler)

    with leaving(taken) as (server, seen):
        assert called(server, context, "sell").text == "sold"
    assert seen == [("tools/call", None), *(("GET", str(last)) for last in (1, 2, 3))]


def gone(handler: Any, _number: int) -> None:
    handler.connection.close()


@pytest.mark.parametrize(
    ("taken", "words", "looks"),
    [
        (gone, "taken up 6 times and brought nothing", 6),
        (lambda handler, _: saying(502, b"<html>", "text/html")(handler), "brought nothing", 6),
        (lambda handler, _: saying(200, b"", "text/event-stream")(handler), "brought nothing", 6),
        (lambda handler, _: saying(404, b"")(handler), "cannot be taken up again (HTTP 404)", 1),
        (lambda handler, _: saying(405, b"")(handler), "cannot be taken up again (HTTP 405)", 1),
        (lambda handler, _: saying(401, b"")(handler), "cannot be taken up again (HTTP 401)", 1),
        (lambda handler, _: saying(200, b"<html>", "text/html")(handler), "not with JSON", 1),
        (lambda handler, _: saying(200, b"id: 2\ndata: {\n\n", "text/event-stream")(handler), "broken JSON", 1),
        (lambda handler, n: saying(200, events(said(n + 1, "x"))[8:], "text/event-stream")(handler), "nothing", 6),
        (lambda handler, _: saying(200, b"retry: 999999\n\n", "text/event-stream")(handler), "took too long", 1),
    ],
    ids=["gone", "502", "empty", "404", "405", "401", "html", "broken", "another's", "late"],
)
def test_a_stream_that_cannot_be_taken_up_costs_its_call_and_no_other_is_sent(
    taken: Taken, words: str, looks: int, context: ToolContext
) -> None:
    with leaving(taken) as (server, seen):
        result = called(server, context, "sell")
    assert result.is_unknown and words in result.text, result.text
    assert seen == [("tools/call", None), *[("GET", "1")] * looks]


def test_a_stream_that_always_brings_news_ends_with_the_time_of_its_call(context: ToolContext) -> None:
    def taken(handler: Any, _number: int) -> None:
        saying(200, events(NEWS, first=int(handler.headers["last-event-id"]) + 1), "text/event-stream")(handler)

    with leaving(taken) as (server, seen):
        result = called(server.model_copy(update={"timeout_s": 1.0}), context, "sell")
    assert result.is_unknown and "took too long" in result.text
    assert [method for method, _ in seen].count("tools/call") == 1


@pytest.mark.parametrize(
    "begun", [b"data: " + NEWS.encode() + b"\n\n", b": nothing\n\n", events(NEWS) + b"id\ndata: []\n\n"]
)
def test_a_stream_without_event_ids_is_not_taken_up(begun: bytes, context: ToolContext) -> None:
    with leaving(gone, begun) as (server, seen):
        assert called(server, context, "sell").is_unknown
    assert seen == [("tools/call", None)]


# --- revision 2024-11-05 ---------------------------------------------------------------------------------------------


def test_a_server_of_the_first_revision_is_found_out_and_called(context: ToolContext) -> None:
    CALLED.clear()
    with serving_app(desk().sse_app()) as url:
        server, tools = negotiate_protocol(McpServer(url=f"{url}/sse"), None)
        assert server.protocol == WITH_EVENT_STREAM
        server = approve_tools(server, tools)
        assert sorted(server.tools) == ["keep", "look", "order", "slow", "twice"]
        assert called(server, context, "look", what="it").text == "it is there"
        failed = called(server, context, "keep", what="it")
        assert failed.is_error and not failed.is_unknown and "keep" in failed.text
        asking = called(server, context, "order", page=7)
        assert asking.is_error and asking.question is None, "it is not told that a person could be asked"
    assert CALLED == ["it", "order 7"]


def test_a_server_of_a_later_revision_is_not_asked_for_a_stream(context: ToolContext) -> None:
    with serving_app(desk().streamable_http_app()) as url, pytest.raises(McpError):
        negotiate_protocol(McpServer(url=f"{url}/nothing"), None)


class OldServer:
    """Of revision 2024-11-05, as a test wants it."""

    def __init__(self, endpoint: str = "/messages?s=1") -> None:
        self.endpoint = endpoint
        self.asked: list[str] = []
        self.tokens: set[str | None] = set()
        self.posted = 202
        self.on_call: Callable[[BaseHTTPRequestHandler, int], None] | None = None
        self.stream: Any = None

    def reply(self, handler: Any) -> None:
        self.tokens.add(handler.headers.get("authorization"))
        if handler.command == "GET":
            self.stream = handler  # before the client knows where to post
            saying(200, f"event: endpoint\ndata: {self.endpoint}\n\n".encode(), "text/event-stream")(handler)
            handler.rfile.read(1)
            return
        method = handler.said["method"]
        if handler.path == "/mcp":
            saying(405, b"")(handler)
            return
        self.asked.append(method)
        saying(self.posted if method == "tools/call" else 202, b"")(handler)
        if method == "initialize":
            self.say(json.dumps({"jsonrpc": "2.0", "id": handler.said["id"], "result": {"protocolVersion": "x"}}))
        elif method == "tools/call" and self.on_call is not None:
            self.on_call(self.stream, handler.said["id"])

    def say(self, text: str) -> None:
        self.stream.wfile.write(f"event: message\ndata: {text}\n\n".encode())

    def call(self, context: ToolContext, timeout_s: float = 3.0) -> ToolResult:
        with misbehaving(self.reply) as (url, _):
            server = McpServer(url=url, protocol=WITH_EVENT_STREAM, timeout_s=timeout_s, tools={"sell": "x"})
            return McpSource("desk", server, "s3cret").call("mcp_desk_sell", {}, context)


def test_one_call_is_one_connection_and_what_the_server_asks_is_refused(context: ToolContext) -> None:
    old = OldServer()
    replies: list[Any] = []

    def on_call(stream: Any, number: int) -> None:
        old.say('{"jsonrpc": "2.0", "id": 77, "method": "sampling/createMessage", "params": {}}')
        old.say(said(number, "sold"))

    old.on_call = on_call
    whole = old.reply

    def reply(handler: Any) -> None:
        if handler.said.get("id") == 77:
            replies.append(handler.said)
            return saying(202, b"")(handler)
        return whole(handler)

    old.reply = reply  # type: ignore[method-assign]
    result = old.call(context)
    assert result.text == "sold\n[it asked us for 'sampling/createMessage', which is refused here]"
    assert [one["error"]["code"] for one in replies] == [-32601]
    assert old.asked == ["initialize", "notifications/initialized", "tools/call"]
    assert old.tokens == {"Bearer s3cret"}
    assert dict(result.session_updates) == {}


@pytest.mark.parametrize(
    "endpoint",
    [
        *("http://127.0.0.1:9/messages", "https://127.0.0.1/messages", "//evil.example/m", "http://[", "ftp:/x"),
        *("http://user@127.0.0.1:1/", "http://127.0.0.1.evil.example/", "x" * 3_000),
    ],
)
def test_messages_are_sent_to_the_servers_own_origin_alone(endpoint: str, context: ToolContext) -> None:
    old = OldServer(endpoint)
    result = old.call(context)
    assert result.is_error and not result.is_unknown
    assert "not its own" in result.text and old.asked == []


def cut(stream: Any, _number: int) -> None:
    stream.connection.shutdown(2)


def flooding(stream: Any, _number: int) -> None:
    for _ in range(ANSWER_BYTES_MAX // 40_000 + 2):
        stream.wfile.write(b": still here\n\n" * 4_000)


@pytest.mark.parametrize(
    ("posted", "on_call", "words", "is_unknown"),
    [
        (202, cut, "without a result", True),
        (202, lambda stream, _: stream.wfile.write(b'data: {"jsonrpc": \n\n'), "broken JSON", True),
        (202, lambda stream, n: stream.wfile.write(b"data: " + b"x" * (ANSWER_BYTES_MAX + 9)), "larger than", True),
        (202, flooding, "larger than", True),
        (202, None, "did not answer", True),
        (202, lambda stream, n: stream.wfile.write(f"data: {said(n + 1, 'x')}\n\n".encode()), "did not answer", True),
        (401, None, "refused our token", False),
        (404, None, "HTTP 404", False),
        (502, None, "HTTP 502", True),
        (302, None, "HTTP 302", True),
    ],
    ids=["restart", "half", "1 GB", "endless", "silence", "another's", "401", "404", "502", "redirect"],
)
def test_a_fault_of_such_a_server_costs_one_call(
    posted: int, on_call: Any, words: str, is_unknown: bool, context: ToolContext
) -> None:
    old = OldServer()
    old.posted, old.on_call = posted, on_call
    result = old.call(context, timeout_s=4.0)
    assert result.is_error and result.is_unknown is is_unknown
    assert words in result.text, result.text
    assert old.asked.count("tools/call") == 1


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        (saying(401, b""), "refused our token"),
        (saying(404, b"<html>"), "HTTP 404"),
        (saying(502, b"<html>", "text/html"), "HTTP 502"),
        (saying(200, b"<html>", "text/html"), "not with JSON"),
        (saying(200, b"data: {}\n\n", "text/event-stream"), "does not begin with an address"),
        (saying(200, b"", "text/event-stream"), "does not begin with an address"),
    ],
)
def test_what_goes_wrong_before_the_call_is_sent_is_no_unknown_outcome(
    reply: Any, words: str, context: ToolContext
) -> None:
    with misbehaving(reply) as (url, seen):
        server = McpServer(url=url, protocol=WITH_EVENT_STREAM, timeout_s=2, tools={"sell": "x"})
        result = McpSource("desk", server, None).call("mcp_desk_sell", {}, context)
    assert result.is_error and not result.is_unknown
    assert words in result.text and len(seen) == 1


def test_such_a_server_that_offers_5000_tools_is_refused() -> None:
    old = OldServer()
    tools = [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(5_000)]

    def reply(handler: Any) -> None:
        old.reply(handler)
        if handler.said.get("method") == "tools/list" and handler.path != "/mcp":
            old.say(json.dumps({"jsonrpc": "2.0", "id": handler.said["id"], "result": {"tools": tools}}))

    with misbehaving(reply) as (url, _), pytest.raises(McpError, match="more than 500"):
        negotiate_protocol(McpServer(url=url, timeout_s=5), None)
