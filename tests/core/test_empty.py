"""A reply, and what happened to those before it: in. One verdict: out."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.messages import ModelReply, ToolRequest
from hermes_worker.core.recovery import reply_policy as empty
from hermes_worker.core.recovery.reply_policy import (
    Accept,
    AcceptReason,
    AskAgain,
    EndUnanswered,
    FallBackProvider,
    FinishPartial,
    PartialReason,
    ReplyContext,
    ReplyFacts,
    RunTools,
    UnansweredReason,
    Verdict,
    compute_output_limit,
    judge_reply,
    read_reply_facts,
)
from hermes_worker.core.recovery_state import ReplyCounters, build_document, parse_counters

FRESH = ReplyCounters()
ALONE = ReplyContext()
CHAIN = ReplyContext(has_fallback=True)


def reply(text: str = "", finish_reason: str = "stop", **facts: object) -> ReplyFacts:
    row = json.dumps({"role": "assistant", "content": text})
    return replace(ReplyFacts(text=text, row=row, finish_reason=finish_reason), **facts)  # type: ignore[arg-type]


def again(verdict: Verdict) -> AskAgain:
    assert isinstance(verdict, AskAgain), verdict
    return verdict


def said(counters: ReplyCounters) -> list[tuple[str, str]]:
    return [(row["role"], row["content"]) for row in map(json.loads, counters.scaffold)]


def test_visible_text_is_the_answer() -> None:
    assert judge_reply(reply(" <think>x</think>hello "), FRESH, ALONE) == Accept(text="hello")


UNKNOWN_ROUNDS: list[tuple[list[tuple[str, ...]], list[int]]] = [
    # What names no tool among two calls, in one reply after the other; the counter after each, 0 for the end.
    ([("a", "b"), ("a", "b"), ("c", "d")], [1, 2, 0]),
    ([("a", "b"), ("a",), ("a", "b"), ("a", "b"), ("a", "b")], [1, 0, 1, 2, 0]),
    ([("a", "b"), (), ("a", "b"), ("a", "b"), ()], [1, 0, 1, 2, 0]),
]


@pytest.mark.parametrize(("rounds", "expected"), UNKNOWN_ROUNDS)
def test_the_third_reply_in_a_row_that_names_no_tool_ends_the_turn(
    rounds: list[tuple[str, ...]], expected: list[int]
) -> None:
    counters, verdict = FRESH, None
    for unknown, count in zip(rounds, expected, strict=True):
        verdict = judge_reply(reply(call_names=("a", "b"), unknown_names=unknown), counters, ALONE)
        if isinstance(verdict, RunTools):
            counters = parse_counters(json.loads(json.dumps(build_document(verdict.counters))))
            assert counters.unknown_rounds == count
    ends = [len(unknown) == 2 and not count for unknown, count in zip(rounds, expected, strict=True)]
    assert isinstance(verdict, FinishPartial) is ends[-1]
    if isinstance(verdict, FinishPartial):
        assert (verdict.text, verdict.reason) == ("", PartialReason.UNKNOWN_TOOLS)
        assert repr(rounds[-1][0]) in verdict.note


def test_an_empty_reply_in_between_does_not_forget_calls_that_named_no_tool() -> None:
    unknown = reply(call_names=("a",), unknown_names=("a",))
    counters = FRESH
    for facts in (unknown, reply(""), unknown, reply("", "length", call_names=("a",))):
        verdict = judge_reply(facts, counters, ALONE)
        assert isinstance(verdict, RunTools | AskAgain)
        counters = verdict.counters
    assert isinstance(judge_reply(unknown, counters, ALONE), FinishPartial)


def test_calls_are_run_and_their_text_kept() -> None:
    verdict = judge_reply(reply("let me see", call_names=("terminal",)), FRESH, ALONE)
    assert verdict == RunTools(text="let me see", counters=FRESH)


def test_the_facts_of_a_plain_reply() -> None:
    facts = read_reply_facts(ModelReply(text="t", tool_requests=(ToolRequest(id="1", name="n", arguments="{}"),)))
    assert (facts.text, facts.call_names, json.loads(facts.row)["tool_calls"][0]["id"]) == ("t", ("n",), "1")


# ---------------------------------------------------------------------------------------------------------- truncation


def test_a_cut_answer_is_continued_three_times_then_returned_as_it_is() -> None:
    counters, limits = FRESH, []
    for piece in ("a", "b", "c"):
        verdict = again(judge_reply(reply(piece, "length"), counters, ALONE))
        assert verdict.is_counted
        limits.append(verdict.output_tokens_max)
        counters = verdict.counters
    assert limits == [8_192, 16_384, 32_768]
    assert [role for role, _ in said(counters)] == ["assistant", "user"] * 3
    ending = judge_reply(reply("d", "length"), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert (ending.text, ending.reason) == ("abcd", PartialReason.TRUNCATED)


def test_the_parts_of_a_continued_answer_are_joined_without_a_seam() -> None:
    counters = again(judge_reply(reply("Once upon a ti", "length"), FRESH, ALONE)).counters
    assert judge_reply(reply("me."), counters, ALONE) == Accept(text="Once upon a time.")


def test_the_parts_go_into_the_row_that_calls_tools() -> None:
    counters = again(judge_reply(reply("I will lo", "length"), FRESH, ALONE)).counters
    verdict = judge_reply(reply("ok.", call_names=("terminal",)), counters, ALONE)
    assert verdict == RunTools(text="I will look.", counters=FRESH)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, empty.CONTINUE_AFTER_LIMIT),
        ({"was_cut_by_network": True}, empty.CONTINUE_AFTER_DROP),
        (
            {"was_cut_by_network": True, "dropped_calls": ("write_file", "b", "c", "d")},
            empty.CONTINUE_SMALLER.format(names="write_file, b, c"),
        ),
    ],
)
def test_the_model_is_told_why_it_was_cut(facts: dict[str, object], expected: str) -> None:
    verdict = again(judge_reply(reply("part", "length", **facts), FRESH, ALONE))
    assert said(verdict.counters) == [("assistant", "part"), ("user", expected)]


def test_a_cut_reply_without_text_only_gets_more_room() -> None:
    verdict = again(judge_reply(reply("", "length", reasoning="hm"), FRESH, ALONE))
    assert (verdict.counters.scaffold, verdict.output_tokens_max) == ((), 8_192)


def test_thinking_that_used_up_the_output_ends_the_turn_with_advice() -> None:
    ending = judge_reply(reply("<think>on and on", "length"), FRESH, CHAIN)
    assert isinstance(ending, FinishPartial)
    assert (ending.text, ending.reason) == ("", PartialReason.THINKING_EXHAUSTED)


def test_cut_calls_are_asked_for_again_four_times_and_never_executed() -> None:
    counters, limits = FRESH, []
    for _ in range(4):
        verdict = again(judge_reply(reply("", "length", call_names=("write_file",)), counters, ALONE))
        assert not verdict.is_counted
        assert verdict.counters.scaffold == ()
        limits.append(verdict.output_tokens_max)
        counters = verdict.counters
    assert limits == [8_192, 16_384, 32_768, 32_768]
    ending = judge_reply(reply("", "length", call_names=("write_file",)), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert ending.reason is PartialReason.TRUNCATED_CALLS


def test_a_round_of_calls_forgives_earlier_cut_ones() -> None:
    verdict = judge_reply(reply("", call_names=("terminal",)), ReplyCounters(reissues=4), ALONE)
    assert isinstance(verdict, RunTools)
    assert verdict.counters.reissues == 0


@pytest.mark.parametrize(
    ("default", "requested", "doublings", "expected"),
    [
        (None, None, 1, 8_192),
        (None, None, 4, 32_768),
        (1_000, None, 2, 4_000),
        (1_000, 64_000, 1, 64_000),
        (40_000, 64_000, 1, 64_000),
        (20_000, 10_000, 3, 32_768),
    ],
)
def test_the_output_limit_doubles_to_a_ceiling_and_never_sinks(
    default: int | None, requested: int | None, doublings: int, expected: int
) -> None:
    around = ReplyContext(output_tokens_default=default, output_tokens_requested=requested)
    assert compute_output_limit(around, doublings) == expected


def test_a_blocked_reply_goes_to_the_next_provider_or_ends_the_turn() -> None:
    blocked = reply("I cannot", "content_filter")
    assert judge_reply(blocked, FRESH, CHAIN) == FallBackProvider(counters=FRESH, is_counted=False)
    assert judge_reply(blocked, FRESH, ALONE) == EndUnanswered(
        reason=UnansweredReason.CONTENT_POLICY_BLOCKED, text="I cannot"
    )


def test_an_open_scratchpad_is_asked_again_twice() -> None:
    counters = FRESH
    for _ in range(2):
        counters = again(judge_reply(reply("<REASONING_SCRATCHPAD>hm"), counters, ALONE)).counters
        assert counters.scaffold == ()
    ending = judge_reply(reply("<REASONING_SCRATCHPAD>hm"), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert ending.reason is PartialReason.OPEN_SCRATCHPAD


# ---------------------------------------------------------------------------------------------------------- incomplete


def test_an_incomplete_reply_is_replayed_twice_and_ends_at_the_third() -> None:
    first = again(judge_reply(reply("a", "incomplete"), FRESH, ALONE)).counters
    second = again(judge_reply(reply("b", "incomplete"), first, ALONE)).counters
    assert said(second) == [("assistant", "a"), ("assistant", "b")]
    ending = judge_reply(reply("c", "incomplete"), second, ALONE)
    assert isinstance(ending, FinishPartial)
    assert (ending.text, ending.reason) == ("c", PartialReason.INCOMPLETE)


def test_a_repeated_incomplete_text_updates_its_row() -> None:
    first = again(judge_reply(reply("a", "incomplete", row='{"n":1}'), FRESH, ALONE)).counters
    second = again(judge_reply(reply("a", "incomplete", row='{"n":2}'), first, ALONE)).counters
    assert second.scaffold == ('{"n":2}',)


def test_bare_reasoning_is_asked_for_an_answer_once() -> None:
    first = again(judge_reply(reply("", "incomplete", reasoning="hm", row='{"n":1}'), FRESH, ALONE)).counters
    second = again(judge_reply(reply("", "incomplete", reasoning="hm", row='{"n":2}'), first, ALONE)).counters
    assert second.scaffold == ('{"n":2}', first.scaffold[1])
    assert json.loads(first.scaffold[1])["role"] == "user"


def test_an_incomplete_reply_with_nothing_in_it_adds_nothing() -> None:
    assert again(judge_reply(reply("", "incomplete"), FRESH, ALONE)).counters == ReplyCounters(incompletes=1)


def test_encrypted_reasoning_needs_no_nudge() -> None:
    verdict = again(judge_reply(reply("", "incomplete", has_replayable_items=True, row="{}"), FRESH, ALONE))
    assert verdict.counters.scaffold == ("{}",)


def limited(text: str, **facts: object) -> ReplyFacts:
    return reply(text, "incomplete", was_cut_by_limit=True, **facts)


def test_a_text_that_the_limit_cut_is_continued_and_joined() -> None:
    verdict = again(judge_reply(limited("The beginning, "), FRESH, ALONE))
    assert said(verdict.counters) == [("assistant", "The beginning, "), ("user", empty.CONTINUE_AFTER_LIMIT)]
    assert judge_reply(reply("and the end."), verdict.counters, ALONE) == Accept(text="The beginning, and the end.")


def test_texts_that_the_limit_cut_are_returned_joined_at_the_third() -> None:
    counters = FRESH
    for piece in ("a ", "b "):
        counters = again(judge_reply(limited(piece), counters, ALONE)).counters
    ending = judge_reply(limited("c"), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert (ending.text, ending.reason) == ("a b c", PartialReason.INCOMPLETE)


def test_a_cut_text_that_is_repeated_is_one_part() -> None:
    counters = FRESH
    for _ in range(2):
        counters = again(judge_reply(limited("so far"), counters, ALONE)).counters
        assert [role for role, _ in said(counters)] == ["assistant", "user"]
    ending = judge_reply(limited("so far"), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert ending.text == "so far"


def test_what_the_network_cut_survives_replies_that_stay_incomplete() -> None:
    counters = again(judge_reply(reply("first ", "length", was_cut_by_network=True), FRESH, ALONE)).counters
    for piece in ("second ", "third "):
        counters = again(judge_reply(limited(piece), counters, ALONE)).counters
    ending = judge_reply(limited("fourth"), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert ending.text == "first second third fourth"


def test_an_output_limit_that_was_set_is_raised_and_none_is_invented() -> None:
    around = replace(ALONE, output_tokens_default=1_000, output_tokens_requested=1_000)
    assert again(judge_reply(limited("a"), FRESH, around)).output_tokens_max == 2_000
    assert again(judge_reply(limited("", reasoning="hm"), FRESH, around)).output_tokens_max == 2_000
    assert again(judge_reply(limited("a"), FRESH, ALONE)).output_tokens_max is None
    assert again(judge_reply(reply("a", "incomplete"), FRESH, around)).output_tokens_max is None


def test_text_beside_housekeeping_is_the_answer_when_only_reasoning_follows() -> None:
    counters = ReplyCounters(housekeeping_text="Done, noted.")
    for _ in range(2):
        counters = again(judge_reply(reply("", "incomplete", reasoning="hm"), counters, ALONE)).counters
    ending = judge_reply(reply("", "incomplete", reasoning="hm"), counters, ALONE)
    assert ending == Accept(text="Done, noted.", reason=AcceptReason.PRIOR_CONTENT)


# --------------------------------------------------------------------------------------------------------------- empty


def test_rung_1_what_was_streamed_is_the_answer() -> None:
    verdict = judge_reply(reply("", streamed_text="<think>x</think>so far"), FRESH, CHAIN)
    assert verdict == Accept(text="so far", reason=AcceptReason.PARTIAL_STREAM_RECOVERY)


def test_rung_2_text_beside_housekeeping_is_the_answer() -> None:
    noted = judge_reply(reply("Done, noted.", call_names=("memory", "todo")), FRESH, ALONE)
    assert isinstance(noted, RunTools)
    verdict = judge_reply(reply(), noted.counters, replace(ALONE, is_after_tools=True))
    assert verdict == Accept(text="Done, noted.", reason=AcceptReason.PRIOR_CONTENT)


def test_rung_2_is_forgotten_after_a_real_tool() -> None:
    noted = ReplyCounters(housekeeping_text="Done, noted.")
    real = judge_reply(reply("", call_names=("memory", "terminal")), noted, ALONE)
    assert isinstance(real, RunTools)
    assert real.counters.housekeeping_text == ""


def test_a_cut_answer_is_kept_when_nothing_follows_it() -> None:
    counters = again(judge_reply(reply("The beginning, ", "length"), FRESH, ALONE)).counters
    for _ in range(empty.EMPTIES_MAX):
        counters = again(judge_reply(reply(), counters, ALONE)).counters
    ending = judge_reply(reply(), counters, ALONE)
    assert isinstance(ending, FinishPartial)
    assert (ending.text, ending.reason) == ("The beginning,", PartialReason.TRUNCATED)


AFTER_TOOLS = ReplyContext(is_after_tools=True)


def test_rung_3_silence_after_tools_is_nudged_once_a_round() -> None:
    first = again(judge_reply(reply(), FRESH, AFTER_TOOLS))
    assert [role for role, _ in said(first.counters)] == ["assistant", "user"]
    assert said(first.counters)[0] == ("assistant", "(empty)")
    second = again(judge_reply(reply(), first.counters, AFTER_TOOLS))
    assert second.counters == replace(first.counters, empties=1)
    called = judge_reply(reply("", call_names=("terminal",)), second.counters, AFTER_TOOLS)
    assert isinstance(called, RunTools)
    assert (called.counters.was_nudged_after_tools, called.counters.scaffold) == (False, ())


def test_rung_3_leaves_a_model_alone_that_is_thinking_aloud() -> None:
    verdict = again(judge_reply(reply("<think>hm"), FRESH, AFTER_TOOLS))
    assert verdict.counters.prefills == 1


def test_rung_4_reasoning_is_given_back_twice() -> None:
    counters = FRESH
    for _ in range(2):
        counters = again(judge_reply(reply("", reasoning="hm", row='{"r":1}'), counters, ALONE)).counters
    assert (counters.prefills, counters.scaffold) == (2, ('{"r":1}',) * 2)
    assert again(judge_reply(reply("", reasoning="hm"), counters, ALONE)).counters.empties == 1


def test_rungs_5_to_7_retry_three_times_then_fall_back_then_give_up() -> None:
    counters = FRESH
    for expected in (1, 2, 3):
        verdict = again(judge_reply(reply(), counters, CHAIN))
        assert (verdict.counters.empties, verdict.counters.scaffold, verdict.is_counted) == (expected, (), True)
        counters = verdict.counters
    assert judge_reply(reply(), counters, CHAIN) == FallBackProvider(counters=FRESH, is_counted=True)
    assert judge_reply(reply(), counters, ALONE) == EndUnanswered(
        reason=UnansweredReason.EMPTY_RESPONSE_EXHAUSTED, text="(empty)"
    )


def test_calls_forgive_every_reply_before_them_that_was_none() -> None:
    called = reply("", call_names=("terminal",))
    before = ReplyCounters(
        continuations=2, reissues=2, incompletes=2, unknown_rounds=2, raw_calls=2, prefills=1, empties=2
    )
    verdict = judge_reply(called, before, ALONE)
    assert isinstance(verdict, RunTools)
    assert verdict.counters == ReplyCounters()


# ---------------------------------------------------------------------------------------------------------------- laws

_replies = st.builds(
    reply,
    st.sampled_from(["", "text", "<think>hm", "<think>hm</think>", "<REASONING_SCRATCHPAD>x"]),
    st.sampled_from(["stop", "length", "incomplete", "content_filter", "tool_calls"]),
    reasoning=st.sampled_from(["", "hm"]),
    call_names=st.sampled_from([(), ("terminal",), ("memory",)]),
    was_cut_by_limit=st.booleans(),
    has_replayable_items=st.booleans(),
)


@given(st.data(), st.integers(0, 3))
def test_a_turn_without_progress_ends(data: st.DataObject, providers: int) -> None:
    """Only calls start the count anew, and the iteration budget bounds those."""
    counters = FRESH
    for _ in range(120):
        around = ReplyContext(has_fallback=providers > 0, is_after_tools=data.draw(st.booleans()))
        verdict = judge_reply(data.draw(_replies), counters, around)
        if isinstance(verdict, Accept | RunTools | FinishPartial | EndUnanswered):
            return
        providers -= isinstance(verdict, FallBackProvider)
        counters = verdict.counters
    raise AssertionError("still asking after 120 replies")


_counters = st.builds(
    ReplyCounters,
    continuations=st.integers(0, 9),
    empties=st.integers(0, 9),
    was_nudged_after_tools=st.booleans(),
    parts=st.lists(st.text()).map(tuple),
    scaffold=st.lists(st.text()).map(tuple),
    housekeeping_text=st.text(),
)


@given(_counters)
def test_counters_survive_the_way_to_another_worker(counters: ReplyCounters) -> None:
    assert parse_counters(json.loads(json.dumps(build_document(counters)))) == counters


def test_fresh_counters_take_no_room_and_unknown_ones_are_left_out() -> None:
    assert build_document(FRESH) == {}
    assert parse_counters({"colour": 1, "empties": 2}) == ReplyCounters(empties=2)


@pytest.mark.parametrize("document", [{"empties": "2"}, {"parts": "x"}, {"parts": [1]}, {"empties": True}])
def test_counters_that_make_no_sense_are_refused(document: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="wrong type"):
        parse_counters(document)
