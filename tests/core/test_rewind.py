"""What a rewind leaves behind, and which call of a fork is answered by which recorded one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hermes_worker.core.forks import ForkMatch, ForkTools
from hermes_worker.core.replay import Replay
from hermes_worker.core.rewind import (
    AskPerson,
    RecordedCall,
    SameCall,
    describe_effects,
    judge_call,
    select_effects_after,
)
from hermes_worker.core.run import CallStatus
from hermes_worker.features.forks.rules import (
    StepCall,
    choose_point,
    explain_refusal,
    find_recorded,
)

PAID = RecordedCall(
    run_id="run_1",
    iteration=2,
    position=0,
    tool="pay",
    replay=Replay.ONCE,
    status=CallStatus.SUCCEEDED,
    arguments='{"to":"ada","usd":5}',
    result="paid",
    place=5,
)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({}, True),
        ({"status": CallStatus.UNKNOWN}, True),
        ({"status": CallStatus.FAILED}, True),
        ({"status": CallStatus.RUNNING}, True),
        ({"replay": Replay.KEYED}, True),
        ({"replay": Replay.PURE}, False),
        ({"status": CallStatus.PENDING}, False),
        ({"has_begun": False}, False),
        ({"place": 4}, False),
    ],
)
def test_what_may_have_had_an_effect_behind_the_point_counts(changes: dict[str, object], counts: bool) -> None:
    assert bool(select_effects_after(4, [replace(PAID, **changes)])) is counts  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"to":"ada","usd":5}', SameCall),
        ('{ "usd": 5, "to": "ada" }', SameCall),
        ('{"to":"ada","usd":5,"comment":"again"}', AskPerson),
        ('{"to":"bob","usd":7}', AskPerson),
        ("no json", AskPerson),
    ],
)
def test_a_call_that_must_not_run_twice_is_answered_or_put_to_a_person(arguments: str, expected: type) -> None:
    assert isinstance(judge_call("pay", Replay.ONCE, arguments, [PAID]), expected)
    unknown = replace(PAID, status=CallStatus.UNKNOWN)
    assert isinstance(judge_call("pay", Replay.ONCE, arguments, [unknown]), expected)


def test_each_recorded_outcome_is_used_once() -> None:
    second = replace(PAID, iteration=3, place=7)
    assert judge_call("pay", Replay.ONCE, PAID.arguments, [PAID, second], 1) == SameCall(recorded=second)
    assert isinstance(judge_call("pay", Replay.ONCE, PAID.arguments, [PAID, second], 2), AskPerson)


def test_a_keyed_call_keeps_its_key_and_another_one_has_its_own() -> None:
    kept = replace(PAID, replay=Replay.KEYED)
    judged = judge_call("pay", Replay.KEYED, '{"usd":5,"to":"ada"}', [kept])
    assert isinstance(judged, SameCall)
    assert judged.recorded.key == "run_1.2.0"
    assert judge_call("pay", Replay.KEYED, '{"usd":6}', [kept]) is None
    assert judge_call("read", Replay.PURE, kept.arguments, [kept]) is None


def test_the_note_names_what_happened() -> None:
    assert describe_effects([]) == ""
    assert 'pay {"to":"ada","usd":5} (succeeded): paid' in describe_effects([PAID])
    many = describe_effects([PAID] * 30)
    assert "and 10 more" in many


@pytest.mark.parametrize(
    ("match", "call", "number", "found"),
    [
        (ForkMatch.STRICT, PAID, 0, True),
        (ForkMatch.STRICT, replace(PAID, iteration=1), 0, False),
        (ForkMatch.STRICT, replace(PAID, tool="other"), 0, False),
        (ForkMatch.ORDER, replace(PAID, iteration=1), 0, True),
        (ForkMatch.ORDER, replace(PAID, iteration=1), 1, False),
        (ForkMatch.ORDER, replace(PAID, arguments="{}"), 0, False),
    ],
)
def test_a_recorded_call_answers_by_its_place_or_in_order(
    match: ForkMatch, call: RecordedCall, number: int, found: bool
) -> None:
    assert find_recorded(match, call, [PAID], number) == (PAID if found else None)
    assert find_recorded(match, call, [replace(PAID, status=CallStatus.RUNNING)], number) is None


@pytest.mark.parametrize("tools", ForkTools)
def test_what_is_not_recorded_is_refused_where_it_has_effects(tools: ForkTools) -> None:
    refused = [bool(explain_refusal(tools, tool, replay)) for tool, replay in (("x", r) for r in Replay)]
    expected = {ForkTools.LIVE: [False] * 3, ForkTools.OFFLINE: [True] * 3}
    assert refused == expected.get(tools, [False, True, True])
    assert bool(explain_refusal(tools, "delegate_task", Replay.PURE)) is (tools is not ForkTools.LIVE)


def test_a_point_stands_before_the_next_reply_and_after_what_was_written_before_it() -> None:
    calls = [
        StepCall(1, 0, "succeeded", 4),
        StepCall(1, 1, "failed", 5),
        StepCall(2, 0, "unknown", 8),  # row 6 is a summary of the conversation
        StepCall(3, 0, "running", 10),
    ]
    assert choose_point(2, calls, None) == {0: 2, 1: 6, 2: 8}
    assert choose_point(2, calls[:3], 10) == {0: 2, 1: 6, 2: 9}
