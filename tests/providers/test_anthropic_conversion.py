"""Rows in, Anthropic's messages out, and back."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import ToolRequest, Usage, build_assistant_body
from hermes_worker.models.catalog import choose_thinking_policy, find_issuer
from hermes_worker.models.wires.conversions.anthropic import (
    IMAGE_REMOVED,
    ThinkingPolicy,
    build_thinking_fields,
    choose_output_tokens_max,
    convert_schema,
    from_message,
    make_tool_use_id,
    spell_model_name,
    to_messages,
    to_tools,
)

MARK = {"type": "ephemeral"}
SIGNED = {"type": "thinking", "thinking": "hm", "signature": "s"}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: object = None, *calls: object, **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **fields}


def call(id: str = "1", arguments: object = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "t", "arguments": arguments}}


def result(id: str = "1", content: object = "r", **fields: object) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content, **fields}


def text(words: str, **fields: object) -> dict[str, Any]:
    return {"type": "text", "text": words, **fields}


def tool_use(id: str = "1", input: object = None) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": "t", "input": input or {}}


def tool_result(id: str = "1", content: object = "r", **fields: object) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


@pytest.mark.parametrize(
    ("rows", "messages"),
    [
        (
            [user("q"), assistant("t", call("a b")), result("a b"), user("n")],
            [
                user("q"),
                assistant([text("t"), tool_use("a_b")]),
                user([tool_result("a_b"), text("n")]),
            ],
        ),
        (
            [assistant(None, call("1"), call("2")), result("1"), result("2", "")],
            [
                assistant([tool_use("1"), tool_use("2")]),
                user([tool_result("1"), tool_result("2", "(no output)")]),
            ],
        ),
        ([assistant(None, call()), user("n")], [assistant([text("(tool call removed)")]), user("n")]),
        (
            [user("q"), result("9"), assistant("ok")],
            [user([text("q"), text("(tool result removed)")]), assistant([text("ok")])],
        ),
        ([assistant("")], [assistant([text("(empty)")])]),
        ([assistant(" \n")], [assistant([text("(empty)")])]),
        ([assistant(None, call(arguments="{bad")), result()], [assistant([tool_use()]), user([tool_result()])]),
        ([assistant(None, call(arguments="[1]")), result()], [assistant([tool_use()]), user([tool_result()])]),
        ([user("")], [user("(empty message)")]),
        ([user("a"), user("b")], [user([text("a"), text("b")])]),
        ([assistant("a"), assistant("b")], [assistant([text("a"), text("b")])]),
        (
            [assistant(None, call()), result("1", [{"type": "text", "text": "x"}])],
            [assistant([tool_use()]), user([tool_result("1", [text("x")])])],
        ),
        # An id that is used again later is no answer to this one.
        (
            [assistant(None, call()), user("n"), assistant(None, call()), result()],
            [assistant([text("(tool call removed)")]), user("n"), assistant([tool_use()]), user([tool_result()])],
        ),
    ],
)
def test_messages(rows: list[dict[str, Any]], messages: list[dict[str, Any]]) -> None:
    assert to_messages(rows).messages == messages


@pytest.mark.parametrize(
    ("rows", "system"),
    [
        ([{"role": "system", "content": "S"}, user("q")], "S"),
        ([{"role": "system", "content": "S"}, user("q"), {"role": "system", "content": "T"}], "S\n\nT"),
        ([{"role": "system", "content": [text("S", cache_control=MARK)]}], [text("S", cache_control=MARK)]),
        ([{"role": "system", "content": [text("S")]}], "S"),
        ([user("q")], None),
    ],
)
def test_system_rows_are_apart(rows: list[dict[str, Any]], system: object) -> None:
    assert to_messages(rows).system == system


def test_images_are_sent_by_value_or_by_address() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "input_image", "image_url": "https://x/y.png"},
        {"type": "image_url", "image_url": {"url": "data:text/html;base64,AAAA"}},
        {"type": "mystery"},
    ]
    sources = [block["source"] for block in to_messages([user(parts)]).messages[0]["content"]]
    assert sources == [
        {"type": "base64", "media_type": "image/png", "data": "AAAA"},
        {"type": "url", "url": "https://x/y.png"},
        {"type": "base64", "media_type": "image/jpeg", "data": "AAAA"},
    ]


def test_only_the_newest_images_of_tools_are_kept() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}
    rows = [row for n in range(4) for row in (assistant(None, call(str(n))), result(str(n), [image]))]
    blocks = [m["content"][0]["content"][0] for m in to_messages(rows).messages if m["role"] == "user"]
    assert [block["type"] for block in blocks] == ["text", "image", "image", "image"]
    assert blocks[0] == text(IMAGE_REMOVED)


def test_cache_marks_end_up_in_blocks() -> None:
    rows = [
        user([text("q", cache_control=MARK)]),
        assistant(None, call(), cache_control=MARK),
        result(cache_control=MARK),
        assistant("", cache_control=MARK, reasoning_details=[SIGNED]),
    ]
    assert to_messages(rows, ThinkingPolicy.KEEP).messages == [
        user([text("q", cache_control=MARK)]),
        assistant([{**tool_use(), "cache_control": MARK}]),
        user([tool_result(cache_control=MARK)]),
        assistant([SIGNED]),
    ]


# ------------------------------------------------------------------------------------------------------------ thinking

THOUGHT = [
    assistant("a", reasoning_details=[SIGNED]),
    user("n"),
    assistant("b", reasoning_details=[SIGNED, {"type": "thinking", "thinking": "open"}]),
]
OPEN = {"type": "thinking", "thinking": "open"}


@pytest.mark.parametrize(
    ("policy", "first", "last"),
    [
        (ThinkingPolicy.NATIVE, [SIGNED, text("a")], [SIGNED, text("open"), text("b")]),
        (ThinkingPolicy.STRIP, [text("a")], [text("b")]),
        (ThinkingPolicy.KEEP, [SIGNED, text("a")], [SIGNED, OPEN, text("b")]),
        (ThinkingPolicy.UNSIGNED, [text("a")], [OPEN, text("b")]),
    ],
)
def test_each_endpoint_gets_the_thinking_it_wants(
    policy: ThinkingPolicy, first: list[object], last: list[object]
) -> None:
    messages = to_messages(THOUGHT, policy).messages
    assert (messages[0]["content"], messages[2]["content"]) == (first, last)


@pytest.mark.parametrize("issuer", ["other:api.minimax.io", "other:llm.example"])
def test_thinking_that_somebody_else_signed_is_not_shown_to_anthropic(issuer: str) -> None:
    rows = [assistant("a", reasoning_details=[SIGNED], anthropic_issuer=issuer), user("n")]
    assert to_messages(rows).messages[0]["content"] == [text("a")]
    assert to_messages(rows, ThinkingPolicy.KEEP).messages[0]["content"] == [SIGNED, text("a")]


def test_a_row_remembers_who_signed_it_unless_that_was_anthropic() -> None:
    message = {"content": [SIGNED, text("a")], "stop_reason": "end_turn"}
    assert from_message(message, issuer=find_issuer("api.minimax.io")).row_fields == {
        "reasoning_details": [SIGNED],
        "anthropic_issuer": "other:api.minimax.io",
    }
    assert from_message(message, issuer=find_issuer("api.anthropic.com")).row_fields == {"reasoning_details": [SIGNED]}


def test_a_row_is_sent_the_same_however_many_follow_it() -> None:
    rows = [user("q")]
    before: list[Any] = []
    for step in range(5):
        rows += [assistant(None, call(str(step)), reasoning_details=[SIGNED]), result(str(step))]
        messages = to_messages(rows).messages
        assert messages[: len(before)] == before
        before = messages


def test_thinking_between_texts_keeps_its_place() -> None:
    blocks = [SIGNED, text("first"), {**SIGNED, "signature": "s2"}, text("second")]
    reply = from_message({"content": blocks, "stop_reason": "end_turn"})
    row = json.loads(build_assistant_body(reply))
    assert to_messages([row]).messages[0]["content"] == blocks


def test_blank_text_between_stored_blocks_is_left_out() -> None:
    reply = from_message({"content": [SIGNED, text("\n\n"), tool_use()], "stop_reason": "tool_use"})
    row = json.loads(build_assistant_body(reply))
    assert to_messages([row, result()]).messages[0]["content"] == [SIGNED, tool_use()]


def test_a_mark_on_a_row_of_stored_blocks_goes_to_the_last_of_them() -> None:
    row = assistant("t", call(), anthropic_content_blocks=[SIGNED, text("t"), tool_use()], cache_control=MARK)
    blocks = to_messages([row, result()]).messages[0]["content"]
    assert blocks == [SIGNED, text("t"), {**tool_use(), "cache_control": MARK}]


def test_thinking_whose_call_was_removed_is_said_as_text() -> None:
    rows = [assistant(None, call(), reasoning_details=[SIGNED]), user("n")]
    assert to_messages(rows).messages[0]["content"] == [text("hm"), text("(tool call removed)")]


def test_a_message_of_nothing_but_thinking_does_not_become_empty() -> None:
    rows = [assistant("", reasoning_details=[SIGNED]), user("n")]
    assert to_messages(rows, ThinkingPolicy.STRIP).messages[0]["content"] == [text("(thinking left out)")]


def test_echoed_reasoning_becomes_thinking_where_nothing_better_exists() -> None:
    rows = [assistant(None, call(), reasoning_content=" "), result()]
    messages = to_messages(rows, ThinkingPolicy.KEEP).messages
    assert messages[0]["content"] == [{"type": "thinking", "thinking": " "}, tool_use()]
    better = [assistant("x", reasoning_content="y", reasoning_details=[SIGNED])]
    assert to_messages(better, ThinkingPolicy.KEEP).messages[0]["content"] == [SIGNED, text("x")]


def test_stored_blocks_are_replayed_in_order_with_redacted_inputs() -> None:
    stored = [SIGNED, {**tool_use("1", {"key": "secret"}), "caller": {}}, text("t", parsed_output=1, citations=None)]
    row = assistant("t", call("1", '{"key":"***"}'), anthropic_content_blocks=stored)
    blocks = to_messages([row, result()]).messages[0]["content"]
    assert blocks == [SIGNED, tool_use("1", {"key": "***"}), text("t")]


@pytest.mark.parametrize(
    ("host", "model", "policy"),
    [
        ("api.anthropic.com", "claude-x", ThinkingPolicy.NATIVE),
        ("notanthropic.com", "claude-x", ThinkingPolicy.STRIP),
        ("llm.example", "kimi-k2", ThinkingPolicy.KEEP),
        ("api.moonshot.ai", "x", ThinkingPolicy.KEEP),
        ("api.deepseek.com", "deepseek-chat", ThinkingPolicy.UNSIGNED),
        ("api.minimax.io", "minimax-m2", ThinkingPolicy.STRIP),
    ],
)
def test_endpoints_have_policies(host: str, model: str, policy: ThinkingPolicy) -> None:
    assert choose_thinking_policy(host=host, model=model) is policy


# ------------------------------------------------------------------------------------------------------------- options


def test_tools_are_converted_once_each() -> None:
    tool = {"type": "function", "function": {"name": "t", "description": "d", "parameters": {}}, "cache_control": MARK}
    plain = {"name": "t", "description": "d", "input_schema": {"type": "object", "properties": {}}}
    assert to_tools([tool, tool, {"function": {}}, {}]) == [{**plain, "cache_control": MARK}]


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (None, {"type": "object", "properties": {}}),
        ({"type": "object"}, {"type": "object", "properties": {}}),
        ({"anyOf": [{"type": "object"}, {"type": "array"}]}, {"type": "object", "properties": {}}),
        (
            {
                "type": "object",
                "properties": {
                    "a": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"},
                    "b": {"type": ["integer", "null"]},
                    "c": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                },
            },
            {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "description": "d"},
                    "b": {"type": "integer"},
                    "c": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                },
            },
        ),
    ],
)
def test_schemas_lose_what_is_refused(schema: object, expected: object) -> None:
    assert convert_schema(schema) == expected


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("anthropic/claude-opus-4.6", {}, 128_000),
        ("claude-sonnet-4-6", {}, 64_000),
        ("claude-sonnet-4-5-20250929", {}, 64_000),
        ("claude-opus-4-20250514", {}, 32_000),
        ("claude-next-9", {}, 128_000),
        ("claude-opus-4-6", {"requested": 1_000}, 1_000),
        ("claude-opus-4-6", {"requested": 0}, 128_000),
        ("claude-opus-4-6", {"window": 8_192}, 8_191),
        ("claude-opus-4-6", {"window": 200_000}, 128_000),
    ],
)
def test_the_output_limit_fits_model_and_window(model: str, options: dict[str, int], expected: int) -> None:
    assert choose_output_tokens_max(model, **options) == expected


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("claude-opus-4-7", "xhigh", {"adaptive": "xhigh"}),
        ("claude-opus-4-6", "xhigh", {"adaptive": "max"}),
        ("claude-sonnet-4.6", "ultra", {"adaptive": "max"}),
        ("claude-sonnet-5", "minimal", {"adaptive": "low"}),
        ("claude-sonnet-5", "odd", {"adaptive": "medium"}),
        ("kimi-k2.6", "high", {"adaptive": "high"}),
        ("claude-sonnet-4-5", "high", {"budget": 16_000, "max_tokens": 20_096}),
        ("claude-opus-4-10", "high", {"adaptive": "high"}),
        ("claude-3-7-sonnet", "low", {"budget": 4_000, "max_tokens": 10_000}),
        ("minimax-m2", "medium", {"budget": 8_000, "max_tokens": 12_096}),
        ("claude-haiku-4-5", "high", {}),
        ("claude-sonnet-5", None, {}),
    ],
)
def test_thinking_is_asked_for_as_each_model_wants(
    model: str, effort: str | None, expected: Mapping[str, object]
) -> None:
    fields = build_thinking_fields(model, effort, output_tokens=10_000)
    if "adaptive" in expected:
        assert fields["thinking"] == {"type": "adaptive", "display": "summarized"}
        assert fields["output_config"] == {"effort": expected["adaptive"]}
    elif "budget" in expected:
        assert fields["thinking"] == {"type": "enabled", "budget_tokens": expected["budget"]}
        assert (fields["temperature"], fields["max_tokens"]) == (1, expected["max_tokens"])
    else:
        assert fields == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("anthropic/claude-opus-4.6", "claude-opus-4-6"),
        ("claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("qwen3.5-plus", "qwen3.5-plus"),
        ("us.anthropic.claude-x", "us.anthropic.claude-x"),
    ],
)
def test_model_names(name: str, expected: str) -> None:
    assert spell_model_name(name) == expected


@pytest.mark.parametrize(
    ("id", "expected"), [("a b:c", "a_b_c"), ("ok-1_A", "ok-1_A"), ("", "tool_0"), (None, "tool_0")]
)
def test_tool_ids_have_an_allowed_form(id: object, expected: str) -> None:
    assert make_tool_use_id(id) == expected


# --------------------------------------------------------------------------------------------------------------- reply


def test_a_reply_is_read_block_by_block() -> None:
    reply = from_message(
        {
            "model": "claude-x",
            "stop_reason": "tool_use",
            "content": [
                {**SIGNED, "extra": 1},
                text("a", citations=None),
                {"type": "redacted_thinking", "data": "d"},
                {**tool_use("1", {"b": 1, "a": 2}), "caller": {}},
                text("b"),
                {"type": "server_tool_use"},
            ],
            "usage": {
                "input_tokens": 5,
                "output_tokens": 7,
                "cache_read_input_tokens": 11,
                "cache_creation_input_tokens": 13,
            },
        }
    )
    assert (reply.text, reply.reasoning, reply.finish_reason, reply.model) == ("a\nb", "hm", "tool_calls", "claude-x")
    assert reply.tool_requests == (ToolRequest(id="1", name="t", arguments='{"a":2,"b":1}'),)
    assert reply.usage == Usage(input=5, output=7, cache_read=11, cache_write=13)
    redacted = {"type": "redacted_thinking", "data": "d"}
    assert reply.row_fields["reasoning_details"] == [SIGNED, redacted]
    row = json.loads(build_assistant_body(reply))
    replayed = to_messages([row, result()]).messages[0]["content"]
    assert replayed == [SIGNED, text("a"), redacted, tool_use("1", {"a": 2, "b": 1}), text("b")]


@pytest.mark.parametrize(
    ("stop_reason", "expected"),
    [
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("stop_sequence", "stop"),
        ("refusal", "content_filter"),
        ("model_context_window_exceeded", "length"),
        (None, "stop"),
        (["odd"], "stop"),
    ],
)
def test_reasons_to_stop(stop_reason: object, expected: str) -> None:
    assert from_message({"stop_reason": stop_reason, "content": []}).finish_reason == expected


def test_a_plain_reply_has_nothing_to_replay() -> None:
    reply = from_message({"content": [text("hi")], "stop_reason": "end_turn", "usage": None})
    assert (reply.text, reply.row_fields, reply.usage) == ("hi", {}, Usage())


_rows = st.lists(
    st.sampled_from(
        [
            user("a"),
            user([text("b")]),
            user(None),
            user([7, None, {"type": "image_url"}]),
            assistant("x"),
            assistant(None, call("1")),
            assistant("y", call("1"), call("2"), reasoning_details=[SIGNED, 7]),
            assistant(None, {"id": None}, 7),
            result("1"),
            result("2", None),
            result("3", {"a": 1}),
            {"role": "system", "content": None},
        ]
    ),
    max_size=8,
)


@given(_rows, st.sampled_from(ThinkingPolicy))
def test_any_rows_become_messages_that_alternate_and_pair(rows: list[dict[str, Any]], policy: ThinkingPolicy) -> None:
    messages = to_messages(rows, policy).messages
    assert all(first["role"] != second["role"] for first, second in itertools.pairwise(messages))
    for position, message in enumerate(messages):
        assert message["content"]
        blocks = message["content"] if isinstance(message["content"], list) else []
        asked = {block["id"] for block in blocks if block["type"] == "tool_use"}
        following = messages[position + 1]["content"] if position + 1 < len(messages) else []
        answers = [b["tool_use_id"] for b in following if isinstance(b, dict) and b["type"] == "tool_result"]
        assert asked == set(answers)
