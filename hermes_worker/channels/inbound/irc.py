"""Inbound messages of IRC: one connection that is in the configured channels and gets what people say there and to it.

A network keeps nothing: what is said while nothing is connected is lost, so there is no cursor. People are known by the
account that the network says they logged in to (``account-tag``). Where a network tells none, people are unknown,
unless the operator says that a nick is a person there.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import flatten_text
from hermes_worker.channels.inbound.receiving import Addressing, FrameOutcome, SilentBeats, SocketAddress, SocketTalk
from hermes_worker.channels.irc_lines import Credentials, IrcLine, IrcRegistration, is_channel, is_nick, parse_line
from hermes_worker.core.inbound import ChatKind, InboundChat, InboundMessage, InboundSender

BEAT_S = 60.0
_SILENT_BEATS_MAX = 2
_WANTED = ("account-tag", "message-tags")
_CTCP = "\x01"


class Socket(SocketTalk):
    """One connection."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._registration = IrcRegistration(credentials, _WANTED)
        self._inside: set[str] = set()
        self._heard = 0
        self._silence = SilentBeats("the IRC server", _SILENT_BEATS_MAX)
        self._beats = False

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        return SocketAddress(url=self._credentials.url, greeting=self._registration.opening)

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        self._silence.reset()
        line = parse_line(frame)
        if line.command == "PRIVMSG":
            return self._read_message(line, at)
        was_done = self._registration.is_done
        replies = (f"PONG :{line.get_word(0)}",) if line.command == "PING" else self._registration.on_line(line)
        error = self._registration.error or self._read_end(line)
        if error is not None:
            return FrameOutcome(is_over=True, error=error)
        if self._registration.is_done and not was_done:
            return self._on_welcome(replies)
        self._note_membership(line)
        return FrameOutcome(replies=(*replies, *self._build_bot_mode(line)))

    def on_beat(self, at: datetime) -> FrameOutcome:
        """Ping the server, and try again what is missing: channels, and our own nick."""
        if (end := self._silence.count_beat()) is not None:
            return end
        wanted = self._credentials.nick
        nick = (f"NICK {wanted}",) if self._registration.nick.lower() != wanted.lower() else ()
        return FrameOutcome(replies=("PING :hermes-worker", *nick, *self._build_joins()))

    def _on_welcome(self, replies: tuple[str, ...]) -> FrameOutcome:
        if not self._credentials.trusts_nicks and "account-tag" not in self._registration.has:
            message = "the network does not say who people are; see IRC_NICKS_ARE_PEOPLE in docs/gateway.md"
            return FrameOutcome(is_over=True, error=DeliveryError(kind=SendErrorKind.REFUSED, message=message))
        return FrameOutcome(replies=(*replies, *self._build_joins()), beat_s=BEAT_S)

    def _build_joins(self) -> tuple[str, ...]:
        return tuple(f"JOIN {name}" for name in self._credentials.channel_names if name not in self._inside)

    def _note_membership(self, line: IrcLine) -> None:
        """Note which channels we are in, and our nick."""
        is_ours, place = self._is_me(line.nick), line.get_word(0).lower()
        if line.command == "JOIN" and is_ours:
            self._inside.add(place)
        elif (line.command == "PART" and is_ours) or (line.command == "KICK" and self._is_me(line.get_word(1))):
            self._inside.discard(place)
        elif line.command == "NICK" and is_ours:
            self._registration.nick = line.get_word(0)

    def _build_bot_mode(self, line: IrcLine) -> tuple[str, ...]:
        """Say that we are a program, where the network has a mode for that (ircv3.net, "Bot mode")."""
        if line.command != "005":
            return ()
        modes = [word[4:] for word in line.words if re.fullmatch(r"BOT=[A-Za-z]", word)]
        return (f"MODE {self._registration.nick} +{modes[0]}",) if modes else ()

    def _read_end(self, line: IrcLine) -> DeliveryError | None:
        if line.command != "ERROR":
            return None
        return DeliveryError(kind=SendErrorKind.TRANSIENT, message=flatten_text(f"the IRC server: {line.get_word(0)}"))

    def _read_message(self, line: IrcLine, at: datetime) -> FrameOutcome:
        """Read a message to a channel that we are in, or to us. Requests between clients (CTCP) are ignored."""
        place, text = line.get_word(0).lower(), line.get_word(1)
        is_direct = self._is_me(place)
        is_somewhere = is_direct or is_channel(place)
        if not is_somewhere or not is_nick(line.nick) or not text.strip() or text.startswith(_CTCP):
            return FrameOutcome()
        self._heard += 1
        account = line.tags.get("account", "").lower()
        person = account or (line.nick.lower() if self._credentials.trusts_nicks else "")
        own = re.compile(rf"^\s*@?{re.escape(self._registration.nick)}[:,]\s*", re.IGNORECASE)
        plain = own.sub("", text)
        message = InboundMessage(
            event_key=line.tags.get("msgid", "")[:200] or self._make_key(line, at),
            # Another person may have the nick tomorrow: their conversation is another one.
            chat=InboundChat(
                id=line.nick.lower() if is_direct else place,
                kind=ChatKind.DIRECT if is_direct else ChatKind.GROUP,
                scope=person if is_direct else "",
                name="" if is_direct else place,
            ),
            sender=InboundSender(id=person, name=line.nick, is_bot="bot" in line.tags or self._is_ours(line.nick)),
            text=plain,
            is_addressed=plain != text or self._is_named(text),
        )
        return FrameOutcome(inbound=(message,))

    def _make_key(self, line: IrcLine, at: datetime) -> str:
        """Make the key of a message. Nothing comes twice, so the time tells messages apart; messages of one moment
        differ by a number."""
        said = "\n".join((at.isoformat(), str(self._heard), line.nick, *line.words))
        return f"sha256:{hashlib.sha256(said.encode('utf-8', 'replace')).hexdigest()}"

    def _is_named(self, text: str) -> bool:
        nick = re.escape(self._registration.nick)
        return re.search(rf"(?<![\w\[\]\\`^{{|}}-]){nick}(?![\w\[\]\\`^{{|}}-])", text, re.IGNORECASE) is not None

    def _is_me(self, nick: str) -> bool:
        return nick.lower() == self._registration.nick.lower()

    def _is_ours(self, nick: str) -> bool:
        """Whether a nick is ours: answers are sent over connections of their own, whose nick has ``_`` at its end while
        ours is taken."""
        return nick.lower().rstrip("_") == self._credentials.nick.lower().rstrip("_")
