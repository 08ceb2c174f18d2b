"""POST /v1/runs, on a real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from serving import Served, hints_waiting, until
from support.patience import PATIENCE_S
from support.store import Store

from hermes_worker.broker.queue import KEY_PREFIX
from hermes_worker.settings import BrokerSettings, DatabaseSettings, Settings
from hermes_worker.store.runs.runs import SESSION_QUEUE_MAX

JSON = {"Content-Type": "application/json"}


def refused(answer: httpx.Response, status: int, code: str, param: str | None) -> str:
    """That the answer is this error; returns its message."""
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param), error
    return str(error["message"])


def test_a_submission_is_stored_announced_and_answered(api: Served, store: Store, breaking: redis.Redis) -> None:
    answer = api.http.post("/v1/runs", json={"input": "count the files"})
    assert answer.status_code == 202
    run_id = answer.json()["run_id"]
    assert answer.json() == {"run_id": run_id, "status": "started"}
    assert answer.headers["X-Hermes-Session-Id"] == run_id
    assert store.bodies(run_id) == [{"role": "user", "content": "count the files"}]
    until(lambda: hints_waiting(api.client) == 1, "the hint")
    message = json.loads(breaking.lrange(f"{KEY_PREFIX}model", 0, 0)[0])  # type: ignore[index]
    assert message["headers"]["task"] == "hermes.iterate"


def test_a_session_gets_a_workspace_a_prompt_and_tools(api: Served, store: Store, settings: Settings) -> None:
    run_id = api.submit(instructions="Answer in French.", session_id="s:1")
    session = store.runs.load_session_context(store.turn(run_id).loaded.session_pk)
    workspace = json.loads(session.workspace)
    assert workspace["kind"] == "local"
    assert Path(workspace["root"]).parent == settings.home / "workspaces"
    assert not Path(workspace["root"]).exists(), "made when a worker opens it"
    assert "Answer in French." in session.system_prompt
    assert {tool["function"]["name"] for tool in json.loads(session.tools)} >= {"read_file", "terminal", "todo"}


def test_a_message_list_is_history_and_a_last_message(api: Served, store: Store) -> None:
    run_id = api.submit(
        input=[
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "assistant", "content": "three"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "input_image", "image_url": "https://x.test/a.png"},
                ],
            },
        ],
        conversation_history=[{"role": "user", "content": "zero"}],
    )
    assert store.bodies(run_id) == [
        {"role": "user", "content": "zero\n\none\ntwo"},  # nobody may speak twice in a row
        {"role": "assistant", "content": "three"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "look"},
                {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            ],
        },
    ]
    assert "Be brief." in store.runs.load_session_context(store.turn(run_id).loaded.session_pk).system_prompt


def test_limits_and_model_are_taken_over(api: Served) -> None:
    run_id = api.submit(model="gpt-test", max_iterations=7, max_wall_s=60, metadata={"who": "me"})
    view = api.client.views.load_run(run_id)
    assert (view.model, view.iterations_max) == ("gpt-test", 7)


def test_the_name_of_the_agent_means_the_configured_model(api: Served) -> None:
    assert api.client.views.load_run(api.submit(model="hermes-agent")).model == "scripted"


BAD_BODIES: list[tuple[Any, str, str]] = [
    ({}, "missing_required_parameter", "input"),
    ({"input": ""}, "empty_message", "input"),
    ({"input": " \n"}, "empty_message", "input"),
    ({"input": None}, "invalid_type", "input"),
    ({"input": 5}, "invalid_type", "input"),
    ({"input": {"role": "user"}}, "invalid_type", "input"),
    ({"input": []}, "invalid_value", "input"),
    ({"input": [5]}, "invalid_type", "input[0]"),
    ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
    ({"input": [{"role": "user", "content": ""}]}, "empty_message", "input[0]"),
    ({"input": [{"role": "assistant", "content": "x"}]}, "invalid_value", "input[0].role"),
    ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
    ({"input": [{"role": ["user"], "content": "x"}]}, "invalid_value", "input[0].role"),
    ({"input": [{"content": "x", "tool_calls": []}]}, "unknown_parameter", "input[0].tool_calls"),
    ({"input": [{"type": "function_call", "content": "x"}]}, "invalid_value", "input[0].type"),
    ({"input": [{"content": [{"type": "text"}]}]}, "invalid_content_part", "input[0].content[0].text"),
    ({"input": [{"content": [{"type": "audio"}]}]}, "invalid_content_part", "input[0].content[0].type"),
    ({"input": [{"content": [7]}]}, "invalid_content_part", "input[0].content[0]"),
    ({"input": [{"content": [{"type": "input_file"}]}]}, "unsupported_content_type", "input[0].content[0]"),
    (
        {"input": [{"content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]},
        "invalid_image_url",
        "input[0].content[0].image_url",
    ),
    (
        {"input": [{"content": [{"type": "image_url", "image_url": {"url": "javascript:x"}}]}]},
        "invalid_image_url",
        "input[0].content[0].image_url",
    ),
    ({"input": "x", "conversation_history": "y"}, "invalid_type", "conversation_history"),
    (
        {"input": "x", "conversation_history": [{"role": "assistant", "content": 3}]},
        "invalid_type",
        "conversation_history[0].content",
    ),
    ({"input": "x" * 1_000_001}, "text_too_long", "input"),
    ({"input": ["x"] * 1_001}, "invalid_value", "input"),
    ({"input": "x", "instructions": 5}, "invalid_type", "instructions"),
    ({"input": "x", "model": "a b"}, "invalid_value", "model"),
    ({"input": "x", "model": "a\nb"}, "invalid_value", "model"),
    ({"input": "x", "model": ""}, "invalid_value", "model"),
    ({"input": "x", "session_id": ""}, "invalid_value", "session_id"),
    ({"input": "x", "session_id": "../../etc"}, "invalid_value", "session_id"),
    ({"input": "x", "session_id": "a\r\nX-Evil: 1"}, "invalid_value", "session_id"),
    ({"input": "x", "session_id": "s" * 257}, "invalid_value", "session_id"),
    ({"input": "x", "session_id": "\ud800"}, "invalid_value", "session_id"),
    ({"input": "x", "toolsets": "file"}, "invalid_type", "toolsets"),
    ({"input": "x", "toolsets": []}, "invalid_value", "toolsets"),
    ({"input": "x", "toolsets": ["no-such"]}, "invalid_value", "toolsets"),
    ({"input": "x", "toolsets": [1]}, "invalid_type", "toolsets[0]"),
    ({"input": "x", "max_iterations": "5"}, "invalid_type", "max_iterations"),
    ({"input": "x", "max_iterations": True}, "invalid_type", "max_iterations"),
    ({"input": "x", "max_iterations": 0}, "invalid_value", "max_iterations"),
    ({"input": "x", "max_iterations": 10**30}, "invalid_value", "max_iterations"),
    ({"input": "x", "max_wall_s": -1}, "invalid_value", "max_wall_s"),
    ({"input": "x", "max_wall_s": 1e300}, "invalid_value", "max_wall_s"),
    ({"input": "x", "metadata": {"a": 1}}, "invalid_type", "metadata.a"),
    ({"input": "x", "metadata": {"a": "b" * 513}}, "invalid_value", "metadata.a"),
    ({"input": "x", "metadata": {str(n): "" for n in range(17)}}, "invalid_value", "metadata"),
    ({"input": "x", "stream": True}, "unknown_parameter", "stream"),
    ({"input": "x", "previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
    ([], "invalid_type", "body"),
    ("text", "invalid_type", "body"),
]


def test_only_who_is_at_the_machine_names_a_directory_of_it(http: httpx.Client, api: Served) -> None:
    body = {"input": "x", "workspace": "/etc"}
    refused(http.post("/v1/runs", json=body), 403, "not_the_installations_key", "workspace")
    assert api.client.views.list_runs() == []


def test_every_wrong_field_is_named(http: httpx.Client, api: Served) -> None:
    for body, code, param in BAD_BODIES:
        message = refused(http.post("/v1/runs", content=json.dumps(body), headers=JSON), 400, code, param)
        assert message
        assert "Traceback" not in message
    assert api.client.views.list_runs() == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"input": NaN}',
        b'{"input": "x", "max_wall_s": Infinity}',
        b"[" * 100_000,
        b"9" * 5_000,
    ],
)
def test_what_is_not_json_is_refused(http: httpx.Client, body: bytes) -> None:
    refused(http.post("/v1/runs", content=body, headers=JSON), 400, "invalid_json" if body != b"9" else "", "body")


def test_text_that_utf8_cannot_carry_is_stored_all_the_same(api: Served, store: Store) -> None:
    answer = api.http.post("/v1/runs", content=b'{"input": "a\\ud800b\\u0000c"}', headers=JSON)
    assert answer.status_code == 202
    assert store.bodies(answer.json()["run_id"])[0]["content"] == "a\ufffdb\0c"


# --- idempotency -----------------------------------------------------------------------------------------------------


def test_the_same_key_and_request_give_the_same_run(http: httpx.Client, api: Served) -> None:
    headers = {"Idempotency-Key": "order 66"}
    first = http.post("/v1/runs", json={"input": "x", "metadata": {"a": "1", "b": "2"}}, headers=headers)
    again = http.post("/v1/runs", content='{"metadata":{"b":"2","a":"1"}, "input" : "x"}', headers=headers | JSON)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert "Idempotent-Replayed" not in first.headers
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.headers["X-Hermes-Session-Id"] == first.headers["X-Hermes-Session-Id"]
    assert len(api.client.views.list_runs()) == 1


def test_the_same_key_with_another_request_is_a_conflict(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": "k"}
    assert http.post("/v1/runs", json={"input": "x"}, headers=headers).status_code == 202
    refused(
        http.post("/v1/runs", json={"input": "y"}, headers=headers), 409, "idempotency_key_reused", "Idempotency-Key"
    )


@pytest.mark.parametrize("key", ["", "k" * 257, "é", "a\tb"])
def test_a_bad_key_is_refused(http: httpx.Client, key: str) -> None:
    answer = http.post("/v1/runs", json={"input": "x"}, headers={"Idempotency-Key": key.encode("latin-1")})  # type: ignore[dict-item]
    refused(answer, 400, "invalid_value", "Idempotency-Key")


def test_of_many_requests_with_one_key_at_once_one_makes_the_run(
    serve: Callable[..., Served], settings: Settings, database_url: str
) -> None:
    api = serve(replace(settings, database=DatabaseSettings(url=database_url)))

    def post(_: int) -> httpx.Response:
        headers = {"Idempotency-Key": "k", "Authorization": api.authorization}
        return httpx.post(f"{api.url}/v1/runs", json={"input": "x"}, headers=headers, verify=False, timeout=PATIENCE_S)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(post, range(24)))
    assert {answer.status_code for answer in answers} == {202}, [a.text for a in answers if a.status_code != 202]
    assert len({answer.json()["run_id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert len(api.client.views.list_runs()) == 1


# --- when something is away ------------------------------------------------------------------------------------------


def test_a_session_takes_only_so_many_runs(api: Served, store: Store) -> None:
    store.turn(api.submit(session_id="s"))
    for _ in range(SESSION_QUEUE_MAX):
        api.submit(session_id="s")
    answer = api.http.post("/v1/runs", json={"input": "x", "session_id": "s"})
    refused(answer, 429, "rate_limit_exceeded", "session_id")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["Retry-After"]) > 0


def test_without_a_broker_runs_are_accepted_and_wait_for_the_sweeper(
    serve: Callable[..., Served], settings: Settings
) -> None:
    api = serve(replace(settings, broker=BrokerSettings(url="redis://127.0.0.1:1/0")))
    run_id = api.submit()
    [effect] = Store.over(api.client.database).due(run_id)
    assert effect.run_id == run_id


def test_without_a_database_the_answer_is_503(api: Served, http: httpx.Client) -> None:
    api.client.database.close()
    path = str(api.client.database.url.database)
    Path(path).rename(f"{path}.away")
    Path(path).mkdir()
    answer = http.post("/v1/runs", json={"input": "x"})
    refused(answer, 503, "database_unavailable", None)
    assert answer.json()["error"]["type"] == "server_error"
    assert path not in answer.text
    assert answer.headers["Retry-After"] == "1"


def test_targets_of_a_run_are_kept_and_a_mistake_in_them_is_told(http: httpx.Client, store: Store) -> None:
    wanted = {"input": "hi", "deliver": "local,telegram:12:3", "webhook": "https://example.org/h"}
    run_id = http.post("/v1/runs", json=wanted).json()["run_id"]
    hints = store.answer(run_id)
    assert len(hints) == 3
    refused = http.post("/v1/runs", json={"input": "hi", "deliver": "nowhere:1"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "deliver"
