import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hermes_worker.channels.catalog import TextLimit, TextUnit
from hermes_worker.channels.splitting import measure, split_text

LIMIT = TextLimit(size_max=100)
COUNTER = re.compile(r"[ \n]\((\d+)/(\d+)\)$")


def bodies(parts: tuple[str, ...]) -> list[str]:
    return [COUNTER.sub("", part) for part in parts]


def test_a_text_within_the_limit_is_sent_as_it_is():
    text = "x" * 100
    assert split_text(text, LIMIT) == (text,)


def test_one_character_more_makes_two_messages():
    assert [len(part) for part in split_text("x" * 101, LIMIT)] == [92, 21]
    assert [part[-6:] for part in split_text("x" * 101, LIMIT)] == [" (1/2)", " (2/2)"]


def test_cuts_fall_on_line_ends_in_the_second_half():
    first, second = "a" * 60, "b" * 60
    assert split_text(f"{first}\n{second}", LIMIT) == (f"{first} (1/2)", f"{second} (2/2)")


def test_a_line_end_in_the_first_half_does_not_make_a_short_message():
    text = "a" * 20 + "\n" + "word " * 30
    assert bodies(split_text(text, LIMIT))[0] == "a" * 20 + "\n" + "word " * 12 + "word"


def test_cuts_fall_between_words():
    assert all(set(body.split()) == {"word"} for body in bodies(split_text("word " * 60, LIMIT)))


def test_paragraphs_do_not_begin_with_empty_lines():
    parts = bodies(split_text("\n\n\n".join(["p" * 50] * 6), LIMIT))
    assert all(not part.startswith("\n") for part in parts)


def test_a_cut_code_block_is_closed_and_opened_again():
    code = "\n".join(f"line {number}" for number in range(40))
    parts = bodies(split_text(f"See:\n```python\n{code}\n```\nDone.", LIMIT))
    assert all(part.startswith("```python\n") for part in parts[1:])
    assert all(part.count("```") % 2 == 0 for part in parts)
    assert parts[-1].endswith("Done.")


def test_indentation_survives_a_cut():
    code = "\n".join("    return " + "x" * 30 for _ in range(10))
    parts = bodies(split_text(f"```\n{code}\n```", LIMIT))
    assert all(part.startswith("```\n    return") for part in parts)


def test_a_block_is_not_opened_just_to_be_closed():
    text = "a" * 70 + "\n```python\n" + "\n".join(["code"] * 30) + "\n```"
    assert not any("```python\n```" in part for part in split_text(text, LIMIT))


def test_a_longer_fence_is_closed_by_one_as_long():
    inner = "\n".join(["```", "text"] * 20)
    parts = bodies(split_text(f"`````md\n{inner}\n`````", LIMIT))
    assert len(parts) > 1
    assert all(part.startswith("`````md\n") and part.endswith("\n`````") for part in parts)


def test_inline_code_is_not_cut():
    text = "word " * 14 + "`some inline code here` " + "word " * 20
    assert all(body.count("`") % 2 == 0 for body in bodies(split_text(text, LIMIT)))


def test_utf16_units_are_counted_for_telegram():
    limit = TextLimit(size_max=100, unit=TextUnit.UTF16)
    assert split_text("😀" * 50, limit) == ("😀" * 50,)
    assert [measure(part, TextUnit.UTF16) for part in split_text("😀" * 51, limit)] == [92, 22]


def test_bytes_are_counted_where_a_platform_counts_bytes():
    limit = TextLimit(size_max=100, unit=TextUnit.BYTES)
    assert split_text("é" * 50, limit) == ("é" * 50,)
    assert len(split_text("é" * 51, limit)) == 2


def test_an_emoji_of_several_characters_is_not_cut():
    family = "👨🏽\u200d👩🏽\u200d👧🏽"
    parts = bodies(split_text(family * 40, LIMIT))
    assert all(part.replace(family, "") == "" for part in parts)


def test_many_messages_leave_room_for_their_counter():
    parts = split_text("x" * 120_000, TextLimit(size_max=80))
    assert len(parts) > 1000
    assert max(map(len, parts)) <= 80
    assert "".join(bodies(parts)) == "x" * 120_000


def test_a_limit_without_room_is_refused():
    with pytest.raises(ValueError, match="leaves no room"):
        split_text("x" * 100, TextLimit(size_max=79))


def test_a_long_text_is_cut_quickly():
    text = "Some words in a line, and then some more.\n" * 20_000
    assert len(split_text(text, TextLimit(size_max=4096, unit=TextUnit.UTF16))) > 200


fragments = st.one_of(
    st.text(alphabet="ab `~\n😀éü\u0301\u200d", max_size=60),
    st.sampled_from(
        ["\n```python\n", "\n```\n", "\n~~~\n", "`code`", "\n\n", "word " * 12, "7" * 90, "\n    indented", "`" * 20]
    ),
)
texts = st.lists(fragments, max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(texts, st.sampled_from(list(TextUnit)), st.integers(80, 200))
@example("word " * 12 + "`" * 10 + "word " * 12, TextUnit.CHARACTERS, 80)
@example("~" * 40 + "\n" + "x" * 200, TextUnit.BYTES, 80)
@example("```" + "é" * 60 + "\n" + "x" * 200, TextUnit.BYTES, 80)
def test_every_message_fits_and_nothing_is_lost(text, unit, size_max):
    parts = split_text(text, TextLimit(size_max=size_max, unit=unit))
    assert all(measure(part, unit) <= size_max for part in parts)
    if len(parts) > 1:
        assert [COUNTER.search(part).groups() for part in parts] == [
            (str(number), str(len(parts))) for number in range(1, len(parts) + 1)
        ]
        assert all(body.strip() for body in bodies(parts))

    def content(value: str) -> str:
        """Without white space, fence characters and letters, which a reopened fence repeats as its language."""
        return re.sub(r"[a-z`~\s]", "", value)

    assert content("".join(bodies(parts))) == content(text)
