"""Text with reasoning in it: in. What people may see: out."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.recovery.reasoning_tags import (
    ThinkScrubber,
    extract_reasoning,
    has_open_scratchpad,
    has_thinking_tags,
    has_visible_text,
    strip_think_blocks,
)


def shown(*pieces: str) -> str:
    scrubber = ThinkScrubber()
    return "".join([*(scrubber.feed(piece) for piece in pieces), scrubber.flush()])


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        # Reference vectors.
        (("<thi", "nk>a</th", "ink>hi"), "hi"),
        (("x <think>a</think> y",), "x  y"),
        (("<think>never closed",), ""),
        (("text </think> more",), "text more"),
        (("use <think> tag",), "use <think> tag"),
        # Ours.
        (("hello",), "hello"),
        ((), ""),
        (("answer\n  <think>late",), "answer\n  "),
        (("<THINK>a</Think>b",), "b"),
        (("<reasoning>a</reasoning><thought>b</thought><REASONING_SCRATCHPAD>c</REASONING_SCRATCHPAD>d",), "d"),
        (("<think>a</thought>b</think>c",), "c"),
        (("x <think>a\nb", "\nc</thi", "nk>y"), "x y"),
        (("say <think> or <think> again",), "say <think> or <think> again"),
        (("say <think>\n<thinking>secret",), "say <think>\n"),
        (("a</think>", " \n ", "b"), "ab"),
        (("</think><think>a</think>b",), "b"),
        (("1 < 2, <b>, </",), "1 < 2, <b>, </"),
        (("<think", "ing", ">", "a", "</", "thinking", ">b"), "b"),
        (("<thinker>",), "<thinker>"),
        (("<th\u0130nk>a</think>",), "<th\u0130nk>a"),
        (("\u0130\u0130 <think>a</think>b",), "\u0130\u0130 b"),
    ],
)
def test_streams(pieces: tuple[str, ...], expected: str) -> None:
    assert shown(*pieces) == expected


_TAGS = ["<think>", "</think>", "<Thinking>", "</THINKING>", "<thought>", "</thought>"]
_OTHER = ["<", "</", "th", "ink>", "a", "b.", "\u0130", "use ", "<b>", " ", "\n"]
_fragments = st.lists(
    st.sampled_from(_TAGS + _OTHER),
    max_size=14,
).map("".join)


@given(_fragments, st.data())
def test_the_same_is_shown_however_a_reply_is_cut(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert shown(*pieces) == shown(text) == shown(*text)


@given(st.text())
def test_a_reply_without_tags_is_shown_as_it_is(text: str) -> None:
    if "<" not in text:
        assert shown(*text) == text == strip_think_blocks(text)


def test_ordinary_text_is_shown_at_once() -> None:
    scrubber = ThinkScrubber()
    assert [scrubber.feed("Hello "), scrubber.feed("world <"), scrubber.feed("b>")] == ["Hello ", "world ", "<b>"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<think>a</think>hi", "hi"),
        ("x <think>a</think> y", "x  y"),
        ("<think>never closed", ""),
        ("ok\n <thinking foo='1'>never closed", "ok"),
        ("text </think> more", "text more"),
        ("<tool_call>{}</tool_call>done", "done"),
        ("a <tool_calls id=1>x</tool_calls>b", "a b"),
        ('Calling:\n<function name="f">{"a":1}</function>ok', "Calling:\nok"),
        ("Use <function> in JavaScript</function>", "Use <function> in JavaScript"),
        ("stray </tool_call> here", "stray here"),
        ("plain", "plain"),
        ("", ""),
    ],
)
def test_whole_replies(text: str, expected: str) -> None:
    assert strip_think_blocks(text) == expected


@pytest.mark.parametrize(
    ("text", "is_visible", "is_thinking", "is_open"),
    [
        ("<think>a</think> \n", False, True, False),
        ("<think>a</think>b", True, True, False),
        ("<REASONING_SCRATCHPAD>a", False, True, True),
        ("<REASONING_SCRATCHPAD>a</REASONING_SCRATCHPAD>b", True, True, False),
        ("  ", False, False, False),
        ("b", True, False, False),
    ],
)
def test_what_is_in_a_reply(text: str, is_visible: bool, is_thinking: bool, is_open: bool) -> None:
    assert (has_visible_text(text), has_thinking_tags(text), has_open_scratchpad(text)) == (
        is_visible,
        is_thinking,
        is_open,
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"reasoning": "a", "reasoning_content": "a"}, "a"),
        ({"reasoning": "a", "reasoning_content": "b", "content": "<think>c</think>"}, "a\n\nb"),
        (
            {"reasoning_details": [{"summary": "s"}, {"thinking": "t"}, {"content": "c"}, {"text": "x"}, 7]},
            "s\n\nt\n\nc\n\nx",
        ),
        ({"content": [{"type": "thinking", "thinking": " a "}, {"type": "text", "text": "b"}]}, "a"),
        ({"content": "<think> a </think>b<reasoning>c</reasoning><think>a</think>"}, "a\n\nc"),
        ({"content": "<think>open"}, None),
        ({"content": None, "reasoning": None, "reasoning_details": "odd"}, None),
        ({}, None),
    ],
)
def test_reasoning_is_found_wherever_a_provider_puts_it(row: dict[str, object], expected: str | None) -> None:
    assert extract_reasoning(row) == expected


@pytest.mark.parametrize(
    "text",
    [
        "x" + "<think>" * 30_000,
        "x" + "<think></thought>" * 20_000,
        "\n<think" * 30_000,
        "<tool_call " * 30_000,
        "\n<function name=" * 20_000,
        "\n<function>" * 20_000,
        "<" * 200_000,
        "\n" * 200_000,
    ],
    ids=lambda text: repr(text[:16]),
)
def test_malice_takes_little_time(text: str) -> None:
    started = time.process_time()
    strip_think_blocks(text)
    extract_reasoning({"content": text})
    shown(*(text[i : i + 40] for i in range(0, len(text), 40)))
    assert time.process_time() - started < 5.0
