"""What conversations are called."""

from __future__ import annotations

import pytest

from hermes_worker.core.spec import RunSpec
from hermes_worker.core.titles import (
    TITLE_CHARS_MAX,
    build_run_title,
    build_title_question,
    describe_cause,
    parse_title,
    title_fork,
)
from hermes_worker.safety.redaction import redact


def make_title(given: object, about: str | None = None) -> str | None:
    return build_run_title(RunSpec(input=given, about=about, model="m"), redact)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("Sort my mail", "Sort my mail"),
        (" \n  one\tline \nand more", "one line"),
        ("a\x1b[31mb\u202ec", "a<U+001B>[31mb<U+202E>c"),
        ("", None),
        ([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}], "What is this?"),
        ([{"type": "image_url"}], None),
        ([{"type": "text", "text": 7}], None),
    ],
)
def test_a_run_is_called_by_the_first_line_of_what_was_asked(given: object, title: str | None) -> None:
    assert make_title(given) == title


@pytest.mark.parametrize("given", ["words " * 10_000, "漢" * 10_000, "a " + "b" * 10_000])
def test_a_title_is_short(given: str) -> None:
    title = make_title(given)
    assert title is not None
    assert TITLE_CHARS_MAX // 2 < len(title) <= TITLE_CHARS_MAX
    assert title.endswith("…")


def test_a_title_is_cut_between_words() -> None:
    title = make_title("words " * 10_000)
    assert title is not None
    assert {*title.removesuffix("…").split()} == {"words"}


def test_a_secret_is_hidden_before_the_title_is_cut() -> None:
    secret = "ghp_" + "a1B2" * 9
    title = make_title("x" * 55 + f" and use the token {secret} for it")
    assert title is not None
    assert secret[:8] not in title


def test_what_a_run_is_about_goes_before_its_input() -> None:
    assert (
        make_title("[SYSTEM: you are a job]", about="nightly, 2026-11-29 04:00 CET") == "nightly, 2026-11-29 04:00 CET"
    )


def test_a_cause_is_named_once_however_long_the_chain() -> None:
    asked = RunSpec(input="Compare the offers\nof these three", model="m")
    first = RunSpec(input="[BACKGROUND RESULT]", about=describe_cause("Background answer", asked), model="m")
    assert describe_cause("Background answer", first) == first.about == "Background answer: Compare the offers"


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Sorting the mail", "Sorting the mail"),
        ('"Sorting the mail"', "Sorting the mail"),
        ("Title: Sorting the mail", "Sorting the mail"),
        ('**Title:** "Sorting"', "Sorting"),
        ("# Heading\nmore", "Heading"),
        ("\n\n  x\n", "x"),
        ("", None),
        ('""', None),
    ],
)
def test_a_models_title_loses_its_decoration(said: str, title: str | None) -> None:
    assert parse_title(said) == title


def test_the_question_shows_the_beginning_only() -> None:
    assert len(build_title_question("a" * 10_000, "b" * 10_000)) < 2_000


@pytest.mark.parametrize(
    ("title", "fork"),
    [
        ("Sort my mail", "Sort my mail (fork from step 4)"),
        ("Sort my mail (fork from step 12)", "Sort my mail (fork from step 4)"),
        ("word " * 40, f"{'word ' * 11}word… (fork from step 4)"),
        (None, "(fork from step 4)"),
    ],
)
def test_a_fork_is_called_after_its_original_and_keeps_its_step(title: str | None, fork: str) -> None:
    assert title_fork(title, 4) == fork
    assert len(fork) <= TITLE_CHARS_MAX
    assert build_run_title(RunSpec(input=[], about=fork, model="m"), redact) == fork
