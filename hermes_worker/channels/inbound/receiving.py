"""What a platform that is listened to gives and takes, as values: the counterpart of ``channels.exchange``.

An account is listened to in one of three modes. In ``webhook`` the platform sends requests to any replica of the API.
In ``poll`` the gateway asks again and again, with a *cursor*, the platform's own word for how far we have read. In
``socket`` the gateway holds a connection. Nothing here opens a connection: a module of this package reads bytes and
makes requests as values, and its driver commits what came in together with the cursor before it goes on.

The names that a platform's module may have, as its ``Receiving`` refers to them (``declaration``):

* ``Credentials``: a frozen dataclass. A field that only one mode needs has a default.
* ``receive(request, credentials, at) -> tuple[Inbound, ...]``: verifies that a request is the platform's and reads it.
  Raises ``Forged`` before it parses anything, ``UnreadableInbound`` for what is signed and makes no sense. An event
  that says nothing to us is an empty tuple.
* ``answer(request, credentials, at) -> WebhookAnswer | None``: what the platform expects, where that is more than an
  empty 200: a handshake's echo, an interaction's first reply. Called after ``receive`` (whose checks it may rely on)
  and after the commit. It needs no check of its own.
* ``poll(cursor, credentials, at, hold_s) -> Polling``: an exchange that asks once, from a cursor on; ``""`` is the
  first. The platform may hold the answer back for ``hold_s`` seconds while there is nothing.
* ``fetch(cursor, credentials, at, hold_s) -> Polled | DeliveryError``: polls a platform that is not HTTP (IMAP); it
  opens its own connection, closes it, and keeps its own time.
* ``Socket(credentials)``: one connection's conversation, a ``SocketTalk``.
* ``download(media, credentials) -> Downloading``: an exchange that ends with the source of a file
  (``file_addresses``). A delivery worker drives it, with the credentials that the platform's ``Sending`` names.
* ``read_file(media, credentials, sink) -> None | DeliveryError``: downloads from a platform that is not HTTP (IMAP),
  with the credentials of this module: writes the file to ``sink``, which says when that is enough.
* ``acknowledge(press, credentials) -> Acknowledging``: an exchange that tells the platform that a press of a button was
  taken, where a gateway has to do that by itself. Best effort, after the commit.
* ``identify(credentials) -> Identifying``: an exchange that asks the platform whose credentials these are, and takes no
  event away from the process that listens.
* ``signing_keys(credentials) -> KeysExchange``: public keys of the platform that ``receive`` needs (JWKS), by id. They
  are kept for an hour and handed to ``receive`` in ``request.keys``.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Protocol
from urllib.parse import parse_qs, urlsplit

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.core.errors import HermesError
from hermes_worker.core.inbound import Inbound
from hermes_worker.net.http import HttpRequest, HttpResponse

WEBHOOK_BYTES_MAX = 1_048_576
"""Longest body of a request to a webhook, in bytes. A longer one is refused before ``receive`` sees it."""


class Forged(HermesError):
    """A request is not the platform's, or proves nothing. Nothing of it was parsed; the message is for the log only."""


class UnreadableInbound(HermesError):
    """The platform signed something that cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookRequest:
    """A request to the webhook of an account."""

    method: str
    url: str
    """The address as the platform called it, with its query: the public one, not ours behind a proxy."""
    headers: tuple[tuple[str, str], ...] = field(repr=False)
    """Names in lower case, in order; a name may stand twice."""
    body: bytes = field(repr=False, default=b"")
    keys: Mapping[str, Mapping[str, object]] = field(repr=False, default_factory=lambda: MappingProxyType({}))
    """The keys that ``signing_keys`` gave: by key id, each as a JWK."""

    def require_header(self, name: str) -> str:
        """Read the single value of a header that proves something. Raises ``Forged`` when it is missing or stands
        twice."""
        found = [value for known, value in self.headers if known == name]
        if len(found) != 1:
            raise Forged(f"the header {name!r} is there {len(found)} times")
        return found[0].strip()

    def find_header(self, name: str) -> str:
        """Read the value of a header that proves nothing; the first of several, and empty for none."""
        return next((value.strip() for known, value in self.headers if known == name), "")


def read_parameter(request: WebhookRequest, name: str) -> str:
    """Read the single value of a parameter of the query. Raises ``Forged``."""
    try:
        values = parse_qs(urlsplit(request.url).query, keep_blank_values=True, max_num_fields=20).get(name, [])
    except ValueError:
        raise Forged("the query cannot be read") from None
    if len(values) != 1:
        raise Forged(f"the parameter {name!r} is there {len(values)} times")
    return values[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookAnswer:
    """The answer to a platform's request."""

    body: bytes = b""
    media_type: str = "application/json"
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What one poll brought. Committed together with ``cursor``, in this order."""

    inbound: tuple[Inbound, ...]
    cursor: str
    """Where to ask next; the cursor that was asked from when there was nothing."""
    has_more: bool = False
    """Whether there was more than one poll takes: the next one comes at once."""


Polling = Generator[HttpRequest, HttpResponse, Polled | DeliveryError]


Acknowledging = Generator[HttpRequest, HttpResponse, None]
Identifying = Generator[HttpRequest, HttpResponse, str | DeliveryError]
"""Ends with the name that the platform has for the account."""
KeysExchange = Generator[HttpRequest, HttpResponse, Mapping[str, Mapping[str, object]] | DeliveryError]


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketAddress:
    """Where to connect. ``wss:``/``ws:`` is a websocket, ``ircs:``/``irc:`` lines over TLS or TCP, ``https:``/``http:``
    a response that is a stream of server-sent events or of JSON lines: a frame is one event's data, or one line."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False, default_factory=dict)
    greeting: tuple[str, ...] = field(repr=False, default=())
    """Frames to send first."""


def build_websocket_address(url: str, platform: str) -> SocketAddress | DeliveryError:
    """Build the address that a platform named for a websocket; an error where it is none."""
    if url.startswith(("wss://", "ws://")):
        return SocketAddress(url=url)
    return DeliveryError(kind=SendErrorKind.TRANSIENT, message=f"{platform} named no address of a websocket")


Addressing = Generator[HttpRequest, HttpResponse, SocketAddress | DeliveryError]
Following = Generator[HttpRequest, HttpResponse, "FrameOutcome | DeliveryError"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameOutcome:
    """What follows from a frame."""

    inbound: tuple[Inbound, ...] = ()
    cursor: str | None = None
    """Committed with ``inbound``; ``None`` leaves the cursor as it is."""
    replies: tuple[str, ...] = field(repr=False, default=())
    """Frames to send at once (a pong, an identification)."""
    acknowledgements: tuple[str, ...] = field(repr=False, default=())
    """Frames to send after the commit."""
    beat_s: float | None = None
    """Seconds after which ``on_beat`` is called from now on, again and again; ``None`` leaves that as it is."""
    then: Following | None = None
    """An exchange to make after the commit and before the next frame: for what was written while nothing was connected.
    Its end is treated like another frame, and its failure ends the connection."""
    is_over: bool = False
    """Close, and connect again."""
    error: DeliveryError | None = None
    """Why it is over, where the platform said so. After an ``auth`` error the next try is not quick."""


class SilentBeats:
    """Counts our beats since the other side of a connection last sent something. Not thread-safe."""

    def __init__(self, who: str, beats_max: int) -> None:
        self._who = who
        self._beats_max = beats_max
        self._beats = 0

    def reset(self) -> None:
        """Start counting anew: something came."""
        self._beats = 0

    def count_beat(self) -> FrameOutcome | None:
        """Count a beat. Returns the end of a connection that was silent for more than ``beats_max`` beats; ``None``
        while it is good."""
        self._beats += 1
        if self._beats <= self._beats_max:
            return None
        said = f"{self._who} says nothing any more"
        return FrameOutcome(is_over=True, error=DeliveryError(kind=SendErrorKind.TRANSIENT, message=said))


class SocketTalk(Protocol):
    """One connection's conversation, made anew for each connection. Not thread-safe; it opens nothing. The methods of
    this base do nothing; a platform overrides those that it needs."""

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        """Begin an exchange that ends with where to connect; one without requests simply returns."""

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        """Read a frame. Total: one that makes no sense is an empty ``FrameOutcome``."""

    def on_beat(self, at: datetime) -> FrameOutcome:
        """Do what is due after ``beat_s`` seconds."""
        return FrameOutcome()

    def on_close(self, code: int) -> FrameOutcome:
        """Judge the platform's close of the websocket with ``code``: a failure, or another cursor. Empty where it just
        ended."""
        return FrameOutcome()
