"""What a line of a chat means."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.cli.chat.line_parser import (
    ALLOWING,
    COMMANDS,
    Decide,
    Do,
    Meaning,
    Misread,
    Respond,
    RunHere,
    Say,
    SlashVerb,
    UseSkill,
    list_completions,
    parse_line,
    render_help,
)
from hermes_worker.cli.chat.turn import PendingQuestion

APPROVAL = PendingQuestion(wait_id=7, is_approval=True, text="rm -rf build")
QUESTION = PendingQuestion(wait_id=8, is_approval=False, text="Which?", choices=("red", "blue"))


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("", None),
        ("   ", None),
        ("hello", Say(text="hello")),
        ("two\nlines\n", Say(text="two\nlines")),
        (" /stop is what I typed", Say(text="/stop is what I typed")),
        ("/etc/hosts is broken", Say(text="/etc/hosts is broken")),
        ("/stop", Do(verb=SlashVerb.STOP)),
        ("/STOP ", Do(verb=SlashVerb.STOP)),
        ("/exit", Do(verb=SlashVerb.QUIT)),
        ("/steer in French", Do(verb=SlashVerb.STEER, argument="in French")),
        ("/steer two\nlines", Do(verb=SlashVerb.STEER, argument="two\nlines")),
        ("/model", Do(verb=SlashVerb.MODEL)),
        ("/model a/b", Do(verb=SlashVerb.MODEL, argument="a/b")),
        ("!ls -la", RunHere(command="ls -la")),
        ("!", Say(text="!")),
        (" !important", Say(text="!important")),
        ("/queue and then", Say(text="and then")),
        ("/fork", Do(verb=SlashVerb.BRANCH)),
        ("/compress the parser", Do(verb=SlashVerb.COMPRESS, argument="the parser")),
    ],
)
def test_a_line_is_something_to_say_or_a_command(line: str, meant: Meaning) -> None:
    assert parse_line(line) == meant


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("/stpo", "did you mean /stop?"),
        ("/xyzzy", "/help shows them"),
        ("/", "there is no command /"),
        ("/steer", "write /steer TEXT"),
        ("/stop now", "/stop takes no text"),
        ("/approve", "asks for no permission"),
    ],
)
def test_a_line_that_nobody_meant_does_nothing_and_says_what_to_write(line: str, why: str) -> None:
    found = parse_line(line)
    assert isinstance(found, Misread) and why in found.why


@pytest.mark.parametrize(
    ("line", "choice", "reason"),
    [
        ("once", "once", ""),
        ("y", "once", ""),
        ("Session", "session", ""),
        ("always", "always", ""),
        ("n", "deny", ""),
        ("deny not on this machine", "deny", "not on this machine"),
        ("/approve", "once", ""),
        ("/approve always", "always", ""),
        ("/deny use a copy", "deny", "use a copy"),
    ],
)
def test_an_approval_is_answered_in_place(line: str, choice: str, reason: str) -> None:
    assert parse_line(line, [APPROVAL]) == Decide(question=APPROVAL, choice=choice, reason=reason)


@pytest.mark.parametrize("line", ["yes please", "always do that", "go on", "/approve forever", "ok", "o"])
def test_nothing_is_allowed_by_a_line_that_does_not_say_so(line: str) -> None:
    assert isinstance(parse_line(line, [APPROVAL]), Misread)


@given(st.text(max_size=40))
def test_only_the_words_for_it_allow_anything(line: str) -> None:
    found = parse_line(line, [APPROVAL])
    if isinstance(found, Decide) and found.choice != "deny":
        words = line.strip().lower().removeprefix("/approve").strip()
        assert words in (*ALLOWING, "y", "yes", "")


def test_a_question_is_answered_with_any_words_and_commands_stay_commands() -> None:
    assert parse_line("2", [QUESTION]) == Respond(question=QUESTION, text="2")
    assert parse_line("neither", [QUESTION, APPROVAL]) == Respond(question=QUESTION, text="neither")
    assert parse_line("/stop", [QUESTION]) == Do(verb=SlashVerb.STOP)
    assert parse_line("/approve", [QUESTION, APPROVAL]) == Decide(question=APPROVAL, choice="once")


def test_of_several_questions_a_line_answers_the_one_whose_code_it_bears() -> None:
    other = replace(APPROVAL, wait_id=9, text="rm -rf dist")
    both = [APPROVAL, other]
    for line in ("yes", "/approve", "/deny", "deny later"):
        found = parse_line(line, both)
        assert isinstance(found, Misread)
        assert found.why.endswith(f"name the one that you answer: {APPROVAL.code}, {other.code}")
    code = other.code
    for line in (f"once {code}", f"{code.lower()} y", f"/approve {code}", f"/approve once {code}"):
        assert parse_line(line, both) == Decide(question=other, choice="once")
    assert parse_line(f"/deny {code} not here", both) == Decide(question=other, choice="deny", reason="not here")
    words = [QUESTION, replace(QUESTION, wait_id=10)]
    assert isinstance(parse_line("red", words), Misread)
    assert parse_line(f"{words[1].code} light red", words) == Respond(question=words[1], text="light red")


@pytest.mark.parametrize("line", ["yes {}", "/approve {}", "/deny {} no", "deny {}", "{} always"])
def test_the_code_of_a_question_that_is_over_answers_no_other(line: str) -> None:
    over = replace(APPROVAL, wait_id=9)
    found = parse_line(line.format(over.code), [APPROVAL])
    assert isinstance(found, Misread)
    assert found.why == f"no question with the code {over.code} is open"


@pytest.mark.parametrize(("line", "asks"), [("yes", APPROVAL), ("/approve always", APPROVAL), ("red", QUESTION)])
def test_a_line_that_was_begun_before_a_question_came_does_not_answer_it(line: str, asks: PendingQuestion) -> None:
    lapsed = replace(asks, wait_id=6)
    for before in ((), (lapsed,)):
        found = parse_line(line, [asks], before)
        assert isinstance(found, Misread)
        assert found.why == f"the question {asks.code} came while you wrote; read it, and send the line again"
    assert not isinstance(parse_line(line, [asks], (lapsed, asks)), Misread)
    assert parse_line("/stop", [asks], ()) == Do(verb=SlashVerb.STOP)


def test_the_help_names_every_command_and_every_command_is_read() -> None:
    text = "\n".join(render_help())
    for command in COMMANDS:
        assert f"/{command.name} " in f"{text} "
        for name in (command.name, *command.aliases):
            line = f"/{name}{' x' if command.needs_argument else ''}"
            assert not isinstance(parse_line(line, [APPROVAL]), Misread), line
    assert {command.name for command in COMMANDS} == {verb.value for verb in SlashVerb}
    names = [name for command in COMMANDS for name in (command.name, *command.aliases)]
    assert len(names) == len(set(names))


def test_a_command_of_my_own_answers_no_question() -> None:
    assert parse_line("!yes", [APPROVAL]) == RunHere(command="yes")


def test_a_skill_is_a_command_unless_one_of_ours_is_called_so() -> None:
    skills = ("Review", "stop")
    assert parse_line("/review the diff", skills=skills) == UseSkill(name="Review", text="the diff")
    assert parse_line("/stop", skills=skills) == Do(verb=SlashVerb.STOP)
    for line, why in (("/review", "write /Review TEXT"), ("/reviw x", "did you mean /Review?")):
        found = parse_line(line, skills=skills)
        assert isinstance(found, Misread) and why in found.why
    assert [name for name, _ in list_completions("/Rev", (), (), skills)] == ["/Review"]
    assert [name for name, _ in list_completions("/re", (), (), ("review-code",))][-1] == "/review-code"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/st", ["/stop", "/status", "/steer"]),
        ("/resume chat", ["/resume chat-1"]),
        ("hello", []),
        ("", []),
    ],
)
def test_commands_are_completed(text: str, expected: list[str]) -> None:
    assert [found for found, _ in list_completions(text, (), ("chat-1", "other"))] == expected


def test_answers_are_completed() -> None:
    assert [found for found, _ in list_completions("a", (APPROVAL,), ())] == ["always"]
    assert [found for found, _ in list_completions("", (QUESTION,), ())] == ["red", "blue"]
