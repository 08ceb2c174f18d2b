"""Server-sent events: parse bytes into events, and resume a stream that breaks. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hermes_worker.client.events import RunEnded
from hermes_worker.client.exchange import build_refusal
from hermes_worker.core.errors import UnavailableError
from hermes_worker.operation import ApiAnswer, ApiRequest

E = TypeVar("E")

LINE_BYTES_MAX = 32 * 1024 * 1024
"""Longest line in bytes: an event is one line, and an answer of a model stands in it."""
_RECONNECT_AFTER_S = 0.5
_CLOSED = ": stream closed"
"""The comment with which the server ends a stream that has nothing more to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent:
    """An event as the server wrote it, with its id, after which a stream can be resumed."""

    id: str
    document: dict[str, Any]


class EventParser:
    """Parses the bytes of a stream into events."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        """Bytes of the line that has not ended."""
        self._bytes = 0
        self._id = ""
        self._data: list[str] = []
        self.is_closed = False
        """Whether the server said that there is nothing more."""

    def feed(self, chunk: bytes) -> Iterator[ToldEvent]:
        """Parse the next bytes. Raises ``ValueError`` for what is no stream of ours."""
        while chunk:
            end, newline, chunk = chunk.partition(b"\n")
            self._parts.append(end)
            self._bytes += len(end)
            if self._bytes > LINE_BYTES_MAX:
                raise ValueError("a line of the stream has no end")
            if newline:
                line, self._parts, self._bytes = b"".join(self._parts), [], 0
                yield from self._feed_line(line.removesuffix(b"\r").decode("utf-8", "replace"))

    def _feed_line(self, line: str) -> Iterator[ToldEvent]:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if line == _CLOSED:
            self.is_closed = True
        elif name == "id":
            self._id = value
        elif name == "data":
            self._data.append(value)
        elif not line and self._data:
            document = json.loads("\n".join(self._data))
            self._data = []
            if not isinstance(document, dict):
                raise ValueError("an event of the stream is no object")
            yield ToldEvent(id=self._id, document=document)


class Resumption(Generic[E]):
    """The stream of one run or tree over any number of connections. A shell sends ``request``, passes what it reads to
    ``take``, reports the end of each connection to ``note_end`` and waits as long as that returns."""

    def __init__(
        self,
        request: Callable[[str], ApiRequest[None]],
        read: Callable[[ToldEvent], E],
        *,
        after: str,
        patience_s: float,
        clock: Callable[[], float],
    ) -> None:
        """``request`` builds the request for the events behind an id, ``read`` turns an event into what the reader
        wants."""
        self._request = request
        self._read = read
        self._patience_s = patience_s
        self._clock = clock
        self._give_up_at = clock() + patience_s
        self._parser = EventParser()
        self.last_id = after
        self.is_over = False

    @property
    def request(self) -> ApiRequest[None]:
        self._parser = EventParser()  # the server sends an event that broke off again
        return self._request(self.last_id)

    def judge_refusal(self, answer: ApiAnswer) -> str:
        """Return why this connection brings no events, where the next one may. Raises ``RefusedError``."""
        error = build_refusal(answer)
        if answer.status >= 500 or answer.status == 429:
            return str(error)
        raise error

    def take(self, chunk: bytes) -> Iterator[E]:
        """Parse the next bytes. Raises ``UnavailableError`` for what is no stream of ours."""
        try:
            for told in self._parser.feed(chunk):
                event = self._read(told)
                self.last_id = told.id or self.last_id
                self._give_up_at = self._clock() + self._patience_s
                self.is_over = self.is_over or isinstance(event, RunEnded)
                yield event
        except (ValueError, RecursionError) as error:
            raise UnavailableError(f"the stream cannot be read: {error}") from None
        self.is_over = self.is_over or self._parser.is_closed

    def note_end(self, reason: str) -> float:
        """Note the end of a connection. Returns the seconds to wait before the next one. Raises ``UnavailableError``
        when the patience is over."""
        if self._clock() >= self._give_up_at:
            raise UnavailableError(f"{self._request(self.last_id).path} cannot be followed: {reason}")
        return _RECONNECT_AFTER_S
