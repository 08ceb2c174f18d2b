"""Chunked bodies with fewer chunks: what one read brings is handed on as one chunk.

Servers send every event of a stream as an HTTP chunk of its own. The HTTP library makes an object of each, checks it
and passes it through five generators, which costs three times as much as all that is done with the event itself. So
below the library, where bytes come in, the frames of a read are taken off and one is put around all of them.

Nothing is judged here: from the first byte that this module does not understand, everything passes as it came, and the
library finds the fault. Grammar: https://www.rfc-editor.org/rfc/rfc9112#section-7.1
"""

from __future__ import annotations

import re

_HEAD_END = re.compile(rb"\n\r?\n")
_IS_CHUNKED = re.compile(rb"\ntransfer-encoding:[ \t]*chunked[ \t]*\r?\n", re.IGNORECASE)
_IS_INTERIM = re.compile(rb"HTTP/1\.\d 1\d\d")
_HAS_NO_BODY = re.compile(rb"HTTP/1\.\d (?:204|304)")
_FIRST_FRAME = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
_NEXT_FRAME = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})\r\n")
"""The end of a chunk and the line in front of the next. One with an extension passes as it came."""
_CUT_FRAME = re.compile(rb"(?:\r\n?)?|(?:\r\n)?[0-9A-Fa-f]{1,15}\r?")
_HEAD_BYTES_MAX = 65_536


class ChunkReframer:
    """Reframes the responses of one connection, one after the other. Not thread-safe."""

    __slots__ = ("_held", "_is_first", "_left", "_reads_head", "_reads_on")

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Expect a new response: a request is sent."""
        self._reads_head = self._reads_on = True
        self._is_first = True
        self._held = b""
        self._left = 0

    def feed(self, data: bytes) -> bytes:
        """Take bytes that came and return the bytes to hand on; empty when more has to come first."""
        if not self._reads_on:
            return data
        return self._feed_head(data) if self._reads_head else self._feed_body(data)

    def end(self) -> bytes:
        """Return the bytes that are still held when the connection ends."""
        held, self._held = (b"" if self._reads_head else self._held), b""
        return held

    def _feed_head(self, data: bytes) -> bytes:
        """Pass the head on at once; a copy of it is kept until it is whole."""
        head = self._held + data
        end = _HEAD_END.search(head)
        if end is None:
            self._held = head
            self._reads_on = len(head) <= _HEAD_BYTES_MAX
            return data
        passed, rest = data[: len(data) - (len(head) - end.end())], head[end.end() :]
        self._held = b""
        if not _IS_INTERIM.match(head):
            self._reads_head = False
            self._reads_on = not _HAS_NO_BODY.match(head) and _IS_CHUNKED.search(head, 0, end.end()) is not None
        return passed + self.feed(rest) if rest else passed

    def _feed_body(self, data: bytes) -> bytes:
        data = self._held + data
        at, pieces = 0, []
        frame_line = _FIRST_FRAME if self._is_first and not self._left else _NEXT_FRAME
        while True:
            if self._left:
                pieces.append(data[at : at + self._left])
                at += len(pieces[-1])
                self._left -= len(pieces[-1])
                if self._left:
                    break
            frame = frame_line.match(data, at)
            if frame is None or not (size := int(frame[1], 16)):
                break
            self._left, at, frame_line = size, frame.end(), _NEXT_FRAME
        self._held, rest = data[at:], b""
        if not _CUT_FRAME.fullmatch(self._held):  # the last chunk, or no chunk at all
            self._reads_on, self._held, rest = False, b"", self._held
        return self._frame_body(b"".join(pieces)) + rest

    def _frame_body(self, body: bytes) -> bytes:
        """One chunk without the line end behind it: that comes with what follows, right or wrong."""
        if not body:
            return b""
        end_of_last = b"" if self._is_first else b"\r\n"
        self._is_first = False
        return b"%s%x\r\n%s" % (end_of_last, len(body), body)
