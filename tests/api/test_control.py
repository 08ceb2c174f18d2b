"""Answering, pausing and steering runs over the API."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from serving import Served
from support.questions import DANGER, open_wait
from support.store import Store, asks

from hermes_worker.core.answer_binding import format_question_code
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.settings import Secret
from hermes_worker.settings.server_key import compute_fingerprint
from hermes_worker.store.runs.waits import Waits

_TOOLS = dump_canonical_json(
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
    named = {"wait_id": listed["id"]}
    assert listed["code"] == format_question_code(listed["id"])
    wrong = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "maybe", **named})
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "invalid_approval_choice")
    answer = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "approve", **named})
    assert answer.json() == {
        "object": "hermes.run.approval_response",
        "run_id": run_id,
        "choice": "once",
        "by": f"api:key-{compute_fingerprint(Secret(api.key))}",
        "resolved": 1,
    }
    [recorded] = Waits(store.database).list_answers(run_id)
    assert (recorded.outcome, recorded.by) == ("once", answer.json()["by"])
    late = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "deny", **named})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "approval_not_pending")
    assert http.get("/v1/approvals").json()["data"] == []
    store.runs.request_stop(run_id)
    over = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "deny", **named})
    assert (over.status_code, over.json()["error"]["code"]) == (409, "approval_not_active")
    assert http.post("/v1/runs/run_x/approval", json={"choice": "deny", **named}).status_code == 404


def test_edited_arguments_must_fit_the_tool_and_are_never_hardline(
    api: Served, store: Store, http: httpx.Client
) -> None:
    run_id = waiting(store)
    for arguments in ({}, {"command": ["ls"]}, {"command": "ls", "sudo": True}, {"command": "rm -rf /"}):
        changed = {"choice": "once", "wait_id": open_wait(store.database, run_id), "arguments": arguments}
        answer = http.post(f"/v1/runs/{run_id}/approval", json=changed)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "arguments"), arguments
    answer = http.post(f"/v1/runs/{run_id}/approval", json={**changed, "arguments": {"command": "ls"}})
    assert answer.status_code == 200
    assert store.call(run_id).request.arguments == '{"command":"ls"}'


def test_an_answer_names_its_question_and_is_no_other_ones(api: Served, store: Store, http: httpx.Client) -> None:
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


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        (
            "approval",
            {"choice": "once"},
            "wait_id",
            "Missing 'wait_id': an answer names the question that was seen. It is 'id' in GET /v1/approvals and "
            "'wait_id' in the event approval.request.",
        ),
        (
            "input",
            {"text": "blue"},
            "wait_id",
            "Missing 'wait_id': an answer names the question that was seen. It is 'id' in GET /v1/approvals and "
            "'wait_id' in the event input.request.",
        ),
        (
            "approval",
            {"choice": "deny", "all": True},
            "wait_ids",
            "Missing 'wait_ids': 'all' takes the list of the approvals that were seen, each by its 'id' in "
            "GET /v1/approvals.",
        ),
    ],
)
def test_an_answer_that_names_no_question_is_told_what_to_send_and_answers_none(
    store: Store, http: httpx.Client, path: str, body: dict[str, Any], param: str, message: str
) -> None:
    run_id = waiting(store, WaitKind.INPUT if path == "input" else WaitKind.APPROVAL)
    refused = http.post(f"/v1/runs/{run_id}/{path}", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"], error["message"]) == (400, param, message)
    assert error["code"] == f"missing_{param}"
    assert len(http.get("/v1/approvals").json()["data"]) == 1


def test_what_was_asked_since_is_not_allowed_with_all(store: Store, http: httpx.Client) -> None:
    run_id = store.submit(tools=_TOOLS).run_id
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE, Replay.ONCE))
    for position in range(2):
        Waits(store.database).ask(store.call(run_id, position), DANGER)
    seen = [wait["id"] for wait in http.get("/v1/approvals").json()["data"]]
    Waits(store.database).ask(store.call(run_id, 2), DANGER)
    answer = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "all": True, "wait_ids": seen})
    assert (answer.status_code, answer.json()["resolved"]) == (200, 2)
    [left] = http.get("/v1/approvals").json()["data"]
    assert left["id"] not in seen
    lost = http.post(f"/v1/runs/{run_id}/approval", json={"choice": "once", "wait_ids": [left["id"]], "wait_id": 1})
    assert (lost.status_code, lost.json()["error"]["param"]) == (400, "wait_ids")


def test_a_question_is_answered_once(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = waiting(store, WaitKind.INPUT)
    named = {"wait_id": open_wait(store.database, run_id)}
    assert http.post(f"/v1/runs/{run_id}/input", json={"text": " ", **named}).status_code == 400
    assert http.post(f"/v1/runs/{run_id}/input", json={"text": "blue", **named}).status_code == 200
    late = http.post(f"/v1/runs/{run_id}/input", json={"text": "red", **named})
    assert (late.status_code, late.json()["error"]["code"]) == (409, "input_not_pending")


def test_a_run_is_paused_resumed_and_steered(api: Served, store: Store, http: httpx.Client) -> None:
    run_id = store.submit().run_id
    assert http.post(f"/v1/runs/{run_id}/pause").json() == {"run_id": run_id, "status": "paused"}
    assert http.post(f"/v1/runs/{run_id}/steer", json={"text": "in French"}).json()["status"] == "steered"
    assert http.post(f"/v1/runs/{run_id}/resume").json() == {"run_id": run_id, "status": "running"}
    store.answer(run_id)
    assert http.get(f"/v1/runs/{run_id}").json()["pending_steer"] == "in French"
    key = f"api:key-{compute_fingerprint(Secret(api.key))}"
    authors = [event.data["by"] for event in store.views.list_events_after(run_id, 0) if "by" in event.data]
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
