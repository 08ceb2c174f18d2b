"""Text as a tool edits it, and the bytes it came from: what was not edited comes back byte for byte."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

UTF8: Final = "utf-8"
_BOMS: Final = {codecs.BOM_UTF8: UTF8, codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_PROBE_BYTES: Final = 8_192
_CONTROL: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_CONTROL_SHARE_MAX: Final = 0.3
_COMMON_SHARE_MIN: Final = 0.7
"""The least share of common characters among those that GBK would read, for text to count as Chinese."""
_ZEROS_SHARE_MIN: Final = 0.6
"""The least share of zeros in every other byte, for bytes to count as UTF-16 without a mark: text that is mostly ASCII
has it.
"""
_UNMARKED_BYTES_MIN: Final = 8


class NotText(ValueError):
    """The bytes are no text, or a text cannot be written in the encoding of its file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """The text with ``\\n`` line ends, and how its bytes differed from that."""

    text: str
    has_bom: bool = False
    has_crlf: bool = False
    encoding: str = UTF8

    @classmethod
    def decode(cls, data: bytes) -> TextFile:
        """Decode a file's bytes, and keep how they were encoded. Raises ``NotText``."""
        bom, encoding = _detect_encoding(data)
        if encoding is None or (encoding == UTF8 and is_binary(data)):
            raise NotText("it is a binary file")
        try:
            text = data[len(bom) :].decode(encoding)
        except UnicodeDecodeError as error:
            raise NotText(f"it is not {encoding.upper()} text (byte {error.start})") from error
        if bom + text.encode(encoding) != data:
            raise NotText(f"it is not {encoding.upper()} text that could be written back as it is")
        # Only a file whose every line ends that way: a mixture must be edited as it is, or all of it would change.
        has_crlf = "\r\n" in text and text.count("\r\n") == text.count("\n") == text.count("\r")
        text = text.replace("\r\n", "\n") if has_crlf else text
        return cls(text=text, has_bom=bool(bom), has_crlf=has_crlf, encoding=encoding)

    def encode(self) -> bytes:
        """Encode the text as its file was. Raises ``NotText`` for a character that the encoding does not have."""
        text = self.text.replace("\n", "\r\n") if self.has_crlf else self.text
        bom = next((mark for mark, encoding in _BOMS.items() if encoding == self.encoding), b"")
        try:
            data = encode_utf8(text) if self.encoding == UTF8 else text.encode(self.encoding)
        except UnicodeEncodeError as error:
            character = text[error.start : error.end][:1]
            raise NotText(f"{character!r} cannot be written in {self.encoding.upper()}, its encoding") from error
        return (bom if self.has_bom else b"") + data

    def replace_text(self, text: str) -> TextFile:
        """Return a copy of the file with another text; line ends of a CRLF file may come either way."""
        return replace(self, text=text.replace("\r\n", "\n") if self.has_crlf else text)

    def replace_content(self, content: str) -> TextFile:
        """Return a copy of the file with a new content, which may begin with the mark that the file has already."""
        return self.replace_text(content.removeprefix("\ufeff") if self.has_bom else content)


def is_binary(data: bytes) -> bool:
    """Whether the beginning looks like anything but text. UTF-16 counts as binary here."""
    probe = data[:_PROBE_BYTES]
    if b"\0" in probe or probe.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return True
    return sum(byte in _CONTROL for byte in probe) > _CONTROL_SHARE_MAX * len(probe)


def convert_to_utf8(data: bytes) -> tuple[bytes, str]:
    """The text in UTF-8, whatever its encoding, and the name of that encoding. Bytes that are no text come back
    unchanged.
    """
    bom, encoding = _detect_encoding(data)
    if encoding in (None, UTF8):
        return data, UTF8
    return data[len(bom) :].decode(encoding, "replace").encode(), encoding


def _detect_encoding(data: bytes) -> tuple[bytes, str | None]:
    """The byte order mark, and the encoding; ``None`` for what is no text."""
    for mark, encoding in _BOMS.items():
        if data.startswith(mark):
            return mark, encoding if encoding == UTF8 or len(data) % 2 == 0 else None
    if b"\0" in data[:_PROBE_BYTES]:
        return b"", _detect_unmarked_utf16(data)
    return b"", UTF8 if _is_utf8(data) or is_binary(data) else _detect_old_encoding(data)


def _is_utf8(data: bytes) -> bool:
    """Whether the bytes are UTF-8, or have more of UTF-8 than of anything else: such text is damaged, and in no other
    encoding.
    """
    try:
        data.decode(UTF8)
    except UnicodeDecodeError:
        read = data.decode(UTF8, "replace")
        broken = read.count("\ufffd")
        return sum(not char.isascii() for char in read) - broken > broken
    return True


def _detect_unmarked_utf16(data: bytes) -> str | None:
    probe = data[:_PROBE_BYTES]
    zeros = [probe[first::2].count(0) / max(1, len(probe[first::2])) for first in (0, 1)]
    for encoding, ours, other in (("utf-16-le", zeros[1], zeros[0]), ("utf-16-be", zeros[0], zeros[1])):
        if len(data) >= _UNMARKED_BYTES_MIN and ours >= _ZEROS_SHARE_MIN and other == 0 and len(data) % 2 == 0:
            return encoding
    return None


def _detect_old_encoding(data: bytes) -> str:
    """GBK or Latin-1, as Windows has it where its letters are used. GBK reads much of Latin-1 as Chinese, but as
    characters that are hardly ever written."""
    pairs = list(_iterate_pairs(data))
    common = sum(trail >= 0xA1 and (0xB0 <= lead <= 0xD7 or 0xA1 <= lead <= 0xA9) for lead, trail in pairs)
    candidates: tuple[str, ...] = ("gbk", "gb18030") if pairs and common >= _COMMON_SHARE_MIN * len(pairs) else ()
    for encoding in (*candidates, "cp1252"):
        try:
            data.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return "latin-1"


def _iterate_pairs(data: bytes) -> Iterator[tuple[int, int]]:
    """The bytes that GBK would read as one character."""
    place = 0
    probe = data[: 64 * _PROBE_BYTES]
    while place < len(probe) - 1:
        if probe[place] < 0x80:
            place += 1
        else:
            yield probe[place], probe[place + 1]
            place += 2


def encode_utf8(text: str) -> bytes:
    """Encode a text. Lone surrogates, which models sometimes write as halves of an emoji, become U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
