"""Server-sent events, as far as model providers use them:
https://html.spec.whatwg.org/multipage/server-sent-events.html

Written for cost: a reply is thousands of small events, and a general parser is most of what a streamed token costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

EVENT_BYTES_MAX = 16 * 1024 * 1024


class EventTooLarge(ValueError):
    """One event is larger than any reply could be, so its sender is no model."""


def iterate_event_data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event. Event names, ids, retry hints and comments are dropped.

    An event that is cut off by the end of the input still counts: its line may be complete.
    """
    parser = _Parser()
    for chunk in chunks:
        # Nearly every chunk is a number of whole events of one line each, and nothing is left over from before.
        if chunk[-2:] == b"\n\n" and parser.is_between_events:
            for event in chunk[:-2].split(b"\n\n"):
                if event[:6] == b"data: " and b"\n" not in event:
                    yield event[6:].rstrip(b"\r")
                else:
                    yield from parser.feed(event + b"\n\n")
        else:
            yield from parser.feed(chunk)
    yield from parser.feed(b"\n\n")


class _Parser:
    """The whole grammar, for bytes cut anywhere. A CR alone does not end a line."""

    def __init__(self) -> None:
        self._data: list[bytes] = []
        self._line: list[bytes] = []  # pieces, joined when the line ends: one growing buffer is quadratic
        self._line_bytes = 0

    @property
    def is_between_events(self) -> bool:
        return not self._line_bytes and not self._data

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        first, *rest = chunk.split(b"\n")
        self._line.append(first)
        self._line_bytes += len(first)
        if self._line_bytes > EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event exceeds {EVENT_BYTES_MAX} bytes")
        if not rest:
            return
        for line in (b"".join(self._line), *rest[:-1]):
            yield from self._end_line(line.removesuffix(b"\r"))
        self._line = [rest[-1]]
        self._line_bytes = len(rest[-1])

    def _end_line(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line and self._data:
            event, self._data = b"\n".join(self._data), []
            yield event
