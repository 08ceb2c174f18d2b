"""How much of a text somebody was told, without keeping the text."""

from __future__ import annotations

import zlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EventMark:
    """How much of a text was told: its first ``chars`` characters, whose CRC-32 is ``crc``."""

    chars: int = 0
    crc: int = 0

    def after(self, more: str) -> EventMark:
        return EventMark(self.chars + len(more), _crc(more, self.crc))

    def is_beginning_of(self, whole: str) -> bool:
        return len(whole) >= self.chars and _crc(whole[: self.chars]) == self.crc

    def missing_of(self, whole: str) -> str:
        """What of ``whole`` was not told yet; nothing when it was another text that was told."""
        return whole[self.chars :] if self.is_beginning_of(whole) else ""


def _crc(text: str, begun: int = 0) -> int:
    return zlib.crc32(text.encode("utf-8", "surrogatepass"), begun)
