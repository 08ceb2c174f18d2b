from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_worker.agent.tools.textfile import NotText, TextFile, convert_to_utf8, encode_utf8


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
    file = TextFile.decode(b"one\r\ntwo\r\n").replace_text(text)
    lone = file.encode().replace(b"\r\n", b"")
    assert b"\n" not in lone


@pytest.mark.parametrize("data", [b"a\0b", b"\xff\xfea", b"abc\0", "日本".encode() + b"\xe9", bytes(range(1, 9))])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(NotText):
        TextFile.decode(data)


@settings(deadline=None)
@given(st.text())
def test_text_without_lone_surrogates_is_not_changed(text: str) -> None:
    assert encode_utf8(text).decode() == text


def test_half_an_emoji_becomes_a_replacement_character() -> None:
    assert encode_utf8("a\ud83d\ude00b\ud83dc").decode() == "a😀b\ufffdc"


TEXTS = {
    "gbk": "标题 第一章\r\n正文，内容。\r\n",
    "cp1252": "café – “naïve” Übergröße\n",
    "latin-1": "caf\xe9 \x81\n",
    "utf-16-le": "hällo\nwörld\n",
    "utf-16-be": "hällo\nwörld\n",
}


@pytest.mark.parametrize("encoding", TEXTS)
def test_text_is_read_in_its_encoding_and_written_back_in_it(encoding: str) -> None:
    data = TEXTS[encoding].encode(encoding)
    file = TextFile.decode(data)
    assert (file.encoding, file.has_bom, file.encode()) == (encoding, False, data)
    edited = file.replace_text(f"{file.text}x\n").encode()
    assert edited.startswith(data) and edited.decode(encoding).rstrip().endswith("x")
    assert convert_to_utf8(data) == (TEXTS[encoding].encode(), encoding)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-8"])
def test_a_byte_order_mark_stays(encoding: str) -> None:
    data = "\ufeffone\r\ntwo\r\n".encode(encoding)
    file = TextFile.decode(data)
    assert (file.text, file.has_bom, file.has_crlf, file.encode()) == ("one\ntwo\n", True, True, data)
    for content in ("three\n", "three\r\n", "\ufeffthree\n"):
        assert file.replace_content(content).encode() == "\ufeffthree\r\n".encode(encoding)


def test_what_the_encoding_of_a_file_does_not_have_is_refused() -> None:
    with pytest.raises(NotText, match="'☃' cannot be written in GBK, its encoding"):
        TextFile.decode(TEXTS["gbk"].encode("gbk")).replace_text("☃").encode()
