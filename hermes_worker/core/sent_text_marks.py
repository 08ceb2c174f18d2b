"""Record how much of a text was sent to a reader, without storing the text."""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventMark:
    """The part of a text that was sent: its first ``chars`` characters, whose CRC-32 is ``crc``."""

    chars: int = 0
    crc: int = 0

    def advance(self, more: str) -> EventMark:
        return EventMark(self.chars + len(more), _compute_crc(more, self.crc))

    def is_beginning_of(self, whole: str) -> bool:
        return len(whole) >= self.chars and _compute_crc(whole[: self.chars]) == self.crc

    def find_missing(self, whole: str) -> str:
        """The part of ``whole`` that was not sent yet; empty when another text was sent."""
        return whole[self.chars :] if self.is_beginning_of(whole) else ""


def _compute_crc(text: str, begun: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), begun)
