from __future__ import annotations

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools import fuzzy
from hermes_worker.agent.tools.fuzzy import EditRefused, ReplacedText, is_already_there, replace_lines, replace_text


def _replaced(text: str, old: str, new: str, *, replace_all: bool = False) -> ReplacedText:
    outcome = replace_text(text, old, new, replace_all=replace_all)
    assert isinstance(outcome, ReplacedText), outcome
    return outcome


def _refused(text: str, old: str, new: str, *, replace_all: bool = False) -> str:
    outcome = replace_text(text, old, new, replace_all=replace_all)
    assert isinstance(outcome, EditRefused), outcome
    return outcome.message


FOUND = [
    ("exact", "hello world", "hello", "hi", "hi world"),
    ("exact", "a\nb\nc", "a\nb", "x", "x\nc"),
    ("exact", "def f():\n    return 1\n", "    return 1", "    return 2", "def f():\n    return 2\n"),
    ("line_trimmed", "    a = 1   \n    b = 2\n", "a = 1\nb = 2", "a = 1\n\nb = 3", "    a = 1\n\n    b = 3\n"),
    (
        "line_trimmed",
        "class C:\n        x = 1\n        return x\n",
        "x = 1\nreturn x",
        "x = 1\nif x:\n    x = 2\nreturn x",
        "class C:\n        x = 1\n        if x:\n            x = 2\n        return x\n",
    ),
    ("line_trimmed", "\tif a:\n\t\tb()\n", "if a:\n\tb()", "if a:\n\tc()", "\tif a:\n\t\tc()\n"),
    ("line_trimmed", "  a\n  b\n  c\n", "a\nb\n", "", "  c\n"),
    ("whitespace_normalized", "foo   bar baz", "foo bar", "XY", "XY baz"),
    ("whitespace_normalized", "r = f(a,  b) + tail", "f(a, b)", "f(a, b, c)", "r = f(a, b, c) + tail"),
    ("whitespace_normalized", "x = [ 1,\n  2 ]  # end", "[ 1, \n\t2 ]", "[3]", "x = [3]  # end"),
    ("whitespace_normalized", "a  b c", " a b ", " X ", "X c"),
    ("escape_normalized", "one\n\ttwo\n", "one\\n\\ttwo", "1\\n\\t2", "1\n\t2\n"),
    ("unicode_normalized", "say \u201chi\u201d now", 'say "hi"', 'say "ho"', "say \u201cho\u201d now"),
    ("unicode_normalized", "a\u2014b", "a--b", "a--c", "a\u2014c"),
    ("unicode_normalized", "wait\u2026and done", "wait...and done", "wait...then done", "wait\u2026then done"),
    ("unicode_normalized", "x \u2212 1", "x - 1", "y - 1", "y \u2212 1"),
    ("unicode_normalized", "標題\u3000第一章\n", "標題 第一章", "標題 第二章", "標題\u3000第二章\n"),
    (
        "unicode_normalized",
        "one \u2014 a\nkeep\n",
        "one -- a\nkeep",
        "one -- a\nmore\nkeep",
        "one \u2014 a\nmore\nkeep\n",
    ),
    (
        "block_anchor",
        "def f():\n    x = 1\n    y = 2\n    return x + y\n",
        "def f():\n    x = 1\n    y = 99\n    return x + y",
        "def f():\n    return 0",
        "def f():\n    return 0\n",
    ),
    (
        "context_aware",
        "start()\nalpha = compute(one)\nbeta = 2\ngamma = 3\nend()\n",
        "alpha = compute(won)\nbeta = 2\ngamma = 3\n",
        "beta = 5\n",
        "start()\nbeta = 5\nend()\n",
    ),
]


@pytest.mark.parametrize(("strategy", "text", "old", "new", "expected"), FOUND)
def test_the_text_that_was_meant_is_replaced(strategy: str, text: str, old: str, new: str, expected: str) -> None:
    outcome = _replaced(text, old, new)
    assert (outcome.strategy, outcome.text, outcome.count) == (strategy, expected, 1)


@pytest.mark.parametrize(
    ("text", "old", "new", "expected", "count"),
    [
        ("aaa bbb aaa", "aaa", "c", "c bbb c", 2),
        ("aaaa", "aa", "b", "bb", 2),
        ("  x\ny\n x\n", "x\n", "z\n", "  z\ny\n z\n", 2),
    ],
)
def test_every_occurrence_is_replaced_when_asked_for(text: str, old: str, new: str, expected: str, count: int) -> None:
    outcome = _replaced(text, old, new, replace_all=True)
    assert (outcome.text, outcome.count) == (expected, count)


def test_several_occurrences_are_refused_with_their_lines() -> None:
    message = _refused("a\nx\n" * 7, "x", "y")
    assert "found 7 times" in message
    assert "line 2: x\n  line 4: x" in message
    assert message.endswith("and 2 more")


def test_blocks_that_only_resemble_are_never_replaced_together() -> None:
    block = "begin\n  one = {}\nend\n"
    text = block.format(1) + block.format(2)
    message = _refused(text, "begin\n  one = 3\nend", "gone", replace_all=True)
    assert "found 2 times" in message
    assert "replace_all" not in message


@pytest.mark.parametrize(
    ("text", "old"),
    [
        ("one\ntwo\nthree\n", "nothing like it"),
        ("begin\ncompletely\ndifferent\nend\n", "begin\nxxxxxxxx\nyyyyyyyy\nend"),
        ("a\u2014b", "a-"),
        ("", "x"),
    ],
)
def test_what_is_not_there_is_refused(text: str, old: str) -> None:
    assert "not found" in _refused(text, old, "new")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [("", "x", "empty"), ("  \n\t", "x", "white space"), ("same", "same", "nothing to change")],
)
def test_a_request_that_means_nothing_is_refused(old: str, new: str, message: str) -> None:
    assert message in _refused("same", old, new)


def test_backslashes_that_only_the_arguments_have_are_refused() -> None:
    message = _refused("    print('hi')\n    x = 1\n", "print(\\'hi\\')\nx = 1", "print(\\'ho\\')\nx = 1")
    assert "not found" in message or "backslash" in message
    text = "def f():\n    print('hi')\n    y = 2\n    return y\n"
    drift = _refused(text, "def f():\n    print(\\'hi\\')\n    y = 2\n    return y", "def f():\n    print(\\'ho\\')")
    assert "without a backslash" in drift


def test_an_edit_is_known_to_be_made_only_when_it_is_plain() -> None:
    assert is_already_there("value = new_name\n", "value = old", "value = new_name")
    assert not is_already_there("x = 1\n", "x = 0", "x = 1")
    assert not is_already_there("value = new_name; value = old", "value = old", "value = new_name")


LINES = [
    ("a\nb\nc\n", ["b"], [], "a\nc\n"),
    ("a\nb\nc\n", ["b"], ["x", "y"], "a\nx\ny\nc\n"),
    ("ab\nb\n", ["b"], ["c"], "ab\nc\n"),
    ("a\nb", ["b"], ["c"], "a\nc"),
    ("a\nb", ["b"], [], "a"),
    ("  a\n  b\n", ["a", "b"], ["a", "c"], "  a\n  c\n"),
    ("a \u2014 b\nc\n", ["a -- b", "c"], ["a -- b", "d"], "a \u2014 b\nd\n"),
]


@pytest.mark.parametrize(("text", "old", "new", "expected"), LINES)
def test_whole_lines_are_replaced(text: str, old: list[str], new: list[str], expected: str) -> None:
    outcome = replace_lines(text, old, new)
    assert isinstance(outcome, ReplacedText)
    assert outcome.text == expected


@settings(deadline=None)
@given(st.text(alphabet="ab \n", max_size=30), st.text(alphabet="ab \n", min_size=1, max_size=5), st.text(max_size=5))
def test_exact_replacement_agrees_with_the_language(text: str, old: str, new: str) -> None:
    outcome = replace_text(text, old, new, replace_all=True)
    if old.strip() and old != new and old in text:
        assert isinstance(outcome, ReplacedText)
        assert outcome.text == text.replace(old, new)


@settings(deadline=None)
@given(
    st.text(alphabet="ab \n\t\u2014\u201c-", max_size=40),
    st.text(alphabet='ab \n\t-"\\n', max_size=20),
    st.text(max_size=5),
)
def test_what_is_refused_or_replaced_is_always_one_of_the_two(text: str, old: str, new: str) -> None:
    outcome = replace_text(text, old, new)
    if isinstance(outcome, ReplacedText):
        assert outcome.count == 1


@pytest.mark.parametrize(
    ("text", "old"),
    [
        (" " * 200_000, "x" + "\n" * 50 + "y"),
        ("x\n" * 50_000, "x\nq\nx"),
        ("\n" * 100_000, "a\n\n\n\n\n\n\n\nb"),
        ("ab" * 200_000, "ab" * 50_000 + "c"),
        ("word \u2014 " * 40_000, "word - " * 20_000),
        ("line of text\n" * 20_000, "line of tex\n" * 400),
    ],
    ids=range(6),
)
def test_hostile_texts_take_seconds_and_not_hours(text: str, old: str) -> None:
    started = time.process_time()
    replace_text(text, old, "new")
    assert time.process_time() - started < 10


# --- what it costs ---


def _by_expression(text: str, old: str) -> list[tuple[int, int]]:
    """What ``whitespace_normalized`` means, said as a regular expression, which takes quadratic time."""
    lines = [r"[ \t]++".join(re.escape(word) for word in line.split()) for line in old.strip().split("\n")]
    return [match.span() for match in re.finditer(r"[ \t]*+\n[ \t]*+".join(lines), text)]


@given(text=st.text("ab \t\n\r", max_size=30), old=st.text("ab \t\n\r", max_size=8).filter(str.strip))
@example(text="a \t\n b  a\nb", old="a\nb")
@example(text="xa  by", old="a b")
def test_white_space_is_ignored_as_the_expression_says(text: str, old: str) -> None:
    found = fuzzy._find_whitespace_normalized(text, old)
    assert list(found.spans) == _by_expression(text, old)


@given(text=st.text("ab \n", max_size=30), old=st.text("ab \n", min_size=1, max_size=8))
def test_the_same_lines_are_found_one_window_after_the_other(text: str, old: str) -> None:
    wanted = [line.strip() for line in old.removesuffix("\n").split("\n")]
    lines = [line.strip() for line in text.split("\n")]
    found, index = [], 0
    while index + len(wanted) <= len(lines):
        is_here = lines[index : index + len(wanted)] == wanted
        found += [index] if is_here else []
        index += len(wanted) if is_here else 1
    spans = fuzzy._find_line_trimmed(text, old).spans
    assert [text.count("\n", 0, start) for start, _ in spans] == found


HOSTILE = {
    "words": ("a " * 50_000, "a " * 25_000 + "b"),
    "lines": ("a\n" * 50_000, "a\n" * 25_000 + "b"),
    "empty lines": ("a" + "\n" * 100_000, "a" + "\n" * 50_000 + "b"),
    "similar lines": (
        ("ab" * 195 + "\n") * 500,
        "\n".join("ab" * 195 if n % 2 else "a" * 300 + "b" * 90 for n in range(390)),
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_no_text_makes_a_search_take_long(case: str) -> None:
    """Against time: some seconds of processor time at most, where 50 KB of some of these took that many already."""
    text, old = HOSTILE[case]
    begun = time.thread_time()
    assert isinstance(replace_text(text, old, "other"), EditRefused)
    assert time.thread_time() - begun < 10


def test_typography_of_many_equal_lines_is_not_compared_line_by_line() -> None:
    begun = time.thread_time()
    done = _replaced("\u2014\n" * 20_000, "--\n" * 20_000, "--\n" * 19_999 + "x\n")
    assert done.strategy == "unicode_normalized"
    assert time.thread_time() - begun < 10
