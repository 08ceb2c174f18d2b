"""Server-sent events as they come (html.spec.whatwg.org, "Server-sent events"), pure: bytes in, whole events out."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass, field
from typing import Final

_LINE_END: Final = re.compile("\r\n|\n|\r")
_RETRY_DIGITS_MAX: Final = 9


class EventTooLong(Exception):
    """An event, or a line of one, has more characters than it may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerEvent:
    """One event that has data."""

    data: str = field(repr=False)
    name: str = "message"
    event_id: str | None = None
    """The event's own id; ``None`` for an event without one, whatever came before it."""


class EventReader:
    """Reads one stream, or the same stream again after it was taken up."""

    def __init__(self, *, chars_max: int) -> None:
        """``chars_max`` is for all data of one event, and for a line."""
        self.last_event_id: str | None = None
        """The id of the last event that had one, with data or without: from there the stream can be taken up again."""
        self.retry_s: float | None = None
        """How many seconds the server wants to pass before that."""
        self._chars_max = chars_max
        self._id: str | None = None
        self._data: list[str] = []
        self._data_chars = 0
        self._name = ""
        self.begin_connection()

    def begin_connection(self) -> None:
        """Prepare for another connection that brings the rest of the stream: an unfinished event comes again."""
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._line: list[str] = []
        self._line_chars = 0
        self._is_after_return = False
        self._forget_event()

    def feed(self, piece: bytes) -> list[ServerEvent]:
        """The events that ``piece`` completes. Raises ``EventTooLong``."""
        text = self._decoder.decode(piece)
        if not text:
            return []
        if self._is_after_return and text.startswith("\n"):
            text = text[1:]
            self._is_after_return = False
            if not text:
                return []
        self._is_after_return = text.endswith("\r")
        *lines, rest = _LINE_END.split(text) if "\r" in text else text.split("\n")
        if lines:
            lines[0] = "".join((*self._line, lines[0]))
            self._line, self._line_chars = [], 0
        # Comments are left out here, for a server may send millions of them.
        found = [event for line in lines if line[:1] != ":" and (event := self._feed_line(line)) is not None]
        self._keep_piece(rest)
        return found

    def _keep_piece(self, text: str) -> None:
        """Keep a piece of a line. Pieces are joined when the line is whole, or one that comes byte by byte would be
        copied as often.
        """
        self._line.append(text)
        self._line_chars += len(text)
        if self._line_chars > self._chars_max:
            raise EventTooLong

    def _feed_line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._end_event()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
                self._data_chars += len(value)
                if self._data_chars > self._chars_max:
                    raise EventTooLong
            case "event":
                self._name = value
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit() and len(value) <= _RETRY_DIGITS_MAX:
                self.retry_s = int(value) / 1_000
        return None

    def _end_event(self) -> ServerEvent | None:
        data, name, own_id = "\n".join(self._data), self._name or "message", self._id
        self._forget_event()
        if own_id is not None:
            self.last_event_id = own_id or None
        return ServerEvent(data=data, name=name, event_id=own_id or None) if data else None

    def _forget_event(self) -> None:
        self._id, self._name = None, ""
        self._data, self._data_chars = [], 0
