"""POST /v1/chat/completions and GET /v1/models, on a real server, with the stock SDK. The test is the worker."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from answering import answering
from serving import Served, until
from support.patience import PATIENCE_S
from support.store import Store, asks, settlement

from hermes_worker.core.errors import Failure
from hermes_worker.core.events import ModelFailed, ModelReplied
from hermes_worker.core.messages import ModelReply, Usage
from hermes_worker.core.replay import Replay
from hermes_worker.core.run import ExitReason, RunStatus
from hermes_worker.store.runs.client_calls import ClientCalls
from hermes_worker.store.runs.runs import find_run

SAID = ModelReply(text="Arr!", usage=Usage(input=3, output=2, cache_read=4, reasoning=1))


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def ask(http: httpx.Client, *messages: dict[str, Any], headers: dict[str, str] | None = None, **more: Any) -> Any:
    document = {"model": "gpt-5.5", "messages": list(messages), **more}
    return http.post("/v1/chat/completions", json=document, headers=headers)


def refused(answer: httpx.Response, status: int, code: str, param: str | None = None) -> str:
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["param"]) == (code, param), error
    return str(error["message"])


def chunks(answer: httpx.Response) -> list[tuple[str | None, Any]]:
    """The events of a stream: name and document."""
    events = []
    for block in answer.text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if "data" in fields:
            data = fields["data"]
            events.append((fields.get("event"), data if data == "[DONE]" else json.loads(data)))
    return events


def test_a_conversation_is_answered(sdk: openai.OpenAI, store: Store) -> None:
    with answering(store, SAID) as runs:
        answer = sdk.chat.completions.with_raw_response.create(
            model="gpt-5.5", messages=[{"role": "developer", "content": "Talk like a pirate."}, user("Hello?")]
        )
    said = answer.parse()
    assert said.choices[0].message.content == "Arr!"
    assert (said.choices[0].finish_reason, said.model, said.object) == ("stop", "gpt-5.5", "chat.completion")
    assert said.usage is not None
    assert (said.usage.prompt_tokens, said.usage.completion_tokens, said.usage.total_tokens) == (7, 2, 9)
    assert said.usage.prompt_tokens_details is not None
    assert said.usage.prompt_tokens_details.cached_tokens == 4
    assert said.id == f"chatcmpl-{runs[0].removeprefix('run_')}"
    assert answer.headers["X-Hermes-Run-Id"] == runs[0]
    assert answer.headers["X-Hermes-Session-Id"].startswith("api-")
    view = store.views.load_run(runs[0])
    assert view.model == "scripted"
    assert store.bodies(runs[0])[0] == {"role": "user", "content": "Hello?"}


def test_the_answer_comes_as_it_is_written(sdk: openai.OpenAI, store: Store) -> None:
    def work(run_id: str) -> None:
        asked = asks(Replay.PURE)
        store.ask_tools(run_id, replace(asked, reply=replace(asked.reply, text="Let me look.")))
        store.calls.settle(store.call(run_id), settlement())
        store.answer(run_id, SAID)

    with answering(store, work):
        stream = sdk.chat.completions.create(
            model="hermes-agent", messages=[user("Look")], stream=True, stream_options={"include_usage": True}
        )
        seen = list(stream)
    # The stock client passes over the names of events: what it is told of tools must be a chunk, too.
    text = "".join(chunk.choices[0].delta.content or "" for chunk in seen[:-1])
    assert text == "Let me look.\n\nArr!"
    assert [chunk.choices[0].finish_reason for chunk in seen[:-1]][-1] == "stop"
    assert seen[-1].choices == []
    assert seen[-1].usage is not None and seen[-1].usage.total_tokens == 24
    tools = [chunk.model_extra for chunk in seen if "tool" in (chunk.model_extra or {})]
    assert [(tool["tool"], tool["toolCallId"], tool["status"]) for tool in tools if tool] == [
        ("tool0", "call_0", "running"),
        ("tool0", "call_0", "completed"),
    ]


def test_a_stream_is_what_the_original_sends(http: httpx.Client, store: Store) -> None:
    with answering(store, SAID) as runs:
        answer = ask(http, user("Hello"), stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["X-Hermes-Run-Id"] == runs[0]
    events = chunks(answer)
    assert events[0][1]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-1] == (None, "[DONE]")
    last = events[-2][1]
    assert (last["choices"][0]["finish_reason"], last["usage"]["total_tokens"]) == ("stop", 9)
    assert {document["id"] for _, document in events[:-1]} == {f"chatcmpl-{runs[0].removeprefix('run_')}"}


def test_a_client_that_keeps_the_conversation_stays_in_one_session(http: httpx.Client, store: Store) -> None:
    with answering(store, SAID, ModelReply(text="Aye."), ModelReply(text="Ho.")) as runs:
        first = ask(http, user("Hello"))
        second = ask(http, user("Hello"), assistant("Arr!"), user("Sure?"))
        third = ask(http, user("Hello"), assistant("Arr!"), user("Sure?"), assistant("Aye."), user("Really?"))
    names = {answer.headers["X-Hermes-Session-Id"] for answer in (first, second, third)}
    assert len(names) == 1
    assert [row["content"] for row in store.bodies(runs[2])] == ["Hello", "Arr!", "Sure?", "Aye.", "Really?", "Ho."]


def test_conversations_that_begin_alike_are_kept_apart(http: httpx.Client, store: Store) -> None:
    replies = [ModelReply(text=text) for text in ("one", "two", "more of two", "more of one", "another two")]
    with answering(store, *replies) as runs:
        ask(http, user("Hello"))
        ask(http, user("Hello"))
        ask(http, user("Hello"), assistant("two"), user("on"))
        ask(http, user("Hello"), assistant("one"), user("on"))
        ask(http, user("Hello"), assistant("two"), user("on, but otherwise"))
    assert [row["content"] for row in store.bodies(runs[2])] == ["Hello", "two", "on", "more of two"]
    assert [row["content"] for row in store.bodies(runs[3])] == ["Hello", "one", "on", "more of one"]
    # What was said since is not taken for what this client knows.
    assert [row["content"] for row in store.bodies(runs[4])] == ["Hello", "two", "on, but otherwise", "another two"]
    assert len({store.views.load_run(run_id).session.id for run_id in runs}) == 3


def test_a_session_that_is_named_brings_its_own_history(http: httpx.Client, store: Store) -> None:
    with answering(store, SAID, ModelReply(text="Aye.")) as runs:
        ask(http, user("Hello"), headers={"X-Hermes-Session-Id": "bar", "X-Hermes-Session-Key": "me"})
        answer = ask(http, user("made up"), assistant("too"), user("On"), headers={"X-Hermes-Session-Id": "bar"})
    assert answer.headers["X-Hermes-Session-Id"] == "bar"
    assert [row["content"] for row in store.bodies(runs[1])] == ["Hello", "Arr!", "On", "Aye."]
    for wrong in ("a/b", "..", "x" * 257):
        refused(
            ask(http, user("Hi"), headers={"X-Hermes-Session-Id": wrong}), 400, "invalid_session_id",
            "X-Hermes-Session-Id",
        )  # fmt: skip


def test_a_request_that_comes_again_gets_the_same_answer(http: httpx.Client, store: Store) -> None:
    key = {"Idempotency-Key": "k1"}
    with answering(store, SAID) as runs:
        first = ask(http, user("Hello"), headers=key)
        again = ask(http, user("Hello"), headers=key)
        streamed = ask(http, user("Hello"), headers=key, stream=True)
        refused(ask(http, user("Other"), headers=key), 409, "idempotency_key_reused", "Idempotency-Key")
    assert len(runs) == 1
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Arr!" in streamed.text


def failing(store: Store) -> Callable[[str], None]:
    def fail(run_id: str) -> None:
        failure = Failure(kind="auth", message="the key sk-proj-abcdefghijklmnopqrstuvwxyz0123456789 is wrong")
        store.runs.commit_failure(
            store.turn(run_id), ModelFailed(exit_reason=ExitReason.MODEL_CALL_REFUSED, failure=failure)
        )

    return fail


def test_a_run_without_an_answer_is_an_error_that_is_not_sent_again(
    api: Served, http: httpx.Client, store: Store
) -> None:
    patient = openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=2)
    with answering(store, failing(store)) as runs:
        with pytest.raises(openai.InternalServerError) as refusal:
            patient.chat.completions.create(model="x", messages=[user("Hello")])
        streamed = ask(http, user("Hello"), stream=True)
        with pytest.raises(openai.APIError, match="key"):
            list(patient.chat.completions.create(model="x", messages=[user("Hello")], stream=True))
    assert len(runs) == 3
    assert refusal.value.status_code == 502
    assert refusal.value.code == "agent_incomplete"
    assert isinstance(refusal.value.body, dict)
    assert refusal.value.body["hermes"] == {"completed": False, "partial": False, "failed": True}
    assert "abcdefghij" not in str(refusal.value.body)
    last, error, done = chunks(streamed)[-3:]
    assert last[1]["choices"][0]["finish_reason"] == "error"
    assert last[1]["hermes"]["error_code"] == "agent_error"
    assert error[1]["error"]["code"] == "agent_incomplete"
    assert done == (None, "[DONE]")


def leave(api: Served, **more: Any) -> None:
    """Send a request and go before its answer."""
    document = {"messages": [user("Hello")], **more}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{api.url}/v1/chat/completions", json=document, headers=api.http.headers, timeout=1.0, verify=False)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_stops_its_run(api: Served, store: Store, stream: bool) -> None:
    leave(api, stream=stream)
    run_id = until(lambda: store.views.list_runs(limit=1), "the run")[0].run_id
    until(lambda: store.status(run_id) is RunStatus.CANCELLED, "the end of the run")


def test_a_client_that_can_come_back_does_not_stop_its_run(api: Served, store: Store) -> None:
    document, key = {"messages": [user("Hello")]}, {"Idempotency-Key": "k"}
    with pytest.raises(httpx.ReadTimeout):
        api.http.post("/v1/chat/completions", json=document, headers=key, timeout=0.5)
    run_id = until(lambda: store.views.list_runs(limit=1), "the run")[0].run_id
    until(lambda: api.followers.count == 0, "the client is seen to leave")
    assert store.status(run_id) is RunStatus.QUEUED
    store.answer(run_id, SAID)
    assert api.http.post("/v1/chat/completions", json=document, headers=key).json()["choices"]


def patient(api: Served) -> httpx.Client:
    """For the first request to a server, which imports what it needs."""
    return httpx.Client(base_url=api.url, headers=api.http.headers, timeout=PATIENCE_S)


def test_a_server_that_goes_away_says_so_and_another_gives_the_answer(serve: Callable[..., Served]) -> None:
    first = serve()
    key = {"Idempotency-Key": "k"}
    with patient(first) as http, ThreadPoolExecutor() as clients, ExitStack() as stack:
        stack.callback(first.stop)
        waiting = clients.submit(ask, http, user("Hello"), headers=key)
        until(lambda: first.followers.count == 1, "the request that waits")
        streamed = clients.submit(ask, http, user("Hello"), headers=key, stream=True)
        until(lambda: first.followers.count == 2, "the stream")
    refused(waiting.result(), 503, "gateway_draining")
    assert waiting.result().headers["Retry-After"] == "1"
    last_name, last = chunks(streamed.result())[-1]
    assert (last_name, last["error"]["code"]) == (None, "gateway_draining")
    second = serve()
    store = Store.over(second.client.database)
    [view] = store.views.list_runs()
    assert view.status is RunStatus.QUEUED
    store.answer(view.run_id, SAID)
    with patient(second) as http:
        assert ask(http, user("Hello"), headers=key).json()["choices"][0]["message"]["content"] == "Arr!"


def test_the_run_is_one_of_all_runs(api: Served, store: Store) -> None:
    def stop(run_id: str) -> None:
        assert api.http.get(f"/v1/runs/{run_id}").json()["status"] == "queued"
        assert api.http.post(f"/v1/runs/{run_id}/stop").status_code == 200

    with answering(store, stop):
        answer = ask(api.http, user("Hello"))
    assert answer.status_code == 502
    assert "stopped" in answer.json()["error"]["message"]


def test_a_cut_answer_says_so(http: httpx.Client, store: Store) -> None:
    def cut(run_id: str) -> None:
        failure = Failure(kind="length", message="The reply was cut at 10 tokens.")
        reading = ModelReplied(exit_reason=ExitReason.TRUNCATED, failure=failure)
        store.runs.commit_reply(store.turn(run_id), ModelReply(text="Once upon", finish_reason="length"), reading)

    with answering(store, cut):
        answer = ask(http, user("Hello"))
    said = answer.json()
    assert said["choices"][0]["finish_reason"] == "length"
    assert said["hermes"]["error_code"] == "output_truncated"
    assert answer.headers["X-Hermes-Completed"] == "false"


WRONG: list[tuple[dict[str, Any], str, str | None]] = [
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": "hello"}, "invalid_type", "messages"),
    ({"messages": [assistant("hi")]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "system", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [user("  ")]}, "empty_message", "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"n": 9}, "invalid_value", "n"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 2, "stream": True}, "unsupported_parameter", "n"),
    ({"n": 2, "tools": [{"type": "function", "function": {"name": "a"}}]}, "unsupported_parameter", "n"),
    ({"model": "agent:nobody"}, "invalid_value", "model"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"functions": [{"name": "a"}]}, "unsupported_parameter", "functions"),
    ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format.json_schema.schema"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "strict": {}}}},
        "invalid_value",
        "response_format.json_schema.strict",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"$ref": "https://e.org/s"}}}},
        "invalid_value",
        "output_schema",
    ),
    ({"stream": "perhaps"}, "invalid_type", "stream"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
    (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
        "unsupported_content_type",
        "messages[0].content[0]",
    ),
    *(
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_data": data}}]}]},
            "unsupported_content_type",
            "messages[0].content[0]",
        )
        for data in (
            "https://e.org/a.txt",
            "data:application/pdf;base64,JVBERi0xLjf/gA==",
            "data:text/plain;base64,%%%",
        )
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/x"}}]}]},
        "invalid_image_url",
        "messages[0].content[0].image_url",
    ),
]


def test_a_format_becomes_the_schema_of_the_answer(http: httpx.Client, store: Store) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema, "strict": True}}
    for given, wanted in ((named, schema), ({"type": "json_object"}, {"type": "object"}), ({"type": "text"}, None)):
        with answering(store, SAID) as runs:
            assert ask(http, user("Count."), response_format=given).status_code == 200
        with store.database.read() as connection:
            pk = find_run(connection, runs[0])
        assert store.runs.load_output_schema(pk) == wanted


@pytest.mark.parametrize(("change", "code", "param"), WRONG)
def test_what_cannot_be_done_is_refused(http: httpx.Client, change: Any, code: str, param: str) -> None:
    document = {"model": "x", "messages": [user("Hello")], **change}
    refused(http.post("/v1/chat/completions", json=document), 400, code, param)


def test_an_image_is_passed_on(http: httpx.Client, store: Store) -> None:
    parts = [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": "https://e.org/x.png"}},
    ]
    with answering(store, SAID) as runs:
        assert ask(http, {"role": "user", "content": parts}).status_code == 200
    assert store.bodies(runs[0])[0]["content"] == parts


def test_a_text_file_is_shown_with_its_name(sdk: openai.OpenAI, store: Store) -> None:
    data = f"data:text/csv;base64,{base64.b64encode('city;räin'.encode()).decode()}"
    part = {"type": "file", "file": {"filename": "rain.csv", "file_data": data}}
    said: Any = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]
    with answering(store, SAID) as runs:
        sdk.chat.completions.create(model="x", messages=said)
    assert store.bodies(runs[0])[0]["content"] == "What is it?\n[file rain.csv]\ncity;räin\n[end of rain.csv]"


def test_fields_that_mean_nothing_here_are_passed_over(http: httpx.Client, store: Store) -> None:
    message = {**assistant("Arr!"), "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    with answering(store, SAID):
        answer = ask(http, user("a"), message, {**user("b"), "name": "me"}, temperature=0.2, seed=1, user="u", tools=[])
    assert answer.status_code == 200


def test_several_choices_are_runs_without_tools(sdk: openai.OpenAI, store: Store) -> None:
    with answering(
        store, SAID, ModelReply(text="Ho.", usage=Usage(input=1, output=1)), ModelReply(text="Aye.")
    ) as runs:
        answer = sdk.chat.completions.with_raw_response.create(
            model="gpt-5.5", messages=[user("Hello?")], n=3, extra_headers={"Idempotency-Key": "three"}
        )
    said = answer.parse()
    assert [(choice.index, choice.finish_reason) for choice in said.choices] == [(n, "stop") for n in range(3)]
    assert {choice.message.content for choice in said.choices} == {"Arr!", "Ho.", "Aye."}
    assert said.usage is not None and said.usage.total_tokens == 11
    assert sorted(answer.headers["X-Hermes-Run-Id"].split(", ")) == sorted(runs)
    assert len({store.views.load_run(run_id).session.id for run_id in runs}) == 3
    assert {ClientCalls(store.database).load_run_tools(run_id) for run_id in runs} == {"[]"}
    again = sdk.chat.completions.create(
        model="gpt-5.5", messages=[user("Hello?")], n=3, extra_headers={"Idempotency-Key": "three"}
    )
    assert (again.id, again.choices) == (said.id, said.choices)


def test_a_choice_that_failed_is_told_beside_the_others(http: httpx.Client, store: Store) -> None:
    with answering(store, failing(store), SAID):
        answer = ask(http, user("Hello"), n=2)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert sorted((choice["finish_reason"], choice["message"]["content"]) for choice in choices) == [
        ("error", ""),
        ("stop", "Arr!"),
    ]
    assert answer.headers["X-Hermes-Completed"] == "false"


def test_models_are_listed(sdk: openai.OpenAI) -> None:
    assert [model.id for model in sdk.models.list()] == ["hermes-agent", "scripted"]
    assert sdk.models.retrieve("hermes-agent").owned_by == "hermes"
    with pytest.raises(openai.NotFoundError):
        sdk.models.retrieve("gpt-5.5")
