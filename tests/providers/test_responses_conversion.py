"""Rows in, items of the Responses API out, and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import ModelReply, ToolRequest, Usage, build_assistant_body
from hermes_worker.core.recovery.classify import build_raw_error, classify
from hermes_worker.models.catalog import find_issuer
from hermes_worker.models.wires.conversions.responses import (
    CODEX,
    GITHUB,
    XAI,
    FailedResponse,
    build_reasoning_fields,
    derive_prompt_cache_key,
    from_response,
    to_input,
    to_tools,
)

OTHER = "other:api.openai.com"


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object = None, *calls: object, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **fields}


def call(id: object = "call_1", arguments: object = '{"a":1}', **fields: object) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "t", "arguments": arguments}, **fields}


def result(id: object = "call_1", content: object = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def function_call(call_id: str = "call_1", arguments: str = '{"a":1}') -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": "t", "arguments": arguments}


def function_output(call_id: str = "call_1", output: object = "r") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def sealed(content: str = "x", **fields: object) -> dict[str, Any]:
    return {"type": "reasoning", "encrypted_content": content, "summary": [], **fields}


def items(*rows: dict[str, Any], issuer: str = OTHER, **options: Any) -> list[dict[str, Any]]:
    return to_input(rows, issuer=issuer, **options).input


# -------------------------------------------------------------------------------------------------------------- request


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [user("q"), assistant("t", call()), result(), user("n")],
            [
                user("q"),
                {"role": "assistant", "content": "t"},
                function_call(),
                function_output(),
                user("n"),
            ],
        ),
        ([assistant(None, call("call_1|fc_9")), result("call_1|fc_9")], [function_call(), function_output()]),
        ([assistant(None, call("fc_9")), result("fc_9")], [function_call("call_9"), function_output("call_9")]),
        ([assistant(None, call("x", call_id="call_1"))], [function_call()]),
        ([assistant(None, call(arguments={"b": 1, "a": 2}))], [function_call(arguments='{"a":2,"b":1}')]),
        ([assistant(None, call(arguments=" "))], [function_call(arguments="{}")]),
        ([assistant(None, {"id": "1", "function": {"name": ""}}, 7)], []),
        ([result("")], []),
        ([assistant(" ")], []),
        (
            [user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "u", "detail": "low"}}])],
            [
                user(
                    [
                        {"type": "input_text", "text": "a"},
                        {"type": "input_image", "image_url": "u", "detail": "low"},
                    ]
                )
            ],
        ),
        (
            [assistant([{"type": "text", "text": "a"}])],
            [{"role": "assistant", "content": [{"type": "output_text", "text": "a"}]}],
        ),
        (
            [result(content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "u"}])],
            [function_output(output=[{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}])],
        ),
        ([result(content=None)], [function_output(output="")]),
    ],
)
def test_rows_become_items(rows: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    assert items(*rows) == expected


def test_system_rows_are_the_instructions() -> None:
    rows = [
        {"role": "system", "content": "S"},
        user("q"),
        {"role": "system", "content": [{"type": "text", "text": "T"}]},
    ]
    prompt = to_input(rows, issuer=OTHER)
    assert (prompt.instructions, prompt.input) == ("S\n\nT", [user("q")])


def test_a_call_without_an_id_gets_the_same_one_everywhere() -> None:
    first, second = (items(assistant(None, call(None)))[0]["call_id"] for _ in range(2))
    assert first == second
    assert len(first) == 9


def test_sealed_reasoning_is_sent_back_without_id_and_issuer() -> None:
    row = assistant("", codex_reasoning_items=[sealed(id="rs_1", _issuer_kind=OTHER)])
    assert items(row) == [sealed(), {"role": "assistant", "content": ""}]


@pytest.mark.parametrize(
    ("issuer", "options"), [(XAI, {}), (OTHER, {"replays_reasoning": False})], ids=["another issuer", "switched off"]
)
def test_sealed_reasoning_is_kept_from_others(issuer: str, options: dict[str, Any]) -> None:
    row = assistant("t", codex_reasoning_items=[sealed(id="rs_1", _issuer_kind=OTHER), 7, {"type": "reasoning"}])
    assert items(row, issuer=issuer, **options) == [{"role": "assistant", "content": "t"}]


def test_sealed_reasoning_is_sent_once() -> None:
    row = assistant("t", codex_reasoning_items=[sealed(id="rs_1")])
    assert sum(item.get("type") == "reasoning" for item in items(row, user("u"), row)) == 1


MESSAGE = {
    "type": "message",
    "role": "assistant",
    "status": "In-Progress",
    "id": " msg_1 ",
    "phase": "commentary",
    "content": [{"type": "output_text", "text": "a"}, {"type": "refusal"}],
}


def test_messages_are_replayed_with_status_phase_and_id() -> None:
    replayed = {
        "type": "message",
        "role": "assistant",
        "status": "in_progress",
        "id": "msg_1",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "a"}],
    }
    row = assistant("a", call(), codex_message_items=[MESSAGE, {"type": "odd"}, 7])
    assert items(row) == [replayed, function_call()]
    without_id = {key: value for key, value in replayed.items() if key != "id"}
    assert items(row, issuer=GITHUB)[0] == without_id
    long = assistant("a", codex_message_items=[{**MESSAGE, "id": "m" * 65}])
    assert items(long)[0] == without_id


def test_tools_are_flat_and_not_strict() -> None:
    tools: list[dict[str, Any]] = [
        {"type": "function", "function": {"name": "t", "parameters": {"type": "object"}}},
        {"function": {}},
        {},
    ]
    assert to_tools(tools) == [
        {"type": "function", "name": "t", "description": "", "strict": False, "parameters": {"type": "object"}}
    ]


@pytest.mark.parametrize(
    ("model", "effort", "issuer", "expected"),
    [
        ("gpt-5.4", "medium", OTHER, {"effort": "medium", "summary": "auto"}),
        ("gpt-5.4", "minimal", OTHER, {"effort": "low", "summary": "auto"}),
        ("gpt-5.6", "ultra", OTHER, {"effort": "max", "summary": "auto"}),
        ("grok-4", "xhigh", XAI, {"effort": "high"}),
    ],
)
def test_efforts_are_named_as_each_endpoint_knows_them(
    model: str, effort: str, issuer: str, expected: dict[str, str]
) -> None:
    fields = build_reasoning_fields(model, effort, issuer=issuer)
    assert fields == {"reasoning": expected, "include": ["reasoning.encrypted_content"]}
    assert build_reasoning_fields(model, effort, issuer=issuer, replays_reasoning=False)["include"] == []
    assert build_reasoning_fields(model, None, issuer=issuer) == {}


def test_the_cache_key_names_what_requests_share() -> None:
    a, b = {"name": "a"}, {"name": "b"}
    key = derive_prompt_cache_key("S", [a, b], session_id="s1")
    assert key == derive_prompt_cache_key("S", [b, a], session_id="s2")
    assert key is not None
    assert len(key) == len("pck_") + 24
    assert derive_prompt_cache_key("S", [a]) != key
    assert derive_prompt_cache_key("", [], session_id="s1") == "s1"
    assert (derive_prompt_cache_key("", [], session_id="s" * 65) or "").startswith("pck_")


@pytest.mark.parametrize(
    ("host", "issuer"),
    [("chatgpt.com", CODEX), ("API.x.ai", XAI), ("api.githubcopilot.com", GITHUB), ("api.openai.com", OTHER)],
)
def test_issuers(host: str, issuer: str) -> None:
    assert find_issuer(host) == issuer


# --------------------------------------------------------------------------------------------------------------- reply


def message(text: str, **fields: object) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def response(*output: object, status: str = "completed", **fields: object) -> dict[str, Any]:
    return {"status": status, "output": list(output), **fields}


THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "encrypted_content": "x",
    "summary": [{"type": "summary_text", "text": "hm"}],
}
CALL = {"type": "function_call", "call_id": "call_1", "name": "t", "arguments": "{}"}
REFUSAL = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
CUT: dict[str, Any] = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
STORED_THOUGHT = {**THOUGHT, "_issuer_kind": OTHER}


def test_a_response_is_read_item_by_item() -> None:
    reply = from_response(
        response(
            THOUGHT,
            message("a", id="msg_1"),
            {"type": "function_call", "call_id": "call_1", "id": "fc_1", "name": "t", "arguments": '{"a": 1}'},
            {"type": "custom_tool_call", "call_id": "call_2", "name": "c", "input": "x"},
            {"type": "function_call", "call_id": "call_3", "name": "cut", "arguments": "{", "status": "incomplete"},
            model="gpt-5.4",
            usage={
                "input_tokens": 100,
                "input_tokens_details": {"cached_tokens": 60},
                "output_tokens": 9,
                "output_tokens_details": {"reasoning_tokens": 4},
            },
        ),
        issuer=OTHER,
    )
    assert (reply.text, reply.reasoning, reply.finish_reason, reply.model) == ("a", "hm", "tool_calls", "gpt-5.4")
    assert reply.tool_requests == (
        ToolRequest(id="call_1", name="t", arguments='{"a": 1}'),
        ToolRequest(id="call_2", name="c", arguments="x"),
    )
    assert reply.usage == Usage(input=40, output=9, cache_read=60, reasoning=4)
    assert reply.row_fields["codex_reasoning_items"] == [STORED_THOUGHT]


def test_a_reply_can_be_sent_back() -> None:
    reply = from_response(response(THOUGHT, message("a", id="msg_1", phase="final_answer")), issuer=OTHER)
    row = json.loads(build_assistant_body(reply))
    assert items(row) == [
        {key: value for key, value in THOUGHT.items() if key != "id"},
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "id": "msg_1",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "a"}],
        },
    ]


@pytest.mark.parametrize(
    ("body", "issuer", "expected"),
    [
        (response(message("a")), OTHER, ("a", "stop")),
        (response(message("a", status="in_progress")), OTHER, ("a", "incomplete")),
        (response(message("a"), status="incomplete"), OTHER, ("a", "incomplete")),
        (response(message("a"), status="in_progress"), OTHER, ("a", "incomplete")),
        (response(message("a", phase="commentary")), OTHER, ("", "incomplete")),
        (response(message("a", phase="commentary"), message("b", phase="final")), OTHER, ("b", "stop")),
        (response(message("b", phase="final"), status="incomplete"), OTHER, ("b", "stop")),
        (response(THOUGHT), OTHER, ("", "stop")),
        (response(THOUGHT), CODEX, ("", "incomplete")),
        (response(THOUGHT, status="incomplete"), OTHER, ("", "incomplete")),
        (response(output_text=" a "), OTHER, ("a", "stop")),
        (response(message(""), output_text="a"), OTHER, ("a", "stop")),
        (response(message("see to=functions.terminal {}")), OTHER, ("", "incomplete")),
        (response({"type": "web_search_call", "status": "incomplete"}, message("a")), OTHER, ("a", "stop")),
        (
            response(status="incomplete", incomplete_details={"reason": "content_filter"}),
            OTHER,
            ("", "content_filter"),
        ),
        (response(REFUSAL), OTHER, ("I cannot.", "content_filter")),
        (response(THOUGHT, REFUSAL), CODEX, ("I cannot.", "content_filter")),
        (response(message("This much. "), REFUSAL), OTHER, ("This much. \nI cannot.", "stop")),
        (response(status="completed"), OTHER, ("", "stop")),
        (response(message("b", phase="final"), **CUT), OTHER, ("b", "incomplete")),
        (response({**CALL, "arguments": '{"a": "b'}), OTHER, ("", "length")),
        (response(CALL, {**CALL, "arguments": '{"a', "status": "incomplete"}, **CUT), OTHER, ("", "length")),
        (response(CALL, {**CALL, "arguments": '{"a', "status": "incomplete"}), OTHER, ("", "tool_calls")),
        (response({**CALL, "arguments": "{a: 1}"}), OTHER, ("", "tool_calls")),
    ],
)
def test_how_a_response_ended(body: dict[str, Any], issuer: str, expected: tuple[str, str]) -> None:
    reply = from_response(body, issuer=issuer)
    assert (reply.text, reply.finish_reason) == expected


def test_an_answer_that_xai_put_into_its_reasoning_is_taken_out() -> None:
    thought = {"type": "reasoning", "text": "so <response>42</response>"}
    reply = from_response(response(thought), issuer=XAI)
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("42", "so", "stop")
    assert from_response(response(thought), issuer=OTHER).text == ""


def test_commentary_is_reasoning() -> None:
    reply = from_response(response(message("thinking aloud", phase="analysis")), issuer=OTHER)
    assert reply.reasoning == "thinking aloud"


def test_passing_reasoning_is_not_stored() -> None:
    reply = from_response(response({**THOUGHT, "id": "rs_tmp_1"}, message("a")), issuer=OTHER)
    assert "codex_reasoning_items" not in reply.row_fields
    assert reply.reasoning == "hm"


@pytest.mark.parametrize(
    ("body", "message", "kind"),
    [
        (
            {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": "Slow down"}},
            "rate_limit_exceeded: Slow down",
            "rate_limit",
        ),
        ({"status": "cancelled"}, "The Responses API returned a response with status 'cancelled'", "unknown"),
        ({"status": "in_progress", "output": []}, "The Responses API returned an empty response", "server_error"),
        ({}, "The Responses API returned an empty response", "server_error"),
    ],
)
def test_failures_are_raised_so_that_they_can_be_classified(body: dict[str, Any], message: str, kind: str) -> None:
    with pytest.raises(FailedResponse) as raised:
        from_response(body, issuer=OTHER)
    assert str(raised.value) == message
    assert classify(build_raw_error(raised.value, now_s=0.0)).kind == kind


_wild = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "message", "reasoning", "completed"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "content", "text", "summary", "status", "phase", "id", "output", "encrypted_content"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["output", "status", "output_text", "usage", "error", "model"]), _wild))
def test_any_object_is_a_reply_or_a_failure(body: dict[str, Any]) -> None:
    try:
        reply = from_response(body, issuer=OTHER)
    except FailedResponse:
        return
    assert isinstance(reply, ModelReply)
    items(json.loads(build_assistant_body(reply)))
