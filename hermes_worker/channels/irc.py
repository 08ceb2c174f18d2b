"""Send a part over IRC: one connection for each part, which ends when the server has taken all of it.

A server answers in order, so whatever it says before its PONG concerns the lines before our PING. Only a few lines go
out before each PING: a server throttles a client that says many at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Outcome, Part, Receipt, Unsendable, flatten_text
from hermes_worker.channels.irc_lines import Credentials, IrcLine, IrcRegistration, build_lines, is_channel, parse_line
from hermes_worker.channels.targets import Target
from hermes_worker.net.frames import FrameConnection, open_frames
from hermes_worker.net.http import NoAnswer
from hermes_worker.net.urls import UnsafeUrl, UrlPolicy

TOTAL_S = 60.0
LINES_AT_ONCE = 4
_OURS = UrlPolicy(allows_private=True)
"""The operator configures the address."""
_ERRORS: Mapping[str, SendErrorKind] = {
    "401": SendErrorKind.NOT_FOUND,  # no such nick
    "403": SendErrorKind.NOT_FOUND,
    "404": SendErrorKind.FORBIDDEN,  # cannot send to the channel
    "405": SendErrorKind.FORBIDDEN,
    "407": SendErrorKind.BAD_FORMAT,
    "411": SendErrorKind.BAD_FORMAT,
    "412": SendErrorKind.BAD_FORMAT,
    "417": SendErrorKind.TOO_LONG,
    "471": SendErrorKind.FORBIDDEN,  # the channel is full
    "473": SendErrorKind.FORBIDDEN,
    "474": SendErrorKind.FORBIDDEN,
    "475": SendErrorKind.FORBIDDEN,
    "477": SendErrorKind.FORBIDDEN,
}


def send(part: Part, target: Target, credentials: Credentials) -> Outcome:
    """Say a part to a channel, which is joined for that, or to a nick. A part that may have been said before says so in
    words: IRC has no keys. Raises ``Unsendable`` for settings that cannot be used."""
    lines = tuple(build_lines(target.chat, part.text))
    if not lines:
        raise Unsendable("there is nothing to say")
    talk: _IrcConnection | None = None
    try:
        connection = open_frames(credentials.url, {}, _OURS)
        try:
            talk = _IrcConnection(connection, credentials)
            return talk.register() or talk.join(target.chat) or talk.say(lines)
        finally:
            with suppress(NoAnswer, OSError):
                connection.send("QUIT")
                connection.close()
    except UnsafeUrl as error:
        raise Unsendable(str(error)) from None
    except NoAnswer as error:
        was_said = talk is not None and talk.has_begun
        kind = SendErrorKind.AMBIGUOUS if was_said else SendErrorKind.TRANSIENT
        return DeliveryError(kind=kind, message=flatten_text(error.reason))


class _IrcConnection:
    """One connection. Each step raises ``NoAnswer`` where the server leaves the outcome open."""

    def __init__(self, connection: FrameConnection, credentials: Credentials) -> None:
        self._connection = connection
        self._registration = IrcRegistration(credentials)
        self._ends_at = time.monotonic() + TOTAL_S
        self.has_begun = False
        """Whether something was said."""

    def register(self) -> DeliveryError | None:
        for line in self._registration.opening:
            self._connection.send(line)
        while not self._registration.is_done:
            for reply in self._registration.on_line(self._read_line()):
                self._connection.send(reply)
            if self._registration.error is not None:
                return self._registration.error
        return None

    def join(self, chat: str) -> DeliveryError | None:
        """Join a channel: channels usually refuse messages from outside."""
        if not is_channel(chat):
            return None
        self._connection.send(f"JOIN {chat}")
        return self._wait_for_line(lambda line: line.command == "366" and line.get_word(1).lower() == chat.lower())

    def say(self, lines: tuple[str, ...]) -> Outcome:
        for start in range(0, len(lines), LINES_AT_ONCE):
            self.has_begun = True
            for line in lines[start : start + LINES_AT_ONCE]:
                self._connection.send(line)
            token = f"said-{start}"
            self._connection.send(f"PING :{token}")
            error = self._wait_for_line(
                lambda line, token=token: line.command == "PONG" and line.words[-1:] == (token,)  # type: ignore[misc]
            )
            if error is not None:
                return error
        return Receipt()

    def _wait_for_line(self, is_it: Callable[[IrcLine], bool]) -> DeliveryError | None:
        while not is_it(line := self._read_line()):
            if line.command in _ERRORS:
                said = line.words[-1] if line.words else ""
                return DeliveryError(kind=_ERRORS[line.command], message=flatten_text(f"{line.command} {said}"))
        return None

    def _read_line(self) -> IrcLine:
        """Read the next line that is not about the connection itself."""
        while True:
            left_s = self._ends_at - time.monotonic()
            if left_s <= 0:
                raise NoAnswer("the IRC server took too long", was_sent=self.has_begun)
            frame = self._connection.receive(min(left_s, 5.0))
            if frame is None:
                continue
            line = parse_line(frame)
            if line.command == "PING":
                self._connection.send(f"PONG :{line.get_word(0)}")
            elif line.command == "ERROR":
                raise NoAnswer(flatten_text(f"the IRC server: {line.get_word(0)}"), was_sent=self.has_begun)
            else:
                return line
