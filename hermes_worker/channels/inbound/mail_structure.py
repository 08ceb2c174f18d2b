"""Parse what an IMAP server says of mails: the lists of ``FETCH`` (RFC 9051, 7.5.2), and the parts of a mail in them.
Pure.

The server writes ``BODYSTRUCTURE`` of a mail that a stranger made: names, types and depth are hostile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.errors import MessageError
from email.header import decode_header, make_header
from email.utils import decode_rfc2231
from typing import Any
from urllib.parse import unquote_to_bytes

DEPTH_MAX = 40
PARTS_MAX = 100
"""Most parts of a mail that are looked at."""
WORDS_CHARS_MAX = 1_000
"""Most characters of an encoded name or subject that are decoded."""
_TOKEN = re.compile(
    rb'[ \r\n]*(?:(?P<sign>[()])|"(?P<quoted>(?:[^"\\]|\\.)*)"|\{(?P<octets>\d{1,10})\+?\}\r\n|(?P<atom>[^ ()"\r\n]+))',
    re.S,
)

_REST = re.compile(rb"\s*\S")


class UnreadableAnswer(ValueError):
    """A server answered what IMAP does not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailPart:
    """A part of a mail that has no parts itself."""

    section: str
    """The part's number, as ``BODY[...]`` takes it."""
    media_type: str
    charset: str = ""
    encoding: str = ""
    """``base64``, ``quoted-printable`` or another transfer encoding, in lower case."""
    size_bytes: int | None = None
    """The size as it is encoded."""
    name: str = ""
    is_attachment: bool = False

    @property
    def is_file(self) -> bool:
        """Whether people would call it a file of the mail, rather than its text."""
        if self.media_type in ("application/pgp-signature", "application/pkcs7-signature"):
            return False
        return self.is_attachment or not self.media_type.startswith("text/")


def parse_fetch(pieces: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """Yield the items of each mail, by names in upper case, from what ``imaplib`` returns for ``FETCH``. Raises
    ``UnreadableAnswer``."""
    text = b"".join(b"\r\n".join(piece) if isinstance(piece, tuple) else piece or b"" for piece in pieces)
    place = 0
    while _REST.match(text, place):
        number, place = _parse_value(text, place)
        items, place = _parse_value(text, place)
        if not isinstance(number, bytes) or not isinstance(items, list) or len(items) % 2:
            raise UnreadableAnswer("this is no FETCH")
        names = [item for item in items[::2] if isinstance(item, bytes)]
        yield {name.decode("latin-1").upper(): value for name, value in zip(names, items[1::2], strict=True)}


def list_parts(structure: Any) -> list[MailPart]:
    """List the parts of a ``BODYSTRUCTURE`` that have no parts themselves, in order. Total."""
    found: list[MailPart] = []
    waiting: list[tuple[str, Any]] = [("", structure)]
    looked_at = 0
    while waiting and len(found) < PARTS_MAX and looked_at < 10 * PARTS_MAX:
        section, node = waiting.pop()
        looked_at += 1
        if not isinstance(node, list) or not node or section.count(".") > DEPTH_MAX:
            continue
        if isinstance(node[0], list):
            inner = [child for child in node if isinstance(child, list)][: _count_children(node)]
            numbered = [
                (f"{section}.{number}" if section else str(number), child) for number, child in enumerate(inner, 1)
            ]
            waiting += reversed(numbered[:PARTS_MAX])
        else:
            found.append(_build_part(section or "1", node))
    return found


def decode_words(text: str) -> str:
    """Decode the words of a header (RFC 2047) into one line. Total."""
    cut = text[:WORDS_CHARS_MAX]
    try:
        decoded = str(make_header(decode_header(cut)))
    except (ValueError, LookupError, MessageError, TypeError):
        decoded = cut
    return " ".join("".join(sign if sign.isprintable() else " " for sign in decoded).split())


def _parse_value(text: bytes, place: int) -> tuple[Any, int]:
    """Parse the value that begins at ``place``. Returns the value and the place behind it."""
    open_lists: list[list[Any]] = []
    while True:
        token = _TOKEN.match(text, place)
        if token is None:
            raise UnreadableAnswer("a list does not end")
        place = token.end()
        value: Any
        if token["sign"] == b"(":
            open_lists.append([])
            continue
        if token["sign"] == b")":
            if not open_lists:
                raise UnreadableAnswer("a list ends that did not begin")
            value = open_lists.pop()
        elif token["quoted"] is not None:
            value = re.sub(rb"\\(.)", rb"\1", token["quoted"], flags=re.S)
        elif token["octets"] is not None:
            ends = place + int(token["octets"])
            value, place = text[place:ends], ends
        else:
            value = None if token["atom"].upper() == b"NIL" else token["atom"]
        if not open_lists:
            return value, place
        open_lists[-1].append(value)


def _count_children(node: list[Any]) -> int:
    """Count the lists at the beginning of a multipart that are its parts."""
    return next((number for number, child in enumerate(node) if not isinstance(child, list)), len(node))


def _build_part(section: str, node: list[Any]) -> MailPart:
    main, sub = _decode_text(_get_at(node, 0)).lower(), _decode_text(_get_at(node, 1)).lower()
    parameters = _read_pairs(_get_at(node, 2))
    # Behind the seven fields that all have: the lines of a text; the envelope, the structure and the lines of a mail.
    behind = 8 if main == "text" else 10 if (main, sub) == ("message", "rfc822") else 7
    disposition = _get_at(node, behind + 1)
    named = _read_pairs(_get_at(disposition, 1)) if isinstance(disposition, list) else {}
    size = _decode_text(_get_at(node, 6))
    return MailPart(
        section=section,
        media_type=f"{main or 'application'}/{sub or 'octet-stream'}",
        charset=parameters.get("charset", ""),
        encoding=_decode_text(_get_at(node, 5)).lower(),
        size_bytes=int(size) if size.isascii() and size.isdigit() and len(size) < 12 else None,
        name=_name(named, "filename") or _name(parameters, "name"),
        is_attachment=isinstance(disposition, list) and _decode_text(_get_at(disposition, 0)).lower() == "attachment",
    )


def _name(parameters: dict[str, str], key: str) -> str:
    """Read a file's name, whether it is plain, encoded (RFC 2231), in pieces, or in words (RFC 2047)."""
    if plain := parameters.get(key):
        return decode_words(plain)
    pieces = [parameters.get(f"{key}*{number}*", parameters.get(f"{key}*{number}", "")) for number in range(10)]
    encoded = parameters.get(f"{key}*") or "".join(pieces)
    if not encoded:
        return ""
    charset, _, text = decode_rfc2231(encoded[:WORDS_CHARS_MAX])
    return decode_words(decode_text(unquote_to_bytes(text), charset or "utf-8"))


NOT_CHARSETS = frozenset({"idna", "punycode", "unicode-escape", "raw-unicode-escape", "undefined", "mbcs", "oem"})
"""Codecs of Python that no mail means; some take very long."""


def decode_text(content: bytes, charset: str) -> str:
    """Decode bytes into a text. Total: what cannot be decoded is marked."""
    name = charset.strip().lower().replace("_", "-")
    try:
        return content.decode("utf-8" if name in NOT_CHARSETS or not name else name, "replace")
    except (LookupError, ValueError):
        return content.decode("utf-8", "replace")


def _read_pairs(node: Any) -> dict[str, str]:
    if not isinstance(node, list):
        return {}
    return {_decode_text(name).lower(): _decode_text(value) for name, value in zip(node[::2], node[1::2], strict=False)}


def _get_at(node: Any, place: int) -> Any:
    return node[place] if isinstance(node, list) and len(node) > place else None


def _decode_text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
