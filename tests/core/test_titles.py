"""What conversations are called."""

from __future__ import annotations

import pytest

from hermes_worker.core.titles import TITLE_CHARS_MAX, build_first_title, build_title_question, parse_title


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("Sort my mail", "Sort my mail"),
        ("  two\n\tlines ", "two lines"),
        ("a\x1b[31mb\u202ec", "a<U+001B>[31mb<U+202E>c"),
        ("", None),
        ([{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {}}], "What is this?"),
        ([{"type": "image_url"}], None),
        ([{"type": "text", "text": 7}], None),
    ],
)
def test_a_conversation_is_called_how_it_begins(given: object, title: str | None) -> None:
    assert build_first_title(given) == title  # type: ignore[arg-type]


def test_a_title_is_short() -> None:
    title = build_first_title("word " * 10_000)
    assert title is not None
    assert len(title) <= TITLE_CHARS_MAX
    assert title.endswith("…")


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
