"""The Responses wire: what is sent, what a stream of events becomes, and what is learned from a refusal.

What it does about failures is tested with the other wires in ``tests/contract/test_wires.py``.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.fault_server import FaultServer, Received, Reply

from hermes_worker.core.abort import AbortSignal
from hermes_worker.core.messages import (
    Delta,
    ModelReply,
    ModelRequest,
    ToolRequest,
    Usage,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.models.endpoint import Endpoint
from hermes_worker.models.wires.chat_reply import CutShort, MalformedReply, StreamedError
from hermes_worker.models.wires.conversions.responses import CODEX, GITHUB
from hermes_worker.models.wires.openai_responses import Dialect, OpenAIResponses, build_request_body
from hermes_worker.models.wires.responses_reply import ResponseAssembler

KEY = "sk-test-0123456789abcdefghij"
ISSUER = "other:127.0.0.1"
SYSTEM = dump_canonical_json({"role": "system", "content": "be brief"})
TOOL = dump_canonical_json(
    {"type": "function", "function": {"name": "terminal", "parameters": {"type": "object", "properties": {}}}}
)
REQUEST = ModelRequest(model="gpt-5.4", messages=(SYSTEM, build_user_body("hello")), tools=(TOOL,), session_id="s-1")


def message(text: str, **fields: object) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text}],
        **fields,
    }


def function_call(call_id: str = "call_1", arguments: str = '{"command":"ls"}', **fields: object) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "terminal", "arguments": arguments, **fields}


def added(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.added", "output_index": index, "item": item}


def done(index: int, item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def text(piece: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.output_text.delta", "output_index": index, "delta": piece}


def last(kind: str = "completed", *output: dict[str, Any], **fields: object) -> dict[str, Any]:
    usage = {"input_tokens": 12, "output_tokens": 3}
    response = {"status": kind, "model": "gpt", "output": list(output), "usage": usage, **fields}
    return {"type": f"response.{kind}", "response": response}


CREATED = {"type": "response.created", "response": {"model": "gpt", "status": "in_progress"}}


def say_hello(_: Received, reply: Reply) -> None:
    reply.sse(CREATED, text("hel"), text("lo"), last("completed", message("hello")))


def ask(provider: OpenAIResponses, request: ModelRequest = REQUEST, deltas: list[Delta] | None = None) -> ModelReply:
    return provider.ask(request, on_delta=(deltas if deltas is not None else []).append, abort=AbortSignal())


def assembled(*events: object, issuer: str = ISSUER, was_cut_short: bool = False) -> tuple[ModelReply, list[Delta]]:
    deltas: list[Delta] = []
    assembler = ResponseAssembler(deltas.append, issuer=issuer)
    for event in events:
        assembler.feed(event)
    return assembler.finish(was_cut_short=was_cut_short), deltas


HERE = Endpoint(base_url="http://127.0.0.1/v1")


def sent(request: ModelRequest, issuer: str = ISSUER, dialect: Dialect | None = None) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(build_request_body(request, issuer, dialect or Dialect(), HERE))
    return parsed


# ---------------------------------------------------------------------------------------------------------- the request


def test_a_streamed_reply_arrives_whole_and_piece_by_piece() -> None:
    deltas: list[Delta] = []
    with FaultServer(say_hello) as server:
        reply = ask(OpenAIResponses(Endpoint(base_url=server.base_url, api_key=KEY)), deltas=deltas)

    assert (reply.text, reply.usage, reply.model) == ("hello", Usage(input=12, output=3), "gpt")
    assert deltas == [Delta(text="hel"), Delta(text="lo")]


def test_the_request_is_written_as_the_api_wants_it() -> None:
    with FaultServer(say_hello) as server:
        ask(OpenAIResponses(Endpoint(base_url=server.base_url, api_key=KEY)))
    document = server.requests[0].document

    assert server.requests[0].head.startswith("POST /v1/responses HTTP/1.1")
    assert server.requests[0].header("authorization") == f"Bearer {KEY}"
    assert document.pop("prompt_cache_key").startswith("pck_")
    assert document == {
        "instructions": "be brief",
        "include": ["reasoning.encrypted_content"],
        "model": "gpt-5.4",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "tool_choice": "auto",
        "tools": [
            {
                "type": "function",
                "name": "terminal",
                "description": "",
                "strict": False,
                "parameters": {"type": "object", "properties": {}},
            }
        ],
        "input": [{"role": "user", "content": "hello"}],
    }


def test_the_same_rows_give_the_same_bytes_and_the_next_request_begins_with_them() -> None:
    asked = build_assistant_body(
        ModelReply(text="", tool_requests=(ToolRequest(id="t1", name="terminal", arguments="{}"),))
    )
    rows = [SYSTEM, build_user_body("hello"), asked, build_tool_body("t1", "done")]
    before = build_request_body(ModelRequest(model="m", messages=rows, tools=(TOOL,)), ISSUER, Dialect(), HERE)
    again = build_request_body(ModelRequest(model="m", messages=list(rows), tools=[TOOL]), ISSUER, Dialect(), HERE)
    later_rows = [*rows, build_assistant_body(ModelReply(text="ok")), build_user_body("more")]
    after = build_request_body(ModelRequest(model="m", messages=later_rows, tools=(TOOL,)), ISSUER, Dialect(), HERE)

    assert before == again
    assert after.startswith(before.removesuffix(b"]}"))


def test_sessions_of_one_kind_share_a_cache_key_and_others_do_not() -> None:
    other_prompt = ModelRequest(model="m", messages=(dump_canonical_json({"role": "system", "content": "else"}),))

    assert (
        sent(REQUEST)["prompt_cache_key"]
        == sent(ModelRequest(model="x", messages=REQUEST.messages, tools=(TOOL,)))["prompt_cache_key"]
    )
    assert sent(REQUEST)["prompt_cache_key"] != sent(other_prompt)["prompt_cache_key"]


def test_without_a_system_prompt_there_still_are_instructions() -> None:
    assert sent(ModelRequest(model="m", messages=(build_user_body("x"),)))["instructions"]


@pytest.mark.parametrize(("effort", "asked"), [(None, "medium"), ("high", "high"), ("minimal", "low"), ("none", None)])
def test_efforts(effort: str | None, asked: str | None) -> None:
    request = ModelRequest(model="gpt-5.4", messages=(build_user_body("x"),), reasoning_effort=effort)

    assert (sent(request).get("reasoning") or {}).get("effort") == asked


def test_an_output_limit_is_sent_where_it_is_understood() -> None:
    request = ModelRequest(model="m", messages=(build_user_body("x"),), output_tokens_max=7)
    with FaultServer(say_hello) as server:
        ask(OpenAIResponses(Endpoint(base_url=server.base_url, api_key=KEY)), request)

    assert server.requests[0].document["max_output_tokens"] == 7


@pytest.mark.parametrize(
    ("base_url", "issuer", "trait"),
    [
        ("https://chatgpt.com/backend-api/codex", CODEX, "takes_output_cap"),
        ("https://api.githubcopilot.com", GITHUB, "takes_cache_key"),
    ],
)
def test_what_known_endpoints_refuse_is_not_sent(base_url: str, issuer: str, trait: str) -> None:
    provider = OpenAIResponses(Endpoint(base_url=base_url, api_key=KEY))

    assert provider._issuer == issuer
    assert getattr(provider._learner._dialect, trait) is False


def test_reasoning_that_was_rejected_is_left_out() -> None:
    item = {"type": "reasoning", "encrypted_content": "gAAA", "summary": [], "id": "rs_1", "_issuer_kind": ISSUER}
    row = dump_canonical_json({"role": "assistant", "content": "said", "codex_reasoning_items": [item]})
    rows = (build_user_body("x"), row, build_user_body("y"))

    assert "gAAA" in str(sent(ModelRequest(model="m", messages=rows)))
    refused = sent(ModelRequest(model="m", messages=rows, replays_reasoning=False))
    assert "gAAA" not in str(refused)
    assert refused["include"] == []


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ("Unsupported parameter: 'reasoning.effort' is not supported with this model.", "reasoning"),
        ("Unknown parameter: 'prompt_cache_key'", "prompt_cache_key"),
        ("Unsupported parameter: max_output_tokens", "max_output_tokens"),
        ("parallel_tool_calls is not supported", "parallel_tool_calls"),
        ("Encrypted content is not supported with this model: include", "include"),
        ("streaming is not supported", "stream"),
    ],
)
def test_a_refusal_of_the_way_of_asking_is_answered_and_remembered(said: str, refused: str) -> None:
    def handler(request: Received, reply: Reply) -> None:
        if request.document.get(refused):
            reply.document(400, {"error": {"message": said, "code": "unsupported_parameter"}})
        elif request.document["stream"]:
            say_hello(request, reply)
        else:
            reply.document(200, {"object": "response", "status": "completed", "output": [message("hello")]})

    request = ModelRequest(model="gpt-4.1", messages=(build_user_body("x"),), tools=(TOOL,), output_tokens_max=9)
    with FaultServer(handler) as server:
        provider = OpenAIResponses(Endpoint(base_url=server.base_url, api_key=KEY))
        assert [ask(provider, request).text for _ in range(2)] == ["hello", "hello"]

    assert [bool(r.document.get(refused)) for r in server.requests] == [True, False, False]


def test_a_model_that_cannot_reason_does_not_keep_others_from_it() -> None:
    def handler(request: Received, reply: Reply) -> None:
        if request.document["model"] == "plain" and "reasoning" in request.document:
            reply.document(400, {"error": {"message": "Unsupported parameter: reasoning"}})
        else:
            say_hello(request, reply)

    with FaultServer(handler) as server:
        provider = OpenAIResponses(Endpoint(base_url=server.base_url, api_key=KEY))
        for model in ("plain", "plain", "deep"):
            ask(provider, ModelRequest(model=model, messages=(build_user_body("x"),)))

    assert ["reasoning" in r.document for r in server.requests] == [True, False, False, True]


# ------------------------------------------------------------------------------------------------------------ the reply


def test_calls_come_from_the_last_event() -> None:
    reply, deltas = assembled(
        CREATED,
        added(0, function_call(arguments="", status="in_progress")),
        {"type": "response.function_call_arguments.delta", "output_index": 0, "delta": '{"comm'},
        last("completed", function_call(status="completed")),
    )

    assert reply.tool_requests == (ToolRequest(id="call_1", name="terminal", arguments='{"command":"ls"}'),)
    assert reply.finish_reason == "tool_calls"
    assert deltas == [Delta(tool_name="terminal")]


def test_a_last_event_with_empty_hands_is_filled_from_the_finished_items() -> None:
    """As the ChatGPT backend sends it."""
    reply, _ = assembled(
        CREATED, text("look: "), done(1, function_call()), done(0, message("look: ")), last("completed")
    )

    assert reply.text == "look: "
    assert [request.name for request in reply.tool_requests] == ["terminal"]


def test_text_that_was_only_streamed_is_the_reply() -> None:
    assert assembled(CREATED, text("hel"), text("lo"), last("completed"))[0].text == "hello"


def test_notes_on_the_way_are_shown_as_reasoning() -> None:
    note = message("thinking aloud", phase="commentary")
    reply, deltas = assembled(
        added(0, {**note, "content": []}),
        text("thinking aloud", 0),
        text("answer", 1),
        last("completed", note, message("answer", phase="final_answer")),
    )

    assert (reply.text, reply.reasoning) == ("answer", "thinking aloud")
    assert deltas == [Delta(reasoning="thinking aloud"), Delta(text="answer")]


def test_what_is_streamed_is_how_the_reply_begins() -> None:
    """Readers of the stream are told the rest when the reply is stored; it must continue what they saw."""
    summary = {"type": "reasoning", "summary": [{"text": "first"}, {"text": "second"}], "id": "rs_1"}
    reply, deltas = assembled(
        {"type": "response.reasoning_summary_part.added", "summary_index": 0},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "first"},
        {"type": "response.reasoning_summary_part.added", "summary_index": 1},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "second"},
        text("one", 1),
        text("two", 2),
        last(
            "completed",
            {**summary, "summary": [{"type": "summary_text", **p} for p in summary["summary"]]},  # type: ignore[dict-item]
            message("one"),
            message("two"),
        ),
    )

    assert "".join(delta.text for delta in deltas) == reply.text == "one\ntwo"
    assert "".join(delta.reasoning for delta in deltas) == reply.reasoning == "first\nsecond"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (last("incomplete", message("half"), incomplete_details={"reason": "max_output_tokens"}), "incomplete"),
        (last("incomplete", message("half"), incomplete_details={"reason": "content_filter"}), "content_filter"),
    ],
)
def test_a_reply_that_is_not_whole_says_why(event: dict[str, Any], reason: str) -> None:
    assert assembled(event)[0].finish_reason == reason


def refusal(piece: str, index: int = 0) -> dict[str, Any]:
    return {"type": "response.refusal.delta", "output_index": index, "delta": piece}


def test_a_refusal_is_told_from_an_answer() -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
    for ending in (last("completed", item), last("completed")):
        reply, deltas = assembled(refusal("I can"), refusal("not."), ending)
        assert (reply.text, reply.finish_reason) == ("I cannot.", "content_filter")
        assert deltas == [Delta(text="I can"), Delta(text="not.")]


def test_the_beginning_of_a_refusal_is_a_refusal() -> None:
    reply, _ = assembled(CREATED, refusal("I can"), was_cut_short=True)

    assert (reply.text, reply.finish_reason, reply.was_cut_by_network) == ("I can", "content_filter", False)


def test_a_completed_response_may_be_empty() -> None:
    reply, _ = assembled(CREATED, last("completed"))

    assert (reply.text, reply.tool_requests, reply.finish_reason) == ("", (), "stop")


def test_an_answer_keeps_the_blank_that_joins_it_to_what_was_said() -> None:
    assembler = ResponseAssembler(lambda _: None, issuer=ISSUER)
    assembler.feed_whole(last("completed", message(" and the end."))["response"])

    assert assembler.finish().text == " and the end."


def test_ids_that_repeat_are_told_apart() -> None:
    reply, _ = assembled(last("completed", function_call(), function_call(arguments="{}")))

    assert len({request.id for request in reply.tool_requests}) == 2


def test_a_stream_that_just_ends_keeps_its_text_as_cut_and_drops_the_rest() -> None:
    """The SDK raises nothing here: the last event is response.in_progress and that is all."""
    reply, _ = assembled(CREATED, text("half an ans"), added(1, function_call(arguments="")), was_cut_short=True)

    assert (reply.text, reply.finish_reason, reply.tool_requests) == ("half an ans", "length", ())
    assert (reply.was_cut_by_network, reply.dropped_calls, reply.model) == (True, ("terminal",), "gpt")


@pytest.mark.parametrize("events", [(), (CREATED,), (CREATED, added(0, function_call()), done(0, function_call()))])
def test_a_stream_that_just_ends_before_any_text_is_no_reply(events: tuple[object, ...]) -> None:
    with pytest.raises(CutShort):
        assembled(*events, was_cut_short=True)


@pytest.mark.parametrize(
    "event", [[], "text", {}, {"choices": []}, {"type": 5}, {**text("x"), "output_index": "first"}]
)
def test_what_is_no_event_of_this_wire_is_malformed(event: object) -> None:
    with pytest.raises(MalformedReply):
        assembled(event)


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ({"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}, "rate_limit_exceeded"),
        ({"type": "error", "error": {"code": "server_error", "message": "boom"}}, "server_error"),
        (last("failed", error={"code": "server_error", "message": "boom"}), "server_error"),
        (last("incomplete"), None),
    ],
)
def test_an_error_in_the_stream_is_an_error(event: dict[str, Any], code: str | None) -> None:
    with pytest.raises(StreamedError) as raised:
        assembled(CREATED, event)

    assert raised.value.body.get("code") == code


def test_events_to_come_are_passed_over() -> None:
    assert assembled({"type": "response.something_new"}, text("x"), last("completed", message("x")))[0].text == "x"


@pytest.mark.parametrize("document", [{}, [], {"data": []}, {"choices": []}])
def test_a_document_without_output_is_malformed(document: object) -> None:
    with pytest.raises(MalformedReply):
        ResponseAssembler(lambda _: None, issuer=ISSUER).feed_whole(document)
