"""Buttons below questions: what they say, and what a press of one is."""

from __future__ import annotations

import pytest

from hermes_worker.core.chat_buttons import ChatButton, build_buttons, fit_buttons
from hermes_worker.core.chat_commands import ChatRole
from hermes_worker.core.gateway import ButtonPressed, EventIgnored, Reading, Silence, Speakers, decide_event
from hermes_worker.core.inbound import ChatKind, InboundButton, InboundChat, InboundSender
from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind

SPEAKERS = Speakers(allowed=("42",), guests=("50",))


def press(value: str, sender: str = "42", kind: ChatKind = ChatKind.DIRECT) -> Reading:
    event = InboundButton(
        event_key="1", chat=InboundChat(id="c", kind=kind), sender=InboundSender(id=sender), value=value
    )
    return decide_event(event, SPEAKERS, None)


def test_an_approval_has_a_button_for_each_choice_and_a_question_for_each_answer() -> None:
    approval = Question(kind=WaitKind.APPROVAL, choices=["once", "session", "always", "deny"])
    assert [button.value for button in build_buttons(approval, 7)] == ["7:once", "7:session", "7:always", "7:deny"]
    asked = Question(kind=WaitKind.INPUT, choices=["red\n and blue", "x" * 500, " "])
    buttons = build_buttons(asked, 7)
    assert [button.value for button in buttons] == ["7:1", "7:2", "7:3"]
    assert [button.label for button in buttons] == ["red and blue", "x" * 60, "3"]
    assert build_buttons(Question(kind=WaitKind.INPUT), 7) == ()


@pytest.mark.parametrize("kind", ChatKind)
def test_a_press_names_its_question_and_who_may_press(kind: ChatKind) -> None:
    assert press("7:once", kind=kind) == ButtonPressed(wait_id=7, answer="once", role=ChatRole.OWNER)
    assert press("7:2", sender="50", kind=kind) == ButtonPressed(wait_id=7, answer="2", role=ChatRole.GUEST)
    assert press("7:once", sender="99", kind=kind) == EventIgnored(reason=Silence.STRANGER)


@pytest.mark.parametrize("value", ["", "once", ":once", "7:", "-7:once", "seven:once", "٧:once", f"{'9' * 19}:once"])
def test_a_button_that_is_not_ours_means_nothing(value: str) -> None:
    assert press(value) == EventIgnored(reason=Silence.UNKNOWN_KIND)


def test_labels_that_would_be_cut_alike_are_told_apart_by_their_numbers() -> None:
    buttons = [ChatButton(label=f"Paint the whole house {colour}", value=f"7:{n}") for n, colour in enumerate("rb", 1)]
    shown = fit_buttons(buttons, chars_max=20, count_max=3)
    assert [one.label for one in shown] == ["1. Paint the whole…", "2. Paint the whole…"]
    assert [one.value for one in shown] == ["7:1", "7:2"]
    assert fit_buttons(buttons, chars_max=60, count_max=3) == tuple(buttons)


def test_more_choices_than_a_platform_shows_are_answered_in_words() -> None:
    buttons = [ChatButton(label=str(number), value=f"7:{number}") for number in range(4)]
    assert fit_buttons(buttons, chars_max=20, count_max=3) == ()
