"""Range requests: the part of a file that a request asks for (RFC 9110, section 14). Pure.

One range of bytes is served. Several ranges in one header are answered with the whole file, as the RFC allows, and so
is a unit other than bytes: only a well-formed range beyond the end is an error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_RANGE = re.compile(r"(?i:bytes)=[ \t]*(?P<first>[0-9]{0,18})-(?P<last>[0-9]{0,18})[ \t]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteRange:
    """Part of a file: bytes ``first`` to ``last``, both included, of ``size``."""

    first: int
    last: int
    size: int

    @property
    def content_range(self) -> str:
        """The header of the answer with this range."""
        return f"bytes {self.first}-{self.last}/{self.size}"

    def slice(self, content: bytes) -> bytes:
        return content[self.first : self.last + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsatisfiableRange:
    """The requested range lies beyond the end of a file of ``size`` bytes."""

    size: int

    @property
    def content_range(self) -> str:
        return f"bytes */{self.size}"


def parse_range(
    asked: str | None, size: int, *, if_range: str | None, etag: str
) -> ByteRange | UnsatisfiableRange | None:
    """Parse what the headers ``Range`` and ``If-Range`` ask of a file; ``None`` for all of it. ``etag`` is the file's,
    with its quotes. Any other value in ``if_range``, including weak tags and dates, means that the caller's part may
    belong to another file, so it gets the whole one."""
    if asked is None or (if_range is not None and if_range.strip() != etag):
        return None
    match = _RANGE.fullmatch(asked.strip())
    if match is None or not (match["first"] or match["last"]):
        return None
    if not match["first"]:
        return _select_last_bytes(int(match["last"]), size)
    first, last = int(match["first"]), int(match["last"] or size - 1)
    if match["last"] and last < first:
        return None
    if first >= size:
        return UnsatisfiableRange(size=size)
    return ByteRange(first=first, last=min(last, size - 1), size=size)


def _select_last_bytes(count: int, size: int) -> ByteRange | UnsatisfiableRange:
    if not count or not size:
        return UnsatisfiableRange(size=size)
    return ByteRange(first=max(0, size - count), last=size - 1, size=size)
