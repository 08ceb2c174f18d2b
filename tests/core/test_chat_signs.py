"""What people see in a chat while a run is at work."""

from __future__ import annotations

import pytest

from hermes_worker.core.chat_signs import (
    TYPING_S_MAX,
    CallSign,
    ChatSigns,
    ProgressMode,
    RunProgress,
    choose_progress_mode,
    compute_next_look_s,
    format_progress,
    is_typing,
    read_signs,
)
from hermes_worker.core.run import CallStatus, RunStatus

TYPING = ChatSigns(has_text=False, has_typing=True)
AT_WORK = RunProgress(RunStatus.RUNNING)


@pytest.mark.parametrize(
    "signs", [ChatSigns(), TYPING, ChatSigns(has_typing=True, progress=ProgressMode.FULL), ChatSigns(has_text=False)]
)
def test_a_run_of_a_chat_says_what_is_shown_and_others_are_not_believed(signs):
    assert read_signs(signs.metadata, "gateway") == signs
    assert read_signs(signs.metadata, "api") == ChatSigns()
    assert read_signs({}, "gateway") == ChatSigns(), "of a run from before there was this"


def test_a_platform_has_a_mode_of_its_own_and_the_last_one_counts():
    modes = ["telegram=full", "slack=off", "telegram=short"]
    assert choose_progress_mode("full", modes, "telegram") is ProgressMode.SHORT
    assert choose_progress_mode("full", modes, "discord") is ProgressMode.FULL


@pytest.mark.parametrize(
    ("statuses", "short"),
    [
        ("", ""),
        ("r", "… look"),
        ("rp", "… look ×2"),
        ("srw", "… look ×2, 1 done"),
        ("sfcu", "… 4 done"),
    ],
)
def test_short_progress_is_what_is_at_work_and_how_many_were(statuses, short):
    words = {status.value[0]: status for status in CallStatus}
    calls = [CallSign("look", words.get(letter, CallStatus.UNKNOWN)) for letter in statuses]
    assert format_progress(calls, ProgressMode.SHORT) == short
    assert format_progress(calls, ProgressMode.OFF) == ""


def test_full_progress_is_the_last_calls_and_how_they_ended():
    calls = [CallSign(f"tool{number}", CallStatus.SUCCEEDED) for number in range(20)]
    calls += [CallSign("bad", CallStatus.FAILED), CallSign("now", CallStatus.RUNNING)]
    lines = format_progress(calls, ProgressMode.FULL).splitlines()
    assert len(lines) == 12
    assert lines[-3:] == ["✓ tool19", "✗ bad", "… now"]


@pytest.mark.parametrize(
    ("signs", "progress", "age_s", "has_preview", "types"),
    [
        (TYPING, AT_WORK, 0.0, False, True),
        (ChatSigns(), AT_WORK, 0.0, False, False),
        (TYPING, AT_WORK, 0.0, True, False),
        (TYPING, AT_WORK, TYPING_S_MAX, False, False),
        (TYPING, RunProgress(RunStatus.WAITING_FOR_APPROVAL), 0.0, False, False),
        (TYPING, RunProgress(), 0.0, False, False),
    ],
)
def test_a_chat_is_shown_typing_while_somebody_works_and_not_for_ever(signs, progress, age_s, has_preview, types):
    assert is_typing(signs, progress, age_s=age_s, has_preview=has_preview) is types


def test_a_look_for_typing_alone_comes_less_often_than_one_for_a_text():
    assert compute_next_look_s(1.0, TYPING) == compute_next_look_s(10.0, TYPING) == 4.0
    assert compute_next_look_s(1.0, ChatSigns(has_typing=True)) == 1.0
    assert compute_next_look_s(10.0, ChatSigns(has_typing=True)) == 4.0
    assert compute_next_look_s(None, TYPING) is None
