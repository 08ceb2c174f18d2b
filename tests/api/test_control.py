"""Answering, pausing and steering runs over the API."""

from __future__ import annotations

from typing import Any

import httpx
from serving import Served
from support.store import Store, asks

from hermes_worker.core.messages import canonical_json
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.settings import Secret
from hermes_worker.settings.server_key import fingerprint_of
from hermes_worker.store.runs.waits import Waits

_TOOLS = canonical_json(
    [
        {
            "type": "function",
            "function": {
                "name": "tool0",
                "description": "",
                "parameters": {
                    "type": "object",
                    "properties": {"command": {"type": "string"}},
                    "required": ["command"],
                },
            },
        }
    ]
)


def waiting(store: Store, kind: WaitKind = WaitKind.APPROVAL, **changes: Any) -> str:
    run_id = store.submit(tools=_TOOLS, **changes).run_id
    store.ask_tools(run_id, asks(Replay.ONCE))
    request = {"command": "rm -r x", "description": "recursive delete", "pattern_key": "recursive delete"}
    question = Question(kind=kind, request={**request, "arguments": '{"command":"rm -r x"}', "question": "Which?"})
    Waits(store.database).ask(store.call(run_id), question)
    return run_id


def test_an_approval_is_listed_and_answered_once(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = waiting(store)
    [listed] = http.get("/v1/approvals").json()["data"]
    assert (listed["run_id"], listed["command"], listed["kind"]) == (run_id, "rm -r x", "approval")
    assert http.get(f"/v1/runs/{run_id}").json()["status"] == "waiting_for_approval"
    wrong = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "maybe"})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_approval_choice")
    answer = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "approve"})
    assert answer.json() == {
        "object": "hermes.run.approval_response",
        "run_id": run_id,
        "choice": "once",
        "by": f"api:key-{fingerprint_of(Secret(api.key))}",
        "resolved": 1,
    }
    [recorded] = Waits(store.database).answers(run_id)
    assert (recorded.outcome, recorded.by) == ("once", answer.json()["by"])
    late = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "deny"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_not_pending")
    assert http.get("/v1/approvals").json()["data"] == []
    store.runs.request_stop(run_id)
    over = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "deny"})
    assert (over.status_code, over.json()["error"]["code"]) == (409, "approval_not_active")
    assert http.post("/v1/runs/run_x/approval", json={"choice": "deny"}).status_code == 404


def test_edited_arguments_must_fit_the_tool_and_are_never_hardline(
    api: Served, store: Store, http: httpx.Client
) -> None:
    run_id = waiting(store)
    for arguments in ({}, {"command": ["ls"]}, {"command": "ls", "sudo": True}, {"command": "rm -rf /"}):
        answer = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "arguments": arguments})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "arguments"), arguments
    answer = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "arguments": {"command": "ls"}})
    assert answer.status_code == 200
    assert store.call(run_id).request.arguments == '{"command":"ls"}'


def test_an_answer_may_name_its_question_and_is_then_no_other_ones(
    api: Served, store: Store, http: httpx.Client
) -> None:
    run_id, other = waiting(store), waiting(store, WaitKind.INPUT)
    approval, question = [wait["id"] for wait in http.get("/v1/approvals").json()["data"]]
    for arguments in ({}, {"arguments": {"command": "ls"}}):
        late = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "wait_id": question, **arguments})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_not_pending")
    late = http.post(f"/v1/runs/{other}/input", json={"text": "blue", "wait_id": approval})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "input_not_pending")
    wrong = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "wait_id": 2**63})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "wait_id")
    edited = {"choice": "once", "wait_id": approval, "arguments": {"command": "ls"}}
    assert http.post(f"/v1/runs/{run_id}/approval", json=edited).status_code == 200
    assert store.call(run_id).request.arguments == '{"command":"ls"}'
    assert http.post(f"/v1/runs/{other}/input", json={"text": "blue", "wait_id": question}).status_code == 200


def test_a_question_is_answered_once(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = waiting(store, WaitKind.INPUT)
    assert http.post(f"/v1/runs/{run_id}/input", json={"text": " "}).status_code == 400
    assert http.post(f"/v1/runs/{run_id}/input", json={"text": "blue"}).status_code == 200
    late = http.post(f"/v1/runs/{run_id}/input", json={"text": "red"})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "input_not_pending")


def test_a_run_is_paused_resumed_and_steered(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = store.submit().run_id
    assert http.post(f"/v1/runs/{run_id}/pause").json() == {"run_id": run_id, "status": "paused"}
    assert http.post(f"/v1/runs/{run_id}/steer", json={"text": "in French"}).json()["status"] == "steered"
    assert http.post(f"/v1/runs/{run_id}/resume").json() == {"run_id": run_id, "status": "running"}
    store.answer(run_id)
    assert http.get(f"/v1/runs/{run_id}").json()["pending_steer"] == "in French"
    key = f"api:key-{fingerprint_of(Secret(api.key))}"
    authors = [event.data["by"] for event in store.views.events_after(run_id, 0) if "by" in event.data]
    assert authors == [key, key, key]
    for verb in ("pause", "resume"):
        over = http.post(f"/v1/runs/{run_id}/{verb}")
        assert (over.status_code, over.json()["error"]["code"]) == (409, "run_not_active")


def test_input_for_a_busy_session_does_what_it_says(api: Served, store: Store, http: httpx.Client) -> None:
    def submit(multitask: str) -> httpx.Response:
        return http.post("/v1/runs", json={"input": "hi", "session_id": "s", "multitask": multitask})

    first = submit("reject").json()["run_id"]
    refused = submit("reject")
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "session_active")
    assert submit("steer").json() == {"run_id": first, "status": "steered"}
    urgent = submit("interrupt").json()["run_id"]
    assert http.get(f"/v1/runs/{first}").json()["status"] == "cancelled"
    assert http.get(f"/v1/runs/{urgent}").json()["status"] == "queued"
    assert submit("nonsense").status_code == 400
