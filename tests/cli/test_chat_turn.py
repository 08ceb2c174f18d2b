"""What a chat shows of a run, decided from its events: tables, and laws that hold for any events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hermes_worker.cli.chat import blocks as blocks_module
from hermes_worker.cli.chat.blocks import BLOCK_CHARS_MAX, Unfinished, flush_blocks, take_blocks
from hermes_worker.cli.chat.turn import (
    CallBegun,
    CallFolded,
    CallVerdict,
    ChatEnd,
    ChatNotice,
    PendingQuestion,
    Prose,
    Shown,
    TurnState,
    apply_event,
)
from hermes_worker.cli.wording import strip_controls

PIECES = st.sampled_from(
    [
        "\n",
        "\n\n",
        "a",
        "word ",
        "# head",
        "- item",
        "1. one",
        "  more",
        "    deep",
        "```",
        "```py",
        "~~~",
        "|a|b|",
        "\t",
    ]
)
MARKDOWN = st.lists(PIECES, max_size=40).map("".join)


def told(*events: dict[str, Any]) -> tuple[TurnState, list[Shown]]:
    state, shown = TurnState(), []
    for event in events:
        state, more = apply_event(state, event)
        shown += more
    return state, shown


def wrote(text: str) -> dict[str, Any]:
    return {"event": "message.delta", "delta": text}


def completed(text: str) -> dict[str, Any]:
    return {"event": "message.completed", "text": text, "iteration": 1, "finish_reason": "stop"}


def prose(shown: list[Shown]) -> str:
    return "".join(each.block.text for each in shown if isinstance(each, Prose))


def notices(shown: list[Shown]) -> list[str]:
    return [each.text for each in shown if isinstance(each, ChatNotice)]


# ------------------------------------------------------------------------------------------------------------- blocks


def split(text: str, sizes: list[int]) -> list[tuple[str, bool]]:
    """The blocks of a text that comes in pieces of these sizes."""
    state, found = Unfinished(), []
    for size in (*sizes, len(text)):
        state, whole = take_blocks(state, text[:size])
        text = text[size:]
        found += whole
    return [(block.text, block.is_plain) for block in (*found, *flush_blocks(state))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("one line", ["one line"]),
        ("one\n\ntwo", ["one\n\n", "two"]),
        ("one\ntwo\n", ["one\ntwo\n"]),
        ("```\na\n\nb\n```\nafter", ["```\na\n\nb\n```\n", "after"]),
        ("~~~\n```\n\n~~~\nafter", ["~~~\n```\n\n~~~\n", "after"]),
        ("```\nnever closed\n\nstill code", ["```\nnever closed\n\nstill code"]),
        ("- a\n\n  more of a\n\nafter", ["- a\n\n  more of a\n\n", "after"]),
        ("para\n\n    code", ["para\n\n", "    code"]),
        ("text ``` not a fence\n\nx", ["text ``` not a fence\n\n", "x"]),
        ("``` `no` fence\n\nx", ["``` `no` fence\n\n", "x"]),
    ],
)
def test_a_block_ends_where_nothing_more_belongs_to_it(text: str, expected: list[str]) -> None:
    assert [block for block, _ in split(text, [])] == expected


@given(text=MARKDOWN, sizes=st.lists(st.integers(1, 9), max_size=60))
@example(text="- a\n\n  b\n\nc", sizes=[1] * 20)
def test_blocks_are_the_text_and_do_not_depend_on_the_pieces(text: str, sizes: list[int]) -> None:
    whole = split(text, [])
    assert "".join(block for block, _ in whole) == text
    assert split(text, sizes) == whole


@given(text=MARKDOWN, sizes=st.lists(st.integers(1, 9), max_size=60))
@example(text="\n\n# head# head``````py\n\na", sizes=[1] * 60)
@example(text="\n\n\n# head# head# head``````py```py\n\na", sizes=[1] * 60)
def test_long_blocks_are_cut_at_the_same_places_whatever_the_pieces(text: str, sizes: list[int]) -> None:
    before = blocks_module.BLOCK_CHARS_MAX
    blocks_module.BLOCK_CHARS_MAX = 12
    try:
        whole = split(text, [])
        assert "".join(block for block, _ in whole) == text
        assert max((len(block) for block, _ in whole), default=0) <= 12
        assert split(text, sizes) == whole
    finally:
        blocks_module.BLOCK_CHARS_MAX = before


def test_what_follows_of_a_block_that_was_too_long_is_plain_until_it_ends() -> None:
    code = "```\n" + "x = 1\n" * (BLOCK_CHARS_MAX // 3) + "```\nafter\n\nend"
    found = split(code, [])
    assert [plain for _, plain in found] == [False, *[True] * (len(found) - 3), False, False]
    assert [block for block, _ in found[-2:]] == ["after\n\n", "end"]


# ---------------------------------------------------------------------------------------------------------- the reply


def test_a_reply_is_shown_block_by_block_and_once() -> None:
    state, shown = told(wrote("# He"), wrote("ad\n\nfirst"))
    assert prose(shown) == "# Head\n\n", "what is whole"
    assert state.reply.unfinished.text == "first"
    _, shown = told(wrote("# He"), wrote("ad\n\nfirst"), completed("# Head\n\nfirst line"))
    assert prose(shown) == "# Head\n\nfirst line"


@given(
    text=MARKDOWN,
    sizes=st.lists(st.integers(1, 9), max_size=30),
    told_chars=st.integers(0, 200),
    around=st.tuples(st.sampled_from(["", "\n\n", "  "]), st.sampled_from(["", "\n", " \n\n "])),
)
def test_a_reply_is_shown_once_whatever_of_it_came_in_pieces(
    text: str, sizes: list[int], told_chars: int, around: tuple[str, str]
) -> None:
    raw = around[0] + text + around[1]
    told_part, events = raw[:told_chars], []
    for size in (*sizes, len(raw)):
        events.append(wrote(told_part[:size]))
        told_part = told_part[size:]
    state, shown = told(*events, completed(raw.strip()))
    assert prose(shown).strip() == text.strip()
    assert notices(shown) == []
    assert not state.reply.is_begun


def test_a_reply_that_another_attempt_wrote_is_said_to_be_begun_again() -> None:
    _, shown = told(wrote("I will lo"), completed("Here it is."))
    assert prose(shown) == "I will loHere it is."
    assert notices(shown) == ["the reply was begun again:"]


def test_a_discarded_reply_leaves_nothing_behind() -> None:
    state, shown = told(
        wrote("half a"), {"event": "reply.discarded", "iteration": 1}, wrote("whole"), completed("whole")
    )
    assert prose(shown) == "half awhole"
    assert len(notices(shown)) == 1
    assert state.last_reply == "whole"


# ---------------------------------------------------------------------------------------------------- calls, questions


def called(**more: Any) -> list[dict[str, Any]]:
    place = {"tool": "terminal", "tool_call_id": "c1"}
    return [
        {"event": "tool.started", **place, "preview": '{"command": "ls -la"}'},
        {"event": "tool.completed", **place, "duration": 0.5, "error": False, **more},
    ]


@pytest.mark.parametrize(
    ("more", "verdict", "why"),
    [
        ({}, CallVerdict.DONE, ""),
        ({"error": True}, CallVerdict.FAILED, "answered with an error"),
        ({"outcome": "unknown"}, CallVerdict.IN_DOUBT, "its worker was lost, outcome unknown; it is not run again"),
        (
            {"outcome": "unknown", "is_answered": True},
            CallVerdict.IN_DOUBT,
            "no usable answer, outcome unknown; it is not run again",
        ),
        ({"outcome": "cancelled"}, CallVerdict.IN_DOUBT, "cancelled"),
        ({"refused_by": "person", "reason": "not here"}, CallVerdict.REFUSED, "refused by a person: not here"),
        ({"refused_by": "rules", "error": True}, CallVerdict.REFUSED, "refused by the rules of this installation"),
    ],
)
def test_a_call_is_folded_with_its_outcome(more: dict[str, Any], verdict: CallVerdict, why: str) -> None:
    state, shown = told(*called(**more))
    assert shown == [
        CallBegun(name="terminal", about="command=ls -la"),
        CallFolded(name="terminal", about="command=ls -la", verdict=verdict, why=why, took_s=0.5),
    ]
    assert state.calls == {}


APPROVAL = {
    "event": "approval.request",
    "wait_id": 7,
    "command": "rm -rf build",
    "description": "deletes",
    "choices": ["once", "session", "always", "deny"],
}
QUESTION = {"event": "input.request", "wait_id": 8, "question": "Which?", "choices": ["red", "blue"]}


def test_questions_wait_until_they_are_answered_whoever_does() -> None:
    state, shown = told(APPROVAL, QUESTION)
    assert [each.wait_id for each in state.asking] == [7, 8]
    assert shown == list(state.asking)
    assert isinstance(shown[0], PendingQuestion) and shown[0].text == "rm -rf build"
    state, shown = told(
        APPROVAL, QUESTION, {"event": "approval.responded", "wait_id": 7, "choice": "deny", "by": "ann"}
    )
    assert [each.wait_id for each in state.asking] == [8]
    assert notices(shown) == ["denied by ann"]
    state, shown = told(QUESTION, {"event": "input.responded", "wait_id": 8, "by": "bob"})
    assert (state.asking, notices(shown)) == ((), ["answered by bob"])


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "run.waiting", "status": "waiting_for_capacity"}, "waiting for capacity"),
        ({"event": "run.resumed"}, "the run goes on"),
        ({"event": "run.stopping"}, "stopping"),
        ({"event": "run.steered", "text": "in  French"}, "you said: in French"),
        ({"event": "session.compress", "rows": 9}, "9 older messages were summarised to make room"),
        ({"event": "budget.exhausted", "dimension": "tool_calls"}, "the limit of tool calls is reached; it sums up"),
        (
            {"event": "step.retried", "step": "model call", "attempt": 2},
            "a worker was lost; trying its model call again, attempt 2",
        ),
        ({"event": "hook.failed", "hook": "h", "reason": "no"}, "the hook h failed: no"),
    ],
)
def test_what_happens_to_a_run_is_told(event: dict[str, Any], said: str) -> None:
    assert notices(told(event)[1]) == [said]


def test_the_end_says_how_and_nothing_follows_it() -> None:
    usage = {"input_tokens": 10, "output_tokens": 3}
    end = {"event": "run.completed", "output": "Done.", "usage": usage}
    state, shown = told(wrote("Done."), completed("Done."), end, wrote("more"), QUESTION)
    assert prose(shown) == "Done.", "the answer is the last reply, and is not shown again"
    assert state.end == ChatEnd(name="run.completed", output="Done.", tokens_in=10, tokens_out=3)
    assert state.end.is_completed
    _, shown = told(completed("I look."), {"event": "run.completed", "output": "A summary."})
    assert prose(shown) == "I look.A summary."
    state, _ = told({"event": "run.failed", "error": "the model\x1b[2J is away"})
    assert state.end is not None
    assert (state.end.error, state.end.is_completed) == ("the model[2J is away", False)


# ---------------------------------------------------------------------------------------------------- whatever may come

NAMES = st.sampled_from(
    [
        *("message.delta", "message.completed", "reply.discarded", "tool.started", "tool.completed", "tool.progress"),
        *("approval.request", "approval.responded", "input.request", "input.responded", "run.waiting", "run.steered"),
        *("step.retried", "hook.failed", "budget.exhausted", "session.compress", "reasoning.available"),
        *("run.completed", "run.failed", "tool.generating", "an.unknown.event", ""),
    ]
)
FIELDS = st.sampled_from(
    [
        *("delta", "text", "tool", "tool_call_id", "position", "preview", "duration", "error", "outcome", "refused_by"),
        *("reason", "wait_id", "command", "question", "description", "choices", "choice", "by", "expires_at", "status"),
        *("until", "step", "attempt", "deaths", "hook", "dimension", "rows", "output", "usage"),
    ]
)
HOSTILE = st.text(
    st.sampled_from([*"ab \n\t\r\x00\x07\x1b[]m\x9b\x7f\u202e\u2066\u200b\ufeff\ud800<>`*#|&;\U0001f40d"]), max_size=30
)
VALUES = st.one_of(
    HOSTILE,
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.lists(HOSTILE, max_size=3),
    st.dictionaries(HOSTILE, st.integers(), max_size=2),
)
EVENTS = st.builds(lambda name, fields: {**fields, "event": name}, NAMES, st.dictionaries(FIELDS, VALUES, max_size=6))


def texts_of(shown: Shown) -> list[str]:
    match shown:
        case Prose():
            return [shown.block.text]
        case PendingQuestion():
            return [shown.text, shown.why, shown.until, *shown.choices]
        case ChatEnd():
            return [shown.output, shown.error]
        case ChatNotice():
            return [shown.text]
        case CallBegun():
            return [shown.name, shown.about]
        case CallFolded():
            return [shown.name, shown.about, shown.why]


@given(st.lists(EVENTS, max_size=12))
@example([{"event": "approval.request", "command": "rm\u00a0-rf \ud800\ue000 x\nrm y"}])
def test_any_events_are_taken_and_whatever_is_shown_is_text(events: list[dict[str, Any]]) -> None:
    state, shown = told(*events)
    for each in shown:
        assert all(text == strip_controls(text) for text in texts_of(each)), each
        assert all("\n" not in text for text in texts_of(each)) or isinstance(each, Prose | ChatEnd | PendingQuestion)
    assert state.doing == strip_controls(state.doing)
    assert state.reply.unfinished.text == strip_controls(state.reply.unfinished.text)
