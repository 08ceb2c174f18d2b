"""IRC for both the listener and the sender: lines, and how a connection is registered. Pure.

RFC 1459 and 2812, and of IRCv3 capabilities, message tags, ``account-tag`` and SASL (ircv3.net, 2026-11). A nick may
belong to another person tomorrow: only an account of the network tells who a person is.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.exchange import Unsendable, flatten_text
from hermes_worker.settings.server import is_loopback

LINE_BYTES_MAX = 400
"""Most bytes of text in one line: a line has 512 bytes, and servers put sender and recipient before it when they pass
it on."""
NICK_TRIES_MAX = 6
_WORDS_MAX = 20
_NICK = re.compile(r"[A-Za-z\[\]\\`_^{|}][A-Za-z0-9\[\]\\`_^{|}-]{0,29}")
_CHANNEL = re.compile(r"[#&+!][^\x00-\x20,:\x7f]{1,62}")
_ESCAPED = {":": ";", "s": " ", "r": "\r", "n": "\n"}
_WELCOME, _NICK_IN_USE = "001", ("433", "436", "437")
_REFUSALS: Mapping[str, SendErrorKind] = {
    "432": SendErrorKind.REFUSED,  # no nick
    "464": SendErrorKind.AUTH,  # the server's password
    "465": SendErrorKind.FORBIDDEN,  # banned
    "902": SendErrorKind.AUTH,
    "904": SendErrorKind.AUTH,
    "905": SendErrorKind.AUTH,
    "906": SendErrorKind.AUTH,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """An account of a network."""

    server: str
    nick: str
    port: str = ""
    """The port; by default 6697, and 6667 without TLS."""
    uses_tls: str = ""
    """``false`` for a connection in the clear; a password then goes to this machine only."""
    password: str = field(default="", repr=False)
    """The password of the server."""
    account: str = ""
    """The account for SASL, where it is not the nick."""
    account_password: str = field(default="", repr=False)
    channels: str = ""
    """The channels to be in, with commas between them."""
    nicks_are_people: str = ""
    """``true`` for a network that tells no accounts and where no person can take another's nick."""

    @property
    def url(self) -> str:
        """Build the server's address. Raises ``Unsendable``."""
        is_plain = self.uses_tls.strip().lower() in ("false", "no", "off", "0")
        host = self.server.strip("[]")
        if not re.fullmatch(r"[A-Za-z0-9.:-]{1,253}", host) or not re.fullmatch(r"[0-9]{0,5}", self.port):
            raise Unsendable("IRC_SERVER is the name of a server, and IRC_PORT a number")
        if is_plain and (self.password or self.account_password) and not is_loopback(host):
            raise Unsendable("a password goes to an IRC server over TLS only; take IRC_USE_TLS=false away")
        if not _NICK.fullmatch(self.nick):
            raise Unsendable("IRC_NICKNAME begins with a letter and has up to 30 letters, digits, '_' and '-'")
        port = self.port or ("6667" if is_plain else "6697")
        return f"{'irc' if is_plain else 'ircs'}://{f'[{host}]' if ':' in host else host}:{port}"

    @property
    def channel_names(self) -> tuple[str, ...]:
        """The configured channels, in lower case."""
        named = (one.strip().lower() for one in self.channels.split(","))
        return tuple(dict.fromkeys(one for one in named if _CHANNEL.fullmatch(one)))

    @property
    def trusts_nicks(self) -> bool:
        return self.nicks_are_people.strip().lower() in ("true", "yes", "on", "1")


@dataclass(frozen=True, slots=True)
class IrcLine:
    """A line from a server."""

    command: str
    """In upper case; a number for answers."""
    words: tuple[str, ...] = ()
    """The last word may have spaces."""
    nick: str = ""
    """The sender's nick; the server's name for a line of the server itself."""
    tags: Mapping[str, str] = field(default_factory=dict)

    def get_word(self, place: int) -> str:
        return self.words[place] if place < len(self.words) else ""


def parse_line(text: str) -> IrcLine:
    """Parse a line. Total: a malformed one has no command."""
    rest, tags, source = text.lstrip(" "), {}, ""
    if rest.startswith("@"):
        written, _, rest = rest[1:].partition(" ")
        tags = dict(_tag(one) for one in written.split(";")[:_WORDS_MAX])
        rest = rest.lstrip(" ")
    if rest.startswith(":"):
        source, _, rest = rest[1:].partition(" ")
    head, colon, last = rest.partition(" :")
    words = head.split()[: _WORDS_MAX - 1] + ([last] if colon else [])
    if not words:
        return IrcLine(command="")
    return IrcLine(command=words[0].upper(), words=tuple(words[1:]), nick=source.partition("!")[0], tags=tags)


def _tag(written: str) -> tuple[str, str]:
    name, _, value = written.partition("=")
    return name, re.sub(r"\\(.?)", lambda found: _ESCAPED.get(found[1], found[1]), value)


def is_channel(name: str) -> bool:
    return _CHANNEL.fullmatch(name) is not None


def is_nick(name: str) -> bool:
    return _NICK.fullmatch(name) is not None


def build_lines(recipient: str, text: str) -> Iterator[str]:
    """Build the lines that say ``text``: one for each of its lines that is not empty, cut where it is too long. What
    would be a command to a client (CTCP), or end the line, is removed."""
    for written in re.split(r"[\r\n\x00]+", text):
        rest = written.replace("\x01", "").strip().encode("utf-8", "replace")
        while rest:
            piece = _cut(rest)
            rest = rest[len(piece) :].lstrip()
            yield f"PRIVMSG {recipient} :{piece.decode()}"


def _cut(content: bytes) -> bytes:
    """Cut after up to ``LINE_BYTES_MAX`` bytes, between words where there is a space, and never inside a character."""
    if len(content) <= LINE_BYTES_MAX:
        return content
    piece = content[:LINE_BYTES_MAX].decode("utf-8", "ignore")
    before, space, _ = piece.rpartition(" ")
    return (before if space and before.strip() else piece).encode()


class IrcRegistration:
    """The registration of a connection with a network. Not thread-safe."""

    def __init__(self, credentials: Credentials, wanted: tuple[str, ...] = ()) -> None:
        """``wanted`` are capabilities to ask for beside SASL; the server may have none of them."""
        self._credentials = credentials
        self._asked = {*wanted, *(("sasl",) if credentials.account_password else ())}
        self.has: set[str] = set()
        """The capabilities that the server granted."""
        self.nick = credentials.nick
        self._tries = 0
        self.is_done = False
        self.error: DeliveryError | None = None

    @property
    def opening(self) -> tuple[str, ...]:
        """Build the first lines to send."""
        password, nick = self._credentials.password, self._credentials.nick
        return (
            *(f"CAP REQ :{name}" for name in sorted(self._asked)),
            *((f"PASS {password}",) if password else ()),
            f"NICK {nick}",
            f"USER {nick} 0 * :{nick}",
        )

    def on_line(self, line: IrcLine) -> tuple[str, ...]:
        """Read a line and return the lines to reply; afterwards ``is_done`` or ``error`` may be set."""
        if line.command in _REFUSALS and not self.is_done:
            self.error = DeliveryError(
                kind=_REFUSALS[line.command], message=_format_refusal("the IRC server refused us", line)
            )
        elif line.command == _WELCOME:
            self.nick, self.is_done = line.get_word(0) or self.nick, True
        elif line.command in _NICK_IN_USE and not self.is_done:
            return self._try_another_nick(line)
        elif line.command == "CAP":
            return self._on_capabilities(line)
        elif line.command == "AUTHENTICATE":
            return (f"AUTHENTICATE {self._encode_plain()}",)
        elif line.command == "903" and not self.is_done:
            self._asked.discard("sasl")
            return self._end_capabilities()
        return ()

    def _try_another_nick(self, line: IrcLine) -> tuple[str, ...]:
        self._tries += 1
        if self._tries >= NICK_TRIES_MAX:
            self.error = DeliveryError(kind=SendErrorKind.TRANSIENT, message=_format_refusal("no nick is free", line))
            return ()
        self.nick = self._credentials.nick + "_" * self._tries
        return (f"NICK {self.nick}",)

    def _on_capabilities(self, line: IrcLine) -> tuple[str, ...]:
        answer, names = line.get_word(1).upper(), line.get_word(2).split()
        if answer not in ("ACK", "NAK"):
            return ()
        if answer == "NAK" and "sasl" in names:
            self.error = DeliveryError(kind=SendErrorKind.AUTH, message="the IRC server has no SASL to log in with")
            return ()
        self.has |= set(names) if answer == "ACK" else set()
        self._asked -= {name for name in names if name != "sasl"}
        asks = ("AUTHENTICATE PLAIN",) if "sasl" in names else ()
        return (*asks, *self._end_capabilities())

    def _end_capabilities(self) -> tuple[str, ...]:
        return () if self._asked or self.is_done else ("CAP END",)

    def _encode_plain(self) -> str:
        who = self._credentials.account or self._credentials.nick
        said = f"{who}\0{who}\0{self._credentials.account_password}".encode()
        return base64.b64encode(said).decode()


def _format_refusal(what: str, line: IrcLine) -> str:
    return flatten_text(f"{what}: {line.command} {line.words[-1] if line.words else ''}")
