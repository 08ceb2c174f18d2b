"""Rows of a transcript: in. Messages of a request: out (rows computed with
Hermes Agent 0.19.0)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.agent.prompt import pipeline
from hermes_worker.agent.prompt.pipeline import (
    DAMAGED,
    STANDARD,
    UNAVAILABLE,
    Row,
    WireNeeds,
    build_messages,
    drop_thinking_only,
    import_history,
    mend_arguments,
    pair_results,
    repair_messages,
    repair_roles,
    translate_row,
)
from hermes_worker.core.messages import (
    Message,
    ModelReply,
    Role,
    ToolRequest,
    build_assistant_body,
    build_tool_body,
    build_user_body,
    dump_canonical_json,
)
from hermes_worker.models.catalog import find_wire_needs


def user(content: object) -> Row:
    return {"role": "user", "content": content}


def assistant(content: object = "", *calls: Row, **fields: object) -> Row:
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **fields}


def call(id: str = "1", arguments: object = "{}", name: object = "read_file", **fields: object) -> Row:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def result(id: str = "1", content: object = "o") -> Row:
    return {"role": "tool", "tool_call_id": id, "content": content}


def stored(rows: Sequence[Row]) -> list[Message]:
    return [
        Message(seq=seq, role=Role(row["role"]), body=dump_canonical_json(row)) for seq, row in enumerate(rows, start=1)
    ]


PARTS = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:,"}}]


# ------------------------------------------------------------------------------------------ roles


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([user("a"), user("b")], [user("a\n\nb")]),
        ([user(""), user("b")], [user("b")]),
        ([user(PARTS), user("b")], None),
        ([user("u"), assistant("a", call()), result(), user("u")], None),
        ([assistant("hi"), result("9"), user("u")], [assistant("hi"), user("u")]),
        ([assistant(None, call("fc_1", call_id="call_1")), result("call_1")], None),
        (
            [assistant(None, call("A")), assistant(None, call("B")), result("A"), result("B")],
            [assistant(None, call("A"), call("B")), result("A"), result("B")],
        ),
        ([assistant("x"), assistant("y")], [assistant("x\ny")]),
        ([assistant("x", finish_reason="incomplete"), assistant("y")], None),
        ([assistant("x", codex_message_items=[1]), assistant("y")], None),
        ([assistant("x", finish_reason="verification_required"), assistant("y")], [assistant("y")]),
        ([assistant("", call()), result("1", "o"), result("1", "o2")], [assistant("", call()), result("1", "o")]),
        ([assistant("", call()), user("u"), result()], [assistant("", call()), user("u")]),
        ([assistant(None), assistant(PARTS)], [assistant(PARTS)]),
        (
            [assistant("x", reasoning_content="r1"), assistant("y", reasoning_content="r2")],
            [assistant("x\ny", reasoning_content="r1")],
        ),
        ([assistant("x"), assistant("y", reasoning_content="r2")], [assistant("x\ny", reasoning_content="r2")]),
        ([assistant("x"), result("9"), assistant("y")], [assistant("x\ny")]),
        ([user("a"), {**user("b"), "api_content": "B"}], [user("a\n\nb")]),
        ([{**user("a"), "api_content": "A"}, user("b")], [user("a\n\nb")]),
        ([], None),
    ],
)
def test_role_repair(rows: list[Row], expected: list[Row] | None) -> None:
    assert repair_roles(rows) == (rows if expected is None else expected)


# ------------------------------------------------------------------------------------------ calls and results


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        # The original puts the stub before the real result.
        (
            [assistant("", call("1"), call("2")), result("1"), user("u")],
            [assistant("", call("1"), call("2")), result("1"), result("2", UNAVAILABLE), user("u")],
        ),
        ([user("u"), result("9")], [user("u")]),
        ([{"role": "moderator", "content": "x"}, user("u")], [user("u")]),
        ([{"role": ["user"], "content": "x"}, user("u")], [user("u")]),
        (
            [assistant("", call(name="")), result()],
            [assistant("", call(name="invalid_tool_call")), result()],
        ),
        ([assistant("", call(), call()), result(), result()], [assistant("", call()), result()]),
        ([assistant("x", tool_calls=[]), user("u")], [assistant("x"), user("u")]),
        ([assistant("x", tool_calls="odd"), user("u")], [assistant("x"), user("u")]),
        ([assistant("", call()), user("u")], [assistant("", call()), result("1", UNAVAILABLE), user("u")]),
        # Servers that number their calls from 0 in every reply.
        (
            [assistant("", call("0")), result("0"), assistant("", call("0")), result("0")],
            [assistant("", call("0")), result("0"), assistant("", call("0")), result("0")],
        ),
        (
            [assistant("", call("fc_1", call_id="call_1")), result("fc_1")],
            [assistant("", call("fc_1", call_id="call_1")), result("call_1")],
        ),
        (
            [assistant("", call("1")), {"role": "tool", "tool_call_id": ["1"], "content": "x"}],
            [assistant("", call("1")), result("1", UNAVAILABLE)],
        ),
        (
            [assistant("", call("b"), call("a"), call("b")), result("a"), result("b")],
            [assistant("", call("b"), call("a")), result("a"), result("b")],
        ),
    ],
)
def test_calls_and_results_are_paired(rows: list[Row], expected: list[Row]) -> None:
    assert pair_results(rows) == expected


def test_a_late_result_is_dropped_and_its_call_answered_by_a_stub() -> None:
    rows = [assistant("", call()), user("u"), result()]
    assert pair_results(repair_roles(rows)) == [assistant("", call()), result("1", UNAVAILABLE), user("u")]


# ------------------------------------------------------------------------------------------ arguments


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            [assistant("", call(arguments='{"a": "cut')), result("1", "o")],
            [assistant("", call()), result("1", f"{DAMAGED}\no")],
        ),
        ([assistant("", call(arguments='{"a": "cut'))], [assistant("", call()), result("1", DAMAGED)]),
        (
            [assistant("", call("1", "{"), call("2", "{")), result("2", ""), user("u")],
            [assistant("", call("1"), call("2")), result("2", DAMAGED), result("1", DAMAGED), user("u")],
        ),
        (
            [assistant("", call(arguments="{")), result("1", [{"text": "x"}])],
            [assistant("", call()), result("1", f'{DAMAGED}\n[{{"text":"x"}}]')],
        ),
        ([assistant("", call(arguments='{"a":1}')), result()], None),
        ([assistant("", call(arguments='{"a":1,}')), result()], None),
        ([assistant("", call(arguments=None)), result()], None),
    ],
)
def test_unreadable_arguments_are_emptied_and_their_result_says_so(rows: list[Row], expected: list[Row] | None) -> None:
    mended = mend_arguments(rows)
    assert mended == (rows if expected is None else expected)
    assert mend_arguments(mended) == mended


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{"b": 1, "a": [1, 2]}', '{"a":[1,2],"b":1}'),
        ('{"a":1,}', '{"a":1}'),
        (None, "{}"),
        ("  ", "{}"),
        ({"a": 1}, '{"a":1}'),
        ("[1]", "[1]"),
        ("{bad", "{}"),
    ],
)
def test_arguments_are_sent_in_canonical_form(arguments: object, sent: str) -> None:
    row = translate_row(assistant("", call(arguments=arguments)))
    assert row["tool_calls"] == [call(arguments=sent)]


# ------------------------------------------------------------------------------------------ thinking only


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([user("a"), assistant("", reasoning="r"), user("b")], [user("a\n\nb")]),
        (
            [user("a"), assistant(" \n", reasoning_content="r"), user(PARTS)],
            [user([{"type": "text", "text": "a"}, *PARTS])],
        ),
        (
            [user(PARTS), assistant("", reasoning_details=[1]), user("b")],
            [user([*PARTS, {"type": "text", "text": "b"}])],
        ),
        ([user("a"), assistant([{"type": "thinking", "thinking": "r"}]), user("b")], [user("a\n\nb")]),
        ([user("a"), assistant("", call(), reasoning="r"), result()], None),
        ([user("a"), assistant("text", reasoning="r"), user("b")], None),
        ([user("a"), assistant([{"type": "text", "text": "t"}], reasoning="r")], None),
        ([user("a"), assistant(""), user("b")], None),
        ([user("a"), assistant("", codex_message_items=[1], reasoning="r")], None),
    ],
)
def test_rows_with_nothing_but_reasoning_are_dropped(rows: list[Row], expected: list[Row] | None) -> None:
    assert drop_thinking_only(rows) == (rows if expected is None else expected)


def test_only_the_users_around_a_dropped_row_are_merged() -> None:
    """Else a row dropped late would change the bytes of what was sent long before."""
    early = [user(PARTS), user("b"), assistant("c")]
    assert drop_thinking_only([*early, user("d"), assistant("", reasoning="r")]) == [*early, user("d")]


# ------------------------------------------------------------------------------------------ one row


def test_private_fields_are_not_sent() -> None:
    row = assistant(
        "t",
        call(extra_content={"s": 1}, response_item_id="fc"),
        reasoning="r",
        reasoning_content="r",
        reasoning_details=[1],
        finish_reason="stop",
        codex_reasoning_items=[1],
        codex_message_items=[1],
        anthropic_content_blocks=[1],
        anthropic_issuer="x",
        timestamp=1,
        tool_name="x",
        effect_disposition="none",
        _thinking_prefill=True,
    )
    assert translate_row(row) == assistant("t", call())
    assert json.loads(build_messages(stored([row, result()]))[0]) == assistant("t", call())


@pytest.mark.parametrize(
    "field", ["codex_message_items", "anthropic_content_blocks", "anthropic_issuer", "reasoning_details"]
)
def test_a_row_without_calls_loses_its_opaque_fields_too(field: str) -> None:
    reply = ModelReply(text="t", row_fields={field: [1]})
    rows = [Message(seq=1, role=Role.ASSISTANT, body=build_assistant_body(reply))]
    assert build_messages(rows) == [build_assistant_body(ModelReply(text="t"))]
    kept = WireNeeds(keeps_reasoning_details=True, keeps_response_items=True, keeps_anthropic_blocks=True)
    assert build_messages(rows, kept) == [build_assistant_body(reply)]


def test_an_endpoint_gets_back_what_it_needs() -> None:
    row = assistant(
        "t", call("fc", call_id="c", extra_content={"s": 1}), reasoning_details=[1], codex_message_items=[1]
    )
    needs = WireNeeds(keeps_thought_signatures=True, keeps_reasoning_details=True, keeps_response_items=True)
    sent = call("c", call_id="c", extra_content={"s": 1})
    assert translate_row(row, needs) == assistant("t", sent, reasoning_details=[1], codex_message_items=[1])


def test_the_sidecar_is_sent_in_place_of_the_shown_text() -> None:
    shown = {**user("hi"), "api_content": "hi\n<memory>"}
    assert translate_row(shown) == user("hi\n<memory>")
    assert build_messages(stored([shown])) == [build_user_body("hi\n<memory>")]


@pytest.mark.parametrize(
    ("row", "echo"),
    [
        (assistant("t", reasoning_content="r"), "r"),
        (assistant("t", reasoning_content=""), " "),
        (assistant("t", reasoning="r"), "r"),
        (assistant("", call(), reasoning="r"), " "),
        (assistant("", call(), reasoning="r", reasoning_content="c"), "c"),
        (assistant("t"), " "),
    ],
)
def test_reasoning_is_echoed_where_its_absence_is_refused(row: Row, echo: str) -> None:
    needs = WireNeeds(echoes_reasoning=True)
    assert translate_row(row, needs)["reasoning_content"] == echo
    assert (
        json.loads(build_messages(stored([row, result()] if "tool_calls" in row else [row]), needs)[0])[
            "reasoning_content"
        ]
        == echo
    )
    assert "reasoning_content" not in translate_row(row, STANDARD)


@pytest.mark.parametrize(
    ("provider", "model", "host", "expected"),
    [
        ("deepseek", "x", "", WireNeeds(echoes_reasoning=True, thinker="deepseek")),
        (
            "openrouter",
            "deepseek/deepseek-r1",
            "openrouter.ai",
            WireNeeds(echoes_reasoning=True, thinker="deepseek", keeps_reasoning_details=True),
        ),
        ("", "k2", "api.moonshot.ai", WireNeeds(echoes_reasoning=True, thinker="kimi")),
        ("kimi", "x", "proxy.example", WireNeeds(echoes_reasoning=True, thinker="kimi")),
        ("kimi-cn", "x", "proxy.example", WireNeeds(echoes_reasoning=True, thinker="kimi-cn")),
        ("", "k2", "notmoonshot.ai", STANDARD),
        ("", "google/gemini-3-pro", "", WireNeeds(keeps_thought_signatures=True, insists_on_signature=True)),
        ("mistral", "devstral-medium", "api.mistral.ai", WireNeeds(takes_short_ids_only=True)),
        ("openai", "gpt-5.4", "api.openai.com", STANDARD),
    ],
)
def test_endpoints_differ_in_what_they_need(provider: str, model: str, host: str, expected: WireNeeds) -> None:
    assert find_wire_needs(provider=provider, model=model, host=host) == expected


# ------------------------------------------------------------------------------------------ prepare


def _row(seq: int, role: Role, body: str) -> Message:
    return Message(seq=seq, role=role, body=body)


def healthy(turns: int, *, arguments: str = '{"path":"a"}', reasoning: str | None = None) -> list[Message]:
    rows: list[Message] = []
    for turn in range(turns):
        ids = (f"c{turn}a", f"c{turn}b")
        requests = tuple(ToolRequest(id=id, name="read_file", arguments=arguments) for id in ids)
        bodies = [
            (Role.USER, build_user_body(f"question {turn}")),
            (Role.ASSISTANT, build_assistant_body(ModelReply(text="", tool_requests=requests, reasoning=reasoning))),
            *((Role.TOOL, build_tool_body(id, "result")) for id in ids),
            (Role.ASSISTANT, build_assistant_body(ModelReply(text=f"answer {turn}", reasoning=reasoning))),
        ]
        rows += [_row(len(rows) + offset, role, body) for offset, (role, body) in enumerate(bodies, start=1)]
    return rows


def test_a_healthy_history_passes_as_it_is() -> None:
    rows = healthy(3)
    assert list(build_messages(rows)) == [row.body for row in rows]


def test_a_healthy_history_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row for row in healthy(3) if row.role is not Role.ASSISTANT or "answer" in row.body]
    rows = [row for row in rows if row.role is not Role.TOOL]

    def refuse(body: str) -> dict[str, Any]:
        raise AssertionError(f"parsed {body!r}")

    monkeypatch.setattr(pipeline, "_parse_row", refuse)
    assert list(build_messages(rows)) == [row.body for row in rows]


def test_a_row_with_calls_is_translated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = healthy(3, arguments='{"only":"here"}')
    first = build_messages(rows)

    def refuse(body: str) -> dict[str, Any]:
        raise AssertionError(f"parsed {body!r}")

    monkeypatch.setattr(pipeline, "_parse_row", refuse)
    assert build_messages(rows) == first


def test_reasoning_is_not_sent_to_strict_providers() -> None:
    sent = [json.loads(body) for body in build_messages(healthy(2, reasoning="hm"))]
    assert not any("reasoning" in row for row in sent)
    assert len(sent) == 10


def test_ordinary_text_may_look_like_a_private_field() -> None:
    body = dump_canonical_json(assistant('reasoning: "tool_calls":[ "type":"function" "api_content":'))
    assert build_messages([_row(1, Role.ASSISTANT, body)]) == [body]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([user("a"), user("b"), assistant("c")], [user("a\n\nb"), assistant("c")]),
        (
            [user("a"), assistant("", call()), user("b")],
            [user("a"), assistant("", call()), result("1", UNAVAILABLE), user("b")],
        ),
        ([user("a"), result("9"), assistant("b")], [user("a"), assistant("b")]),
        ([user("a"), assistant("", reasoning="r"), user("b")], [user("a\n\nb")]),
        (
            [user("a"), assistant("", call(arguments="{x")), result()],
            [user("a"), assistant("", call()), result("1", f"{DAMAGED}\no")],
        ),
        ([assistant("a"), assistant("b")], [assistant("a\nb")]),
        (
            [user("a"), assistant("", call("1"), call("2")), result("1")],
            [user("a"), assistant("", call("1"), call("2")), result("1"), result("2", UNAVAILABLE)],
        ),
    ],
)
def test_an_odd_history_is_put_right(rows: list[Row], expected: list[Row]) -> None:
    assert [json.loads(body) for body in build_messages(stored(rows))] == expected


def test_a_row_that_is_no_object_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON object"):
        build_messages([_row(1, Role.USER, "[1]"), _row(2, Role.USER, "[2]")])


_contents = st.sampled_from(["", "a", " b ", "reasoning", '"tool_calls":[', "é\ud800", "\u2028"])
_turns = st.lists(
    st.tuples(
        _contents,
        st.lists(st.sampled_from(['{"b":1, "a":2}', "{}", '{"x":"y",}', "[1]"]), max_size=3),
        st.sampled_from([None, "hm"]),
    ),
    max_size=5,
)


def _history(turns: list[tuple[str, list[str], str | None]]) -> list[Message]:
    rows: list[Message] = []

    def add(role: Role, body: str) -> None:
        rows.append(_row(len(rows) + 1, role, body))

    for turn, (text, calls, reasoning) in enumerate(turns):
        add(Role.USER, build_user_body(text))
        requests = tuple(ToolRequest(id=f"{turn}.{n}", name="t", arguments=args) for n, args in enumerate(calls))
        if requests:
            add(
                Role.ASSISTANT, build_assistant_body(ModelReply(text=text, tool_requests=requests, reasoning=reasoning))
            )
            for request in requests:
                add(Role.TOOL, build_tool_body(request.id, text))
        add(Role.ASSISTANT, build_assistant_body(ModelReply(text="done", reasoning=reasoning)))
    return rows


@given(_turns, st.booleans())
def test_both_ways_give_the_same_bytes(turns: list[tuple[str, list[str], str | None]], echoes: bool) -> None:
    rows, needs = _history(turns), WireNeeds(echoes_reasoning=echoes)
    assert list(build_messages(rows, needs)) == list(repair_messages(rows, needs))


@given(_turns, _turns)
def test_the_next_prompt_begins_with_the_last_one(
    before: list[tuple[str, list[str], str | None]], after: list[tuple[str, list[str], str | None]]
) -> None:
    first = list(build_messages(_history(before)))
    assert list(build_messages(_history(before + after)))[: len(first)] == first


def test_trouble_at_the_end_does_not_change_the_bytes_before() -> None:
    rows = healthy(3, arguments='{ "b":1, "a": 2 }', reasoning="hm")
    quick = list(build_messages(rows))
    seq = len(rows)
    odd = [*rows, _row(seq + 1, Role.USER, build_user_body("x")), _row(seq + 2, Role.USER, build_user_body("y"))]
    assert list(build_messages(odd)) == [*quick, build_user_body("x\n\ny")]


_wild_rows = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "tool", "system", "x", None, 3])},
        optional={
            "content": st.sampled_from(["", "a", None, [], [{"type": "text", "text": "t"}], 7, {"a": 1}]),
            "tool_calls": st.sampled_from([[], [call("1")], [call("1"), call("2")], [7], "x", [{"id": None}], None]),
            "tool_call_id": st.sampled_from(["1", "2", "", None, ["1"], 7]),
            "reasoning": st.sampled_from(["r", "", None, 7]),
            "name": st.sampled_from(["n", 7]),
            "_private": st.just(1),
        },
    ),
    max_size=8,
)


@given(_wild_rows)
def test_any_history_can_be_imported_and_is_well_then(history: list[dict[str, Any]]) -> None:
    bodies = import_history([*history, 7, None])
    rows = [_row(seq, Role(json.loads(body)["role"]), body) for seq, body in enumerate(bodies, start=1)]
    for row, following in pairwise(rows):
        if Role.USER is row.role is following.role:
            assert not all(isinstance(json.loads(one.body)["content"], str) for one in (row, following))
        assert not (Role.ASSISTANT is row.role is following.role)
    assert import_history([json.loads(body) for body in bodies]) == bodies
    sent = [json.loads(body) for body in build_messages(rows)]
    for position, row in enumerate(sent):
        answers = [one["tool_call_id"] for one in sent[position + 1 :][: len(row.get("tool_calls", ()))]]
        assert sorted(answers) == sorted(one["id"] for one in row.get("tool_calls", ()))


def test_an_imported_history_loses_what_is_not_ours() -> None:
    history = [
        {"role": "user", "content": "  hi  ", "name": "ann", "timestamp": 1, "_x": 1},
        {"role": "assistant", "content": None, "tool_calls": [call(arguments='{ "b":1, "a":2 }', call_id="c9")]},
        {"role": "tool", "tool_call_id": "1", "name": "read_file", "content": {"a": 1}},
        {"role": "assistant", "content": "done", "reasoning": "r", "refusal": None},
    ]
    assert [json.loads(body) for body in import_history(history)] == [
        {"role": "user", "content": "hi", "name": "ann"},
        assistant(None, call("c9", '{"a":2,"b":1}')),
        result("c9", '{"a":1}'),
        assistant("done", reasoning="r"),
    ]


def test_numbers_that_json_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="JSON"):
        import_history([user([{"type": "text", "text": float("nan")}])])


def test_a_long_history_is_prepared_in_a_moment() -> None:
    rows = healthy(1_000, arguments=dump_canonical_json({"content": "x" * 2_000}), reasoning="hm")
    build_messages(rows)
    started = time.process_time()
    build_messages(rows)
    assert time.process_time() - started < 0.5
