"""Words, queries and snippets, without a database."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_worker.core.search_queries import (
    QUERY_CHARS_MAX,
    SNIPPET_WORDS,
    TEXT_CHARS_MAX,
    WantedWord,
    _iterate_matches,
    build_snippet,
    count_hits,
    extract_text,
    fold_text,
    make_words,
    parse_query,
)

WORDS = {
    "Use a-b.c_d, NOW": "a a-b b b.c c c_d d now use",
    "数据库 x": "x 据库 数据 库",
    "学习Python编程": "python 学习 习 编程 程",
    "ＦＯＯ ｶﾅ": "foo カナ ナ",
    "__init__ 3.11 don't": "11 3 3.11 don init t",
    "e\u0301t\u00e9 हिन्दी ❤️x": "ete x हिन्दी",
    "Łódź, ΑΘΉΝΑ, Ёлка, が 한국": "lodz αθηνα елка が 한국 국",
    "...--- , ()": "",
}


@pytest.mark.parametrize("text", WORDS)
def test_the_words_of_a_text_stay_what_is_stored(text: str) -> None:
    assert make_words(fold_text(text)) == sorted(WORDS[text].split()), "WORDS_MADE_BY has to be another one"


def _words(text: str) -> list[list[list[WantedWord]]]:
    query = parse_query(text)
    return [[list(term.words) for term in group.all_of] for group in query.groups] if query else []


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("hello AND", "hello"),
        ("OR x", "x"),
        ("*foo", "foo"),
        ("NOT b", "b"),
        ("a AND AND b", "a b"),
        ('say "', "say"),
        ("a (b) {c} ^d", "a b c d"),
        ("* ** ... a", "a"),
    ],
)
def test_what_means_nothing_is_left_out(text: str, plain: str) -> None:
    assert _words(text) == _words(plain)


@pytest.mark.parametrize("text", ["", "   ", '""', "***", "AND OR NOT", "!?"])
def test_what_asks_for_nothing_is_no_query(text: str) -> None:
    assert parse_query(text) is None


def test_a_query_is_cut_and_has_a_bounded_number_of_terms() -> None:
    query = parse_query("x " * 10_000)
    assert query is not None
    assert len(query.groups[0].all_of) == 32
    assert parse_query(" " * QUERY_CHARS_MAX + "x") is None


@pytest.mark.parametrize(
    ("query", "text", "count"),
    [
        ("a b", "a b a", 3),
        ("a OR b", "b b", 2),
        ("a OR b", "a b b", 3),
        ("a NOT b", "a b", 0),
        ("a b NOT c OR d", "d c", 1),
        ('"a b"', "a, b a-b", 2),
        ('"a b"', "a x b", 0),
        ("a-b", "a-b-c", 1),
        ("a-b", "a b", 0),
        ("ab", "abc cab", 0),
        ("ab*", "abc cab ab", 2),
        ("数据", "数据库 大数据", 2),
        ("数 据", "数据", 2),
        ("Python编程", "python 编程", 0),
        ('"Python 编程"', "学Python编程", 1),
    ],
)
def test_hits_are_counted_in_the_text_itself(query: str, text: str, count: int) -> None:
    asked = parse_query(query)
    assert asked is not None
    assert count_hits(asked, fold_text(text)) == count


def test_a_hostile_text_costs_no_more_than_its_length() -> None:
    asked = parse_query('"a b c d" x* a-a-a')
    assert asked is not None
    text = fold_text("a- " * TEXT_CHARS_MAX)
    assert count_hits(asked, text) == 0
    assert len(text) == TEXT_CHARS_MAX
    assert sum(len(word.encode()) for word in make_words(fold_text("\ufdfa" * TEXT_CHARS_MAX))) < 2**20


ASKED = ("a", "ab", '"a b"', "a*", "a-b", '"a b9"*', "9")
"""Few, because the pattern for all of Unicode takes 20 ms each."""
SIGNS = st.text(st.sampled_from("ab9_-. \n'(\u00e9\u0301\u0939\u093f\u6f22\u3042\u2026\u2764\ufe0f\U0001f600"), max_size=24)  # fmt: skip  # noqa: E501


@given(query=st.sampled_from(ASKED), text=SIGNS)
def test_terms_of_ascii_are_found_where_the_pattern_for_all_of_unicode_finds_them(query: str, text: str) -> None:
    asked = parse_query(query)
    if asked is None:
        return
    same = fold_text(text)
    for group in asked.groups:
        for term in group.all_of:
            assert term.ascii_pattern
            slow = [found.span() for found in re.finditer(term.pattern, same)]
            assert [found.span() for found in _iterate_matches(term, same)] == slow


def test_a_query_of_ascii_needs_no_table_of_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = parse_query('"over the" hill* NOT a-b.c')
    assert asked is not None
    for group in asked.groups:
        for term in (*group.all_of, *group.none_of):
            assert 0 < len(term.ascii_pattern) < 120 < len(term.pattern)
    made: list[str] = []
    compiled = re.compile
    monkeypatch.setattr(re, "compile", lambda pattern: made.append(pattern) or compiled(pattern))
    assert count_hits(asked, "over the hills") == count_hits(asked, "over\u2026 the \u2014 hills \u6f22") == 2
    assert max(map(len, made)) < 120, made


def test_a_snippet_marks_hits_in_the_letters_of_the_text() -> None:
    asked = parse_query("kyoto 数据")
    assert asked is not None
    text = "One " * 100 + "goes to\nKyoto and 大数据库 " + "two " * 100
    shown = build_snippet(asked, text)
    assert shown.startswith("…One ")
    assert ">>>Kyoto<<< and 大>>>数据<<<库 two" in shown
    assert shown.endswith("two…")
    assert len(shown.split()) <= SNIPPET_WORDS
    assert build_snippet(asked, "ﬁ kyoto 数据") == "fi >>>kyoto<<< >>>数据<<<"


def test_of_a_message_its_text_and_its_calls_can_be_found() -> None:
    def asking(arguments: str) -> str:
        calls = [{"id": "c", "function": {"name": "read", "arguments": arguments}}]
        return json.dumps({"role": "assistant", "content": None, "tool_calls": calls})

    arguments = {"path": "a\nb", "n": [1, None, {"k": "v"}]}
    assert extract_text(asking(json.dumps(arguments))) == "read\npath\na\nb\nn\n1\nk\nv"
    assert extract_text(asking("{no json")) == "read\n{no json"
    assert extract_text('{"content":[{"text":"hi","type":"text"},{"image_url":{},"type":"image_url"}]}') == "hi"
    assert (
        extract_text('{"content":"x","tool_calls":[{"function":{"arguments":"{no json","name":"n"}}]}')
        == "x\nn\n{no json"
    )
    assert extract_text("[1]") == ""
