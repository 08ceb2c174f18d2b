"""Words, queries and snippets, without a database."""

from __future__ import annotations

import json

import pytest

from hermes_worker.core.searching import (
    QUERY_CHARS_MAX,
    SNIPPET_WORDS,
    TEXT_CHARS_MAX,
    Wanted,
    folded,
    hits,
    read_query,
    snippet,
    text_of,
    words_of,
)

WORDS = {
    "Use a-b.c_d, NOW": "a a-b b b.c c c_d d now use",
    "数据库 x": "x 据库 数据 库",
    "学习Python编程": "python 学习 习 编程 程",
    "ＦＯＯ ｶﾅ": "foo カナ ナ",
    "__init__ 3.11 don't": "11 3 3.11 don init t",
    "e\u0301t\u00e9 हिन्दी ❤️x": "été x हिन्दी",
    "...--- , ()": "",
}


@pytest.mark.parametrize("text", WORDS)
def test_the_words_of_a_text_stay_what_is_stored(text: str) -> None:
    assert words_of(folded(text)) == sorted(WORDS[text].split()), "a revision has to empty the index"


def _words(text: str) -> list[list[list[Wanted]]]:
    query = read_query(text)
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
    assert read_query(text) is None


def test_a_query_is_cut_and_has_a_bounded_number_of_terms() -> None:
    query = read_query("x " * 10_000)
    assert query is not None
    assert len(query.groups[0].all_of) == 32
    assert read_query(" " * QUERY_CHARS_MAX + "x") is None


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
    asked = read_query(query)
    assert asked is not None
    assert hits(asked, folded(text)) == count


def test_a_hostile_text_costs_no_more_than_its_length() -> None:
    asked = read_query('"a b c d" x* a-a-a')
    assert asked is not None
    text = folded("a- " * TEXT_CHARS_MAX)
    assert hits(asked, text) == 0
    assert len(text) == TEXT_CHARS_MAX
    assert sum(len(word.encode()) for word in words_of(folded("\ufdfa" * TEXT_CHARS_MAX))) < 2**20


def test_a_snippet_marks_hits_in_the_letters_of_the_text() -> None:
    asked = read_query("kyoto 数据")
    assert asked is not None
    text = "One " * 100 + "goes to\nKyoto and 大数据库 " + "two " * 100
    shown = snippet(asked, text)
    assert shown.startswith("…One ")
    assert ">>>Kyoto<<< and 大>>>数据<<<库 two" in shown
    assert shown.endswith("two…")
    assert len(shown.split()) <= SNIPPET_WORDS
    assert snippet(asked, "ﬁ kyoto 数据") == "fi >>>kyoto<<< >>>数据<<<"


def test_of_a_message_its_text_and_its_calls_can_be_found() -> None:
    def asking(arguments: str) -> str:
        calls = [{"id": "c", "function": {"name": "read", "arguments": arguments}}]
        return json.dumps({"role": "assistant", "content": None, "tool_calls": calls})

    arguments = {"path": "a\nb", "n": [1, None, {"k": "v"}]}
    assert text_of(asking(json.dumps(arguments))) == "read\npath\na\nb\nn\n1\nk\nv"
    assert text_of(asking("{no json")) == "read\n{no json"
    assert text_of('{"content":[{"text":"hi","type":"text"},{"image_url":{},"type":"image_url"}]}') == "hi"
    assert (
        text_of('{"content":"x","tool_calls":[{"function":{"arguments":"{no json","name":"n"}}]}') == "x\nn\n{no json"
    )
    assert text_of("[1]") == ""
