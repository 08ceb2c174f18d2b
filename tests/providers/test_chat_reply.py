import json
import re
from typing import Any

import pytest

from hermes_worker.core.messages import Delta, ToolRequest, Usage, build_assistant_body
from hermes_worker.core.recovery.repair import dump_arguments
from hermes_worker.models.exchange import _parse_json
from hermes_worker.models.wires.chat_reply import (
    CutShort,
    MalformedReply,
    ReplyAssembler,
    StreamedError,
    make_call_id,
    parse_usage,
)


def assemble(*chunks: Any) -> tuple[ReplyAssembler, list[Delta]]:
    deltas: list[Delta] = []
    assembler = ReplyAssembler(deltas.append)
    for chunk in chunks:
        assembler.feed(chunk)
    return assembler, deltas


def delta(finish_reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"model": "m-1", "choices": [{"index": 0, "delta": fields, "finish_reason": finish_reason}]}


def call(index: int | None = None, call_id: str | None = None, name: str | None = None, arguments: Any = None) -> Any:
    entry: dict[str, Any] = {"function": {}}
    if index is not None:
        entry["index"] = index
    if call_id is not None:
        entry["id"] = call_id
    if name is not None:
        entry["function"]["name"] = name
    if arguments is not None:
        entry["function"]["arguments"] = arguments
    return entry


def test_text_is_joined_and_every_piece_is_announced() -> None:
    assembler, deltas = assemble(delta(content="Hel"), delta(content="lo"), delta("stop"))

    reply = assembler.finish()

    assert (reply.text, reply.finish_reason, reply.model) == ("Hello", "stop", "m-1")
    assert deltas == [Delta(text="Hel"), Delta(text="lo")]


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_is_kept_apart_from_text(field: str) -> None:
    assembler, deltas = assemble(delta(**{field: "hm"}), delta(content="yes"), delta("stop"))

    reply = assembler.finish()

    assert (reply.reasoning, reply.text) == ("hm", "yes")
    assert deltas == [Delta(reasoning="hm"), Delta(text="yes")]


def test_reasoning_sent_under_both_names_is_kept_once() -> None:
    assembler, _ = assemble(delta("stop", reasoning="hm", reasoning_content="hm", content="x"))

    assert assembler.finish().reasoning == "hm"


def test_tool_calls_are_assembled_by_index_and_named_once() -> None:
    assembler, deltas = assemble(
        delta(tool_calls=[call(0, "a", "read_file", '{"pa')]),
        delta(tool_calls=[call(1, "b", "terminal", "")]),
        delta(tool_calls=[call(0, None, None, 'th":1}'), call(1, None, "terminal", "{}")]),
        delta("tool_calls"),
    )

    reply = assembler.finish()

    assert reply.tool_requests == (
        ToolRequest(id="a", name="read_file", arguments='{"path":1}'),
        ToolRequest(id="b", name="terminal", arguments="{}"),
    )
    assert deltas == [Delta(tool_name="read_file"), Delta(tool_name="terminal")]
    assert reply.finish_reason == "tool_calls"


def test_a_new_id_at_a_used_index_opens_a_new_call() -> None:
    assembler, _ = assemble(
        delta(tool_calls=[call(0, "a", "one", "{}")]),
        delta(tool_calls=[call(0, "b", "two", '{"x":')]),
        delta("tool_calls", tool_calls=[call(0, None, None, "1}")]),
    )

    assert [(r.id, r.name, r.arguments) for r in assembler.finish().tool_requests] == [
        ("a", "one", "{}"),
        ("b", "two", '{"x":1}'),
    ]


def test_a_missing_id_is_derived_from_the_call_itself() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, None, "one", "{}"), call(1, "", "one", "{}")]))

    ids = [r.id for r in assembler.finish().tool_requests]

    assert ids == [make_call_id("one", "{}", 0), make_call_id("one", "{}", 1)]
    assert ids[0] != ids[1]
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", each) for each in ids)


def test_two_calls_never_share_an_id() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "one", "{}"), call(1, "a", "two", "{}")]))

    ids = [r.id for r in assembler.finish().tool_requests]

    assert ids[0] == "a"
    assert ids[1] == make_call_id("two", "{}", 1)


def test_arguments_sent_as_an_object_become_canonical_text() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "one", {"b": 1, "a": "é"})]))

    assert assembler.finish().tool_requests[0].arguments == '{"a":"é","b":1}'


def test_an_unstreamed_completion_takes_the_same_way() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": [call(None, "a", "one", "{}")] * 1}
    assembler, _ = assemble(
        {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 5}, "model": "m"}
    )

    reply = assembler.finish()

    assert reply.tool_requests[0].name == "one"
    assert reply.finish_reason == "tool_calls"
    assert reply.usage == Usage(input=5)


def test_content_parts_are_read_as_text() -> None:
    assembler, _ = assemble(delta("stop", content=[{"type": "text", "text": "a"}, {"type": "image"}, {"text": "b"}]))

    assert assembler.finish().text == "ab"


def test_a_surrogate_pair_cut_between_chunks_is_one_character_again() -> None:
    assembler, _ = assemble(delta(content="ok \ud83d"), delta("stop", content="\ude42"))

    assert assembler.finish().text == "ok 🙂"


def test_a_lone_surrogate_cannot_reach_the_transcript() -> None:
    assembler, _ = assemble(delta("stop", content="a\ud83db"))

    assert assembler.finish().text == "a�b"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("max_tokens", "length"),
        ("content_filter", "content_filter"),
        ("SAFETY", "content_filter"),
        ("incomplete", "incomplete"),
        ("eos", "stop"),
        ("tool_calls", "stop"),
    ],
)
def test_finish_reasons_of_a_text(said: str, meant: str) -> None:
    assembler, _ = assemble(delta(said, content="x"))

    assert assembler.finish().finish_reason == meant


def test_arguments_that_were_cut_off_count_as_a_length_limit() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "write_file", '{"content": "half')]))

    assert assembler.finish().finish_reason == "length"


def test_arguments_that_nest_without_end_count_as_cut() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "write_file", "[" * 100_000)]))

    assert assembler.finish().finish_reason == "length"


def test_arguments_that_are_only_wrong_are_left_to_the_loop() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "write_file", "{content: 1}")]))

    assert assembler.finish().finish_reason == "tool_calls"


def test_text_of_a_stream_that_broke_is_kept_as_cut_by_length() -> None:
    assembler, _ = assemble(delta(content="half of"), delta(tool_calls=[call(0, "a", "one", "{")]))

    reply = assembler.finish(was_cut_short=True)

    assert (reply.text, reply.finish_reason, reply.tool_requests) == ("half of", "length", ())


def test_a_stream_that_broke_before_any_text_is_no_reply() -> None:
    assembler, _ = assemble(delta(tool_calls=[call(0, "a", "one", "{}")]))

    with pytest.raises(CutShort):
        assembler.finish(was_cut_short=True)


def test_a_stream_that_broke_after_its_finish_reason_is_whole() -> None:
    assembler, _ = assemble(delta("tool_calls", tool_calls=[call(0, "a", "one", "{}")]))

    assert assembler.finish(was_cut_short=True).finish_reason == "tool_calls"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 2}, Usage(input=10, output=2)),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens": 2},
            Usage(input=2, cache_read=8, output=2),
        ),
        (
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5}},
            Usage(input=1, cache_read=4, cache_write=5),
        ),
        (
            {"prompt_tokens": 10, "prompt_cache_hit_tokens": 7, "prompt_cache_miss_tokens": 3},
            Usage(input=3, cache_read=7),
        ),
        ({"prompt_tokens": 10, "cached_tokens": 4}, Usage(input=6, cache_read=4)),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}}, Usage(output=9, reasoning=5)),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 9}}, Usage(input=0, cache_read=9)),
        ({"prompt_tokens": -4, "completion_tokens": "many"}, Usage()),
        ({"prompt_tokens": None, "prompt_tokens_details": None}, Usage()),
    ],
)
def test_usage_counts_cached_tokens_once(usage: dict[str, Any], expected: Usage) -> None:
    assert parse_usage(usage) == expected


@pytest.mark.parametrize(
    "chunk",
    [
        {"choices": [{"delta": {}, "finish_reason": None, "usage": {"prompt_tokens": 4}}]},
        {"choices": [], "x_groq": {"usage": {"prompt_tokens": 4}}},
        {"choices": [], "usage": {"prompt_tokens": 4}},
    ],
)
def test_usage_is_found_wherever_a_server_puts_it(chunk: dict[str, Any]) -> None:
    assembler, _ = assemble(delta("stop", content="x"), chunk)

    assert assembler.finish().usage == Usage(input=4)


@pytest.mark.parametrize(
    "chunk", [[], "x", 1, {"choices": "x"}, {"choices": [1]}, delta(content=5), delta(tool_calls={"a": 1})]
)
def test_what_is_not_a_chunk_is_refused(chunk: Any) -> None:
    with pytest.raises(MalformedReply):
        assemble(chunk)


@pytest.mark.parametrize(
    "chunk",
    [
        {},
        {"choices": None},
        {"choices": [{}]},
        {"choices": [{"delta": None}]},
        delta(tool_calls=[None, {"function": None}]),
        {"usage": "x"},
    ],
)
def test_empty_shapes_are_nothing(chunk: Any) -> None:
    assembler, deltas = assemble(chunk)

    assert deltas == []
    assert assembler.finish().text == ""


def test_an_error_inside_the_stream_is_raised_with_its_code() -> None:
    with pytest.raises(StreamedError) as raised:
        assemble(delta(content="x"), {"error": {"code": 502, "message": "upstream failed"}})

    assert raised.value.status_code == 502
    assert "upstream failed" in str(raised.value)


def test_the_finish_reason_error_is_an_error() -> None:
    with pytest.raises(StreamedError):
        assemble(delta("error", content=""))


def test_reasoning_blocks_are_put_together_and_kept_for_the_row() -> None:
    assembler, _ = assemble(
        delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "I th", "format": "x"}]),
        delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "ink", "signature": None}]),
        delta(reasoning_details=[{"type": "reasoning.text", "index": 0, "signature": "s1g"}]),
        delta(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "abc"}, 7]),
        delta("stop", content="yes"),
    )

    reply = assembler.finish()

    assert reply.row_fields == {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "I think", "format": "x", "signature": "s1g"},
            {"type": "reasoning.encrypted", "index": 1, "data": "abc"},
        ]
    }
    assert json.loads(build_assistant_body(reply))["reasoning_details"][1]["data"] == "abc"


def test_a_thought_signature_is_kept_with_its_call() -> None:
    signature = {"google": {"thought_signature": "c2ln"}}
    entry = {**call(0, "a", "one", "{}"), "extra_content": signature}
    assembler, _ = assemble(delta(tool_calls=[entry]), delta("tool_calls", tool_calls=[call(0, None, None, "")]))

    reply = assembler.finish()

    assert json.loads(build_assistant_body(reply))["tool_calls"] == [
        {"id": "a", "type": "function", "function": {"name": "one", "arguments": "{}"}, "extra_content": signature}
    ]


@pytest.mark.parametrize("value", ["1e400", "NaN", "-Infinity"])
def test_arguments_sent_as_an_object_keep_what_json_cannot_say_as_text(value: str) -> None:
    """A row cannot hold infinity; the tool's schema says then what is wrong."""
    document = _parse_json(b'{"n": %s, "m": 1.5}' % value.encode())

    assert document == {"n": value, "m": 1.5}
    assert ToolRequest(id="c", name="t", arguments=dump_arguments(document)).arguments == f'{{"m":1.5,"n":"{value}"}}'


# ------------------------------------------------------------------------------------------------------ older and other


def test_a_legacy_function_call_is_a_call() -> None:
    assembler, deltas = assemble(
        delta(function_call={"name": "terminal", "arguments": ""}),
        delta(function_call={"arguments": '{"command":'}),
        delta("function_call", function_call={"arguments": '"ls"}'}),
    )

    reply = assembler.finish()

    assert [(r.name, r.arguments) for r in reply.tool_requests] == [("terminal", '{"command":"ls"}')]
    assert re.fullmatch("[a-zA-Z0-9]{9}", reply.tool_requests[0].id)
    assert reply.finish_reason == "tool_calls"
    assert deltas == [Delta(tool_name="terminal")]


def test_a_whole_legacy_function_call_is_a_call() -> None:
    message = {"content": None, "function_call": {"name": "todo", "arguments": "{}"}}
    assembler, _ = assemble()
    assembler.feed_whole({"choices": [{"message": message, "finish_reason": "function_call"}]})

    assert [request.name for request in assembler.finish().tool_requests] == ["todo"]


def test_a_call_that_is_told_in_both_ways_is_one_call() -> None:
    both = {"tool_calls": [call(0, "a", "todo", "{}")], "function_call": {"name": "todo", "arguments": "{}"}}
    assembler, _ = assemble(delta("tool_calls", **both))

    assert [request.id for request in assembler.finish().tool_requests] == ["a"]


def numbered(index: object, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": {"content": text}, "finish_reason": finish}


def test_of_several_choices_the_first_is_kept() -> None:
    assembler, deltas = assemble(
        {"choices": [numbered(1, "other"), numbered(0, "one ")]},
        {"choices": [numbered(2, "third", "length")]},
        {"choices": [numbered(0, "answer", "stop")]},
        {"choices": [numbered(1, " words", "length")]},
    )

    reply = assembler.finish()

    assert (reply.text, reply.finish_reason) == ("one answer", "stop")
    assert "".join(d.text for d in deltas) == "one answer"


def test_of_several_whole_choices_the_first_is_kept() -> None:
    choices = [{"index": n, "message": {"content": f"answer {n}"}, "finish_reason": "stop"} for n in (2, 0, 1)]
    assembler, _ = assemble()
    assembler.feed_whole({"choices": choices})

    assert assembler.finish().text == "answer 0"


def test_a_refusal_beside_an_answer_is_a_part_of_it() -> None:
    assembler, _ = assemble(delta(content="This much I can say. "), delta("stop", refusal="No more."))

    reply = assembler.finish()

    assert (reply.text, reply.finish_reason) == ("This much I can say. No more.", "stop")


def test_the_beginning_of_a_refusal_is_a_refusal() -> None:
    assembler, _ = assemble(delta(refusal="I cannot"))

    reply = assembler.finish(was_cut_short=True)

    assert (reply.text, reply.finish_reason, reply.was_cut_by_network) == ("I cannot", "content_filter", False)
