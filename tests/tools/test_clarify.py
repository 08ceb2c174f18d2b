"""``clarify``: what is put to the user, and for how long."""

from __future__ import annotations

from typing import Any

import pytest

from hermes_worker.core.questions import CHOICES_MAX
from hermes_worker.core.run import WaitKind


def test_a_question_waits_for_an_hour(session: Any) -> None:
    asked = session.result("clarify", question=" Which? ", choices=["red", " ", " blue"]).question
    assert (asked.kind, asked.request, asked.choices) == (WaitKind.INPUT, {"question": "Which?"}, ("red", "blue"))
    assert asked.expires_s == 3_600


def test_no_more_choices_are_offered_than_fit(session: Any) -> None:
    asked = session.result("clarify", question="Which?", choices=[str(n) for n in range(9)]).question
    assert asked.choices == ("0", "1", "2", "3")
    assert len(asked.choices) == CHOICES_MAX


def test_a_question_may_do_without_choices(session: Any) -> None:
    assert session.result("clarify", question="Why?").question.choices == ()


def test_texts_have_a_limit(session: Any) -> None:
    asked = session.result("clarify", question="x" * 20_000, choices=["y" * 2_000]).question
    assert (len(asked.request["question"]), len(asked.choices[0])) == (10_000, 1_000)


@pytest.mark.parametrize("arguments", [{}, {"question": "  "}])
def test_a_question_that_makes_no_sense_is_an_error(session: Any, arguments: dict[str, Any]) -> None:
    result = session.result("clarify", **arguments)
    assert result.question is None
    assert result.is_error
