"""Which question an answer is for: a table of the decision, and laws about it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.answer_binding import (
    CLOCKS_APART_S,
    REFUSAL_TEXTS,
    AnswerForm,
    Binding,
    BoundAnswer,
    ChatQuestion,
    CodeWanted,
    NotAnAnswer,
    PossibleAnswer,
    bind_answer,
    bind_press,
    format_code_line,
    format_code_request,
    format_question_code,
    parse_choice,
    parse_code,
)
from hermes_worker.core.run import WaitKind

NOW = 1_000_000.0
FIRST = ChatQuestion(
    wait_id=7,
    run_id="run_a",
    kind=WaitKind.APPROVAL,
    label="deletes a directory",
    opened_at=NOW,
    delivered_at=NOW + 1,
    messages=frozenset({"m1", "m2"}),
)
SECOND = replace(FIRST, wait_id=8, label="sends a mail", messages=frozenset({"m3"}))
COLOUR = replace(FIRST, wait_id=9, kind=WaitKind.INPUT, label="Which colour?", messages=frozenset({"m4"}))
ON_ITS_WAY = replace(FIRST, delivered_at=None, messages=frozenset())
LAPSED = replace(FIRST, closed_at=NOW + 60)
LATER = replace(SECOND, opened_at=NOW + 61, delivered_at=NOW + 62)
K1, K2, K3 = FIRST.code, SECOND.code, COLOUR.code
STRANGE = format_question_code(4_711)
AFTER = NOW + 100.0
ASK, MESSAGE = "the code is asked for", NotAnAnswer.MESSAGE


def said(text: str, *, sent_at: float | None = AFTER, quoted: str = "", thread: str = "") -> PossibleAnswer:
    name, _, behind = text.partition(" ")
    form = {"/approve": AnswerForm.APPROVE, "/deny": AnswerForm.DENY}.get(name, AnswerForm.WORDS)
    text = text if form is AnswerForm.WORDS else behind
    return PossibleAnswer(form=form, text=text, sent_at=sent_at, quoted=quoted, thread=thread)


def shown(found: Binding) -> object:
    """A decision as the table writes it."""
    match found:
        case BoundAnswer():
            return found.question.wait_id, found.choice, found.text
        case CodeWanted():
            return ASK
        case _:
            return found


TABLE = [
    # what is said, the questions that there are, and what becomes of it
    # --- by its time
    (said("/approve"), [FIRST], (7, "once", "")),
    (said("/approve always"), [FIRST], (7, "always", "")),
    (said("/approve session"), [FIRST], (7, "session", "")),
    (said("/deny too risky"), [FIRST], (7, "deny", "too risky")),
    (said("yes"), [FIRST], (7, "once", "")),
    (said("No."), [FIRST], (7, "deny", "")),
    (said("blue"), [COLOUR], (9, None, "blue")),
    (said("yes"), [COLOUR], (9, None, "yes")),
    (said("blue"), [FIRST, COLOUR], (9, None, "blue")),
    (said("/approve"), [FIRST, COLOUR], (7, "once", "")),
    (said("why?"), [FIRST], MESSAGE),
    (said("/approve", sent_at=NOW - 120), [FIRST], NotAnAnswer.WRITTEN_BEFORE),
    (said("/approve always", sent_at=NOW - 120), [FIRST], NotAnAnswer.WRITTEN_BEFORE),
    (said("yes", sent_at=NOW - 120), [FIRST], MESSAGE),
    (said("blue", sent_at=NOW - 120), [COLOUR], MESSAGE),
    (said("yes", sent_at=NOW - 120), [ON_ITS_WAY], MESSAGE),
    # --- within the tolerance of the clocks
    (said("/approve", sent_at=NOW + 1 + CLOCKS_APART_S), [FIRST], ASK),
    (said("/approve", sent_at=NOW + 1.01 + CLOCKS_APART_S), [FIRST], (7, "once", "")),
    (said("yes", sent_at=NOW), [FIRST], ASK),
    (said("blue", sent_at=NOW + 3), [COLOUR], ASK),
    # --- without a time, and without a confirmed delivery
    (said("/approve", sent_at=None), [FIRST], ASK),
    (said("/approve always", sent_at=None), [FIRST], ASK),
    (said("/deny", sent_at=None), [FIRST], ASK),
    (said("yes", sent_at=None), [FIRST], ASK),
    (said("blue", sent_at=None), [COLOUR], ASK),
    (said("/approve"), [ON_ITS_WAY], ASK),
    (said("yes"), [ON_ITS_WAY], ASK),
    # --- several
    (said("/approve"), [FIRST, SECOND], ASK),
    (said("yes"), [FIRST, SECOND], ASK),
    (said("no"), [FIRST, COLOUR], ASK),
    (said("/approve", sent_at=NOW - 120), [FIRST, SECOND], NotAnAnswer.WRITTEN_BEFORE),
    (said("/approve", sent_at=NOW + 30), [FIRST, LATER], ASK),
    # --- a question lapsed while another one is open
    (said("/approve", sent_at=NOW + 30), [LAPSED, LATER], NotAnAnswer.WRITTEN_BEFORE),
    (said("yes", sent_at=NOW + 30), [LAPSED, LATER], MESSAGE),
    (said("/approve", sent_at=NOW + 64), [LAPSED, LATER], ASK),
    (said("/approve", sent_at=NOW + 64), [LAPSED, SECOND], ASK),
    (said("/approve", sent_at=NOW + 30), [LAPSED, SECOND], ASK),
    (said("/approve", sent_at=NOW + 70), [LAPSED, LATER], (8, "once", "")),
    (said(f"/approve {K1}"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said(f"/deny {K1} no"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said(f"yes {K1}"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said(f"{K1} yes"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said("yes", quoted="m1"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said("/approve", quoted="m1"), [LAPSED, LATER], NotAnAnswer.NOT_OPEN),
    (said("blue", quoted="m1"), [LAPSED, COLOUR], MESSAGE),
    (said(f"blue {K1}"), [LAPSED, COLOUR], ASK),
    # --- by the code
    (said(f"/approve {K2}", sent_at=None), [FIRST, SECOND], (8, "once", "")),
    (said(f"/approve {K2.lower()} always", sent_at=NOW - 120), [FIRST, SECOND], (8, "always", "")),
    (said(f"/approve session {K2}", sent_at=None), [FIRST, SECOND], (8, "session", "")),
    (said(f"/approve #{K2}", sent_at=None), [FIRST, SECOND], (8, "once", "")),
    (said(f"/deny {K1} too risky", sent_at=None), [FIRST, SECOND], (7, "deny", "too risky")),
    (said(f"yes {K1}", sent_at=None), [FIRST, SECOND], (7, "once", "")),
    (said(f"{K1}: no!", sent_at=None), [FIRST, SECOND], (7, "deny", "")),
    (said(f"{K3} light blue", sent_at=None), [FIRST, COLOUR], (9, None, "light blue")),
    (said(f"light blue {K3}", sent_at=None), [FIRST, COLOUR], (9, None, "light blue")),
    (said(f"{K3} no", sent_at=None), [FIRST, COLOUR], (9, None, "no")),
    (said(f"{K1} why?", sent_at=None), [FIRST, COLOUR], MESSAGE),
    (said(K1, sent_at=AFTER), [FIRST], ASK),
    (said(f"/approve {STRANGE}"), [FIRST], NotAnAnswer.NOT_OPEN),
    (said(f"/deny {STRANGE}"), [FIRST], NotAnAnswer.NOT_OPEN),
    (said(f"yes {STRANGE}"), [FIRST], NotAnAnswer.NOT_OPEN),
    (said(f"yes {STRANGE}"), [], MESSAGE),
    (said(f"{STRANGE} blue"), [COLOUR], ASK),
    (said(f"/approve {K3}"), [COLOUR], NotAnAnswer.NOTHING_ASKED),
    # --- by a reply to one of its messages
    (said("yes", sent_at=None, quoted="m2"), [FIRST, SECOND], (7, "once", "")),
    (said("/deny later", sent_at=None, quoted="m3"), [FIRST, SECOND], (8, "deny", "later")),
    (said("blue", sent_at=NOW - 120, quoted="m4"), [FIRST, COLOUR], (9, None, "blue")),
    (said("yes", sent_at=None, thread="m3"), [FIRST, SECOND], (8, "once", "")),
    (said("why?", quoted="m1"), [FIRST, COLOUR], MESSAGE),
    (said(f"yes {K1}", quoted="m3"), [FIRST, SECOND], ASK),
    (said("yes", quoted="something else"), [FIRST], ASK),
    (said("blue", quoted="something else"), [COLOUR], ASK),
    # --- who may not choose says nothing by it
    (replace(said("yes"), may_choose=frozenset({"deny"})), [FIRST], MESSAGE),
    (replace(said(f"yes {K1}", sent_at=None), may_choose=frozenset()), [FIRST], MESSAGE),
    (replace(said("no"), may_choose=frozenset({"deny"})), [FIRST], (7, "deny", "")),
    (replace(said("yes"), may_choose=frozenset()), [FIRST, COLOUR], (9, None, "yes")),
    # --- nothing is open, or nobody can read it
    (said("/approve"), [], NotAnAnswer.NOTHING_ASKED),
    (said("/approve"), [LAPSED], NotAnAnswer.NOTHING_ASKED),
    (said("yes"), [LAPSED], MESSAGE),
    (said("/approve whatever"), [FIRST], NotAnAnswer.UNREADABLE),
    (said("/approve once always"), [FIRST], NotAnAnswer.UNREADABLE),
]


@pytest.mark.parametrize(("answer", "questions", "expected"), TABLE)
def test_an_answer_binds_to_one_question_or_its_code_is_asked_for(
    answer: PossibleAnswer, questions: list[ChatQuestion], expected: object
) -> None:
    assert shown(bind_answer(answer, questions)) == expected
    assert shown(bind_answer(answer, questions[::-1])) == expected, "the order of the questions does not matter"


@pytest.mark.parametrize(
    ("answer", "questions"), [row[:2] for row in TABLE if row[2] == ASK and K1 not in (row[0].text, row[0].text[-2:])]
)
def test_words_that_were_asked_for_the_code_once_are_a_message_and_commands_are_told_again(
    answer: PossibleAnswer, questions: list[ChatQuestion]
) -> None:
    found = bind_answer(replace(answer, was_code_asked=True), questions)
    assert shown(found) == (ASK if answer.is_command else MESSAGE)


def test_a_button_answers_the_question_that_bears_it_however_many_are_open() -> None:
    assert shown(bind_press(7, "once", [FIRST, SECOND])) == (7, "once", "")
    assert shown(bind_press(9, "2", [FIRST, COLOUR])) == (9, None, "2")
    assert bind_press(7, "once", [LAPSED, LATER]) is NotAnAnswer.NOT_OPEN
    assert bind_press(99, "once", [FIRST]) is NotAnAnswer.NOT_OPEN


@given(st.lists(st.integers(min_value=1, max_value=10**9), min_size=2, max_size=50, unique=True))
def test_no_two_questions_ever_have_the_same_code(wait_ids: list[int]) -> None:
    codes = [format_question_code(wait_id) for wait_id in wait_ids]
    assert len(set(codes)) == len(codes)
    assert all(parse_code(code.lower()) == code and parse_choice(code) is None for code in codes)


def test_codes_are_short_and_no_two_of_the_first_ones_are_alike() -> None:
    codes = [format_question_code(wait_id) for wait_id in range(1, 6_337)]
    assert len(set(codes)) == len(codes)
    assert [len(format_question_code(wait_id)) for wait_id in (1, 192, 193, 6_336, 6_337, 202_944)] == [
        2,
        2,
        3,
        3,
        4,
        4,
    ]
    for one, next_one in itertools.pairwise(codes[:192]):
        assert all(sign != other for sign, other in zip(one, next_one, strict=True))


_SAID = st.builds(
    PossibleAnswer,
    form=st.sampled_from(AnswerForm),
    text=st.sampled_from(["", "yes", "no", "always", "blue", K1, f"yes {K1}", f"{K3} red", STRANGE])
    | st.text(max_size=9),
    sent_at=st.none() | st.floats(min_value=NOW - 200, max_value=NOW + 200),
    quoted=st.sampled_from(["", "m1", "m3", "x"]),
    was_code_asked=st.booleans(),
)
_QUESTIONS = st.lists(
    st.sampled_from([FIRST, SECOND, COLOUR, ON_ITS_WAY, LAPSED, LATER]), unique_by=lambda each: each.wait_id
)


@given(_SAID, _QUESTIONS)
def test_what_does_not_name_its_question_was_written_after_it_was_seen_and_can_mean_no_other(
    answer: PossibleAnswer, questions: list[ChatQuestion]
) -> None:
    found = bind_answer(answer, questions)
    if not isinstance(found, BoundAnswer):
        return
    asked = found.question
    assert asked.is_open
    assert (found.choice is None) is (asked.kind is WaitKind.INPUT)
    names_it = asked.code in {parse_code(word) for word in answer.text.split()} or answer.quoted in asked.messages
    if not names_it:
        assert answer.sent_at is not None
        assert asked.delivered_at is not None
        assert answer.sent_at > asked.delivered_at + CLOCKS_APART_S
        assert [each for each in questions if each.is_open and each.kind is asked.kind] == [asked]


@given(_SAID, _QUESTIONS)
def test_a_command_is_always_told_something(answer: PossibleAnswer, questions: list[ChatQuestion]) -> None:
    found = bind_answer(answer, questions)
    if isinstance(found, NotAnAnswer) and found is not NotAnAnswer.MESSAGE:
        assert REFUSAL_TEXTS[found]
    if answer.is_command:
        assert found is not NotAnAnswer.MESSAGE


# --- what people are told --------------------------------------------------------------------------------------------


def test_each_question_says_how_it_is_answered() -> None:
    assert format_code_line(WaitKind.APPROVAL, "K7") == "Answer /approve K7 or /deny K7."
    assert format_code_line(WaitKind.INPUT, "K7") == "Question K7: reply to this message, or write K7 and your answer."


def test_who_is_asked_for_the_code_is_told_the_questions_that_have_arrived() -> None:
    words = said("yes", sent_at=None)
    asked = bind_answer(words, [FIRST, COLOUR, replace(SECOND, delivered_at=None)])
    assert isinstance(asked, CodeWanted)
    assert format_code_request(asked, words).splitlines() == [
        "I cannot tell which question you answer. Name the one that you mean:",
        f"- {K1} (deletes a directory): /approve {K1} or /deny {K1}",
        f"- {K3} (Which colour?): {K3} and your answer",
        "- one that is still on its way to you: answer it with the code that it shows",
        "What you wrote was not passed on. If it answers none of these, send it again.",
    ]
    alone = CodeWanted(questions=(replace(FIRST, label="x " * 100),))
    first, line = format_code_request(alone, said("/approve")).splitlines()
    assert first == "I cannot tell which question you answer. If it is this one, name it:"
    assert len(line) < 130
