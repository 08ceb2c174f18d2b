"""A platform of the tests that is listened to over a connection: frames are JSON objects."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from queue import Empty, Queue

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from hermes_worker.channels.errors import DeliveryError, SendErrorKind
from hermes_worker.channels.inbound.receiving import Addressing, FrameOutcome, SocketAddress
from hermes_worker.core.inbound import InboundChat, InboundMessage, InboundSender


@dataclass(frozen=True)
class Credentials:
    url: str


class Socket:
    """Says where it read to, hears messages, and takes them."""

    def __init__(self, credentials: Credentials) -> None:
        self._url = credentials.url

    def find_address(self, cursor: str, at: datetime) -> Addressing:
        yield from ()
        return SocketAddress(url=self._url, headers={"X-Token": "t"}, greeting=(json.dumps({"from": cursor}),))

    def on_frame(self, frame: str, at: datetime) -> FrameOutcome:
        said = json.loads(frame)
        number = str(said["number"])
        if "refused" in said:
            error = DeliveryError(kind=SendErrorKind.AUTH, message=said["refused"])
            return FrameOutcome(is_over=True, error=error)
        event = InboundMessage(
            event_key=number, chat=InboundChat(id="42"), sender=InboundSender(id="42"), text=said["text"]
        )
        return FrameOutcome(inbound=(event,), cursor=number, acknowledgements=(f'{{"taken": {number}}}',), beat_s=0.05)

    def on_beat(self, at: datetime) -> FrameOutcome:
        return FrameOutcome(replies=('{"beat": true}',))

    def on_close(self, code: int) -> FrameOutcome:
        return FrameOutcome()


@dataclass
class Platform:
    """The other end. What ``frames`` holds is sent to whoever connects; ``None`` closes the connection."""

    url: str = ""
    frames: Queue[str | None] = field(default_factory=Queue)
    heard: list[str] = field(default_factory=list)
    connections: int = 0

    def say(self, number: int, text: str) -> None:
        self.frames.put(json.dumps({"number": number, "text": text}))

    def tell(self, send: Callable[[str], object]) -> None:
        """Send until ``None`` comes, or somebody connects anew."""
        self.connections += 1
        mine = self.connections
        while mine == self.connections:
            try:
                frame = self.frames.get(timeout=0.02)
            except Empty:
                continue
            if mine != self.connections:
                with self.frames.mutex:
                    self.frames.queue.appendleft(frame)
                return
            if frame is None:
                return
            send(frame)


@contextmanager
def websocket_platform() -> Iterator[Platform]:
    platform = Platform()

    def talk(connection: ServerConnection) -> None:
        reader = threading.Thread(target=_read_all, args=(connection, platform.heard), daemon=True)
        reader.start()
        platform.tell(connection.send)

    with serve(talk, "127.0.0.1", 0) as server:
        platform.url = f"ws://127.0.0.1:{server.socket.getsockname()[1]}/events"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield platform
        platform.frames.put(None)
        server.shutdown()


def _read_all(connection: ServerConnection, heard: list[str]) -> None:
    try:
        heard.extend(str(frame) for frame in connection)
    except ConnectionClosed:
        return


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: %s\r\nTransfer-Encoding: chunked\r\n\r\n"


@contextmanager
def tcp_platform(kind: str) -> Iterator[Platform]:
    """``irc`` (lines both ways), or a response of ``events`` or of ``lines``."""
    platform = Platform()
    listener = socket.create_server(("127.0.0.1", 0))

    def talk(sock: socket.socket) -> None:
        if kind == "irc":
            threading.Thread(target=lambda: platform.heard.extend(sock.makefile("r")), daemon=True).start()
            platform.tell(lambda frame: sock.sendall(frame.encode() + b"\r\n"))
        else:
            sock.recv(65_536)
            sock.sendall(HEAD % (b"text/event-stream" if kind == "events" else b"application/x-ndjson"))
            platform.tell(lambda frame: sock.sendall(_chunk(kind, frame)))
            sock.sendall(b"0\r\n\r\n")
        with suppress(OSError):  # Who listened may have gone before.
            sock.shutdown(socket.SHUT_RDWR)
        sock.close()

    def accept() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            talk(sock)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    scheme = "irc" if kind == "irc" else "http"
    platform.url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    yield platform
    platform.frames.put(None)
    listener.close()


def _chunk(kind: str, frame: str) -> bytes:
    """An event in two chunks, so that a frame is not what one read brings."""
    text = f": hello\ndata: {frame}\n\n".encode() if kind == "events" else f"\n{frame}\n".encode()
    half = len(text) // 2
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (text[:half], text[half:]))
