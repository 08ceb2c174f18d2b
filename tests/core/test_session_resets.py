"""When a chat begins a new session by itself."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from hermes_worker.core.session_resets import (
    ChatActivity,
    ResetMode,
    ResetPolicies,
    ResetPolicy,
    ResetReason,
    decide_reset,
    format_reset_notice,
)

_BERLIN = ZoneInfo("Europe/Berlin")
_NOON = datetime(2026, 11, 25, 12, tzinfo=_BERLIN)


def _ago(**parts: float) -> datetime:
    return _NOON.astimezone(UTC) - timedelta(**parts)


@pytest.mark.parametrize(
    ("mode", "minutes_ago", "reason"),
    [
        ("none", 100_000, None),
        ("idle", 1_440, None),
        ("idle", 1_441, ResetReason.IDLE),
        ("daily", 7 * 60, None),
        ("daily", 8 * 60, None),  # 4 o'clock itself belongs to the day that begins
        ("daily", 8 * 60 + 1, ResetReason.DAILY),
        ("both", 8 * 60 + 1, ResetReason.DAILY),
        ("both", 1_441, ResetReason.IDLE),
    ],
)
def test_a_session_ends_by_its_policy(mode: str, minutes_ago: int, reason: ResetReason | None) -> None:
    chat = ChatActivity(now=_NOON, updated_at=_ago(minutes=minutes_ago))

    assert decide_reset(ResetPolicy(mode=ResetMode(mode)), chat) is reason


def test_before_the_hour_the_day_is_still_yesterday() -> None:
    policy = ResetPolicy(mode=ResetMode.DAILY)
    early = datetime(2026, 11, 25, 3, 59, tzinfo=_BERLIN)

    def reason_of(updated_at: datetime) -> ResetReason | None:
        return decide_reset(policy, ChatActivity(now=early, updated_at=updated_at))

    assert reason_of(datetime(2026, 11, 24, 4, 1, tzinfo=_BERLIN)) is None
    assert reason_of(datetime(2026, 11, 24, 3, 59, tzinfo=_BERLIN)) is ResetReason.DAILY


def test_the_hour_is_one_of_the_local_clock_when_clocks_change() -> None:
    # On 29 March 2026 Berlin's clocks went from 2 to 3, so 4 o'clock was at 2 of UTC and the day before at 3.
    policy = ResetPolicy(mode=ResetMode.DAILY)
    morning = datetime(2026, 3, 29, 5, tzinfo=_BERLIN)

    def reason_of(updated_at: datetime) -> ResetReason | None:
        return decide_reset(policy, ChatActivity(now=morning, updated_at=updated_at))

    assert reason_of(datetime(2026, 3, 29, 2, 1, tzinfo=UTC)) is None
    assert reason_of(datetime(2026, 3, 29, 1, 59, tzinfo=UTC)) is ResetReason.DAILY
    before = ChatActivity(
        now=datetime(2026, 3, 29, 3, 30, tzinfo=_BERLIN), updated_at=datetime(2026, 3, 28, 3, 1, tzinfo=UTC)
    )
    assert decide_reset(policy, before) is None


def test_a_background_process_keeps_a_session_for_a_day() -> None:
    policy = ResetPolicy(mode=ResetMode.BOTH)

    def reason_of(started: datetime) -> ResetReason | None:
        return decide_reset(policy, ChatActivity(now=_NOON, updated_at=_ago(days=9), newest_process_at=started))

    assert reason_of(_ago(hours=24)) is None
    assert reason_of(_ago(hours=24, seconds=1)) is ResetReason.IDLE


def test_a_platforms_policy_comes_before_that_of_a_type_of_chat() -> None:
    of_platform, of_type = ResetPolicy(mode=ResetMode.IDLE), ResetPolicy(mode=ResetMode.DAILY)
    policies = ResetPolicies(by_platform={"telegram": of_platform}, by_chat_type={"group": of_type})

    assert policies.find_policy("telegram", "group") is of_platform
    assert policies.find_policy("discord", "group") is of_type
    assert policies.find_policy("discord", "dm").mode is ResetMode.NONE


@pytest.mark.parametrize(
    ("policy", "reason", "told"),
    [
        (ResetPolicy(), ResetReason.IDLE, "inactive for 24h"),
        (ResetPolicy(idle_minutes=90), ResetReason.IDLE, "inactive for 1h 30m"),
        (ResetPolicy(idle_minutes=30), ResetReason.IDLE, "inactive for 30m"),
        (ResetPolicy(at_hour=5), ResetReason.DAILY, "daily schedule at 5:00"),
    ],
)
def test_people_are_told_why(policy: ResetPolicy, reason: ResetReason, told: str) -> None:
    assert f"({told})" in str(format_reset_notice(policy, reason, "telegram"))


def test_nobody_is_told_who_does_not_want_it() -> None:
    assert format_reset_notice(ResetPolicy(), ResetReason.IDLE, "webhook") is None
    assert format_reset_notice(ResetPolicy(is_told=False), ResetReason.IDLE, "telegram") is None
    assert format_reset_notice(ResetPolicy(), ResetReason.ASKED, "telegram") is None
