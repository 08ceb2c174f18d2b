from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools.textfile import NotText, TextFile, to_utf8


@settings(deadline=None)
@given(st.binary() | st.text().map(str.encode) | st.text(alphabet="ab\r\n\ufeff").map(str.encode))
def test_what_is_not_edited_comes_back_byte_for_byte(data: bytes) -> None:
    try:
        file = TextFile.decode(data)
    except NotText:
        return
    assert file.encode() == data


@settings(deadline=None)
@given(st.text(alphabet="ab\n\r", max_size=20))
def test_an_edited_crlf_file_stays_one(text: str) -> None:
    file = TextFile.decode(b"one\r\ntwo\r\n").with_text(text)
    lone = file.encode().replace(b"\r\n", b"")
    assert b"\n" not in lone


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfea\0", b"caf\xe9", bytes(range(1, 9))])
def test_what_is_no_utf8_text_is_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        TextFile.decode(data)


@settings(deadline=None)
@given(st.text())
def test_text_without_lone_surrogates_is_not_changed(text: str) -> None:
    assert to_utf8(text).decode() == text


def test_half_an_emoji_becomes_a_replacement_character() -> None:
    assert to_utf8("a\ud83d\ude00b\ud83dc").decode() == "a😀b\ufffdc"
