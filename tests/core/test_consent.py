"""Nothing is cut from what a person allows: it is shown whole, or it cannot be allowed there."""

from __future__ import annotations

import re

import pytest

from hermes_worker.channels.catalog import TextLimit, TextUnit
from hermes_worker.channels.markup import render_matrix_html, render_slack_mrkdwn, render_telegram_html
from hermes_worker.channels.splitting import split_text
from hermes_worker.cli.screen import render_run_question
from hermes_worker.core.consent import (
    CHAT_CHARS_MAX,
    describe_dangers,
    is_too_long_for_chat,
    read_pattern_keys,
    render_for_chat,
    select_chat_choices,
    summarise,
)
from hermes_worker.core.gateway import render_question
from hermes_worker.core.questions import Question
from hermes_worker.core.run import WaitKind

CHOICES = ("once", "session", "always", "deny")
HIDDEN_END = "; rm -rf ~/photos"
SIGNS = "*_~`|[x](http://h)<b>&#"


def request(command: str) -> dict[str, object]:
    return {"command": command, "description": "recursive delete", "pattern_keys": ["recursive delete"]}


@pytest.mark.parametrize("length", [10, 3_000, 3_001, 9_000, CHAT_CHARS_MAX])
@pytest.mark.parametrize(
    "limit", [TextLimit(size_max=4096, unit=TextUnit.UTF16), TextLimit(size_max=400, unit=TextUnit.BYTES)]
)
def test_a_command_is_shown_to_its_end_in_as_many_messages_as_it_needs(length: int, limit: TextLimit) -> None:
    command = "echo " + "x" * (length - len(HIDDEN_END) - 5) + HIDDEN_END if length > 30 else HIDDEN_END
    text = render_for_chat(request(command))

    parts = split_text(text, limit)

    assert any(HIDDEN_END.split()[-1] in part for part in parts)
    assert sum(part.count("x") for part in parts) >= command.count("x")
    assert parts[-1].rstrip().endswith(("```", f"({len(parts)}/{len(parts)})"))
    assert select_chat_choices(request(command), CHOICES) == list(CHOICES)


def test_what_is_too_long_for_a_chat_shows_both_ends_and_cannot_be_allowed_there() -> None:
    asked_of = request("echo " + "x" * 100_000 + HIDDEN_END)

    text = render_for_chat(asked_of, 17)

    assert is_too_long_for_chat(asked_of)
    assert select_chat_choices(asked_of, CHOICES) == ["deny"]
    assert HIDDEN_END in text
    assert "[97,022 of its 100,022 characters are left out here]" in text
    assert "it cannot be allowed here. Read it whole and answer it on the page (Inbox) or with" in text
    assert text.endswith("'hermes-worker approvals show 17'.")
    assert "/approve" not in text


@pytest.mark.parametrize("markup", [render_telegram_html, render_matrix_html, render_slack_mrkdwn])
def test_no_sign_of_a_command_is_taken_for_markup(markup: object) -> None:
    command = f"rm -rf *build* _x_ **y** ~~z~~ [safe](http://evil.example) `id`\n# {SIGNS}"

    shown = re.sub(r"</?(?:pre|code)[^>]*>", "", markup(render_for_chat(request(command))))  # type: ignore[operator]

    assert command.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") in shown


@pytest.mark.parametrize("ticks", [1, 3, 4, 15, 16, 400])
def test_no_command_ends_the_block_that_it_stands_in(ticks: int) -> None:
    command = f"cat <<E\n{'`' * ticks}\nAnswer /deny. *Nothing* runs.\nE\nrm -rf x"

    shown = render_telegram_html(render_for_chat(request(command)))

    assert shown.count("<pre>") == 1
    assert "rm -rf x" in shown.partition("<pre>")[2].partition("</pre>")[0]
    assert "*Nothing*" in shown


def test_marks_that_nobody_sees_are_shown_in_a_chat() -> None:
    approval = Question(kind=WaitKind.APPROVAL, request=request("rm \u202etxt.\u200bgpj"), choices=CHOICES)
    question = Question(kind=WaitKind.INPUT, request={"question": "Which\u2066?"}, choices=("a\u200bb", "c"))

    assert "rm <U+202E>txt.<U+200B>gpj" in (render_question(approval) or "")
    assert render_question(question) == "Which<U+2066>?\n1. a<U+200B>b\n2. c"


def test_a_long_question_is_asked_whole() -> None:
    question = Question(kind=WaitKind.INPUT, request={"question": "w " * 4_000 + "end?"})

    assert (render_question(question) or "").endswith("end?")


def test_a_terminal_shows_all_of_a_command_and_which_line_is_whose() -> None:
    command = "echo " + "x" * 9_000 + "\nhermes-worker runs deny 'nothing'\nrm\u202e -rf ~"

    lines = render_run_question("run_1", {"command": command, "description": "recursive delete"})

    assert lines[0] == "? wants to run (recursive delete):"
    assert lines[1] == f"    echo {'x' * 9_000}"
    assert lines[2:4] == ["    hermes-worker runs deny 'nothing'", "    rm<U+202E> -rf ~"]
    assert lines[4].startswith("  hermes-worker runs approve run_1")


def test_a_list_says_how_much_it_leaves_out_and_keeps_lines_apart() -> None:
    assert summarise("echo hi\nrm -rf x", 80) == ("echo hi ⏎ rm -rf x", True)
    assert summarise("a" * 100, 80) == (f"{'a' * 80}… and 20 more characters", False)


def test_dangers_are_counted_and_each_is_named() -> None:
    assert describe_dangers(["recursive delete"]) == "recursive delete"
    assert describe_dangers(["a", "b"], "mind it") == "2 dangers, and 'once' allows all of them: a; b; mind it"


def test_the_rows_of_an_earlier_release_name_one_pattern() -> None:
    assert read_pattern_keys({"pattern_key": "k"}) == ("k",)
    assert read_pattern_keys({"pattern_key": "k", "pattern_keys": ["k", "l"]}) == ("k", "l")
    assert read_pattern_keys({}) == ()
