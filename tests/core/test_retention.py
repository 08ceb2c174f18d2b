"""What may be deleted, by rules and facts alone."""

from __future__ import annotations

import pytest

from hermes_worker.core.retention_rules import (
    DEFAULT_RULES,
    FLOOR_S,
    FOR_EVER,
    InvalidRule,
    RetentionKind,
    RetentionRule,
    parse_rule,
    parse_rules,
)
from hermes_worker.features.retention.rules import (
    ChainFacts,
    SessionFacts,
    compute_cutoff,
    is_session_expired,
    may_delete_chain,
)

DAY_S = 86_400.0
NOW = 1_000 * DAY_S
OLD = NOW - 40 * DAY_S


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("never", FOR_EVER),
        ("30d", RetentionRule(age_s=30 * DAY_S)),
        ("12h", RetentionRule(age_s=43_200.0)),
        ("1.5d", RetentionRule(age_s=129_600.0)),
        ("/1000", RetentionRule(count=1000)),
        ("30d/1000", RetentionRule(age_s=30 * DAY_S, count=1000)),
    ],
)
def test_a_rule_is_read_and_written_the_same(text: str, rule: RetentionRule) -> None:
    assert parse_rule(RetentionKind.RUNS, text) == rule
    assert parse_rule(RetentionKind.RUNS, str(rule)) == rule


@pytest.mark.parametrize("text", ["", "30", "d", "0d", "30m", "-1d", "1d/", "1d/-1", "99999d", "1e3d", "never "])
def test_a_text_that_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InvalidRule, match="runs"):
        parse_rule(RetentionKind.RUNS, text)


@pytest.mark.parametrize("text", ["transcripts=/3", "nothing=30d", "runs"])
def test_a_rule_for_nothing_or_that_cannot_count_is_refused(text: str) -> None:
    with pytest.raises(InvalidRule):
        parse_rules([text])


def test_what_people_made_stays_by_default() -> None:
    made = (RetentionKind.RUNS, RetentionKind.TRANSCRIPTS, RetentionKind.WORKSPACES, RetentionKind.OUTPUTS)
    assert [kind for kind, rule in DEFAULT_RULES.items() if rule.is_for_ever] == list(made)
    assert set(DEFAULT_RULES) == set(RetentionKind)


def test_either_the_age_or_the_count_is_enough() -> None:
    rule = RetentionRule(age_s=30 * DAY_S, count=10)
    assert compute_cutoff(FOR_EVER, NOW, None) is None
    assert compute_cutoff(rule, NOW, None) == NOW - 30 * DAY_S
    by_count = compute_cutoff(rule, NOW, NOW - DAY_S)
    assert by_count is not None and NOW - DAY_S < by_count < NOW - DAY_S + 1
    assert compute_cutoff(rule, NOW, NOW - 60 * DAY_S) == NOW - 30 * DAY_S
    assert compute_cutoff(RetentionRule(count=0), NOW, NOW) == NOW - FLOOR_S


def chain(**changes: object) -> ChainFacts:
    facts: dict[str, object] = {
        "root_pk": 1,
        "open_runs": 0,
        "ended_at": OLD,
        "sessions": frozenset({1, 2}),
        "is_held": False,
        "is_needed": False,
    }
    return ChainFacts(**{**facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes", [{"is_held": True}, {"is_needed": True}, {"open_runs": 1}, {"ended_at": None}, {"ended_at": NOW - 60.0}]
)
def test_a_chain_stays_for_any_one_reason(changes: dict[str, object]) -> None:
    assert may_delete_chain(chain(), NOW, (), NOW) and may_delete_chain(chain(), None, (1, 2), NOW)
    assert not may_delete_chain(chain(**changes), NOW, (1, 2), NOW)


def test_a_chain_goes_with_its_sessions_only_when_all_of_them_go() -> None:
    assert not may_delete_chain(chain(), None, (1,), NOW)
    assert not may_delete_chain(chain(sessions=frozenset()), None, (1,), NOW)
    assert not may_delete_chain(chain(), OLD, (), NOW), "the bound is exclusive"


@pytest.mark.parametrize(
    "changes", [{"is_at_work": True}, {"is_held": True}, {"is_needed": True}, {"quiet_since": NOW}]
)
def test_a_session_that_lives_stays(changes: dict[str, object]) -> None:
    facts: dict[str, object] = {
        "session_pk": 1,
        "is_at_work": False,
        "runs": frozenset(),
        "quiet_since": OLD,
        "is_held": False,
        "is_needed": False,
    }
    assert is_session_expired(SessionFacts(**facts), NOW - DAY_S)  # type: ignore[arg-type]
    assert not is_session_expired(SessionFacts(**facts), None)  # type: ignore[arg-type]
    assert not is_session_expired(SessionFacts(**{**facts, **changes}), NOW - DAY_S)  # type: ignore[arg-type]
