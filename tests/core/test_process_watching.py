from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.processes import (
    SPACING_S,
    STRIKES_MAX,
    OutputWatch,
    advance_watch,
    describe_end,
    extract_new_text,
    find_matching_lines,
    shorten_lines,
)


def test_the_first_match_is_told_and_the_next_after_a_while() -> None:
    watch, tells = advance_watch(OutputWatch(), 1, 100.0)
    assert tells and watch == OutputWatch(told_at=100.0)
    watch, tells = advance_watch(watch, 2, 100.0 + SPACING_S - 1)
    assert not tells and watch.suppressed == 2
    watch, tells = advance_watch(watch, 1, 100.0 + SPACING_S)
    assert tells and (watch.strikes, watch.suppressed) == (1, 0)


def test_who_writes_too_much_of_it_is_not_watched_any_more() -> None:
    watch, now, told = OutputWatch(), 0.0, 0
    for _ in range(100):
        watch, tells = advance_watch(watch, 1, now)
        told += tells
        now += 1.0
    assert watch.is_off and told == STRIKES_MAX
    assert advance_watch(watch, 1, now + 1_000) == (watch, False)


def test_a_quiet_while_forgives() -> None:
    watch, _ = advance_watch(OutputWatch(strikes=2, told_at=0.0), 1, 100.0)
    assert watch.strikes == 0


def test_nothing_new_changes_nothing() -> None:
    assert advance_watch(OutputWatch(told_at=3.0, suppressed=2), 0, 99.0) == (
        OutputWatch(told_at=3.0, suppressed=2),
        False,
    )


def test_patterns_are_plain_text() -> None:
    assert find_matching_lines("a.b\naxb\n(((a+)+\n", ["a.b", "(a+)+"]) == ["a.b", "(((a+)+"]


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 40))
def test_every_whole_line_that_is_kept_is_seen_once(pieces: list[bytes], kept: int) -> None:
    written, seen, heard = b"", 0, ""
    for piece in pieces:
        written += piece.replace(b"\r", b"")
        text, seen = extract_new_text(written[-1000:], len(written), seen, is_over=False)
        heard += text
        assert seen <= len(written)
    text, seen = extract_new_text(written[-1000:], len(written), seen, is_over=True)
    assert seen == len(written)
    if written.isascii():
        assert heard + text == written.decode()


def test_what_was_lost_in_between_is_passed_over() -> None:
    assert extract_new_text(b"tail\n", 1_000, 10, is_over=False) == ("tail\n", 1_000)
    assert extract_new_text(b"no line end", 1_000, 10, is_over=False) == ("", 1_000 - len(b"no line end"))


def test_an_excerpt_is_short() -> None:
    assert shorten_lines(["x" * 10_000] * 100).startswith("(80 lines before these)\n")
    assert len(shorten_lines(["x" * 10_000] * 100)) < 12_000


def test_how_it_ended_is_said_in_words() -> None:
    assert describe_end("exited", 3, 12.4, None) == "has ended by itself with exit code 3 after 12 s"
    assert describe_end("lost", None, 1.0, "why").endswith("nobody knows its exit code after 1 s: why")
