"""A run that begins in one dialect is seen, followed and stopped in every other."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from answering import answering, new_runs, newest
from serving import Reader, Served, until
from support.patience import PATIENCE_S
from support.store import Store, asks

from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.store.runs.waits import Waits

REPLY = ModelReply(text="forty-two", usage=Usage(input=3, output=2))
SAID = [{"role": "user", "content": "hello"}]
Ask = Callable[[httpx.Client], httpx.Response]


def chat(http: httpx.Client) -> httpx.Response:
    http.post("/api/sessions", json={"id": "s"})
    return http.post("/api/sessions/s/chat", json={"message": "hello"})


def chat_stream(http: httpx.Client) -> httpx.Response:
    http.post("/api/sessions", json={"id": "s"})
    return http.post("/api/sessions/s/chat/stream", json={"message": "hello"})


def completion(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": "hermes-agent", "messages": SAID})


def completion_stream(http: httpx.Client) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"model": "hermes-agent", "messages": SAID, "stream": True})


WAITING: dict[str, Ask] = {
    "sessions": chat,
    "sessions, streamed": chat_stream,
    "chat completions": completion,
    "chat completions, streamed": completion_stream,
}
"""Dialects whose request waits until the run is over."""


def begun(api: Served, store: Store, ask: Ask) -> tuple[str, threading.Thread, list[httpx.Response]]:
    above, answers = newest(store), list[httpx.Response]()
    thread = threading.Thread(target=lambda: answers.append(ask(api.http)), daemon=True)
    thread.start()
    [(_, run_id)] = until(lambda: new_runs(store, above), "a run")
    return run_id, thread, answers


@pytest.mark.parametrize("dialect", WAITING)
def test_a_run_of_any_dialect_is_seen_and_followed_as_a_run(api: Served, store: Store, dialect: str) -> None:
    run_id, thread, answers = begun(api, store, WAITING[dialect])
    shown = api.http.get(f"/v1/runs/{run_id}").json()
    assert run_id in [each["run_id"] for each in api.http.get("/v1/runs").json()["data"]]
    reader = Reader(api, run_id)
    store.answer(run_id, REPLY)
    reader.wait_for_end()
    thread.join(PATIENCE_S)
    assert reader.events[-1]["output"] == "forty-two"
    assert "forty-two" in answers[0].text
    session = api.http.get(f"/api/sessions/{shown['session_id']}").json()["session"]
    assert (session["message_count"], session["api_call_count"]) == (2, 1)
    rows = api.http.get(f"/api/sessions/{shown['session_id']}/messages").json()["data"]
    assert [row["content"] for row in rows] == ["hello", "forty-two"]


@pytest.mark.parametrize("dialect", WAITING)
def test_a_run_of_any_dialect_is_stopped_as_a_run(api: Served, store: Store, dialect: str) -> None:
    run_id, thread, answers = begun(api, store, WAITING[dialect])
    assert api.http.post(f"/v1/runs/{run_id}/stop").status_code == 200
    thread.join(PATIENCE_S)
    assert answers, "the request ends with its run"
    assert api.http.get(f"/v1/runs/{run_id}").json()["status"] == "cancelled"


def test_a_run_of_the_queue_is_followed_in_its_session_by_its_key(api: Served, store: Store) -> None:
    api.http.post("/api/sessions", json={"id": "s"})
    headers = {"Idempotency-Key": "k"}
    body: dict[str, Any] = {"input": "hello", "session_id": "s"}
    run_id = api.http.post("/v1/runs", json=body, headers=headers).json()["run_id"]
    store.answer(run_id, REPLY)
    told = api.http.post("/api/sessions/s/chat/stream", json={"message": "hello"}, headers=headers)
    assert (told.status_code, told.headers["x-hermes-run-id"]) == (200, run_id)
    assert '"content":"forty-two"' in told.text
    assert len(api.http.get("/v1/runs").json()["data"]) == 1


def test_a_session_of_one_dialect_goes_on_in_another(api: Served, store: Store) -> None:
    api.http.post("/api/sessions", json={"id": "s", "system_prompt": "Be brief."})
    with answering(store, REPLY) as taken:
        api.http.post("/api/sessions/s/chat", json={"message": "one"})
        continued = api.http.post(
            "/v1/chat/completions",
            json={"model": "hermes-agent", "messages": [{"role": "user", "content": "two"}]},
            headers={"X-Hermes-Session-Id": "s"},
        )
        assert continued.status_code == 200, continued.text
        api.submit(input="three", session_id="s")
        until(lambda: len(taken) == 3, "three runs")
    until(lambda: api.http.get("/api/sessions/s").json()["session"]["message_count"] == 6, "all rows")
    rows = api.http.get("/api/sessions/s/messages").json()["data"]
    assert [row["content"] for row in rows if row["role"] == "user"] == ["one", "two", "three"]


def test_all_approvals_of_a_run_are_answered_at_once(api: Served, store: Store) -> None:
    run_id = api.submit()
    store.ask_tools(run_id, asks(Replay.ONCE, Replay.ONCE, Replay.ONCE))
    waits = Waits(store.database)
    for position, choices in enumerate((["once", "deny"], ["once", "session", "deny"], ["once", "session", "deny"])):
        request = {"command": f"rm -r {position}"}
        question = Question(kind=WaitKind.APPROVAL, request=request, choices=choices, expires_s=None)
        waits.ask(store.call(run_id, position), question)
    path = f"/v1/runs/{run_id}/approval"
    refused = api.http.post(path, json={"choice": "once", "all": True, "wait_id": 1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "all")
    seen = {"wait_ids": [each.wait_id for each in waits.list_open(run_id=run_id)]}
    some = api.http.post(path, json={"choice": "session", "resolve_all": True, **seen}).json()
    assert (some["resolved"], some["choice"]) == (2, "session")
    assert api.http.post(path, json={"choice": "session", "all": True, **seen}).status_code == 400
    assert api.http.post(path, json={"choice": "approve", "all": True, **seen}).json()["resolved"] == 1
    none = api.http.post(path, json={"choice": "deny", "all": True, **seen})
    assert (none.status_code, none.json()["error"]["code"]) == (409, "approval_not_pending")
    assert json.loads(api.http.get("/v1/approvals").text)["data"] == []
