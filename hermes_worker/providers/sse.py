"""Server-sent events, as far as model providers use them: https://html.spec.whatwg.org/multipage/server-sent-events.html

Written for cost: a reply is thousands of small events, and a general parser is most of what a streamed token costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

EVENT_BYTES_MAX = 16 * 1024 * 1024


class EventTooLarge(ValueError):
    """One event is larger than any reply could be; whatever sends it is not a model."""


def event_data(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The data of each event. Event names, ids, retry hints and comments are dropped.

    An event that is cut off by the end of the input still counts: its line may be complete.
    """
    data: list[bytes] = []
    for line in _lines(chunks):
        if line.startswith(b"data:"):
            data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif not line and data:
            yield data[0] if len(data) == 1 else b"\n".join(data)
            data.clear()
    if data:
        yield b"\n".join(data)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without their ends, however the bytes were cut into chunks. A CR alone does not end a line."""
    pending: list[bytes] = []  # joined only when the line ends: adding to one buffer is quadratic in a long line
    pending_bytes = 0
    for chunk in chunks:
        first, *rest = chunk.split(b"\n")
        pending.append(first)
        pending_bytes += len(first)
        if pending_bytes > EVENT_BYTES_MAX:
            raise EventTooLarge(f"an event exceeds {EVENT_BYTES_MAX} bytes")
        if not rest:
            continue
        yield b"".join(pending).removesuffix(b"\r")
        for line in rest[:-1]:
            yield line.removesuffix(b"\r")
        pending = [rest[-1]]
        pending_bytes = len(rest[-1])
    yield b"".join(pending).removesuffix(b"\r")
