"""Text as a tool edits it, and the bytes it came from: what was not edited comes back byte for byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

_BOM: Final = b"\xef\xbb\xbf"
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_PROBE_BYTES: Final = 8_192
_CONTROL: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f\b\x1b")
_CONTROL_SHARE_MAX: Final = 0.3


class NotText(ValueError):
    """The bytes are not UTF-8 text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFile:
    """The text with ``\\n`` line ends, and how its bytes differed from that."""

    text: str
    has_bom: bool = False
    has_crlf: bool = False

    @classmethod
    def decode(cls, data: bytes) -> TextFile:
        """Raises ``NotText``."""
        if is_binary(data):
            raise NotText("it is a binary file")
        has_bom = data.startswith(_BOM)
        try:
            text = data.removeprefix(_BOM).decode("utf-8")
        except UnicodeDecodeError as error:
            raise NotText(f"it is not UTF-8 text (byte {error.start})") from error
        # Only a file whose every line ends that way: a mixture must be edited as it is, or all of it would change.
        has_crlf = "\r\n" in text and text.count("\r\n") == text.count("\n") == text.count("\r")
        return cls(text=text.replace("\r\n", "\n") if has_crlf else text, has_bom=has_bom, has_crlf=has_crlf)

    def encode(self) -> bytes:
        text = self.text.replace("\n", "\r\n") if self.has_crlf else self.text
        return (_BOM if self.has_bom else b"") + to_utf8(text)

    def with_text(self, text: str) -> TextFile:
        """The same file with another text; line ends of a CRLF file may come either way."""
        return replace(self, text=text.replace("\r\n", "\n") if self.has_crlf else text)


def is_binary(data: bytes) -> bool:
    """Whether the beginning looks like anything but text. UTF-16 counts as binary here."""
    probe = data[:_PROBE_BYTES]
    if b"\0" in probe or probe.startswith(_UTF16_BOMS):
        return True
    return sum(byte in _CONTROL for byte in probe) > _CONTROL_SHARE_MAX * len(probe)


def from_utf16(data: bytes) -> bytes | None:
    """The text of a UTF-16 file as UTF-8; ``None`` when it is no such file."""
    if not data.startswith(_UTF16_BOMS):
        return None
    try:
        return data.decode("utf-16").encode("utf-8")
    except UnicodeError:
        return None


def to_utf8(text: str) -> bytes:
    """Lone surrogates, which models sometimes write as halves of an emoji, become U+FFFD."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode("utf-8")
