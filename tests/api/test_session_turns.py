"""Turns of sessions over the original's wire, on a real server. The test is the worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from serving import Served, until
from support.patience import PATIENCE_S
from support.store import Store, asks, settlement

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import CallStatus, ExitReason
from hermes_worker.store.tables import runs
from hermes_worker.stream.live import Live, LiveEntry

REPLY = ModelReply(text="forty-two", usage=Usage(input=3, output=2))


def newest(store: Store, number: int = 1) -> str:
    """The id of the run that is made as ``number``."""

    def found() -> str | None:
        with store.database.read() as connection:
            ids = connection.execute(sa.select(runs.c.run_id).order_by(runs.c.pk)).scalars().all()
        return str(ids[number - 1]) if len(ids) >= number else None

    return str(until(found, f"run {number}"))


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do this while the block waits for its answer."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(PATIENCE_S)


def chat(http: httpx.Client, **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": body.pop("key")} if "key" in body else {}
    return http.post("/api/sessions/s/chat", json=body, headers=headers)


def events_of(answer: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for block in answer.text.split("\n\n"):
        lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


@pytest.fixture(autouse=True)
def session(http: httpx.Client) -> str:
    assert http.post("/api/sessions", json={"id": "s", "model": "m"}).status_code == 201
    return "s"


def test_a_turn_is_answered_when_it_is_over(http: httpx.Client, store: Store) -> None:
    with meanwhile(lambda: store.answer(newest(store), REPLY)):
        answer = chat(http, message="what now?")
    run_id = newest(store)
    assert answer.json() == {
        "object": "hermes.session.chat.completion",
        "session_id": "s",
        "run_id": run_id,
        "message": {"role": "assistant", "content": "forty-two"},
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
        "completed": True,
        "partial": False,
        "interrupted": False,
    }
    assert (answer.headers["x-hermes-session-id"], answer.headers["x-hermes-run-id"]) == ("s", run_id)
    assert http.get(f"/v1/runs/{run_id}").json()["model"] == "m"


def test_instructions_are_said_with_the_message(http: httpx.Client, store: Store) -> None:
    with meanwhile(lambda: store.answer(newest(store), REPLY)):
        chat(http, input="what now?", instructions="Be brief.")
    assert store.bodies(newest(store))[0]["content"] == "Be brief.\n\nwhat now?"


def test_a_turn_that_fails_or_is_stopped_says_so(http: httpx.Client, store: Store) -> None:
    def fail() -> None:
        failure = Failure(kind="auth", message="the key was refused")
        event = ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED)
        store.runs.commit_failure(store.turn(newest(store)), event)

    with meanwhile(fail):
        failed = chat(http, message="one")
    assert (failed.status_code, failed.json()["error"]["code"]) == (502, "agent_incomplete")
    assert "the key was refused" in failed.json()["error"]["message"]
    with meanwhile(lambda: http.post(f"/v1/runs/{newest(store, 2)}/stop")):
        stopped = chat(http, message="two")
    assert stopped.status_code == 200
    assert (stopped.json()["interrupted"], stopped.json()["message"]["content"]) == (True, "")


def test_a_repeated_turn_is_taken_once(http: httpx.Client, store: Store) -> None:
    with meanwhile(lambda: store.answer(newest(store), REPLY)):
        first = chat(http, message="one", key="k")
    again = chat(http, message="one", key="k")
    assert again.json() == first.json()
    assert again.headers["idempotent-replayed"] == "true"
    other = chat(http, message="two", key="k")
    assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
    streamed = http.post("/api/sessions/s/chat/stream", json={"message": "one"}, headers={"Idempotency-Key": "k"})
    assert streamed.headers["x-hermes-run-id"] == first.json()["run_id"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, "missing_message"),
        ({"message": " "}, "missing_message"),
        ({"message": "x", "input": "y"}, "invalid_value"),
        ({"message": 5}, "invalid_type"),
        ({"message": "x", "system_message": 5}, "invalid_system_message"),
        ({"message": [{"type": "file"}]}, "unsupported_content_type"),
    ],
)
def test_what_is_no_turn_is_refused(http: httpx.Client, body: dict[str, Any], code: str) -> None:
    answer = chat(http, **body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)


def test_a_turn_is_told_with_the_originals_events(api: Served, http: httpx.Client, store: Store) -> None:
    live = Live(api.client.redis)

    def work() -> None:
        run_id = newest(store)
        until(lambda: api.followers.count, "somebody who follows")
        live.append(run_id, LiveEntry(kind="reasoning", text="hm", iteration=1, attempt=1, offset=0))
        until(lambda: api.followers.count, "somebody who follows")
        store.ask_tools(run_id, asks(Replay.PURE, Replay.PURE))
        store.calls.settle(store.call(run_id, 0), settlement())
        store.calls.settle(store.call(run_id, 1), settlement(status=CallStatus.FAILED))
        store.answer(run_id, REPLY)

    with meanwhile(work):
        answer = http.post("/api/sessions/s/chat/stream", json={"message": "what now?"})
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events_of(answer)
    names = [name for name, _ in told if name not in ("message.completed", "tool.progress")]
    assert names == [
        "run.started",
        "message.started",
        "tool.started",
        "tool.completed",
        "tool.started",
        "tool.failed",
        "assistant.delta",
        "assistant.completed",
        "run.completed",
        "done",
    ]
    assert [fields["seq"] for _, fields in told] == list(range(1, len(told) + 1))
    run_id = newest(store)
    assert {(fields["session_id"], fields["run_id"]) for _, fields in told} == {("s", run_id)}
    by_name = dict(told)
    assert by_name["run.started"]["user_message"] == {"role": "user", "content": "what now?"}
    assert by_name["message.started"]["message"]["id"] == by_name["assistant.delta"]["message_id"]
    assert (by_name["tool.started"]["tool_name"], by_name["tool.started"]["args"]) == ("tool1", {"n": 1})
    assert by_name["assistant.completed"]["content"] == by_name["assistant.delta"]["delta"] == "forty-two"
    ended = by_name["run.completed"]
    assert [row["role"] for row in ended["messages"]] == ["user", "assistant", "tool", "tool", "assistant"]
    assert ended["usage"]["output_tokens"] == 5 + 2
    assert answer.text.endswith(": stream closed\n\n")


def test_a_stream_of_a_failed_turn_ends_with_an_error(http: httpx.Client, store: Store) -> None:
    def fail() -> None:
        failure = Failure(kind="auth", message="the key was refused")
        event = ModelFailed(failure=failure, exit_reason=ExitReason.MODEL_CALL_REFUSED)
        store.runs.commit_failure(store.turn(newest(store)), event)

    with meanwhile(fail):
        told = events_of(http.post("/api/sessions/s/chat/stream", json={"message": "one"}))
    assert [name for name, _ in told] == ["run.started", "message.started", "error", "done"]
    assert (told[2][1]["message"], told[2][1]["code"]) == ("the key was refused", "auth")


def test_a_turn_can_be_gone_on_with_only_by_who_can_name_it(http: httpx.Client) -> None:
    path, body = "/api/sessions/s/chat/stream", {"message": "one"}
    for headers in ({"Last-Event-ID": "1~0~0"}, {"Last-Event-ID": "x", "Idempotency-Key": "k"}):
        assert http.post(path, json=body, headers=headers).status_code == 400
    assert http.get("/v1/runs").json()["data"] == []
