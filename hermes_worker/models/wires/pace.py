"""How often to read a stream: as a network card coalesces interrupts, one read is made to bring many small events.

Waking a thread for a read costs ten times as much as all that is done with a streamed event. A model that sends an
event every half millisecond would have it woken 2,000 times a second, and watchers get lumps every 50 ms anyhow
(``live.FLUSH_EVERY_S``). So while small pieces come quickly, the reader rests before it reads on.

It never rests early in a response, so that a short reply is not delayed; nor when pieces come slowly and are read as
they come, where a rest would only be one more waking; nor when a read filled its buffer, so that volume flows.
"""

from __future__ import annotations

REST_S = 0.08
"""Adds at most this to the time in which a piece is seen, and to the time a call takes to notice that it was cut."""
QUICK_S = 0.025
"""A read that blocked for less was quick: at 40 pieces a second a rest brings three."""
QUICK_READS = 8
"""After so many quick reads in a row the stream counts as one of many small pieces."""
_WORTHWHILE_PIECES = 2
"""A read that brings so many pieces comes late: the process has more to read than time to read it. And a rest that
brings fewer cost more than it saved."""


class StreamPace:
    """Decides how long to rest, for one response. It is told of every read and holds no clock."""

    __slots__ = ("_piece_bytes", "_quick_reads", "rest_s")

    rest_s: float
    """How many seconds to rest before the next read; 0 for no rest."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start over for a new response."""
        self._piece_bytes = 0
        self._set_quick_reads(0)

    def note_read(self, *, blocked_s: float, received: int, is_full: bool) -> None:
        """Take note of a read that blocked for so long and brought so many bytes; ``is_full`` says that it brought all
        it asked for.

        How long it blocked tells little on a busy interpreter, whose lock it had to wait for as well; the number of
        bytes does.
        """
        if is_full:
            self._set_quick_reads(0)
            return
        self._piece_bytes = min(received, self._piece_bytes or received)
        is_late = received >= _WORTHWHILE_PIECES * self._piece_bytes
        if self.rest_s:
            if not is_late:
                self._set_quick_reads(0)
        else:
            self._set_quick_reads(self._quick_reads + 1 if is_late or blocked_s < QUICK_S else 0)

    def _set_quick_reads(self, quick_reads: int) -> None:
        self._quick_reads = quick_reads
        self.rest_s = REST_S if quick_reads >= QUICK_READS else 0.0
