"""A prompt and where it goes: in. The prompt with cache marks: out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.agent.prompt.cache_markers import (
    MARKS_MAX,
    CacheLayout,
    add_cache_markers,
)
from hermes_worker.core.messages import dump_canonical_json
from hermes_worker.models.catalog import CacheTarget, choose_cache_layout

MARK = {"type": "ephemeral"}
SYSTEM = {"role": "system", "content": "s"}
CALLING = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "r"}
EMPTY_RESULT = {"role": "tool", "tool_call_id": "1", "content": ""}


def user(content: object) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def marked_text(words: str) -> list[dict[str, Any]]:
    return [{**text(words), "cache_control": MARK}]


def marked(rows: list[dict[str, Any]], layout: CacheLayout, **options: Any) -> list[dict[str, Any]]:
    return [
        json.loads(body) for body in add_cache_markers([dump_canonical_json(row) for row in rows], layout, **options)
    ]


def places(rows: list[dict[str, Any]]) -> list[int]:
    return [position for position, row in enumerate(rows) if "cache_control" in dump_canonical_json(row)]


@pytest.mark.parametrize("layout", list(CacheLayout))
def test_the_system_row_and_the_last_three_are_marked(layout: CacheLayout) -> None:
    assert places(marked([SYSTEM, *(user(str(n)) for n in range(6))], layout)) == [0, 4, 5, 6]


@pytest.mark.parametrize("layout", list(CacheLayout))
def test_without_a_system_row_the_last_four_are_marked(layout: CacheLayout) -> None:
    assert places(marked([user(str(n)) for n in range(6)], layout)) == [2, 3, 4, 5]


def test_a_mark_stands_in_the_last_part() -> None:
    rows = marked([SYSTEM, user("a"), user([text("b"), text("c")])], CacheLayout.ENVELOPE)
    assert rows == [
        {**SYSTEM, "content": marked_text("s")},
        user(marked_text("a")),
        user([text("b"), *marked_text("c")]),
    ]


def test_native_results_and_empty_rows_are_marked_as_a_whole() -> None:
    rows = marked([SYSTEM, user("q"), CALLING, RESULT], CacheLayout.NATIVE)
    assert rows[2] == {**CALLING, "cache_control": MARK}
    assert rows[3] == {**RESULT, "cache_control": MARK}


def test_an_assistants_row_is_marked_as_a_whole_where_its_blocks_may_be_stored() -> None:
    speaking = {**CALLING, "content": "I look"}
    assert marked([speaking], CacheLayout.NATIVE) == [{**speaking, "cache_control": MARK}]
    assert marked([speaking], CacheLayout.ENVELOPE) == [{**speaking, "content": marked_text("I look")}]


@pytest.mark.parametrize(
    ("layout", "expected"), [(CacheLayout.NATIVE, [0, 6, 7, 10]), (CacheLayout.ENVELOPE, [0, 1, 6, 10])]
)
def test_the_results_of_one_reply_get_one_mark(layout: CacheLayout, expected: list[int]) -> None:
    """The others stay behind the requests before this one."""
    rows = [SYSTEM, user("q"), CALLING, RESULT, RESULT, RESULT, RESULT, CALLING, RESULT, RESULT, RESULT]
    assert places(marked(rows, layout)) == expected


def test_an_empty_result_gives_its_mark_to_the_one_before_it() -> None:
    rows = [SYSTEM, user("q"), CALLING, RESULT, RESULT, EMPTY_RESULT]
    assert places(marked(rows, CacheLayout.ENVELOPE)) == [0, 1, 4]


def test_in_an_envelope_rows_without_parts_give_their_mark_to_earlier_ones() -> None:
    rows = marked(
        [SYSTEM, user("1"), user("2"), CALLING, RESULT, CALLING, EMPTY_RESULT, user([])], CacheLayout.ENVELOPE
    )
    assert places(rows) == [0, 1, 2, 4]
    assert rows[4] == {**RESULT, "content": marked_text("r")}


def test_nothing_is_marked_where_marks_mean_nothing() -> None:
    bodies = [dump_canonical_json(SYSTEM)]
    assert add_cache_markers(bodies, None) is bodies
    assert add_cache_markers([], CacheLayout.NATIVE) == []


@given(st.lists(st.sampled_from([SYSTEM, user("a"), user([]), CALLING, RESULT, EMPTY_RESULT]), max_size=9))
def test_there_are_never_more_than_four_marks(rows: list[dict[str, Any]]) -> None:
    for layout in CacheLayout:
        after = marked(rows, layout)
        assert len(places(after)) <= MARKS_MAX
        assert [row["role"] for row in after] == [row["role"] for row in rows]


@pytest.mark.parametrize(
    ("provider", "model", "host", "is_anthropic_wire", "expected"),
    [
        ("anthropic", "claude-sonnet-4-6", "api.anthropic.com", True, CacheLayout.NATIVE),
        ("anthropic", "claude-sonnet-4-6", "api.anthropic.com", False, None),
        ("openrouter", "anthropic/claude-sonnet-4.6", "openrouter.ai", False, CacheLayout.ENVELOPE),
        ("openrouter", "moonshotai/kimi-k2.6", "openrouter.ai", False, CacheLayout.ENVELOPE),
        ("openrouter", "k3", "openrouter.ai", False, CacheLayout.ENVELOPE),
        ("openrouter", "k3nt", "openrouter.ai", False, None),
        ("openrouter", "openai/gpt-5.4", "openrouter.ai", False, None),
        ("openrouter", "anthropic/claude", "notopenrouter.ai", False, None),
        ("nous", "qwen3.6-plus", "inference.nousresearch.com", False, CacheLayout.ENVELOPE),
        ("openrouter", "qwen3.6-plus", "openrouter.ai", False, None),
        ("custom", "claude-x", "llm.example", True, CacheLayout.NATIVE),
        ("minimax", "MiniMax-M2.7", "", True, CacheLayout.NATIVE),
        ("custom", "MiniMax-M2.7", "api.minimaxi.com", True, CacheLayout.NATIVE),
        ("alibaba", "qwen3.6-plus", "", False, CacheLayout.ENVELOPE),
        ("qwen", "qwen3.6-plus", "", False, CacheLayout.ENVELOPE),
        ("qwen", "deepseek-v3", "dashscope.aliyuncs.com", False, None),
        ("custom", "qwen3.6-plus", "coding-intl.dashscope.aliyuncs.com", False, CacheLayout.ENVELOPE),
        ("custom", "qwen3.6-plus", "opencode.ai", False, CacheLayout.ENVELOPE),
        ("custom", "qwen3.6-plus", "notopencode.ai", False, None),
        ("opencode-go", "glm-5", "", False, None),
        ("openai", "gpt-5.4", "api.openai.com", False, None),
    ],
)
def test_who_understands_marks(
    provider: str, model: str, host: str, is_anthropic_wire: bool, expected: CacheLayout | None
) -> None:
    target = CacheTarget(provider=provider, model=model, host=host, is_anthropic_wire=is_anthropic_wire)
    assert choose_cache_layout(target) is expected
