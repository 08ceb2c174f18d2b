"""When a key is closed and when it is open again, as a decision."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.errors import Classification, FailureKind
from hermes_worker.core.key_states import (
    EVIDENCE_MAX,
    Finding,
    KeyCondition,
    KeyRules,
    KeyState,
    apply_answer,
    apply_failure,
    apply_probe_answer,
    apply_probe_failure,
    apply_probe_release,
    compute_probe_wait_s,
    decide_finding,
    dump_evidence,
    parse_evidence,
)

RULES = KeyRules(runs_needed=3, window_s=60, span_s=5, probe_first_s=10, probe_max_s=100)
NO_MONEY = Finding(condition=KeyCondition.NO_MONEY, is_answer=True)
TOO_DEAR = replace(NO_MONEY, is_about_request=True)
REFUSED = Finding(condition=KeyCondition.REFUSED, is_answer=True)
DOWN = Finding(condition=KeyCondition.DOWN)
BAD_REQUEST = Finding(is_answer=True)
OPEN = KeyState()


def met(*seen: tuple[Finding, str, float], rules: KeyRules = RULES) -> KeyState:
    state = OPEN
    for found, run, at in seen:
        state = apply_failure(state, found, run, at, rules)
    return state


@pytest.mark.parametrize(
    ("kind", "status", "message", "found"),
    [
        (FailureKind.BILLING, 402, "insufficient credits", NO_MONEY),
        (FailureKind.BILLING, 429, "insufficient_quota", NO_MONEY),
        (FailureKind.BILLING, 402, "requires more credits, or fewer max_tokens", TOO_DEAR),
        (FailureKind.AUTH, 401, "bad key", REFUSED),
        (FailureKind.AUTH, 403, "not for this model", BAD_REQUEST),
        (FailureKind.AUTH_PERMANENT, 403, "account closed", REFUSED),
        (FailureKind.SERVER_ERROR, 500, "", DOWN),
        (FailureKind.OVERLOADED, 503, "", DOWN),
        (FailureKind.UNREACHABLE, None, "refused", DOWN),
        (FailureKind.TIMEOUT, None, "", DOWN),
        (FailureKind.FORMAT_ERROR, 400, "nonsense", BAD_REQUEST),
        (FailureKind.CONTEXT_OVERFLOW, 400, "too long", BAD_REQUEST),
        (FailureKind.RATE_LIMIT, 429, "slow down", BAD_REQUEST),
        (FailureKind.INTERRUPTED, None, "", Finding()),
        (FailureKind.CONFIGURATION, None, "", Finding()),
    ],
)
def test_only_failures_about_the_key_say_something_about_it(
    kind: FailureKind, status: int | None, message: str, found: Finding
) -> None:
    assert decide_finding(Classification(kind=kind, status=status, message=message)) == found


def test_one_answer_that_there_is_no_money_closes_the_key() -> None:
    state = met((NO_MONEY, "a", 1))
    assert (state.condition, state.epoch, state.since, state.probe_at) == (KeyCondition.NO_MONEY, 1, 1, 11)


@pytest.mark.parametrize("found", [TOO_DEAR, REFUSED, DOWN, BAD_REQUEST])
def test_no_single_run_closes_a_key_by_what_it_asks(found: Finding) -> None:
    assert not met(*((found, "greedy", float(at)) for at in range(100))).is_closed


@pytest.mark.parametrize("found", [TOO_DEAR, REFUSED])
def test_several_runs_close_a_key(found: Finding) -> None:
    assert not met((found, "a", 1), (found, "b", 2)).is_closed
    assert met((found, "a", 1), (found, "b", 2), (found, "c", 3)).condition is found.condition


def test_an_outage_has_to_last() -> None:
    at_once = ((DOWN, "a", 1.0), (DOWN, "b", 1.1), (DOWN, "c", 1.2))
    assert not met(*at_once).is_closed
    assert met(*at_once, (DOWN, "a", 6.1)).condition is KeyCondition.DOWN


def test_evidence_grows_old() -> None:
    assert not met((REFUSED, "a", 1), (REFUSED, "b", 2), (REFUSED, "c", 61.5)).is_closed


def test_an_answer_takes_back_what_is_held_against_an_open_key() -> None:
    state = apply_answer(met((DOWN, "a", 1), (DOWN, "b", 2)))
    assert not state.evidence
    assert not apply_failure(state, DOWN, "c", 8, RULES).is_closed


def test_a_call_that_began_before_does_not_open_a_closed_key() -> None:
    closed = met((NO_MONEY, "a", 1))
    assert apply_answer(closed) == closed
    assert apply_failure(closed, DOWN, "b", 2, RULES) == closed


def test_probes_wait_longer_each_time_up_to_the_most() -> None:
    state, waits = met((NO_MONEY, "a", 0)), []
    for _ in range(6):
        assert state.probe_at is not None
        now = state.probe_at
        state = apply_probe_failure(state, NO_MONEY, now, RULES)
        assert state.probe_at is not None
        waits.append(state.probe_at - now)
    assert waits == [20, 40, 80, 100, 100, 100]
    assert state.epoch == 1


def test_a_probe_that_is_answered_opens_the_key() -> None:
    state = apply_probe_answer(met((NO_MONEY, "a", 1)), 20)
    assert (state.condition, state.since, state.epoch, state.probe_at) == (KeyCondition.OPEN, 20, 1, None)


def test_a_refusal_says_that_the_server_works_and_nothing_about_money() -> None:
    down = met((DOWN, "a", 0), (DOWN, "b", 1), (DOWN, "c", 6))
    assert not apply_probe_failure(down, BAD_REQUEST, 20, RULES).is_closed
    assert apply_probe_failure(down, NO_MONEY, 20, RULES).condition is KeyCondition.NO_MONEY
    broke = apply_probe_failure(met((NO_MONEY, "a", 1)), BAD_REQUEST, 20, RULES)
    assert (broke.condition, broke.probes, broke.probe_at) == (KeyCondition.NO_MONEY, 0, 30)
    assert apply_probe_failure(broke, DOWN, 40, RULES).condition is KeyCondition.NO_MONEY


FINDINGS = st.sampled_from([NO_MONEY, TOO_DEAR, REFUSED, DOWN, BAD_REQUEST, Finding()])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["failed", "answered", "probe_failed", "probe_answered", "put_off"]),
        FINDINGS,
        st.integers(0, 40),
        st.floats(0.01, 30),
        st.floats(0, 0.999),
    ),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_a_closed_key_is_tried_again_and_the_state_stays_small(
    steps: list[tuple[str, Finding, int, float, float]],
) -> None:
    state, now = OPEN, 0.0
    for what, found, run, passed, jitter in steps:
        now += passed
        before = state
        match what:
            case "failed":
                state = apply_failure(state, found, f"run{run}", now, RULES, jitter)
                assert state.condition in (before.condition, found.condition)
            case "answered":
                state = apply_answer(state)
                assert state.is_closed == before.is_closed
            case "probe_failed":
                state = apply_probe_failure(state, found, now, RULES, jitter)
            case "probe_answered":
                state = apply_probe_answer(state, now)
                assert not state.is_closed
            case _:
                state = apply_probe_release(state, now, passed)
        assert state.is_closed == (state.probe_at is not None)
        if state != before and state.probe_at is not None:
            assert now < state.probe_at <= now + max(RULES.probe_max_s * 1.2, passed)
        assert len(state.evidence) <= EVIDENCE_MAX
        assert not (state.is_closed and state.evidence)
        assert state.epoch >= before.epoch
        assert parse_evidence(json.loads(json.dumps(dump_evidence(state.evidence)))) == state.evidence


@given(st.integers(-5, 10_000), st.floats(0, 0.999))
def test_the_wait_for_a_probe_is_bounded(probes: int, jitter: float) -> None:
    assert RULES.probe_first_s <= compute_probe_wait_s(probes, RULES, jitter) <= RULES.probe_max_s * 1.2


@pytest.mark.parametrize("document", [None, {}, [1], [["down", "a"]], [["odd", "a", 1.0]], [["down", "a", "1"]]])
def test_what_is_no_evidence_is_left_out(document: object) -> None:
    assert parse_evidence(document) == ()
