"""Tool calls that a server makes a task of: parked as rows, looked at by any worker, answered, cancelled, lost. And
those that it answers with questions first."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.mcp_calls import McpCalls, mcp_calls
from support.store import Store, check, opened

from hermes_worker.core.effects import RunTool
from hermes_worker.core.remote_tasks import AGE_S_MAX, FAILURES_MAX, ROUNDS_MAX, RemoteTask
from hermes_worker.core.run import CallStatus, RunStatus, WaitKind
from hermes_worker.mcp.servers import McpServer, digest_definition
from hermes_worker.store.runs.waits import Waits
from hermes_worker.tasks.remote_tasks import TaskCloser

TOOL = {"name": "print", "description": "Print it.", "inputSchema": {"type": "object"}}


class FakeTasks(BaseHTTPRequestHandler):
    """A fake of a server with the extension Tasks, from its schema: one task, in the state that the test chooses."""

    state: dict[str, Any]
    asked: list[tuple[str, dict[str, Any]]]
    status = 200
    first: list[dict[str, Any]]
    """What ``tools/call`` is answered with before it becomes a task."""
    keys: list[str]

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, params = message["method"], message["params"]
        type(self).asked.append((method, params))
        meta = params.pop("_meta")
        takes_tasks = "io.modelcontextprotocol/tasks" in meta["io.modelcontextprotocol/clientCapabilities"].get(
            "extensions", {}
        )
        self.send_response(self.status if method.startswith("tasks/") else 200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        said: dict[str, Any] = {"result": {"resultType": "complete"}}
        if method == "tools/list":
            said = {"result": {"tools": [TOOL]}}
        elif method == "tools/call" and self.first:
            self.keys.append(meta["hermes-worker/idempotency-key"])
            said = {"result": self.first.pop(0)}
        elif method == "tools/call" and takes_tasks:
            said = {"result": {"resultType": "task", "taskId": "t1", "status": "working", "pollIntervalMs": 2000}}
        elif method == "tasks/get":
            forgotten = "code" in self.state.get("error", {}) and "status" not in self.state
            said = self.state if forgotten else {"result": {"taskId": "t1", **self.state}}
        if self.status != 200 and method.startswith("tasks/"):
            self.wfile.write(b"<html>Bad Gateway</html>")
            return
        self.wfile.write(json.dumps({"jsonrpc": "2.0", "id": 1, **said}).encode())

    def log_message(self, *_: object) -> None:
        pass

    @classmethod
    def methods(cls) -> list[str]:
        return [method for method, _ in cls.asked if method != "tools/list"]


@pytest.fixture
def desk() -> Iterator[str]:
    FakeTasks.state, FakeTasks.asked, FakeTasks.status = {"status": "working"}, [], 200
    FakeTasks.first, FakeTasks.keys = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeTasks)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/mcp"
    server.shutdown()
    server.server_close()


@pytest.fixture
def calls(database_url: str, tmp_path: Path, desk: str) -> Iterator[McpCalls]:
    server = McpServer(url=desk, timeout_s=5, tools={"print": digest_definition(TOOL)})
    with opened(database_url) as store, mcp_calls(store, tmp_path, server) as made:
        yield made


def the_call(store: Store, run_id: str) -> CallStatus:
    [call] = store.views.list_calls(run_id)
    return call.status


def test_a_task_parks_its_call_and_its_end_is_the_result(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_CHILDREN
    assert store.due(run_id) == [] and the_call(store, run_id) is CallStatus.WAITING
    assert Waits(store.database).list_open() == [], "nobody is asked anything"
    check(store)
    store.sweep()
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_CHILDREN
    assert FakeTasks.methods() == ["tools/call"], "it is not time yet"
    assert calls.look(run_id, after_s=4) is RunStatus.WAITING_FOR_CHILDREN
    assert calls.look(run_id, after_s=4) is RunStatus.WAITING_FOR_CHILDREN
    FakeTasks.state = {"status": "completed", "result": {"content": [{"type": "text", "text": "printed"}]}}
    assert calls.look(run_id, after_s=10) is RunStatus.RUNNING
    assert FakeTasks.methods() == ["tools/call", "tasks/get", "tasks/get", "tasks/get"]
    [result] = store.results(run_id)
    assert "printed" in result
    assert list(calls.closer.poll_once().values()) == ["ended"]
    assert "tasks/cancel" not in FakeTasks.methods()
    store.answer(run_id)
    assert store.status(run_id) is RunStatus.COMPLETED
    check(store)


def test_a_look_whose_worker_dies_is_taken_by_another_and_nothing_begins_twice(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    store.let_pass(10)
    store.sweep()
    dying = store.worker("dying")
    [effect] = store.due(run_id)
    assert isinstance(effect, RunTool)
    assert store.calls.claim(effect, dying.pk) is not None
    store.vanish(dying)
    store.sweep()
    assert the_call(store, run_id) is CallStatus.PENDING, "a look may be repeated, whatever the tool is"
    FakeTasks.state = {"status": "completed", "result": {"content": [{"type": "text", "text": "printed"}]}}
    assert calls.go_on(run_id) is RunStatus.RUNNING
    assert FakeTasks.methods().count("tools/call") == 1
    check(store)


def test_a_question_of_a_task_is_put_to_a_person_and_the_answer_goes_back(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    form = {"type": "object", "properties": {"copies": {"type": "integer"}}}
    request = {"method": "elicitation/create", "params": {"message": "How many?", "requestedSchema": form}}
    FakeTasks.state = {"status": "input_required", "inputRequests": {"q": request}}
    assert calls.look(run_id) is RunStatus.WAITING_FOR_INPUT
    [wait] = Waits(store.database).list_open(kind=WaitKind.INPUT)
    assert "How many?" in wait.request["question"]
    check(store)
    FakeTasks.state = {"status": "working"}
    Waits(store.database).reply(run_id, "3", by="cli:anna")
    assert store.results(run_id) == []
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_CHILDREN
    [told] = [params for method, params in FakeTasks.asked if method == "tasks/update"]
    assert told["inputResponses"] == {"q": {"action": "accept", "content": {"copies": 3}}}
    FakeTasks.state = {"status": "completed", "result": {"content": [{"type": "text", "text": "3 copies"}]}}
    assert calls.look(run_id) is RunStatus.RUNNING
    assert [method for method in FakeTasks.methods() if method == "tasks/update"] == ["tasks/update"]
    check(store)


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "sampling/createMessage", "params": {}},
        {"method": "elicitation/create", "params": {"mode": "url", "message": "x", "url": "http://a/"}},
        "text",
        None,
    ],
)
def test_what_nobody_here_answers_is_declined(calls: McpCalls, request_: object) -> None:
    run_id = calls.begin("print")
    calls.go_on(run_id)
    FakeTasks.state = {"status": "input_required", "inputRequests": {"q": request_}}
    assert calls.look(run_id) is RunStatus.WAITING_FOR_CHILDREN
    [told] = [params for method, params in FakeTasks.asked if method == "tasks/update"]
    assert told["inputResponses"] == {"q": {"action": "decline"}}


FORM = {
    "method": "elicitation/create",
    "params": {"message": "How many?", "requestedSchema": {"properties": {"copies": {"type": "integer"}}}},
}
VISIT = {"method": "elicitation/create", "params": {"mode": "url", "message": "Sign here", "url": "http://a/"}}
PRINTED = {"resultType": "complete", "content": [{"type": "text", "text": "printed"}]}


def wanting(**more: Any) -> dict[str, Any]:
    return {"resultType": "input_required", **more}


def test_a_call_that_is_answered_with_questions_is_sent_once_more_with_the_answers(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print", '{"page": 1}')
    FakeTasks.first = [wanting(inputRequests={"a": FORM, "b": VISIT, "c": FORM}, requestState="s1"), PRINTED]
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_INPUT
    for answer, status in (("3", RunStatus.WAITING_FOR_INPUT), ("many", RunStatus.RUNNING)):
        [wait] = Waits(store.database).list_open(kind=WaitKind.INPUT)
        assert "How many?" in wait.request["question"]
        check(store)
        store.sweep()
        assert FakeTasks.methods() == ["tools/call"]
        Waits(store.database).reply(run_id, answer, by="cli:anna")
        assert calls.go_on(run_id) is status
    [(_, before), (_, after)] = [one for one in FakeTasks.asked if one[0] == "tools/call"]
    assert before == {"name": "print", "arguments": {"page": 1}}
    responses = {"a": {"action": "accept", "content": {"copies": 3}}, "b": {"action": "decline"}}
    assert after == {**before, "requestState": "s1", "inputResponses": {**responses, "c": {"action": "decline"}}}
    assert len(set(FakeTasks.keys)) == 2, "a server that knows the key would answer as before"
    assert "printed" in store.results(run_id)[0]
    assert list(calls.closer.poll_once().values()) == ["ended"]
    check(store)


def test_a_call_that_is_sent_once_more_may_become_a_task_or_ask_again(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    FakeTasks.first = [wanting(inputRequests={"a": FORM}), wanting(inputRequests={"d": FORM}, requestState="s2")]
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_INPUT
    Waits(store.database).reply(run_id, "3", by="cli:anna")
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_INPUT
    Waits(store.database).reply(run_id, "4", by="cli:anna")
    assert calls.go_on(run_id) is RunStatus.WAITING_FOR_CHILDREN
    [_, (_, second), (_, third)] = [one for one in FakeTasks.asked if one[0] == "tools/call"]
    assert (list(second["inputResponses"]), "requestState" in second) == (["a"], False)
    assert (list(third["inputResponses"]), third["requestState"]) == (["d"], "s2")
    FakeTasks.state = {"status": "completed", "result": PRINTED}
    assert calls.look(run_id) is RunStatus.RUNNING
    assert "printed" in store.results(run_id)[0]
    check(store)


def test_a_call_whose_worker_dies_after_the_answer_is_not_sent_again(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    FakeTasks.first = [wanting(inputRequests={"a": FORM}), PRINTED]
    calls.go_on(run_id)
    Waits(store.database).reply(run_id, "3", by="cli:anna")
    dying = store.worker("dying")
    [effect] = store.due(run_id)
    assert isinstance(effect, RunTool)
    assert store.calls.claim(effect, dying.pk) is not None
    store.vanish(dying)
    store.sweep()
    assert the_call(store, run_id) is CallStatus.UNKNOWN
    assert FakeTasks.methods() == ["tools/call"]
    check(store)


def test_a_run_that_is_stopped_at_a_question_owes_its_server_nothing(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    FakeTasks.first = [wanting(inputRequests={"a": FORM})]
    calls.go_on(run_id)
    store.runs.stop_tree(run_id, by="cli:anna")
    assert store.status(run_id) is RunStatus.CANCELLED
    assert len(calls.closer.poll_once()) == 1 and calls.closer.poll_once() == {}
    assert FakeTasks.methods() == ["tools/call"]


def test_a_server_that_wants_the_same_call_for_ever_is_left(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    FakeTasks.first = [wanting(requestState=f"s{number}") for number in range(20)]
    assert calls.go_on(run_id) is RunStatus.RUNNING
    assert the_call(store, run_id) is CallStatus.UNKNOWN
    assert FakeTasks.methods() == ["tools/call"] * (1 + ROUNDS_MAX)
    assert [params.get("requestState") for method, params in FakeTasks.asked[-2:]] == ["s6", "s7"]


@pytest.mark.parametrize(
    "result",
    [
        wanting(),
        wanting(inputRequests=[FORM]),
        wanting(inputRequests={"a": None}),
        wanting(inputRequests={"a": FORM, "b": {"method": "sampling/createMessage"}}),
        wanting(inputRequests={f"{number}": FORM for number in range(21)}),
        wanting(inputRequests={"a": FORM}, requestState={"s": 1}),
        wanting(requestState="s" * 64_001),
    ],
)
def test_what_nobody_here_is_asked_ends_the_call(calls: McpCalls, result: dict[str, Any]) -> None:
    store, run_id = calls.store, calls.begin("print")
    FakeTasks.first = [result]
    assert calls.go_on(run_id) is RunStatus.RUNNING
    assert (the_call(store, run_id), FakeTasks.methods()) == (CallStatus.UNKNOWN, ["tools/call"])


@pytest.mark.parametrize("passed_s", [60, -3_600], ids=["a minute later", "after its clock was set back"])
def test_a_stop_reaches_the_server_until_it_was_told(calls: McpCalls, passed_s: int) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    store.runs.stop_tree(run_id, by="cli:anna")
    assert store.status(run_id) is RunStatus.CANCELLED
    FakeTasks.status = 502
    now = [store.database.read_clock()]
    closer = TaskCloser(calls.rows, calls.turns.parts.catalog.get_source, clock=lambda: now[0])
    assert closer.poll_once() == {}
    FakeTasks.status = 200
    assert closer.poll_once() == {}, "it is told again a little later"
    now[0] += passed_s
    assert list(closer.poll_once().values()) == ["cancelled"]
    assert closer.poll_once() == {}
    assert FakeTasks.methods() == ["tools/call", "tasks/cancel", "tasks/cancel"]
    store.let_pass(1_000)
    store.sweep()
    assert store.status(run_id) is RunStatus.CANCELLED
    check(store)


def test_a_run_that_is_stopped_while_it_looks_leaves_its_task_to_be_cancelled(calls: McpCalls) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    store.let_pass(10)
    store.sweep()
    claim = store.call(run_id)
    task = calls.rows.find_task(claim)
    assert task is not None
    store.runs.stop_tree(run_id, by="cli:anna")
    assert store.status(run_id) is RunStatus.STOPPING
    calls.rows.park(claim, task)
    assert store.status(run_id) is RunStatus.CANCELLED
    assert list(calls.closer.poll_once().values()) == ["cancelled"]


@pytest.mark.parametrize(
    ("state", "said", "status"),
    [
        ({"status": "failed", "error": {"code": -1, "message": "no paper"}}, "no paper", CallStatus.FAILED),
        ({"status": "cancelled", "statusMessage": "by hand"}, "by hand", CallStatus.FAILED),
        ({"status": "completed", "result": {"content": [], "isError": True}}, "empty", CallStatus.FAILED),
        ({"error": {"code": -32602, "message": "no such task"}}, "", CallStatus.UNKNOWN),
    ],
    ids=["failed", "cancelled", "error", "forgotten"],
)
def test_the_end_of_a_task_is_the_end_of_its_call(
    calls: McpCalls, state: dict[str, Any], said: str, status: CallStatus
) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    FakeTasks.state = state
    assert calls.look(run_id) is RunStatus.RUNNING
    assert the_call(store, run_id) is status
    assert said in store.results(run_id)[0]
    check(store)


@pytest.mark.parametrize(
    "state",
    [{"status": "dancing"}, {"status": "completed"}, {"taskId": "t2", "status": "working"}, {"status": ["working"]}],
)
def test_looks_that_bring_nothing_are_repeated_until_the_task_counts_as_lost(
    calls: McpCalls, state: dict[str, Any]
) -> None:
    store, run_id = calls.store, calls.begin("print")
    calls.go_on(run_id)
    FakeTasks.state = state
    for _ in range(FAILURES_MAX - 1):
        assert calls.look(run_id) is RunStatus.WAITING_FOR_CHILDREN
    assert calls.look(run_id) is RunStatus.RUNNING
    assert the_call(store, run_id) is CallStatus.UNKNOWN


def test_intervals_grow_and_are_no_shorter_than_the_server_wishes() -> None:
    task = RemoteTask(source="desk", task_id="t", tool="print", begun_at=0.0, wished_s=2.0)
    waits = [replace(task, looks=looks).interval_s for looks in range(30)]
    assert waits[0] == 2.0 and waits == sorted(waits) and waits[-1] == 60.0
    assert replace(task, wished_s=0.0).interval_s == 1.0
    assert replace(task, wished_s=300.0).interval_s == 300.0
    assert replace(task, wished_s=3600.0).interval_s == 600.0
    assert AGE_S_MAX > 86_400
    assert RemoteTask.from_json(task.to_json()) == task
    assert "task_id" not in repr(task)
