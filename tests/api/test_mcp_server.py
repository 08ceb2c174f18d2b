"""``/mcp``: stock clients of the reference SDK against running servers, and requests that are none of theirs."""

from __future__ import annotations

import asyncio
import base64
import json
import multiprocessing
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal

import httpx
import httpx2
import mcp_types
import pytest
from mcp.client.client import Client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import TypeAdapter
from serving import KEY, PATIENCE_S, Served, served, until
from support.questions import open_wait
from support.store import ANSWER, Store, asks
from test_artifacts_api import left
from test_control import waiting

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import RunStatus, WaitKind
from hermes_worker.settings import BrokerSettings, DatabaseSettings, ModelSettings, Secret, ServerSettings, Settings
from hermes_worker.store.access.audit import AuditLog
from hermes_worker.store.access.principals import Tenants

TASKS = "io.modelcontextprotocol/tasks"
STATELESS = "2026-07-28"
PREFIX = b"io.modelcontextprotocol/"
OLD = "2025-11-25"


_ANY: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


class _NewTask(mcp_types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str


class _TasksOfClient(ClientExtension):
    """The extension as a client writes it that keeps the id and asks later."""

    identifier = TASKS

    def claims(self) -> list[ResultClaim[_NewTask]]:
        return [ResultClaim(result_type="task", model=_NewTask, resolve=self._kept)]

    async def _kept(self, task: _NewTask, context: ClaimContext) -> mcp_types.CallToolResult:
        return mcp_types.CallToolResult(content=[mcp_types.TextContent(type="text", text=task.task_id)])


class _TaskRequest(mcp_types.Request[dict[str, Any], str]):
    name_param = "taskId"


def connected(
    url: str, key: str, work: Callable[[Client], Awaitable[Any]], *, mode: str = "auto", asks_people: bool = True
) -> Any:
    """What ``work`` found out with a client of the SDK."""

    async def elicit(context: Any, params: Any) -> Any:
        raise AssertionError("nobody asks outside of a task")

    async def run() -> Any:
        async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as http:
            client = Client(
                streamable_http_client(f"{url}/mcp", http_client=http),
                mode=mode,
                extensions=[_TasksOfClient()] if mode != "legacy" else None,
                elicitation_callback=elicit if asks_people else None,
            )
            async with client:
                return await work(client)

    return asyncio.run(run())


async def of_task(client: Client, method: str, task_id: str, **params: Any) -> dict[str, Any]:
    request = _TaskRequest(method=method, params={"taskId": task_id, **params})
    return dict(await client.session.send_request(request, _ANY))


def text_of(result: Any) -> str:
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", ["auto", "legacy", STATELESS])
def test_a_stock_client_finds_the_tools_and_calls_them(api: Served, store: Store, mode: str) -> None:
    async def work(client: Client) -> Any:
        tools = [tool.name for tool in (await client.list_tools()).tools]
        begun = await client.call_tool("run_agent", {"input": "hello"})
        run_id = begun.structured_content["run_id"] if begun.structured_content else text_of(begun)
        await asyncio.to_thread(store.answer, run_id, ModelReply(text="Hello you", usage=Usage(input=1, output=1)))
        return tools, await client.call_tool("get_run", {"run_id": run_id, "wait_s": 20})

    tools, seen = connected(api.url, api.key, work, mode=mode)
    assert sorted(tools) == ["answer", "get_run", "run_agent", "steer", "stop"]
    assert (text_of(seen), seen.is_error) == ("Hello you", False)
    assert seen.structured_content["status"] == "completed"


BINARY = b"\x00\xff\xfe"
SKILL = "---\nname: tidy\ndescription: Tidy up a room.\n---\nBegin with the floor.\n"


@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_a_stock_client_reads_runs_sessions_and_artifacts_and_gets_skills(
    api: Served, settings: Settings, mode: str
) -> None:
    folder = settings.home / "skills" / "house" / "tidy"
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text(SKILL)
    run_id = left(api, ("a.csv", b"a,b"), ("z.bin", BINARY))

    async def work(client: Client) -> Any:
        listed = [one.uri for one in (await client.list_resources()).resources]
        templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
        run = json.loads((await client.read_resource(f"hermes://runs/{run_id}")).contents[0].text)
        session = json.loads((await client.read_resource(f"hermes://sessions/{run_id}")).contents[0].text)
        parts = [(await client.read_resource(one["uri"])).contents[0] for one in run["artifacts"]]
        for wrong in ("hermes://runs/run_none", "hermes://artifacts/x", "file:///etc/passwd"):
            with pytest.raises(MCPError, match="no resource"):
                await client.read_resource(wrong)
        prompts = [(one.name, one.description) for one in (await client.list_prompts()).prompts]
        said = await client.get_prompt("tidy", {"input": "The kitchen."})
        with pytest.raises(MCPError, match="no prompt"):
            await client.get_prompt("dance")
        return listed, templates, run, session, parts, prompts, said.messages[0].content.text

    listed, templates, run, session, parts, prompts, said = connected(api.url, api.key, work, mode=mode)
    assert {f"hermes://runs/{run_id}", f"hermes://sessions/{run_id}"} <= set(listed)
    assert len(templates) == 3
    assert (run["status"], run["output"]) == ("completed", ANSWER.text)
    assert [row["role"] for row in session["messages"]] == ["user", "assistant"]
    assert parts[0].text == "a,b" and base64.b64decode(parts[1].blob) == BINARY
    assert prompts == [("tidy", "Tidy up a room.")]
    assert "Begin with the floor." in said and said.endswith("The kitchen.")


def _serve_until_killed(home: Path, database: str, broker: str | None, told: Connection) -> None:
    settings = Settings(
        home=home,
        database=DatabaseSettings(url=database),
        broker=BrokerSettings(url=broker),
        model=ModelSettings(provider="scripted"),
        server=ServerSettings(port=0, key=Secret(KEY)),
    )
    with served(settings) as running:
        told.send(running.url)
        threading.Event().wait()


@contextmanager
def replica_of_its_own(settings: Settings) -> Iterator[tuple[str, SpawnProcess]]:
    """A server in a process that can be killed."""
    spawning = multiprocessing.get_context("spawn")
    hears, tells = spawning.Pipe(duplex=False)
    where = (settings.home, settings.database_url, settings.broker.url)
    process = spawning.Process(target=_serve_until_killed, args=(*where, tells), daemon=True)
    process.start()
    try:
        assert hears.poll(60), "the server did not start"
        yield hears.recv(), process
    finally:
        process.kill()
        process.join()


def test_a_task_begun_with_a_server_that_was_killed_is_found_by_another(
    serve: Callable[..., Served], keyed: Settings
) -> None:
    second = serve(keyed)
    store = Store.over(second.client.database)
    with replica_of_its_own(keyed) as (first_url, process):
        task_id = connected(first_url, KEY, lambda client: _begin(client, "hello"))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL

    async def look(client: Client) -> Any:
        return await of_task(client, "tasks/get", task_id)

    working = connected(second.url, KEY, look)
    assert (working["status"], working["taskId"], working["ttlMs"]) == ("working", task_id, None)
    store.answer(task_id, ModelReply(text="Hello you", usage=Usage(input=1, output=1)))
    done = connected(second.url, KEY, look)
    assert done["status"] == "completed"
    assert done["result"]["content"] == [{"type": "text", "text": "Hello you"}]


async def _begin(client: Client, words: str, **more: Any) -> str:
    return text_of(await client.call_tool("run_agent", {"input": words, **more}))


def test_a_task_asks_its_client_and_is_answered_and_cancelled(api: Served, store: Store) -> None:
    approval, question = waiting(store), waiting(store, WaitKind.INPUT)

    async def work(client: Client) -> Any:
        asked = await of_task(client, "tasks/get", approval)
        [(key, request)] = asked["inputRequests"].items()
        told = {"wait-999": {"action": "accept"}, key: {"action": "accept", "content": {"choice": "once"}}}
        await of_task(client, "tasks/update", approval, inputResponses=told)
        await of_task(client, "tasks/update", approval, inputResponses=told)
        words = await of_task(client, "tasks/get", question)
        [other] = words["inputRequests"]
        await of_task(client, "tasks/update", question, inputResponses={other: {"action": "decline"}})
        await of_task(client, "tasks/cancel", approval)
        return request, await of_task(client, "tasks/get", approval)

    request, after = connected(api.url, api.key, work)
    assert request["method"] == "elicitation/create"
    assert "rm -r x" in request["params"]["message"]
    assert after["status"] == "cancelled"
    assert "declined to answer" in store.results(question)[0]
    acts = [row.act for row in AuditLog(api.client.database).list_actions("default", limit=20)]
    assert {"approval.answer", "question.answer", "run.stop"} <= set(map(str, acts))


def test_a_client_that_cannot_ask_its_person_is_told_what_the_run_waits_for(api: Served, store: Store) -> None:
    run_id = waiting(store, WaitKind.INPUT)

    async def work(client: Client) -> Any:
        seen = await of_task(client, "tasks/get", run_id)
        unnamed = await client.call_tool("answer", {"run_id": run_id, "text": "the first"})
        assert text_of(unnamed) == ("Missing 'wait_id': an answer names the question seen, by its 'id' in get_run.")
        named = {"run_id": run_id, "wait_id": open_wait(store.database, run_id)}
        answered = await client.call_tool("answer", {**named, "text": "the second"})
        again = await client.call_tool("answer", {**named, "text": "the third"})
        return seen, answered, again

    seen, answered, again = connected(api.url, api.key, work, asks_people=False)
    assert seen["status"] == "working"
    assert "Which?" in seen["statusMessage"]
    assert not answered.is_error
    assert again.is_error
    assert "the second" in store.results(run_id)[0]


def test_a_run_is_steered_and_stopped_and_begun_once_for_a_key(api: Served, store: Store) -> None:
    meta: Any = {"hermes-worker/idempotency-key": "one"}

    async def work(client: Client) -> Any:
        began = [await client.call_tool("run_agent", {"input": "hello"}, meta=meta) for _ in range(2)]
        other = await client.call_tool("run_agent", {"input": "bye"}, meta=meta)
        run_id = text_of(began[0])
        await asyncio.to_thread(store.ask_tools, run_id, asks(Replay.ONCE))
        steered = await client.call_tool("steer", {"run_id": run_id, "text": "look left"})
        stopped = [await client.call_tool("stop", {"run_id": run_id}) for _ in range(2)]
        return {text_of(one) for one in began}, other, steered, stopped

    ids, other, steered, stopped = connected(api.url, api.key, work)
    assert len(ids) == 1
    assert "idempotency key" in text_of(other)
    assert not steered.is_error
    assert [one.is_error for one in stopped] == [False, False]
    assert store.status(*ids) in (RunStatus.CANCELLED, RunStatus.STOPPING)


# --- whose a run is --------------------------------------------------------------------------------------------------


def test_a_run_of_another_tenant_is_unknown_in_the_same_words(api: Served, store: Store) -> None:
    tenants = Tenants(api.client.database)
    tenants.create_tenant("acme")
    key = tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token
    theirs = waiting(store)

    async def work(client: Client) -> Any:
        said = []
        for run_id in (theirs, "run_none"):
            for tool, more in (("get_run", {}), ("stop", {}), ("steer", {"text": "x"}), ("answer", {"choice": "once"})):
                found = await client.call_tool(tool, {"run_id": run_id, **more})
                assert found.is_error
                said.append(text_of(found).replace(run_id, "ID"))
            for method in ("tasks/get", "tasks/update", "tasks/cancel"):
                with pytest.raises(MCPError) as refused:
                    await of_task(client, method, run_id, inputResponses={})
                said.append(f"{refused.value.error.code} {refused.value.error.message}".replace(run_id, "ID"))
        return said

    assert set(connected(api.url, key, work)) == {"Run not found: ID", "-32602 Run not found: ID"}
    assert store.status(theirs) is RunStatus.WAITING_FOR_APPROVAL


def test_each_tool_needs_the_scope_of_its_route(api: Served, store: Store) -> None:
    run_id = waiting(store)
    wait_id = open_wait(store.database, run_id)
    tenants = Tenants(api.client.database)
    reading = tenants.create_key("default", "reader", [KeyScope.RUNS_READ]).token
    writing = tenants.create_key("default", "writer", [KeyScope.RUNS_READ, KeyScope.RUNS_WRITE]).token

    async def work(client: Client) -> Any:
        calls = (
            *(("run_agent", {"input": "x"}), ("steer", {"run_id": run_id, "text": "x"}), ("stop", {"run_id": run_id})),
            *(("answer", {"run_id": run_id, "choice": "once", "wait_id": wait_id}), ("get_run", {"run_id": run_id})),
        )
        return [(name, (await client.call_tool(name, arguments)).is_error) for name, arguments in calls]

    refused = dict(connected(api.url, reading, work))
    assert refused == {"run_agent": True, "steer": True, "stop": True, "answer": True, "get_run": False}
    assert store.status(run_id) is RunStatus.WAITING_FOR_APPROVAL
    assert dict(connected(api.url, writing, work))["answer"]
    blind = tenants.create_key("default", "approver", [KeyScope.APPROVE]).token
    assert ask(api, "tools/list", key=blind).status_code == 403


# --- requests that are not as they should be -------------------------------------------------------------------------


def ask(
    api: Served, method: str, *, key: str | None = None, headers: Mapping[str, str] | None = None, **params: Any
) -> httpx.Response:
    meta = {
        "io.modelcontextprotocol/protocolVersion": STATELESS,
        "io.modelcontextprotocol/clientCapabilities": {},
        **params.pop("_meta", {}),
    }
    named = {"Mcp-Name": str(params["name"])} if "name" in params else {}
    sent = {
        "MCP-Protocol-Version": STATELESS,
        "Mcp-Method": method,
        **named,
        **({"Authorization": f"Bearer {key}"} if key else {}),
        **(headers or {}),
    }
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
    return api.http.post("/mcp", json=body, headers=sent)


def code_of(answer: httpx.Response) -> tuple[int, int]:
    return answer.status_code, answer.json()["error"]["code"]


def test_a_request_says_the_same_in_its_headers_and_its_body(api: Served) -> None:
    assert ask(api, "server/discover").json()["result"]["capabilities"]["extensions"] == {TASKS: {}}
    assert code_of(ask(api, "tools/list", headers={"Mcp-Method": "tools/call"})) == (400, -32020)
    assert code_of(ask(api, "tools/call", headers={"Mcp-Name": "stop"}, name="get_run")) == (400, -32020)
    encoded = {"Mcp-Name": "=?base64?Z2V0X3J1bg==?="}
    assert ask(api, "tools/call", headers=encoded, name="get_run", arguments={}).status_code == 200
    assert code_of(ask(api, "tools/list", headers={"MCP-Protocol-Version": "2099-01-01"})) == (400, -32020)
    unknown = {"io.modelcontextprotocol/protocolVersion": "2099-01-01"}
    refused = ask(api, "tools/list", headers={"MCP-Protocol-Version": "2099-01-01"}, _meta=unknown)
    assert code_of(refused) == (400, -32022)
    assert refused.json()["error"]["data"]["supported"][0] == STATELESS
    bare = ask(api, "tools/list", _meta={"io.modelcontextprotocol/clientCapabilities": None})
    assert code_of(bare) == (400, -32602)
    assert code_of(ask(api, "initialize")) == (404, -32601)
    assert code_of(ask(api, "tools/call", name="terminal", arguments={})) == (400, -32602)
    assert code_of(ask(api, "tasks/get", taskId="run_x", headers={"Mcp-Name": "run_x"})) == (400, -32021)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        *((b"", -32700), (b"{", -32700), (b"[" * 100_000, -32700), (b"\xff", -32700), (b'{"a": NaN', -32700)),
        *((b"[]", -32600), (b"3", -32600), (b"null", -32600), (b"{}", -32600)),
        *((b'{"jsonrpc": "2.0", "id": true, "method": "ping"}', -32600), (b'{"jsonrpc": "1.0", "id": 1}', -32600)),
        *((b'{"jsonrpc": "2.0", "id": [], "method": "x"}', -32600), (b'{"jsonrpc": "2.0", "id": 1}', -32600)),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": []}', -32602),
        (b'{"jsonrpc": "2.0", "id": 1, "method": "x", "params": {"_meta": {"%sprotocolVersion": 3}}}' % PREFIX, -32602),
    ],
)  # fmt: skip
def test_a_body_that_is_no_request_is_an_error_of_the_protocol(api: Served, body: bytes, code: int) -> None:
    answer = api.http.post("/mcp", content=body, headers={"Content-Type": "application/json"})
    assert code_of(answer) == (400, code)


@pytest.mark.parametrize(
    "arguments",
    [
        *({}, {"run_id": 3}, {"run_id": ""}, {"run_id": "x" * 99}, {"run_id": "run_\x00"}, {"run_id": "a", "b": 1}),
        *({"run_id": "r", "wait_s": 9e9}, {"run_id": "r", "wait_s": "1"}, {"run_id": ["r"]}, {"run_id": None}),
    ],
)
def test_arguments_that_do_not_fit_are_told_in_the_result(api: Served, arguments: Mapping[str, Any]) -> None:
    found = ask(api, "tools/call", name="get_run", arguments=arguments).json()["result"]
    assert found["isError"] is True
    assert len(found["content"][0]["text"]) < 300


def test_an_older_client_needs_no_session_and_gets_no_stream(api: Served) -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": "1999-01-01"}}
    greeted = api.http.post("/mcp", json=hello)
    assert greeted.json()["result"]["protocolVersion"] == OLD
    assert "mcp-session-id" not in greeted.headers
    ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert api.http.post("/mcp", json=ready).status_code == 202
    other = api.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe"})
    assert code_of(other) == (200, -32601), "a 404 would end the session of such a client"
    for method in ("GET", "DELETE"):
        assert api.http.request(method, "/mcp").status_code == 405


def test_pages_of_strangers_and_names_of_strangers_are_refused(serve: Callable[..., Served], keyed: Settings) -> None:
    api = serve(replace(keyed, server=replace(keyed.server, cors_origins=("http://ours.example",))))
    assert ask(api, "tools/list", key=KEY, headers={"Origin": "http://evil.example"}).status_code == 403
    assert ask(api, "tools/list", key=KEY, headers={"Host": "evil.example"}).status_code == 403
    assert ask(api, "tools/list", key=KEY, headers={"Origin": "http://ours.example"}).status_code == 200
    assert ask(api, "tools/list", key=KEY, headers={"Host": "ours.example"}).status_code == 200
    assert httpx.post(f"{api.url}/mcp", json={}, timeout=PATIENCE_S).status_code == 401


def test_a_call_waits_for_the_end_of_a_run_no_longer_than_it_says(api: Served, store: Store) -> None:
    run_id = api.submit()
    found = ask(api, "tools/call", name="get_run", arguments={"run_id": run_id, "wait_s": 0.2}).json()["result"]
    assert found["structuredContent"]["status"] in ("queued", "running")
    assert until(lambda: store.status(run_id) is not None, "the run is there")
