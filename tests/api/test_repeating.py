"""An Idempotency-Key on every POST, on a real server."""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from serving import PATIENCE_S, Served
from support.questions import open_wait
from support.store import Store, asks

from hermes_worker.api.idempotency import KEEPS
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.questions import Question
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import WaitKind
from hermes_worker.store.access.kept_answers import StoredAnswers
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.waits import Waits
from hermes_worker.store.tables import jobs, kept_answers, sessions

BODIES: dict[str, dict[str, Any]] = {
    "/v1/runs": {"input": "hello"},
    "/v1/runs/{run_id}/approval": {"choice": "deny"},
    "/v1/runs/{run_id}/steer": {"text": "faster"},
    "/api/jobs": {"name": "n", "schedule": "every 1h", "prompt": "x"},
    "/api/sessions": {"title": "x"},
    "/api/sessions/{session_id}/fork": {"title": "y"},
}
KEPT_AT_LEAST = {
    "/v1/runs/{run_id}/approval",
    "/v1/runs/{run_id}/pause",
    "/v1/runs/{run_id}/resume",
    "/v1/runs/{run_id}/steer",
    "/v1/runs/{run_id}/stop",
    "/v1/deliveries/{delivery_id}/retry",
    "/api/jobs",
    "/api/jobs/{job_id}/pause",
    "/api/jobs/{job_id}/resume",
    "/api/jobs/{job_id}/run",
    "/api/sessions",
    "/api/sessions/{session_id}/fork",
    "/v1/files",
}
"""What is asked for here in a way that succeeds."""


def posts(http: httpx.Client) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, operations in http.get("/openapi.json").json()["paths"].items():
        if "post" in operations:
            yield path, operations["post"]


def one_of_each(http: httpx.Client, store: Store) -> dict[str, str]:
    """For each POST anew: some of them use it up."""
    ended = http.post("/v1/runs", json={"input": "hello", "deliver": "webhook:https://example.org/hook"}).json()
    store.answer(ended["run_id"])
    waiting = http.post("/v1/runs", json={"input": "hello"}).json()["run_id"]
    store.ask_tools(waiting, asks(Replay.ONCE))
    request = {"command": "rm -r x"}
    question = Question(kind=WaitKind.APPROVAL, request=request, choices=["once", "deny"], expires_s=None)
    Waits(store.database).ask(store.call(waiting), question)
    delivery = http.get("/v1/deliveries", params={"run_id": ended["run_id"]}).json()["data"][0]["delivery_id"]
    with store.database.write() as connection:
        settled = "update deliveries set state = 'failed', settled_at = 1, hinted_at = null where delivery_id = :id"
        connection.execute(sa.text(settled), {"id": delivery})
    return {
        "run_id": waiting,
        "session_id": ended["run_id"],
        "delivery_id": delivery,
        "job_id": http.post("/api/jobs", json=BODIES["/api/jobs"]).json()["job"]["id"],
    }


def ask(http: httpx.Client, path: str, key: str, body: dict[str, Any] | None) -> httpx.Response:
    if path == "/v1/files":
        form = {"purpose": "user_data", **(body or {})}
        boundary = {"Content-Type": "multipart/form-data; boundary=of-a-client-that-repeats-it"}
        return http.post(
            path, files={"file": ("a.txt", b"hello")}, data=form, headers={"Idempotency-Key": key, **boundary}
        )
    return http.post(path, json=body, headers={"Idempotency-Key": key})


def test_every_post_takes_a_key(http: httpx.Client) -> None:
    for path, operation in posts(http):
        if path.startswith(("/webhooks/", "/inbound/")):
            continue  # an event has an id of its own
        if operation.get(KEEPS) == "none":
            assert path in {"/v1/keys", "/v1/keys/{key_id}/rotate"}  # what is shown once is kept nowhere
            continue
        named = [each for each in operation["parameters"] if each["name"].lower() == "idempotency-key"]
        assert len(named) == 1, path
        assert operation[KEEPS] in ("answer", "run"), path
        assert "409" in operation["responses"], path
        is_stream = any("text/event-stream" in answer.get("content", {}) for answer in operation["responses"].values())
        assert not (is_stream and operation[KEEPS] == "answer"), path


def test_every_post_that_is_repeated_is_done_once(api: Served, http: httpx.Client, store: Store) -> None:
    kept = set()
    for path, operation in posts(http):
        if operation.get(KEEPS) != "answer" or set(re.findall(r"\{(\w+)\}", path)) - {*one_of_each(http, store)}:
            continue
        ids, body, key = one_of_each(http, store), BODIES.get(path), uuid.uuid4().hex
        place = path.format(**ids)
        if path.endswith("/approval"):
            body = {**BODIES[path], "wait_id": open_wait(store.database, ids["run_id"])}
        first = ask(http, place, key, body)
        again = ask(http, place, key, body)
        if not first.is_success:
            assert "idempotent-replayed" not in again.headers, path
            continue
        kept.add(path)
        assert (again.status_code, again.content) == (first.status_code, first.content), path
        assert again.headers.pop("idempotent-replayed") == "true"
        assert {*again.headers} == {*first.headers}, path
        other = ask(http, place, key, {**(body or {}), "other": 1})
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused"), path
    assert kept >= KEPT_AT_LEAST


def count(store: Store, table: sa.Table) -> int:
    with store.database.read() as connection:
        return int(connection.execute(sa.select(sa.func.count()).select_from(table)).scalar_one())


def test_a_repeated_request_has_one_effect(http: httpx.Client, store: Store) -> None:
    for _ in range(3):
        ask(http, "/api/jobs", "k", BODIES["/api/jobs"])
        ask(http, "/api/sessions", "l", {"title": "x"})
    assert (count(store, jobs), count(store, sessions)) == (1, 1)


def test_an_error_is_not_kept(http: httpx.Client) -> None:
    wrong = ask(http, "/api/jobs", "k", {"name": "n"})
    right = ask(http, "/api/jobs", "k", BODIES["/api/jobs"])
    assert (wrong.status_code, right.status_code) == (400, 200)


def test_a_key_that_is_none_is_refused(http: httpx.Client) -> None:
    answer = ask(http, "/api/sessions", "k" * 257, {})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


def test_a_holder_cannot_ask_for_what_another_was_answered(api: Served, http: httpx.Client, store: Store) -> None:
    tenants = Tenants(api.client.database)
    ask(http, "/api/jobs", "k", BODIES["/api/jobs"])
    for scope, status in ((KeyScope.JOBS, 200), (KeyScope.RUNS_READ, 403)):
        token = tenants.create_key("default", scope.name, [scope]).token
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"}
        answer = http.post("/api/jobs", json=BODIES["/api/jobs"], headers=headers)
        assert (answer.status_code, "idempotent-replayed" in answer.headers) == (status, False)
    assert count(store, jobs) == 2


def test_of_two_at_once_one_works_and_the_other_is_told_so(
    api: Served, http: httpx.Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_at_work, may_end = threading.Event(), threading.Event()
    keep: Callable[..., None] = StoredAnswers.store_answer

    def slowly(*given: Any) -> None:
        is_at_work.set()
        may_end.wait(PATIENCE_S)
        keep(*given)

    monkeypatch.setattr(StoredAnswers, "store_answer", slowly)
    first: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: first.append(ask(http, "/api/sessions", "k", {"title": "x"})))
    thread.start()
    assert is_at_work.wait(PATIENCE_S)
    second = ask(http, "/api/sessions", "k", {"title": "x"})
    may_end.set()
    thread.join(PATIENCE_S)
    assert (second.status_code, second.json()["error"]["code"]) == (409, "idempotency_key_in_progress")
    assert second.headers["retry-after"] == "1"
    assert first[0].status_code == 201
    assert ask(http, "/api/sessions", "k", {"title": "x"}).content == first[0].content
    assert count(store, sessions) == 1


def test_a_request_whose_process_died_can_be_repeated(http: httpx.Client, store: Store) -> None:
    ask(http, "/api/sessions", "k", {})
    with store.database.write() as connection:
        dead = {"status": None, "headers": None, "body": None, "token": "t", "held_until": 1.0}
        connection.execute(sa.update(kept_answers).values(**dead))
    assert ask(http, "/api/sessions", "k", {}).status_code == 201
    assert json.loads(ask(http, "/api/sessions", "k", {}).content)["object"] == "hermes.session"
