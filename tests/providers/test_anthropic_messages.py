"""The Messages wire: what is sent, what a stream of events becomes, and what is learned from a refusal.

What it does about failures is tested with the other wires in ``tests/contract/test_wires.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
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
from hermes_worker.models.wires.anthropic_messages import AnthropicMessages, Dialect, build_request_body
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.models.wires.chat_reply import CutShort, MalformedReply, StreamedError

KEY = "sk-test-0123456789abcdefghij"
SYSTEM = dump_canonical_json({"role": "system", "content": "be brief"})
TOOL = dump_canonical_json({"type": "function", "function": {"name": "terminal", "parameters": {"type": "object"}}})
REQUEST = ModelRequest(model="claude-sonnet-4.6", messages=(SYSTEM, build_user_body("hello")), tools=(TOOL,))

START = {"type": "message_start", "message": {"model": "claude", "usage": {"input_tokens": 12, "output_tokens": 1}}}
STOP = {"type": "message_stop"}


def block(index: int, **fields: object) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": fields}


def piece(index: int, kind: str, **fields: object) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **fields}}


def ending(reason: str | None = "end_turn", **usage: int) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage}


HELLO = (
    START,
    block(0, type="text", text=""),
    {"type": "ping"},
    piece(0, "text_delta", text="hel"),
    piece(0, "text_delta", text="lo"),
    {"type": "content_block_stop", "index": 0},
    ending(output_tokens=3),
    STOP,
)


def say_hello(_: Received, reply: Reply) -> None:
    reply.sse(*HELLO)


def ask(provider: AnthropicMessages, request: ModelRequest = REQUEST, deltas: list[Delta] | None = None) -> ModelReply:
    return provider.ask(request, on_delta=(deltas if deltas is not None else []).append, abort=AbortSignal())


def assembled(*events: object, was_cut_short: bool = False) -> tuple[ModelReply, list[Delta]]:
    deltas: list[Delta] = []
    assembler = MessageAssembler(deltas.append)
    for event in events:
        assembler.feed(event)
    return assembler.finish(was_cut_short=was_cut_short), deltas


# ---------------------------------------------------------------------------------------------------------- the request


def test_a_streamed_reply_arrives_whole_and_piece_by_piece() -> None:
    deltas: list[Delta] = []
    with FaultServer(say_hello) as server:
        reply = ask(AnthropicMessages(Endpoint(base_url=server.base_url, api_key=KEY)), deltas=deltas)

    assert reply == ModelReply(text="hello", usage=Usage(input=12, output=3), model="claude")
    assert deltas == [Delta(text="hel"), Delta(text="lo")]


def test_the_request_is_written_as_anthropic_writes_it() -> None:
    with FaultServer(say_hello) as server:
        ask(AnthropicMessages(Endpoint(base_url=server.base_url, api_key=KEY)))
    sent = server.requests[0]

    assert sent.head.startswith("POST /v1/messages HTTP/1.1")
    assert sent.body == (
        b'{"max_tokens":64000,"model":"claude-sonnet-4-6","stream":true,"system":"be brief",'
        b'"tools":[{"description":"","input_schema":{"properties":{},"type":"object"},"name":"terminal"}],'
        b'"messages":[{"content":"hello","role":"user"}]}'
    )
    assert sent.header("anthropic-version") == "2023-06-01"
    assert "interleaved-thinking" in (sent.header("anthropic-beta") or "")


@pytest.mark.parametrize(
    ("key", "base_path", "header", "value"),
    [
        ("sk-ant-api03-x", "/v1", "x-api-key", "sk-ant-api03-x"),
        ("sk-ant-oat01-x", "/v1", "authorization", "Bearer sk-ant-oat01-x"),
        ("eyJhbGciOi", "", "authorization", "Bearer eyJhbGciOi"),
        ("", "", "x-api-key", None),
        ("", "", "authorization", None),
    ],
)
def test_keys_and_access_tokens_go_into_headers_of_their_own(
    key: str, base_path: str, header: str, value: str | None
) -> None:
    with FaultServer(say_hello) as server:
        base_url = server.base_url.removesuffix("/v1") + base_path
        ask(AnthropicMessages(Endpoint(base_url=base_url, api_key=key)))

    assert server.requests[0].head.startswith("POST /v1/messages")
    assert server.requests[0].header(header) == value


def test_the_environment_adds_nothing_to_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "leak")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "leak")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Leak: yes\nx-api-key: leak")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:1/leak")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with FaultServer(say_hello) as server:
        ask(AnthropicMessages(Endpoint(base_url=server.base_url, api_key=KEY)))

    assert "leak" not in server.requests[0].head.lower()
    assert server.requests[0].header("x-api-key") == KEY


def test_an_effort_is_asked_for_only_when_there_is_one() -> None:
    endpoint = Endpoint(base_url="https://api.anthropic.com")

    def sent(effort: str | None) -> dict[str, Any]:
        request = ModelRequest(model="claude-sonnet-4-6", messages=(build_user_body("x"),), reasoning_effort=effort)
        parsed: dict[str, Any] = json.loads(build_request_body(request, endpoint, Dialect()))
        return parsed

    assert "thinking" not in sent(None)
    assert "thinking" not in sent("none")
    assert sent("high")["output_config"] == {"effort": "high"}


def test_the_same_rows_give_the_same_bytes_and_the_next_request_begins_with_them() -> None:
    endpoint = Endpoint(base_url="https://api.anthropic.com")
    asked = build_assistant_body(
        ModelReply(text="", tool_requests=(ToolRequest(id="t1", name="terminal", arguments="{}"),))
    )
    rows = [SYSTEM, build_user_body("hello"), asked, build_tool_body("t1", "done")]
    before = build_request_body(ModelRequest(model="m", messages=rows, tools=(TOOL,)), endpoint, Dialect())
    again = build_request_body(ModelRequest(model="m", messages=list(rows), tools=[TOOL]), endpoint, Dialect())
    later_rows = [*rows, build_assistant_body(ModelReply(text="ok")), build_user_body("more")]
    after = build_request_body(ModelRequest(model="m", messages=later_rows, tools=(TOOL,)), endpoint, Dialect())

    assert before == again
    assert after.startswith(before.removesuffix(b"]}"))


def test_reasoning_that_was_rejected_is_left_out() -> None:
    row = dump_canonical_json(
        {
            "role": "assistant",
            "content": "said",
            "reasoning_details": [{"type": "thinking", "thinking": "hm", "signature": "s"}],
        }
    )
    request = ModelRequest(
        model="m", messages=(build_user_body("x"), row, build_user_body("y")), replays_reasoning=False
    )

    assert b"signature" not in build_request_body(request, Endpoint(base_url="https://api.anthropic.com"), Dialect())


@pytest.mark.parametrize(
    ("said", "effort", "changed"),
    [
        ("Unsupported beta header value", None, "anthropic-beta"),
        ("adaptive thinking is not supported on this model", "high", "thinking"),
        ("streaming is not supported", None, "stream"),
    ],
)
def test_a_refusal_of_the_way_of_asking_is_answered_and_remembered(said: str, effort: str | None, changed: str) -> None:
    def is_refused(request: Received) -> bool:
        if changed == "anthropic-beta":
            return request.header("anthropic-beta") is not None
        return bool(request.document.get(changed))

    def handler(request: Received, reply: Reply) -> None:
        error = {"type": "error", "error": {"type": "invalid_request_error", "message": said}}
        if is_refused(request):
            reply.document(400, error)
        elif request.document["stream"]:
            say_hello(request, reply)
        else:
            reply.document(200, {"content": [{"type": "text", "text": "hello"}], "stop_reason": "end_turn"})

    request = ModelRequest(model="claude-opus-4-7", messages=(build_user_body("x"),), reasoning_effort=effort)
    with FaultServer(handler) as server:
        provider = AnthropicMessages(Endpoint(base_url=server.base_url, api_key=KEY))
        assert [ask(provider, request).text for _ in range(2)] == ["hello", "hello"]

    assert [is_refused(r) for r in server.requests] == [True, False, False]


# ------------------------------------------------------------------------------------------------------------ the reply


def test_calls_are_put_together_from_their_pieces() -> None:
    reply, deltas = assembled(
        START,
        block(0, type="tool_use", id="toolu_1", name="terminal", input={}),
        piece(0, "input_json_delta", partial_json='{"command": '),
        piece(0, "input_json_delta", partial_json='"ls"}'),
        ending("tool_use", output_tokens=9),
        STOP,
    )

    assert reply.tool_requests == (ToolRequest(id="toolu_1", name="terminal", arguments='{"command":"ls"}'),)
    assert reply.finish_reason == "tool_calls"
    assert deltas == [Delta(tool_name="terminal")]


def test_signed_thinking_before_calls_is_kept_block_by_block() -> None:
    reply, deltas = assembled(
        START,
        block(0, type="thinking", thinking="", signature=""),
        piece(0, "thinking_delta", thinking="let me "),
        piece(0, "thinking_delta", thinking="look"),
        piece(0, "signature_delta", signature="c2ln"),
        block(1, type="redacted_thinking", data="b64"),
        block(2, type="tool_use", id="t", name="f", input={}),
        ending("tool_use"),
        STOP,
    )

    signed = {"type": "thinking", "thinking": "let me look", "signature": "c2ln"}
    assert reply.reasoning == "let me look"
    assert reply.row_fields["reasoning_details"] == [signed, {"type": "redacted_thinking", "data": "b64"}]
    assert [b["type"] for b in reply.row_fields["anthropic_content_blocks"]] == [  # type: ignore[attr-defined]
        "thinking",
        "redacted_thinking",
        "tool_use",
    ]
    assert [delta.reasoning for delta in deltas if delta.reasoning] == ["let me ", "look"]


def test_arguments_that_break_off_count_as_cut_and_stay_as_they_came() -> None:
    reply, _ = assembled(
        START,
        block(0, type="tool_use", id="t", name="f", input={}),
        piece(0, "input_json_delta", partial_json='{"path": "a'),
        ending("max_tokens"),
        STOP,
    )

    assert (reply.tool_requests[0].arguments, reply.finish_reason) == ('{"path": "a', "length")


def test_ids_that_repeat_are_told_apart() -> None:
    reply, _ = assembled(
        START,
        block(0, type="thinking", thinking="x", signature="s"),
        *(block(n, type="tool_use", id="same", name="f", input={"n": n}) for n in (1, 2)),
        ending("tool_use"),
        STOP,
    )

    assert len({request.id for request in reply.tool_requests}) == 2
    assert "anthropic_content_blocks" not in reply.row_fields


@pytest.mark.parametrize(
    ("reason", "ours"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("stop_sequence", "stop"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
        ("something_new", "stop"),
    ],
)
def test_stop_reasons(reason: str, ours: str) -> None:
    assert assembled(START, block(0, type="text", text="x"), ending(reason), STOP)[0].finish_reason == ours


def test_usage_is_cumulative_and_keeps_what_the_start_counted() -> None:
    start = {
        "type": "message_start",
        "message": {"usage": {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}},
    }
    reply, _ = assembled(start, block(0, type="text", text="x"), ending(output_tokens=9, input_tokens=0), STOP)

    assert reply.usage == Usage(input=5, output=9, cache_read=100, cache_write=7)


def test_a_stream_that_just_ends_keeps_its_text_as_cut_and_drops_the_rest() -> None:
    """The SDK raises nothing here: stop_reason is None and that is all."""
    events: Sequence[object] = (
        START,
        block(0, type="thinking", thinking="unsigned"),
        block(1, type="text", text="half an ans"),
        block(2, type="tool_use", id="t", name="terminal", input={}),
        piece(2, "input_json_delta", partial_json='{"comm'),
    )

    reply, _ = assembled(*events, was_cut_short=True)

    assert (reply.text, reply.finish_reason, reply.tool_requests) == ("half an ans", "length", ())
    assert (reply.was_cut_by_network, reply.dropped_calls, reply.row_fields) == (True, ("terminal",), {})


@pytest.mark.parametrize(
    "events",
    [(), (START,), (START, block(0, type="text", text="")), (START, block(0, type="tool_use", id="t", name="f"))],
)
def test_a_stream_that_just_ends_before_any_text_is_no_reply(events: tuple[object, ...]) -> None:
    with pytest.raises(CutShort):
        assembled(*events, was_cut_short=True)


@pytest.mark.parametrize(
    "event",
    [[], "text", {}, {"choices": []}, {"type": 5}, {"type": "content_block_start"}, piece(0, "text_delta", text="x")],
)
def test_what_is_no_event_of_this_wire_is_malformed(event: object) -> None:
    with pytest.raises(MalformedReply):
        assembled(event)


@pytest.mark.parametrize(
    "event",
    [{"type": "something_new"}, {"type": "content_block_stop", "index": 9}, {"type": "ping"}],
)
def test_events_to_come_are_passed_over(event: object) -> None:
    assert assembled(START, event, *HELLO[1:])[0].text == "hello"


def test_an_error_in_the_stream_is_an_error() -> None:
    with pytest.raises(StreamedError) as raised:
        assembled(START, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})

    assert raised.value.body["type"] == "overloaded_error"


@pytest.mark.parametrize("document", [{}, {"content": "text"}, {"content": [], "stop_reason": "tool_use"}, []])
def test_a_document_without_content_is_malformed(document: object) -> None:
    with pytest.raises(MalformedReply):
        MessageAssembler(lambda _: None).feed_whole(document)
