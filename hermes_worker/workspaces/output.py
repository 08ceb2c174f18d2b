"""Command output in bounded memory: the beginning says what was started, the end says how it went."""

from __future__ import annotations

_HEAD_SHARE = 0.4
"""The original keeps 40 % of the limit from the beginning and 60 % from the end."""

_LINE_BYTES_MAX = 1_024
"""A longer line is cut."""


class OutputBuffer:
    """Collects bytes and keeps at most about ``limit`` of them, however many are written."""

    def __init__(self, limit: int) -> None:
        self._head_max = int(limit * _HEAD_SHARE)
        self._tail_max = limit - self._head_max
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    @property
    def was_truncated(self) -> bool:
        return self._total > self._head_max + self._tail_max

    def append(self, data: bytes) -> None:
        self._total += len(data)
        room = self._head_max - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        # Trimming at twice the size keeps the cost per byte constant.
        if len(self._tail) > 2 * self._tail_max:
            del self._tail[: len(self._tail) - self._tail_max]

    def render(self) -> bytes:
        """The bytes that were kept, with a line that says how many are missing. No UTF-8 character is cut in half."""
        if not self.was_truncated:
            return bytes(self._head + self._tail)
        given_up = min(_LINE_BYTES_MAX, (self._head_max + self._tail_max) // 32)
        head = _strip_broken_end(_cut_to_last_line(bytes(self._head), given_up))
        tail = _strip_broken_start(
            _cut_from_first_line(bytes(self._tail[len(self._tail) - self._tail_max :]), given_up)
        )
        omitted = self._total - len(head) - len(tail)
        return head + b"\n\n... [%d bytes omitted] ...\n\n" % omitted + tail


def _cut_to_last_line(data: bytes, given_up: int) -> bytes:
    """``data`` up to the end of a line, or of a word; at most ``given_up`` bytes less. A word that is cut in two cannot
    be read, and half a secret is not recognised as one.
    """
    start = len(data) - given_up
    for end in (data.rfind(b"\n", start), data.rfind(b" ", start)):
        if end >= 0:
            return data[:end]
    return data


def _cut_from_first_line(data: bytes, given_up: int) -> bytes:
    """``data`` from the beginning of a line, or of a word."""
    for end in (data.find(b"\n", 0, given_up), data.find(b" ", 0, given_up)):
        if end >= 0:
            return data[end + 1 :]
    return data


def _is_continuation(byte: int) -> bool:
    return byte & 0xC0 == 0x80


def _strip_broken_start(data: bytes) -> bytes:
    start = 0
    while start < min(3, len(data)) and _is_continuation(data[start]):
        start += 1
    return data[start:]


def _strip_broken_end(data: bytes) -> bytes:
    """``data`` without a last character whose bytes are not all there."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if _is_continuation(byte):
            continue
        length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
        return data if back >= length else data[:-back]
    return data
