"""What a process keeps to by itself, and how far it goes on the word of strangers."""

from __future__ import annotations

from typing import Any

from hermes_worker.core.local_rate_limits import LOCAL_BUSY_WAIT_S, Allowance, Pace, Pacing


def wait_s(pacing: Pacing, now: float, ticket: str = "t", tokens: int = 0, **limits: Any) -> float:
    return pacing.request_leave_s(now, ticket=ticket, tokens=tokens, pace=Pace(**limits), minute_s=60, call_s_max=900)


def test_without_limits_nobody_waits() -> None:
    pacing = Pacing()
    assert [wait_s(pacing, 100.0, f"t{n}") for n in range(5)] == [0] * 5


def test_requests_are_as_far_apart_as_the_limit_says() -> None:
    pacing = Pacing()
    assert [wait_s(pacing, now, requests_per_min=6) for now in (100.0, 101.0, 110.0, 115.0)] == [0, 9, 0, 5]


def test_a_whole_minutes_tokens_may_be_used_at_once() -> None:
    pacing = Pacing()
    asked = [wait_s(pacing, 100.0, tokens=600, tokens_per_min=1_000) for _ in range(3)]
    assert asked == [0, 0, 12]


def test_calls_in_flight_are_counted_until_they_end_or_are_too_old() -> None:
    pacing = Pacing()
    assert [wait_s(pacing, 100.0, ticket, in_flight_max=1) for ticket in "aba"] == [0, LOCAL_BUSY_WAIT_S, 0]
    pacing.end_call("a")
    assert wait_s(pacing, 100.0, "b", in_flight_max=1) == 0
    assert wait_s(pacing, 1_001.0, "c", in_flight_max=1) == 0


def test_the_longest_cool_down_counts() -> None:
    pacing = Pacing()
    pacing.cool_down(160.0)
    pacing.cool_down(130.0)
    assert wait_s(pacing, 100.0) == 60


def test_an_allowance_is_used_up_and_comes_back() -> None:
    allowance = Allowance(at_once=2, per_s=4)
    assert [allowance.take_one(at) for at in (10.0, 10.0, 10.0, 10.25, 10.25)] == [True, True, False, True, False]
    allowance.return_one()
    assert allowance.take_one(10.25)
    assert [allowance.take_one(99.0) for _ in range(3)] == [True, True, False]
