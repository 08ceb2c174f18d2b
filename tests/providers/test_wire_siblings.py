"""Siblings of the cases in ``test_outside_wires``: the same classes in the other forms that servers give them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from test_outside_wires import _told, decisions, failed, scrubbed, streamed

from hermes_worker.agent.prompt.pipeline import build_messages
from hermes_worker.core.call_ids import shorten_id, to_mistral_id
from hermes_worker.core.errors import ModelCallError
from hermes_worker.core.messages import (
    THINKER_FIELD,
    Delta,
    Message,
    ModelReply,
    Role,
    ToolRequest,
    Usage,
    build_assistant_body,
    build_tool_body,
    build_user_body,
)
from hermes_worker.core.model_capabilities import WireNeeds
from hermes_worker.core.recovery import reply_policy as empty
from hermes_worker.core.recovery import retry
from hermes_worker.core.recovery.classify import classify_translated
from hermes_worker.core.recovery.error_words import clean_error_text, find_words
from hermes_worker.core.recovery.raw_calls import has_raw_call
from hermes_worker.core.recovery.reasoning_tags import extract_reasoning, has_visible_text, strip_think_blocks
from hermes_worker.core.recovery_state import ReplyCounters, build_document, parse_counters
from hermes_worker.models.catalog import find_wire_needs
from hermes_worker.models.wires.anthropic_reply import MessageAssembler
from hermes_worker.models.wires.chat_reply import MalformedReply, ReplyAssembler, StreamedError, parse_usage
from hermes_worker.models.wires.conversions import anthropic, responses
from hermes_worker.models.wires.gemini_reply import GeminiAssembler
from hermes_worker.models.wires.responses_reply import ResponseAssembler

# ------------------------------------------------------------------------------------------- pieces of calls in streams

Piece = dict[str, Any]


def piece(name: str | None = None, arguments: object = None, **entry: Any) -> Piece:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**entry, "function": function}


def calls_of(*deltas: list[Piece]) -> list[tuple[str, str]]:
    assembler = ReplyAssembler(lambda _: None)
    for pieces in deltas:
        assembler.feed({"choices": [{"index": 0, "delta": {"tool_calls": pieces}}]})
    assembler.feed({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    requests = assembler.finish().tool_requests
    assert len({request.id for request in requests}) == len(requests)
    return [(request.name, request.arguments) for request in requests]


A, B = '{"path":"a"}', '{"path":"b"}'
TWO = [("read", A), ("read", B)]
SPLIT = ('{"pa', 'th":"a"}')

STREAMS: dict[str, tuple[list[list[Piece]], list[tuple[str, str]]]] = {
    "the same name at a used index": ([[piece("read", A, index=0)], [piece("read", B, index=0)]], TWO),
    "no index in two deltas": ([[piece("read", A)], [piece("read", B)]], TWO),
    "no index, no id, all in one chunk": ([[piece("read", A), piece("read", B)]], TWO),
    "index 0 for all, in one chunk": ([[piece("read", A, index=0), piece("read", B, index=0)]], TWO),
    "one id at several indexes": ([[piece("read", A, index=0, id="x")], [piece("read", B, index=1, id="x")]], TWO),
    "one id for two whole calls": ([[piece("read", A, index=0, id="x")], [piece("read", B, index=0, id="x")]], TWO),
    "index as text": (
        [
            [piece("read", "", index="0", id="x")],
            [piece("read", "", index="1", id="y")],
            [piece(None, A, index="0")],
            [piece(None, B, index="1")],
        ],
        TWO,
    ),
    "interleaved, the id in each delta, index 0": (
        [
            [piece("read", '{"path":', index=0, id="x")],
            [piece("read", '{"path":', index=0, id="y")],
            [piece(None, '"a"}', index=0, id="x")],
            [piece(None, '"b"}', index=0, id="y")],
        ],
        TWO,
    ),
    "interleaved by index without ids": (
        [
            [piece("read", '{"path":', index=0), piece("read", '{"path":', index=1)],
            [piece(None, '"b"}', index=1)],
            [piece(None, '"a"}', index=0)],
        ],
        TWO,
    ),
    "the name, then its arguments, twice at index 0": (
        [
            [piece("read", "", index=0)],
            [piece(None, A, index=0)],
            [piece("read", "", index=0)],
            [piece(None, B, index=0)],
        ],
        TWO,
    ),
    "another name before any arguments": (
        [[piece("list", "", index=0)], [piece("read", A, index=0)]],
        [("list", ""), ("read", A)],
    ),
    "an empty name with each piece": (
        [[piece("read", SPLIT[0], index=0, id="x")], [piece("", SPLIT[1], index=0, id="")]],
        TWO[:1],
    ),
    "name and id with each piece": (
        [[piece("read", SPLIT[0], index=0, id="x")], [piece("read", SPLIT[1], index=0, id="x")]],
        TWO[:1],
    ),
    "the name with each piece": ([[piece("read", SPLIT[0], index=0)], [piece("read", SPLIT[1], index=0)]], TWO[:1]),
    "a new id with each piece": (
        [[piece("read", SPLIT[0], index=0, id="x")], [piece(None, SPLIT[1], index=0, id="y")]],
        TWO[:1],
    ),
    "an index that goes on counting": (
        [[piece("read", SPLIT[0], index=0, id="x")], [piece(None, SPLIT[1], index=1)]],
        TWO[:1],
    ),
    "no index in what goes on": (
        [
            [piece("list", "{}", index=0, id="x")],
            [piece("read", SPLIT[0], index=1, id="y")],
            [piece(None, SPLIT[1])],
        ],
        [("list", "{}"), ("read", A)],
    ),
    "the name once more at the end": ([[piece("read", A, index=0)], [piece("read", "", index=0)]], TWO[:1]),
    "a name that grows": ([[piece("re", None, index=0)], [piece("read", A, index=0)]], TWO[:1]),
    "arguments as an object": ([[piece("read", {"path": "a"}, index=0)], [piece("read", {"path": "b"}, index=0)]], TWO),
}


@pytest.mark.parametrize("form", STREAMS)
def test_pieces_find_their_call(form: str) -> None:
    deltas, expected = STREAMS[form]
    assert calls_of(*deltas) == expected


def test_responses_items_that_share_an_index_are_all_kept() -> None:
    assembler = ResponseAssembler(lambda _: None, issuer="other")
    for call_id, arguments in (("x", A), ("y", B)):
        item = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": arguments}
        assembler.feed({"type": "response.output_item.done", "output_index": 0, "item": item})
    assembler.feed({"type": "response.completed", "response": {"status": "completed", "output": []}})
    assert [(each.name, each.arguments) for each in assembler.finish().tool_requests] == TWO


@pytest.mark.parametrize("index", [{"index": 0}, {"index": "0"}, {}])
def test_blocks_that_share_an_index_are_all_kept(index: Piece) -> None:
    assembler = MessageAssembler(lambda _: None)
    for call_id, arguments in (("x", A), ("y", B)):
        block = {"type": "tool_use", "id": call_id, "name": "read", "input": {}}
        assembler.feed({"type": "content_block_start", **index, "content_block": block})
        delta = {"type": "input_json_delta", "partial_json": arguments}
        assembler.feed({"type": "content_block_delta", **index, "delta": delta})
    assembler.feed({"type": "message_delta", "delta": {"stop_reason": "tool_use"}})
    assert [(each.name, each.arguments) for each in assembler.finish().tool_requests] == TWO


def test_gemini_s_arguments_may_be_text() -> None:
    assembler = GeminiAssembler(lambda _: None)
    parts = [{"functionCall": {"name": "read", "args": each}} for each in (A, json.loads(B))]
    assembler.feed({"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert [(each.name, each.arguments) for each in assembler.finish().tool_requests] == TWO


def test_a_long_argument_in_many_named_pieces_is_read_in_one_pass() -> None:
    text = json.dumps({"content": "}" * 200_000})
    pieces = [[piece("write", text[at : at + 20], index=0)] for at in range(0, len(text), 20)]
    assert calls_of(*pieces[:200], [piece(None, text[4_000:], index=0)]) == [("write", text)]


# -------------------------------------------------------------------------------------------------- thoughts in answers


@pytest.mark.parametrize(
    ("text", "answer", "thought"),
    [
        ("The user greets me.\n</think>\n\nHello!", "Hello!", "The user greets me."),
        ("The user greets me.</think>Hello!", "Hello!", "The user greets me."),
        ("I should greet</think>\nHello!", "Hello!", "I should greet"),
        ("hm\n</mm:think>\nHello!", "Hello!", "hm"),
        ("嗯\n</思考>\n你好", "你好", "嗯"),
        ("one\n</think>\ntwo\n</think>\nHello!", "Hello!", "one\ntwo"),
        ("only thoughts\n</think>\n", "", "only thoughts"),
        ("<mm:think>a</mm:think>Hello!", "Hello!", "a"),
        ("<思考>a</思考>\nHello!", "Hello!", "a"),
        ("<反思>a</反思>Hello!", "Hello!", "a"),
        ("Hello</think>world", "Helloworld", None),
        ("Write it so:\n```\n</think>\n```\nDone", "Write it so:\n```\n```\nDone", None),
    ],
)
def test_no_thought_stays_in_an_answer(text: str, answer: str, thought: str | None) -> None:
    assert strip_think_blocks(text).strip() == answer
    assert has_visible_text(text) is bool(answer)
    assert extract_reasoning({"content": text}) == thought


@pytest.mark.parametrize("tag", ["think", "mm:think", "思考", "seed:think", "antml:thinking", "推理"])
def test_a_namespaced_or_translated_tag_may_be_cut_anywhere(tag: str) -> None:
    text = f"<{tag}>secret</{tag}>Hello, a<b and <c:d> and 1 < 2 <i>so</i>"
    for at in range(len(text)):
        assert scrubbed([text[:at], text[at:]]) == "Hello, a<b and <c:d> and 1 < 2 <i>so</i>"
    assert scrubbed(list(text)) == "Hello, a<b and <c:d> and 1 < 2 <i>so</i>"


# --------------------------------------------------------------------------------------------------- calls left as text

RAW = [
    'commentary to=functions.read_file json{"path":"a.txt"}',
    '<|start|>assistant<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path":"a"}<|call|>',
    "<function=read_file><parameter=path>a.txt</parameter></function>",
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>',
    "I look.\n<tool_call>read_file\n<arg_key>path</arg_key><arg_value>a.txt</arg_value></tool_call>",
    '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read_file\n```json\n{"path": "a.txt"}\n```',
    '<｜DSML｜function_calls>\n<｜DSML｜invoke name="read_file">',
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.read_file:0<|tool_call_argument_begin|>{}",
    '[TOOL_CALLS][{"name": "read_file", "arguments": {"path": "a.txt"}}]',
    'Sure.[TOOL_CALLS]read_file[ARGS]{"path": "a.txt"}',
    '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.txt"}}',
    '<minimax:tool_call>\n<invoke name="read_file">\n<parameter name="path">a.txt</parameter>\n</invoke>',
    'functools[{"name": "read_file", "arguments": {"path": "a.txt"}}]',
    'thoughts\n</think>\n<tool_call>{"name": "f", "arguments": {}}</tool_call>',
]


@pytest.mark.parametrize("text", RAW)
def test_a_server_s_notation_of_calls_is_no_answer(text: str) -> None:
    facts, counters = empty.read_reply_facts(ModelReply(text=text)), ReplyCounters()
    for _ in range(empty.RAW_CALLS_MAX):
        verdict = empty.judge_reply(facts, counters, empty.ReplyContext())
        assert isinstance(verdict, empty.AskAgain)
        counters = parse_counters(build_document(verdict.counters))
    last = empty.judge_reply(facts, counters, empty.ReplyContext())
    assert last == empty.FinishPartial(text="", reason=empty.PartialReason.RAW_CALLS, note=empty.STILL_RAW)
    elsewhere = empty.judge_reply(facts, counters, empty.ReplyContext(has_fallback=True))
    assert isinstance(elsewhere, empty.FallBackProvider)
    answer = empty.judge_reply(empty.read_reply_facts(ModelReply(text="So.")), counters, empty.ReplyContext())
    assert answer == empty.Accept(text="So.")


@pytest.mark.parametrize(
    "text",
    [
        "Qwen writes `<tool_call>{...}</tool_call>` and Llama `<|python_tag|>`.",
        "Use it so:\n```xml\n<function=read_file>\n```\nand no other way.",
        "[TOOL_CALLS] is a token of Mistral's",
        "The list [1, 2] < [3] and tools[0] are functions of a < b.",
        "<details>\n<summary>more</summary></details>",
        "function_calls and tool_calls are fields",
    ],
)
def test_what_is_written_about_notations_is_an_answer(text: str) -> None:
    assert has_raw_call(text) is (text.startswith("[TOOL_CALLS] is"))


# ---------------------------------------------------------------------------------------------------- what errors say

WORDS: list[tuple[object, str]] = [
    ({"error": {"message": "bad", "code": 400}}, "bad"),
    ([{"error": {"message": "bad", "status": "INVALID_ARGUMENT"}}], "bad"),
    ({"error": [{"message": "bad"}]}, "bad"),
    ({"error": "bad"}, "bad"),
    ({"error": None, "message": "bad"}, "bad"),
    ({"error": "Bad Request", "message": ["name is bad", "age is bad"], "statusCode": 400}, "name is bad; age is bad"),
    ({"detail": "bad"}, "bad"),
    (
        {"detail": [{"loc": ["body", "n"], "msg": "bad"}, {"loc": ["body", "m"], "msg": "worse"}]},
        "body.n: bad; body.m: worse",
    ),
    ({"detail": {"error": {"message": "bad"}}}, "bad"),
    ({"title": "Unprocessable", "detail": "bad", "status": 422}, "bad"),
    ({"errors": [{"code": 7003, "message": "bad"}], "messages": [], "success": False}, "bad"),
    ({"errors": {"n": ["bad"]}}, "n: bad"),
    ({"message": {"error": {"message": "bad"}}}, "bad"),
    ({"error": {"message": '{"error": {"message": "bad"}}'}}, "bad"),
    ({"error": {"message": "Provider returned error", "metadata": {"raw": '{"message":"bad"}'}}}, "bad"),
    (
        {"error": {"message": "Provider returned error", "metadata": {"raw": "bad", "provider_name": "Azure"}}},
        "Azure: bad",
    ),
    ({"error": {"message": "Refused", "metadata": {"raw": {"error": {"message": "bad"}}}}}, "Refused (bad)"),
    ({"base_resp": {"status_code": 1004, "status_msg": "bad"}}, "bad"),
    ({"__type": "ValidationException", "Message": "bad"}, "bad"),
    ({"error_code": 336, "error_msg": "bad"}, "bad"),
    ("bad", "bad"),
    (
        "<html><head><title>502 Bad Gateway</title></head><body><h1>502 Bad Gateway</h1></body></html>",
        "502 Bad Gateway",
    ),
    ({}, ""),
    ([], ""),
    ({"message": {"message": {"message": {"message": {"message": {"message": {"message": "deep"}}}}}}}, ""),
]


@pytest.mark.parametrize(("body", "words"), WORDS, ids=[json.dumps(body)[:60] for body, _ in WORDS])
def test_the_words_are_found_in_any_body(body: object, words: str) -> None:
    assert find_words(body) == words


def test_numbers_are_no_words() -> None:
    assert clean_error_text("Error code: 422") == ""
    assert clean_error_text('Error code: 422 - {"detail": "bad"}') == "bad"
    assert clean_error_text("status 500: upstream is gone") == "upstream is gone"


@pytest.mark.parametrize(
    ("status", "body", "kind", "said"),
    [
        (422, {"detail": [{"loc": ["body"], "msg": "Input should be a valid string"}]}, "format_error", "valid string"),
        (
            400,
            [{"error": {"code": 400, "message": "API key expired.", "status": "INVALID_ARGUMENT"}}],
            "auth",
            "expired",
        ),
        (429, [{"error": {"code": 429, "message": "Slow.", "status": "RESOURCE_EXHAUSTED"}}], "rate_limit", "Slow."),
        (400, {"errors": [{"code": "context_length_exceeded", "message": "No."}]}, "context_overflow", "No."),
        (503, b"upstream connect error", "overloaded", "upstream connect error"),
        (502, b"<html><title>Bad gateway</title><body>nginx</body></html>", "server_error", "Bad gateway nginx"),
        (422, b"", "format_error", "it gave no reason"),
        (
            404,
            {"error": {"message": "Function calling is not enabled for this model."}},
            "unknown",
            "Function call",
        ),
        (404, {"detail": "Not Found"}, "unknown", "is HERMES_BASE_URL right?"),
        (404, b"404 page not found", "unknown", "is HERMES_BASE_URL right?"),
        (404, {"error": {"message": "Unknown request URL: POST /x"}}, "unknown", "is HERMES_BASE_URL right?"),
        (404, {"error": {"message": "model 'm' not found"}}, "model_not_found", "change HERMES_MODEL"),
    ],
)
def test_verdict_and_words_reach_the_person(status: int, body: object, kind: str, said: str) -> None:
    error = failed(status, body)
    assert error.kind == kind
    assert said in _told(error)
    assert "Error code" not in _told(error)
    assert ("HERMES_BASE_URL" in _told(error)) is ("HERMES_BASE_URL" in said)


@pytest.mark.parametrize(
    ("event", "kind", "status"),
    [
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, "overloaded", None),
        ({"error": {"message": "No room.", "code": "overloaded"}}, "overloaded", None),
        ({"error": {"message": "Busy.", "code": "529"}}, "overloaded", 529),
        ({"error": "Busy.", "code": 503}, "overloaded", 503),
        ({"error": {"message": "Wait.", "code": "rate_limit_exceeded"}}, "rate_limit", None),
        ({"error": {"message": "Wait.", "status": 429}}, "rate_limit", 429),
        ({"object": "error", "message": "Busy.", "type": "ServiceUnavailable", "code": 503}, "overloaded", 503),
        ({"message": "Wait.", "code": "too_many_requests"}, "rate_limit", None),
        ({"detail": "Rate limit reached"}, "rate_limit", None),
        ({"errors": [{"message": "Wait.", "code": "rate_limit"}]}, "rate_limit", None),
        (
            {"error": {"message": "Bad call.", "code": "tool_use_failed", "failed_generation": "<x>"}},
            "server_error",
            None,
        ),
    ],
)
def test_an_error_inside_a_stream_keeps_its_code(event: object, kind: str, status: int | None) -> None:
    first = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
    with pytest.raises(ModelCallError) as raised:
        streamed("".join(f"data: {json.dumps(each)}\n\n" for each in (first, event)))
    assert (raised.value.kind, raised.value.status) == (kind, status)
    assert isinstance(next(decisions(raised.value)), retry.Wait)
    assert "broke its reply off with an error: " in raised.value.message


def test_an_ordinary_chunk_is_no_error() -> None:
    assembler = ReplyAssembler(lambda _: None)
    for chunk in ({"usage": {"prompt_tokens": 1}}, {"id": "x", "error": None}, {"type": "ping"}, {"object": "chunk"}):
        assembler.feed(chunk)
    with pytest.raises(StreamedError):
        assembler.feed({"message": "no"})
    with pytest.raises(MalformedReply):
        MessageAssembler(lambda _: None).feed({"type": 5})


def test_what_too_little_credit_is_left_for_is_not_asked_again() -> None:
    body = {"error": {"message": "You requested up to 65536 tokens, but can only afford 41.", "code": 402}}
    assert [type(each) for each in decisions(failed(402, body))] == [retry.GiveUp]


def test_a_second_refusal_of_too_little_credit_takes_another_key() -> None:
    message = "You requested up to 65536 tokens, but can only afford 20,733."
    error = failed(402, {"error": {"message": message, "code": 402}})
    situation = retry.Situation(remedies=frozenset({retry.Remedy.CAP_OUTPUT, retry.Remedy.FALL_BACK}))
    history = retry.AttemptHistory()
    first = retry.decide_remedy(classify_translated(error), history, situation)
    assert first == retry.CapOutput(tokens=20_733 - 64)
    history = retry.parse_history(
        retry.build_document(retry.advance_history(history, first, classify_translated(error)))
    )
    assert retry.decide_remedy(classify_translated(error), history, situation) == retry.FallBack()


# ------------------------------------------------------------------------------------------------------------- thoughts


def sent_rows(reply: ModelReply, needs: WireNeeds) -> list[dict[str, Any]]:
    rows = [
        Message(seq=1, role=Role.USER, body=build_user_body("go")),
        Message(seq=2, role=Role.ASSISTANT, body=build_assistant_body(reply)),
        *(
            Message(seq=3 + n, role=Role.TOOL, body=build_tool_body(each.id, "done"))
            for n, each in enumerate(reply.tool_requests)
        ),
    ]
    return [json.loads(row) for row in build_messages(rows, needs)]


CALL = ToolRequest(id="call_1", name="f", arguments="{}")
ECHOING = [
    ("deepseek", "deepseek-chat", "api.deepseek.com", "deepseek"),
    ("openrouter", "deepseek/deepseek-v3.2", "openrouter.ai", "deepseek"),
    ("kimi", "kimi-k2.5", "api.moonshot.ai", "kimi"),
    ("xiaomi", "mimo-v2.5-pro", "api.xiaomimimo.com", "mimo"),
]


@pytest.mark.parametrize(("provider", "model", "host", "thinker"), ECHOING)
@pytest.mark.parametrize("calls", [(CALL,), ()])
def test_thoughts_go_back_to_whose_they_are(
    provider: str, model: str, host: str, thinker: str, calls: tuple[ToolRequest, ...]
) -> None:
    needs = find_wire_needs(provider=provider, model=model, host=host)

    def echo(by: str | None) -> str:
        fields = {THINKER_FIELD: by} if by else {}
        reply = ModelReply(text="t", reasoning="hm", tool_requests=calls, row_fields=fields)
        row = sent_rows(reply, needs)[1]
        assert THINKER_FIELD not in row
        return str(row["reasoning_content"])

    assert echo(thinker) == "hm"
    assert echo("another") == " "
    assert echo(None) == (" " if calls else "hm")  # as before there were marks: prompts of old sessions stay (I7)


@pytest.mark.parametrize(
    ("message", "remedies"),
    [
        (
            "The `reasoning_content` in the thinking mode must be passed back to the API.",
            [retry.EchoReasoning, retry.StripSignature],
        ),
        (
            "thinking is enabled but reasoning_content is missing in assistant tool call message at index 3",
            [retry.EchoReasoning, retry.StripSignature],
        ),
        ("property 'reasoning_content' is unsupported", [retry.StripSignature]),
        ("messages.1.assistant.reasoning_content: Extra inputs are not permitted", [retry.StripSignature]),
    ],
)
def test_a_refusal_about_thoughts_has_a_second_try(message: str, remedies: list[type]) -> None:
    error = failed(400, {"error": {"message": message}})
    every = frozenset({retry.Remedy.ECHO_REASONING, retry.Remedy.STRIP_SIGNATURES})
    asked = [type(each) for each in decisions(error, retry.Situation(remedies=every))]
    assert asked[: len(remedies)] == remedies
    assert asked[-1] is retry.GiveUp


# ----------------------------------------------------------------------------------------------------- ids, signatures


@pytest.mark.parametrize("call_id", ["call_1", "toolu_01A", "functions.f:0", "chatcmpl-tool-0123456789", "é" * 9])
def test_ids_are_mapped_for_mistral_alike_in_call_and_result(call_id: str) -> None:
    reply = ModelReply(text="", tool_requests=(ToolRequest(id=call_id, name="f", arguments="{}"),))
    needs = find_wire_needs(provider="custom", model="devstral-small", host="127.0.0.1")
    first, second = (sent_rows(reply, needs) for _ in range(2))
    sent = first[1]["tool_calls"][0]["id"]
    assert re.fullmatch("[a-zA-Z0-9]{9}", sent)
    assert first[2]["tool_call_id"] == sent
    assert first == second
    assert to_mistral_id(sent) == sent


def test_ids_fit_the_responses_api() -> None:
    long = "call_" + "x" * 100
    rows = [
        {"role": "assistant", "tool_calls": [{"id": long, "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": long, "content": "done"},
    ]
    call, result = responses.to_input(rows, issuer="other").input
    assert call["call_id"] == result["call_id"]
    assert len(call["call_id"]) == 64
    assert shorten_id("x" * 64, 64) == "x" * 64


def test_an_id_that_comes_again_in_a_later_reply_is_another_call_for_strict_readers() -> None:
    asked = {"role": "assistant", "tool_calls": [{"id": "0", "function": {"name": "f", "arguments": "{}"}}]}
    rows = [asked, {"role": "tool", "tool_call_id": "0", "content": "one"}] * 3
    items = responses.to_input(rows, issuer="other").input
    ids = ["0", "0", "0_2", "0_2", "0_3", "0_3"]
    assert [item["call_id"] for item in items] == ids
    messages = anthropic.to_messages(rows).messages
    assert [block.get("id") or block["tool_use_id"] for each in messages for block in each["content"]] == ids


@pytest.mark.parametrize(
    "entry",
    [
        {"extra_content": {"google": {"thought_signature": "sig"}}},
        {"thought_signature": "sig"},
        {"provider_specific_fields": {"thought_signature": "sig"}},
    ],
)
def test_gemini_s_signature_comes_back_with_its_call(entry: Piece) -> None:
    heard: list[Delta] = []
    assembler = ReplyAssembler(heard.append)
    pieces = [piece("f", "{}", index=0, id="x", **entry), piece("g", "{}", index=1, id="y")]
    assembler.feed({"choices": [{"index": 0, "delta": {"tool_calls": pieces}, "finish_reason": "stop"}]})
    needs = find_wire_needs(
        provider="google", model="models/gemini-3-flash-preview", host="generativelanguage.googleapis.com"
    )
    first, second = sent_rows(assembler.finish(), needs)[1]["tool_calls"]
    assert first["extra_content"] == {"google": {"thought_signature": "sig"}}
    assert "extra_content" not in second


def test_a_call_that_nobody_signed_is_sent_to_gemini_as_such() -> None:
    reply = ModelReply(text="", tool_requests=(CALL, ToolRequest(id="call_2", name="f", arguments="{}")))
    needs = find_wire_needs(provider="google", model="gemini-3-flash-preview", host="generativelanguage.googleapis.com")
    first, second = sent_rows(reply, needs)[1]["tool_calls"]
    assert first["extra_content"]["google"]["thought_signature"] == "skip_thought_signature_validator"
    assert "extra_content" not in second


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 30}},
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60, "cache_creation_input_tokens": 30}},
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}, "cache_creation_input_tokens": 30},
        {"prompt_tokens": 100, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 30},
        {"input_tokens": 100, "cached_tokens": 60, "cache_write_tokens": 30},
    ],
)
def test_what_was_written_to_a_cache_is_counted(usage: dict[str, Any]) -> None:
    assert parse_usage(usage) == Usage(input=10, cache_read=60, cache_write=30)


def test_the_responses_api_counts_what_it_wrote_to_its_cache() -> None:
    details = {"cached_tokens": 60, "cache_write_tokens": 30}
    assert responses.parse_usage({"input_tokens": 100, "input_tokens_details": details}) == Usage(
        input=10, cache_read=60, cache_write=30
    )
