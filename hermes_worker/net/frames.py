"""Connections that stay open and bring frames: websockets, lines over TCP, and HTTP responses that do not end.

A connection goes to the addresses that were judged, like a request (``wire``), and follows no redirect. It belongs to
one thread. A frame is text; what is longer than ``FRAME_BYTES_MAX`` ends the connection.
"""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import h11

from hermes_worker.core.errors import ConfigurationError
from hermes_worker.net.events import EventReader, EventTooLong
from hermes_worker.net.http import HttpResponse, NoAnswer
from hermes_worker.net.urls import HttpUrl, UrlPolicy, parse_http_url
from hermes_worker.net.wire import CONNECT_S, open_connection

if TYPE_CHECKING:
    from websockets.sync.connection import Connection

FRAME_BYTES_MAX = 4_000_000
_READ_BYTES = 65_536
_SCHEMES = {"ws": "http", "wss": "https", "irc": "http", "ircs": "https", "http": "http", "https": "https"}
_PORTS = {"irc": 6667, "ircs": 6697}
_GOING = 4000
"""Why we close a websocket: with a code for applications, since Discord forgets a session that is closed with 1000."""


_KEPT_ALIVE = {
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
    **{
        (socket.IPPROTO_TCP, getattr(socket, name)): value
        for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
        if hasattr(socket, name)
    },
}
"""A side that is gone without a word is noticed within two minutes."""


class FramesEnded(NoAnswer):
    """A connection that was refused, or is over."""

    def __init__(
        self, reason: str, *, was_sent: bool = True, code: int | None = None, response: HttpResponse | None = None
    ) -> None:
        super().__init__(reason, was_sent=was_sent)
        self.code = code
        """The code with which the other side closed a websocket (RFC 6455 §7.4)."""
        self.response = response
        """The server's answer instead of opening it, without its body."""


class FrameConnection(Protocol):
    """One open connection."""

    def receive(self, timeout_s: float) -> str | None:
        """The next frame; ``None`` when none came within ``timeout_s``. Raises ``FramesEnded``."""

    def send(self, frame: str) -> None:
        """Send a frame. Raises ``FramesEnded``."""

    def close(self) -> None:
        """Close the connection. Idempotent."""


def open_frames(url: str, headers: Mapping[str, str], policy: UrlPolicy) -> FrameConnection:
    """Connect to a ``ws:``, ``wss:``, ``irc:``, ``ircs:``, ``http:`` or ``https:`` address. Raises ``NoAnswer``,
    ``UnsafeUrl``, and ``ConfigurationError`` where ``websockets`` is needed and not installed."""
    scheme, _, rest = url.partition("://")
    if scheme not in _SCHEMES:
        raise ConfigurationError(f"An account cannot be listened to over {scheme[:20]!r}.")
    if scheme in _PORTS and urlsplit(url).port is None:
        host, slash, path = rest.partition("/")
        rest = f"{host}:{_PORTS[scheme]}{slash}{path}"
    target = parse_http_url(f"{_SCHEMES[scheme]}://{rest}")
    if scheme in ("ws", "wss"):
        return _Websocket(url, target, headers, policy)
    sock = open_connection(target, policy)
    for name, value in _KEPT_ALIVE.items():
        sock.setsockopt(*name, value)
    return (
        _LineConnection(sock, target.host) if scheme in _PORTS else _StreamConnection(sock, url, target.host, headers)
    )


def _frames_ended(host: str, why: str, *, code: int | None = None, response: HttpResponse | None = None) -> FramesEnded:
    return FramesEnded(f"the connection to {host} ended: {why}", code=code, response=response)


def _build_response_without_body(status: int, headers: Iterable[tuple[str, str]]) -> HttpResponse:
    return HttpResponse(status=status, headers={name.lower(): value for name, value in headers})


class _Websocket:
    """RFC 6455, by ``websockets``, which answers pings and notices a silent end by its own."""

    def __init__(self, url: str, target: HttpUrl, headers: Mapping[str, str], policy: UrlPolicy) -> None:
        try:
            from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
            from websockets.sync.client import connect
        except ImportError:
            raise ConfigurationError("Listening over a websocket needs: pip install 'hermes-worker[gateway]'") from None
        self._errors = (WebSocketException, OSError, EOFError)
        self._closed = ConnectionClosed
        self._host = target.host
        is_tls = target.scheme == "https"
        sock = open_connection(target, policy, is_tls=False)
        try:
            opening = connect(
                url,
                sock=sock,
                ssl=ssl.create_default_context() if is_tls else None,
                server_hostname=target.host if is_tls else None,
                additional_headers=dict(headers),
                open_timeout=CONNECT_S,
                close_timeout=1.0,
                max_size=FRAME_BYTES_MAX,
                proxy=None,
            )
            self._socket: Connection = ExitStack().enter_context(opening)
        except InvalidStatus as error:
            sock.close()
            answer = _build_response_without_body(error.response.status_code, error.response.headers.raw_items())
            reason = f"no websocket at {target.host}: HTTP {answer.status}"
            raise FramesEnded(reason, was_sent=False, response=answer) from None
        except (*self._errors, TimeoutError) as error:
            sock.close()
            raise FramesEnded(f"no websocket at {target.host}: {type(error).__name__}", was_sent=False) from None

    def receive(self, timeout_s: float) -> str | None:
        try:
            # As bytes: a text that is no UTF-8 would end the connection.
            frame = self._socket.recv(timeout=max(0.0, timeout_s), decode=False)
        except TimeoutError:
            return None
        except self._errors as error:
            raise self._translate_error(error) from None
        return bytes(frame).decode("utf-8", "replace")

    def send(self, frame: str) -> None:
        try:
            self._socket.send(frame)
        except self._errors as error:
            raise self._translate_error(error) from None

    def close(self) -> None:
        self._socket.close(_GOING)

    def _translate_error(self, error: Exception) -> FramesEnded:
        said = error.rcvd if isinstance(error, self._closed) else None
        if said is None:
            return _frames_ended(self._host, type(error).__name__)
        return _frames_ended(self._host, f"it was closed with {said.code} {said.reason}", code=said.code)


class _SocketReader(ABC):
    """Collects bytes of a socket into frames."""

    def __init__(self, sock: socket.socket, host: str) -> None:
        self._sock = sock
        self._host = host
        self._rest = b""
        self._frames: deque[str] = deque()
        self._is_over = False
        """Nothing comes any more."""

    def receive(self, timeout_s: float) -> str | None:
        if self._frames:
            return self._frames.popleft()
        if self._is_over:
            raise _frames_ended(self._host, "it is complete")
        self._sock.settimeout(max(0.001, timeout_s))
        try:
            found = self._sock.recv(_READ_BYTES)
        except (TimeoutError, ssl.SSLWantReadError):
            return None
        except OSError as error:
            raise _frames_ended(self._host, type(error).__name__) from None
        if not found:
            raise _frames_ended(self._host, "it was closed")
        self._feed(found)
        return self._frames.popleft() if self._frames else None

    def send(self, frame: str) -> None:
        self._write(frame.encode("utf-8", "replace"))

    def _write(self, content: bytes) -> None:
        try:
            self._sock.settimeout(CONNECT_S)
            self._sock.sendall(content)
        except OSError as error:
            raise _frames_ended(self._host, type(error).__name__) from None

    def close(self) -> None:
        self._sock.close()

    @abstractmethod
    def _feed(self, found: bytes) -> None:
        """Take what came, and put what is whole among the frames."""

    def _split_lines(self, found: bytes) -> list[str]:
        """Whole lines, without their ends."""
        *lines, self._rest = (self._rest + found).split(b"\n")
        if len(self._rest) > FRAME_BYTES_MAX:
            raise _frames_ended(self._host, "a line is too long")
        return [line.removesuffix(b"\r").decode("utf-8", "replace") for line in lines]


class _LineConnection(_SocketReader):
    """Text lines over TCP or TLS (IRC). A frame is a line; an end of line in what is sent would begin another one."""

    def send(self, frame: str) -> None:
        super().send(" ".join(frame.splitlines()) + "\r\n")

    def _feed(self, found: bytes) -> None:
        self._frames += [line for line in self._split_lines(found) if line]


class _StreamConnection(_SocketReader):
    """A response that does not end: server-sent events (a frame is an event's data) or lines of JSON."""

    def __init__(self, sock: socket.socket, url: str, host: str, headers: Mapping[str, str]) -> None:
        super().__init__(sock, host)
        self._http = h11.Connection(h11.CLIENT)
        self._events: EventReader | None = None
        parts = urlsplit(url)
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        asked = {"Host": parts.netloc.rpartition("@")[2], "Accept": "text/event-stream, application/x-ndjson"}
        request = h11.Request(method="GET", target=path, headers=list((asked | dict(headers)).items()))
        self._write((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))

    def send(self, frame: str) -> None:
        """Do nothing: a response has no way back."""

    def _feed(self, found: bytes) -> None:
        try:
            self._http.receive_data(found)
            while not self._is_over and (event := self._http.next_event()) is not h11.NEED_DATA:
                self._on_http_event(event)
        except h11.RemoteProtocolError:
            raise _frames_ended(self._host, "it speaks no HTTP") from None

    def _on_http_event(self, event: object) -> None:
        match event:
            case h11.Response(status_code=200, headers=headers):
                kinds = [value for name, value in headers if name == b"content-type"]
                if any(kind.startswith(b"text/event-stream") for kind in kinds):
                    self._events = EventReader(chars_max=FRAME_BYTES_MAX)
            case h11.Response(status_code=status, headers=headers):
                named = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
                raise _frames_ended(self._host, f"HTTP {status}", response=_build_response_without_body(status, named))
            case h11.Data(data=data):
                self._frames += self._find_frames(bytes(data))
            case h11.InformationalResponse():
                return
            case _:
                self._is_over = True

    def _find_frames(self, data: bytes) -> list[str]:
        """The frames in a piece of the body: the ``data`` of each event, or lines that are not empty."""
        if self._events is None:
            return [line for line in self._split_lines(data) if line.strip()]
        try:
            return [event.data for event in self._events.feed(data)]
        except EventTooLong:
            raise _frames_ended(self._host, "an event is too long") from None
