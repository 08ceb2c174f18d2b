"""Tools that clients bring: the reply leaves the calls to them, and the request with the results goes on with the run.
The test is the worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import openai
import pytest
from answering import answering
from serving import PATIENCE_S, Served, until
from support.store import Asked, Store, settlement

from hermes_worker.agent.source_tools import read_client_tools
from hermes_worker.agent.tools.catalog import get_declared_catalog
from hermes_worker.core.messages import ModelReply, ToolRequest, Usage
from hermes_worker.core.principals import KeyScope
from hermes_worker.core.recovery_state import parse_recovery_state
from hermes_worker.core.run import RunStatus
from hermes_worker.core.tool_schemas import fit_schema, make_sendable_name
from hermes_worker.models.wires.definitions import fit_tools
from hermes_worker.store.access.principals import Tenants
from hermes_worker.store.runs.client_calls import ClientCalls
from hermes_worker.store.runs.waits import Waits
from hermes_worker.tasks.iteration.planning import plan_calls, read_tool_texts

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": PARAMETERS}
NESTED = [{"type": "function", "function": FUNCTION}]
FLAT = [{"type": "function", **FUNCTION}]
DONE = ModelReply(text="Take an umbrella.", usage=Usage(input=5, output=3))
USER = {"role": "user", "content": "What is the weather?"}


@pytest.fixture
def sdk(api: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{api.url}/v1", api_key=api.key, max_retries=0, timeout=20)


def stored_tools(store: Store, run_id: str) -> str:
    return ClientCalls(store.database).load_run_tools(run_id)


def leave(store: Store, *requests: ToolRequest, text: str = "") -> Callable[[str], None]:
    """A worker whose model calls these tools, and who does what a worker does of it."""

    def work(run_id: str) -> None:
        reply = ModelReply(
            text=text, tool_requests=requests, finish_reason="tool_calls", usage=Usage(input=3, output=2)
        )
        catalog = get_declared_catalog().for_session(stored_tools(store, run_id))
        planned, calls = plan_calls(reply, catalog)
        store.ask_tools(run_id, Asked(reply=planned, calls=calls))
        for position in sorted(range(len(calls)), key=lambda position: calls[position].segment):
            tool, claim = catalog.get(calls[position].name), store.call(run_id, position)
            if calls[position].name == "get_weather":
                asked = tool.run(json.loads(requests[position].arguments), None).question  # type: ignore[arg-type]
                assert asked is not None
                Waits(store.database).ask(claim, asked)
            else:
                store.calls.settle(claim, settlement('{"matches": 0}'))

    return work


def weather(city: str) -> ToolRequest:
    # Ids of models need not differ, and are not what a client is told.
    return ToolRequest(id="call_1", name="get_weather", arguments=json.dumps({"city": city}))


SEARCH = ToolRequest(id="call_2", name="search_files", arguments='{"pattern": "x"}')


def ask(http: httpx.Client, *messages: dict[str, Any], **more: Any) -> httpx.Response:
    return http.post("/v1/chat/completions", json={"messages": list(messages), "tools": NESTED, **more})


def result(call: dict[str, Any], text: str = "rain") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def left(api: Served, store: Store, *requests: ToolRequest) -> tuple[str, dict[str, Any]]:
    """A run that waits for its client: its id, and the message with the calls."""
    with answering(store, leave(store, *(requests or (weather("Oslo"),)))) as runs:
        answer = ask(api.http, USER)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    return runs[0], choice["message"]


def refused(answer: httpx.Response, code: str) -> str:
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["code"] == code, answer.text
    return str(answer.json()["error"]["message"])


@contextmanager
def finishing(store: Store, run_id: str, work: Callable[[str], object] | None = None) -> Iterator[None]:
    """The worker that gets the run when it goes on."""

    def take() -> None:
        until(lambda: store.status(run_id) is RunStatus.RUNNING, "the run goes on")
        (work or (lambda name: store.answer(name, DONE)))(run_id)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    yield
    thread.join(timeout=PATIENCE_S)


def brought(api: Served, store: Store, run_id: str, *messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The answer to the request that brings results, when the model then says that it is done."""
    with finishing(store, run_id):
        answer = ask(api.http, *messages, **more)
    assert answer.status_code == 200, answer.text
    assert answer.headers["X-Hermes-Run-Id"] == run_id
    return dict(answer.json())


# --- the calls, and their results ------------------------------------------------------------------------------------


def test_the_calls_go_to_the_client_and_the_results_to_the_model(api: Served, store: Store) -> None:
    run_id, message = left(api, store, weather("Oslo"), weather("Rome"))
    assert [call["function"] for call in message["tool_calls"]] == [
        {"name": "get_weather", "arguments": '{"city": "Oslo"}'},
        {"name": "get_weather", "arguments": '{"city": "Rome"}'},
    ]
    assert store.status(run_id) is RunStatus.WAITING_FOR_INPUT
    oslo, rome = message["tool_calls"]
    said = brought(api, store, run_id, USER, message, result(rome, "sun"), result(oslo, "rain"))
    (choice,) = said["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Take an umbrella.", "stop")
    assert store.results(run_id) == ["rain", "sun"]
    assert len(store.views.list_runs()) == 1
    # The client goes on with the conversation, and is known by it.
    with answering(store, DONE) as runs:
        ask(api.http, USER, message, result(oslo), result(rome, "sun"), choice["message"], USER)
    assert store.views.load_run(runs[0]).session.id == store.views.load_run(run_id).session.id


def test_the_definitions_are_a_part_of_a_new_session_and_never_change(api: Served, store: Store) -> None:
    with answering(store, DONE) as runs:
        ask(api.http, USER)
        answer = api.http.post("/v1/chat/completions", json={"messages": [USER]})
    kept = json.loads(stored_tools(store, runs[0]))[-1]
    assert kept["function"] == FUNCTION
    assert read_client_tools(stored_tools(store, runs[1])) == ()
    plain = {"X-Hermes-Session-Id": answer.headers["X-Hermes-Session-Id"]}
    document = {"messages": [USER], "tools": NESTED}
    message = refused(api.http.post("/v1/chat/completions", json=document, headers=plain), "session_has_other_tools")
    assert "never change" in message


def test_the_servers_calls_of_a_mixed_reply_do_not_wait_for_the_client(api: Served, store: Store) -> None:
    run_id, message = left(api, store, weather("Oslo"), SEARCH, weather("Rome"))
    cities = [json.loads(call["function"]["arguments"])["city"] for call in message["tool_calls"]]
    assert cities == ["Oslo", "Rome"]
    said = brought(api, store, run_id, USER, message, *map(result, message["tool_calls"]))
    assert said["choices"][0]["message"]["content"] == "Take an umbrella."
    assert store.results(run_id) == ["rain", '{"matches": 0}', "rain"]


def test_the_same_results_again_give_the_same_answer(api: Served, store: Store) -> None:
    run_id, message = left(api, store)
    request = (USER, message, result(message["tool_calls"][0]))
    first = brought(api, store, run_id, *request)
    assert ask(api.http, *request).json() == first
    assert store.results(run_id) == ["rain"]
    other = (USER, message, result(message["tool_calls"][0], "snow"))
    assert "differs" in refused(ask(api.http, *other), "tool_results_differ")


def test_a_stream_tells_the_calls_and_the_next_one_tells_the_rest(
    api: Served, store: Store, sdk: openai.OpenAI
) -> None:
    with answering(store, leave(store, SEARCH, weather("Oslo"), text="Let me look.")) as runs:
        chunks = list(sdk.chat.completions.create(model="x", messages=[USER], tools=NESTED, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Let me look."
    (call,) = next(chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices[0].delta.tool_calls)
    assert (call.index, call.function.name) == (0, "get_weather")
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
    shown = [chunk.model_extra["tool"] for chunk in chunks if "tool" in (chunk.model_extra or {})]
    assert set(shown) == {"search_files"}
    answer = {
        "role": "assistant",
        "tool_calls": [{"id": call.id, "type": "function", "function": call.function.to_dict()}],
    }
    messages = [USER, answer, result({"id": call.id})]
    with finishing(store, runs[0]):
        again = list(sdk.chat.completions.create(model="x", messages=messages, tools=NESTED, stream=True))  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in again) == "Take an umbrella."
    assert [chunk.choices[0].finish_reason for chunk in again][-1] == "stop"
    assert not [chunk for chunk in again if "tool" in (chunk.model_extra or {})]


# --- what is refused -------------------------------------------------------------------------------------------------


def test_results_of_what_nobody_asked_for_are_refused(api: Served, store: Store) -> None:
    run_id, message = left(api, store, weather("Oslo"), weather("Rome"))
    oslo, rome = message["tool_calls"]
    assert rome["id"] in refused(ask(api.http, USER, message, result(oslo)), "tool_results_missing")
    for name in ("call_1", "call_" + "0" * 32 + "_1_0", oslo["id"].replace("_1_0", "_1_7"), oslo["id"] + "0"):
        words = refused(ask(api.http, USER, message, result(rome), result({"id": name})), "tool_call_not_found")
        assert name in words
    long = refused(ask(api.http, USER, message, result(oslo, "x" * 100_001), result(rome)), "text_too_long")
    assert "100,000" in long
    tenants = Tenants(store.database)
    tenants.create_tenant("acme")
    key = tenants.create_key("acme", "ci", [KeyScope.ADMIN]).token
    with httpx.Client(base_url=api.url, headers={"Authorization": f"Bearer {key}"}, timeout=PATIENCE_S) as guest:
        foreign = refused(ask(guest, USER, message, result(oslo), result(rome)), "tool_call_not_found")
    assert foreign.endswith("and no tool call of that id waits for one.")
    assert store.status(run_id) is RunStatus.WAITING_FOR_INPUT


def test_a_client_that_never_returns_ends_the_run_and_comes_too_late(api: Served, store: Store) -> None:
    run_id, message = left(api, store)
    store.let_pass(599)
    store.sweep()
    assert store.status(run_id) is RunStatus.WAITING_FOR_INPUT
    store.let_pass(2)
    store.sweep()
    view = store.views.load_run(run_id)
    assert (view.status, view.exit_reason) == (RunStatus.EXPIRED, "idle_exceeded")
    assert "client_tools.timeout_s" in (view.error or "")
    assert "too late" in refused(ask(api.http, USER, message, result(message["tool_calls"][0])), "tool_call_over")


def test_a_run_that_was_stopped_takes_no_results(api: Served, store: Store) -> None:
    run_id, message = left(api, store)
    assert api.http.post(f"/v1/runs/{run_id}/stop").status_code == 200
    refused(ask(api.http, USER, message, result(message["tool_calls"][0])), "tool_call_over")


def _named(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
HOSTILE: list[tuple[Any, str]] = [
    ("get_weather", "list"),
    ([{"type": "web_search"}], "no function"),
    ([{"type": "function"}], "object"),
    ([_named("a\nb")], "the tool 'a\\nb' has a name with invisible characters; use letters, digits, '_' and '-'"),
    ([_named("a" * 101)], "has a name of 101 characters; at most 100 are taken"),
    ([_named("")], "the tool '' has no name"),
    ([_named("terminal")], "the agent has a tool of that name"),
    ([_named("a"), _named("a")], "two of them"),
    ([_named(f"tool{number}") for number in range(129)], "more than 128"),
    ([_named("a", parameters={"$ref": "https://example.org/schema"})], "nothing is fetched"),
    ([_named("a", parameters={"type": "object", "properties": {"b": {"pattern": "(a+)+$"}}})], "takes too long"),
    ([_named("a", parameters=DEEP)], "nested"),
    ([_named("a", parameters={"type": "object", "title": "x" * 70_000})], "too large"),
    ([_named(f"t{n}", parameters={"type": "object", "title": "x" * 40_000}) for n in range(2)], "too large"),
    (
        [_named("a", parameters={"type": "string"})],
        "the tool 'a' cannot be used: its schema takes a value of type 'string' and no object of arguments",
    ),
    ([_named("a", parameters="x")], "of the tool 'a': it must be an object"),
    ([_named("a", description=7)], "strings"),
]


@pytest.mark.parametrize(("tools", "words"), HOSTILE)
def test_a_definition_that_cannot_be_used_is_refused_with_a_sentence(api: Served, tools: Any, words: str) -> None:
    answer = api.http.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"], answer.text
    assert answer.json()["error"]["param"].startswith("tools")


ODD_NAME = "files.read/ünder " + "x" * 64
ODD: list[dict[str, Any]] = [
    {"type": "object"},
    {"type": "object", "properties": {"city": {"type": "array"}, "$top": "integer"}, "required": None},
    {"oneOf": [PARAMETERS, {"properties": {"at": {"type": ["number", "null"]}}}]},
    {"properties": {"city": {"type": "string", "pattern": "(", "enum": []}}, "required": ["city", "absent"]},
    {"type": "object", "properties": {"city": {"$ref": "#/$defs/nobody", "minimum": "1"}}},
]


@pytest.mark.parametrize("parameters", ODD)
def test_a_definition_that_can_be_mended_is_stored_as_it_came_and_sent_mended(
    api: Served, store: Store, parameters: Any
) -> None:
    tools = [_named(ODD_NAME, parameters=parameters)]
    with answering(store, DONE) as runs:
        answer = api.http.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
        again = api.http.post(
            "/v1/chat/completions",
            json={"messages": [USER], "tools": tools},
            headers={"X-Hermes-Session-Id": answer.headers["X-Hermes-Session-Id"]},
        )
    assert (answer.status_code, again.status_code) == (200, 200), answer.text + again.text
    stored = stored_tools(store, runs[0])
    assert json.loads(stored)[-1]["function"] == {"description": "", **tools[0]["function"]}
    *_, sent = fit_tools(tuple(read_tool_texts(stored))).texts
    assert json.loads(sent)["function"] == {
        "name": make_sendable_name(ODD_NAME),
        "description": "",
        "parameters": fit_schema(parameters),
    }
    (tool,) = read_client_tools(stored)
    assert (tool.name, tool.parameters) == (ODD_NAME, parameters)


def test_a_client_is_handed_a_call_under_the_name_that_it_chose(api: Served, store: Store) -> None:
    tools = [_named(ODD_NAME)]

    def work(run_id: str) -> None:
        stored = stored_tools(store, run_id)
        asked = ToolRequest(id="c", name=make_sendable_name(ODD_NAME), arguments='{"city": "Oslo"}')
        reply = fit_tools(tuple(read_tool_texts(stored))).restore(ModelReply(text="", tool_requests=(asked,)))
        catalog = get_declared_catalog().for_session(stored)
        planned, calls = plan_calls(reply, catalog)
        store.ask_tools(run_id, Asked(reply=planned, calls=calls))
        question = catalog.get(ODD_NAME).run({"city": "Oslo"}, None).question  # type: ignore[arg-type]
        assert question is not None
        Waits(store.database).ask(store.call(run_id, 0), question)

    with answering(store, work):
        answer = api.http.post("/v1/chat/completions", json={"messages": [USER], "tools": tools})
    (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
    assert call["function"] == {"name": ODD_NAME, "arguments": '{"city": "Oslo"}'}


def test_the_agent_chooses_what_it_calls(api: Served, store: Store) -> None:
    with answering(store, DONE) as runs:
        assert ask(api.http, USER, tool_choice="none").status_code == 200
        assert ask(api.http, USER, tool_choice="auto").status_code == 200
    assert [len(read_client_tools(stored_tools(store, run_id))) for run_id in runs] == [0, 1]


NAMED_CHOICE = {"type": "function", "function": {"name": "get_weather"}}


def forced_tools(store: Store, run_id: str) -> tuple[str, ...]:
    claim = store.turn(run_id)
    store.runs.release_iteration(claim)
    return parse_recovery_state(claim.loaded.run.memory).forced_tools


@pytest.mark.parametrize("choice", ["required", NAMED_CHOICE, {"type": "function", "name": "get_weather"}])
def test_a_client_may_force_its_own_tools(api: Served, store: Store, choice: object) -> None:
    found: list[tuple[str, ...]] = []
    work = leave(store, weather("Oslo"))

    def look(run_id: str) -> None:
        found.append(forced_tools(store, run_id))
        work(run_id)

    with answering(store, look):
        chat = ask(api.http, USER, tool_choice=choice)
    assert chat.json()["choices"][0]["finish_reason"] == "tool_calls"
    with answering(store, look):
        response = api.http.post("/v1/responses", json={"input": "What?", "tools": FLAT, "tool_choice": choice})
    assert [item["type"] for item in response.json()["output"]] == ["function_call"]
    assert response.json()["tool_choice"] == {"type": "function", "name": "get_weather"}
    assert found == [("get_weather",)] * 2


def test_results_may_come_with_another_force(api: Served, store: Store) -> None:
    run_id, message = left(api, store)
    found: list[tuple[str, ...]] = []

    def work(name: str) -> None:
        found.append(forced_tools(store, name))
        store.answer(name, DONE)

    with finishing(store, run_id, work):
        said = ask(api.http, USER, message, result(message["tool_calls"][0]), tool_choice="required")
    assert (said.status_code, found) == (200, [("get_weather",)])


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"tools": None, "tool_choice": "required"}, "'tool_choice' forces a call, and the request brings no 'tools'"),
        ({"tools": [], "tool_choice": NAMED_CHOICE}, "only the client's own can be forced"),
        ({"tool_choice": {"type": "function", "function": {"name": "terminal"}}}, "'terminal', which is not among"),
        ({"tool_choice": {"type": "web_search"}}, "'web_search' is not supported as 'tool_choice'"),
        ({"tool_choice": "any"}, "'any' is not supported as 'tool_choice'"),
        ({"tools": [{"type": "web_search"}]}, "has the type 'web_search' and is no function"),
    ],
)
def test_what_cannot_be_forced_is_refused_with_a_sentence(api: Served, more: dict[str, Any], sentence: str) -> None:
    answer = ask(api.http, USER, **more)
    assert (answer.status_code, sentence in answer.json()["error"]["message"]) == (400, True), answer.text


def test_it_is_explained_and_may_be_answered_by_others(api: Served, store: Store) -> None:
    run_id, message = left(api, store)
    why = api.http.get(f"/v1/runs/{run_id}/explain").json()
    assert (why["because"], why["facts"]["tools"]) == ("client_tool", "get_weather")
    assert "the client that asked is to bring the results of its own tools (get_weather)" in why["text"]
    with finishing(store, run_id):
        answer = {"text": "rain", "wait_id": why["facts"]["wait_id"]}
        assert api.http.post(f"/v1/runs/{run_id}/input", json=answer).status_code == 200
    until(lambda: store.status(run_id) is RunStatus.COMPLETED, "the end")
    assert store.results(run_id) == ["rain"]
    again = ask(api.http, USER, message, result(message["tool_calls"][0]))
    assert again.json()["choices"][0]["message"]["content"] == "Take an umbrella."


# --- responses -------------------------------------------------------------------------------------------------------


def output(item: Any, text: str = "rain") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item.call_id, "output": text}


def test_a_response_in_the_background_falls_into_parts(api: Served, store: Store, sdk: openai.OpenAI) -> None:
    with answering(store, leave(store, SEARCH, weather("Oslo"), text="Let me look.")):
        made = sdk.responses.create(input="Weather?", tools=FLAT, background=True)  # type: ignore[call-overload]
        first = until(lambda: (one := sdk.responses.retrieve(made.id)).status == "completed" and one, "the calls")
    assert [item.type for item in first.output] == ["message", "mcp_call", "function_call"]
    with pytest.raises(openai.BadRequestError, match="waits for the results"):
        sdk.responses.create(input="And now?", previous_response_id=first.id)
    run_id = f"run_{first.id.removeprefix('resp_')}"
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(f"{first.id}p1")
    with finishing(store, run_id, leave(store, weather("Rome"))):
        brought = [output(first.output[2])]
        second = sdk.responses.create(input=brought, previous_response_id=first.id, background=True)  # type: ignore[arg-type]
        assert (second.id, second.previous_response_id) == (f"{first.id}p1", first.id)
    second = until(lambda: (one := sdk.responses.retrieve(second.id)).status == "completed" and one, "the call")
    assert [item.type for item in second.output] == ["function_call"]
    assert [item.output for item in sdk.responses.input_items.list(second.id)] == ["rain"]  # type: ignore[union-attr]
    with finishing(store, run_id):
        last = sdk.responses.create(input=[output(second.output[0], "sun")], previous_response_id=second.id)  # type: ignore[list-item]
    assert (last.id, last.output_text, last.status) == (f"{first.id}p2", "Take an umbrella.", "completed")
    assert [item.type for item in sdk.responses.retrieve(first.id).output] == ["message", "mcp_call", "function_call"]
    assert sdk.responses.retrieve(second.id) == second
    for part in (first, second, last):  # what was sent is told again, and the agent's own tools are its own
        assert [(tool.type, tool.name, tool.parameters) for tool in part.tools] == [  # type: ignore[union-attr]
            ("function", FUNCTION["name"], FUNCTION["parameters"])
        ]
    assert sdk.responses.retrieve(last.id).tools == first.tools
    assert store.results(run_id) == ['{"matches": 0}', "rain", "sun"]
    ids = [item.id for one in (first, second, last) for item in one.output]
    assert len(set(ids)) == len(ids) == 5


def test_a_stream_of_any_part_is_told_again_from_any_number(api: Served, store: Store, sdk: openai.OpenAI) -> None:
    with answering(store, leave(store, SEARCH, weather("Oslo"), text="Let me look.")) as runs:
        first = list(sdk.responses.create(input="Weather?", tools=FLAT, stream=True))  # type: ignore[call-overload]
    assert [event.type for event in first[-5:]] == [
        "response.output_item.done",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    call = first[-1].response.output[2]
    with finishing(store, runs[0]):
        asked = {"input": [output(call)], "previous_response_id": first[-1].response.id, "stream": True}
        second = list(sdk.responses.create(**asked))  # type: ignore[call-overload]
    assert second[-1].response.output_text == "Take an umbrella."
    for events in (first, second):
        name = events[-1].response.id
        for number in (0, len(events) // 2, len(events) - 2):
            seen = events[number].sequence_number
            again = list(sdk.responses.retrieve(name, stream=True, starting_after=seen))
            assert [event.to_json() for event in again] == [event.to_json() for event in events[number + 1 :]]


def test_results_belong_to_the_response_that_asked(api: Served, store: Store, sdk: openai.OpenAI) -> None:
    with answering(store, leave(store, weather("Oslo")), DONE):
        first = sdk.responses.create(input="Weather?", tools=FLAT)  # type: ignore[call-overload]
        other = sdk.responses.create(input="Else?")
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(input=[output(first.output[0])], previous_response_id=other.id)  # type: ignore[list-item]
    assert refusal.value.code == "tool_call_not_found"
    assert sdk.responses.cancel(first.id).status == "cancelled"
    with pytest.raises(openai.BadRequestError) as refusal:
        sdk.responses.create(input=[output(first.output[0])])  # type: ignore[list-item]
    assert refusal.value.code == "tool_call_over"
