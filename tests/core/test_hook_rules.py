"""What the answers of hooks mean, however hostile, and who is told of what."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.hooks import (
    ABSENT_EVENTS,
    ANSWER_CHARS_MAX,
    HOOK_EVENTS,
    NOT_OBSERVED,
    NOTHING,
    Approve,
    Block,
    HookKind,
    InvalidHookAnswer,
    PendingHookCall,
    ReplaceArguments,
    ReplaceText,
    build_event_id,
    build_observed,
    expand_events,
    list_beginning_calls,
    list_pending_calls,
    parse_answer,
)
from hermes_worker.core.run_events import RunEventName

ANSWERS = [
    ("pre_tool_call", None, NOTHING),
    ("pre_tool_call", {"action": "block", "message": " not today "}, Block(reason="not today")),
    ("pre_tool_call", {"action": "approve", "rule_key": "r"}, Approve(reason=..., rule="r")),
    ("pre_tool_call", {"args": {"b": 1, "a": "\x00"}}, ReplaceArguments(arguments='{"a":"\\u0000","b":1}')),
    ("pre_llm_call", {"context": "It rains."}, ReplaceText(text="It rains.")),
    ("pre_llm_call", "It rains.", ReplaceText(text="It rains.")),
    ("pre_llm_call", "  ", NOTHING),
    ("transform_tool_result", "a\x00b\ud800", ReplaceText(text="a\ufffdb?")),
    ("transform_llm_output", "", NOTHING),
]


@pytest.mark.parametrize(("event", "value", "meaning"), ANSWERS)
def test_an_answer_means_what_the_table_says(event: str, value: object, meaning: object) -> None:
    found = parse_answer(event, json.dumps(value))
    if isinstance(meaning, Approve):
        assert isinstance(found, Approve) and found.rule == meaning.rule
    else:
        assert found == meaning


@pytest.mark.parametrize(
    ("event", "text"),
    [
        ("pre_tool_call", '"no"'),
        ("pre_tool_call", '{"action":"block"}'),
        ("pre_tool_call", '{"action":"explode","args":{}}'),
        ("pre_tool_call", '{"args":[1]}'),
        ("pre_llm_call", '{"context":7}'),
        ("transform_tool_result", '{"text":"x"}'),
        ("transform_llm_output", json.dumps("x" * 200_001)),
        ("pre_llm_call", json.dumps("x" * 50_001)),
        ("transform_tool_result", "x" * (ANSWER_CHARS_MAX + 1)),
        ("transform_tool_result", "no JSON"),
        ("pre_tool_call", "[" * 100_000),
    ],
)
def test_what_means_nothing_is_nonsense(event: str, text: str) -> None:
    assert isinstance(parse_answer(event, text), InvalidHookAnswer)


@given(st.sampled_from(sorted(HOOK_EVENTS)), st.text() | st.recursive(st.none() | st.text(), st.lists).map(json.dumps))
def test_no_answer_is_too_odd(event: str, text: str) -> None:
    found = parse_answer(event, text)
    if isinstance(found, ReplaceText):
        found.text.encode("utf-8")
        assert "\x00" not in found.text


def test_observers_are_told_by_the_events_of_a_run() -> None:
    observed = build_observed([("audit", ("agent:*", "post_tool_call", "pre_tool_call")), ("bell", ("agent:end",))])
    assert observed["agent:end"] == ("audit", "bell")
    assert "pre_tool_call" not in observed
    assert list_pending_calls(RunEventName.TOOL_COMPLETED, observed, is_child=False) == [
        PendingHookCall(event="post_tool_call", hook="audit")
    ]
    assert [one.hook for one in list_pending_calls(RunEventName.RUN_FAILED, observed, is_child=True)] == [
        "audit",
        "bell",
    ]
    assert list_pending_calls(RunEventName.STEERED, observed, is_child=False) == []
    assert list_pending_calls(RunEventName.RUN_COMPLETED, NOT_OBSERVED, is_child=False) == []


def test_only_children_are_told_of_as_such_and_only_first_runs_open_sessions() -> None:
    observed = build_observed([("all", ("subagent_start", "subagent_stop", "session:*"))])
    assert [one.event for one in list_pending_calls(RunEventName.RUN_COMPLETED, observed, is_child=True)] == [
        "subagent_stop"
    ]
    assert list_pending_calls(RunEventName.RUN_COMPLETED, observed, is_child=False) == []
    assert [one.event for one in list_beginning_calls(observed, is_child=True, is_first=True)] == [
        "session:start",
        "subagent_start",
    ]
    assert list_beginning_calls(observed, is_child=False, is_first=False) == []


def test_a_pattern_stands_for_the_events_that_begin_so() -> None:
    assert set(expand_events(("agent:*",))) == {"agent:start", "agent:step", "agent:end"}
    assert expand_events(("nothing:*", "agent:end")) == ("nothing:*", "agent:end")


def test_no_event_is_both_there_and_absent() -> None:
    assert not ABSENT_EVENTS & HOOK_EVENTS.keys()
    assert [name for name, kind in HOOK_EVENTS.items() if kind is HookKind.REWRITER] == [
        "pre_tool_call",
        "transform_tool_result",
        "pre_llm_call",
        "transform_llm_output",
        "pre_compress",
    ]
    assert build_event_id("run_1", 4, "agent:end") == "run_1.4.agent:end"
