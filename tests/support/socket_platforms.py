"""Platforms of the tests that are listened to over an open connection: HTTP and the websocket, or the stream, on one
port, each by its vendor's documentation and strict about it: what breaks the rules is kept in ``broken`` and ends the
connection."""

from __future__ import annotations

import base64
import json
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from inspect import signature
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qs, urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.server import ServerProtocol
from websockets.sync.server import Server, ServerConnection

from support.inbound_cases import slack_event
from support.socket_cases import (
    MATTERMOST_DIRECT,
    MATTERMOST_ME,
    SIGNAL_ADA,
    discord_dispatch,
    discord_message,
    discord_ready,
    hass_event,
    irc_said,
    mattermost_post,
    mattermost_posted,
    ntfy_message,
    signal_received,
    slack_envelope,
)


class SocketPlatform(ThreadingHTTPServer, ABC):
    """What all of them have."""

    daemon_threads = True
    variables: ClassVar[Mapping[str, str]] = {}
    keeps = True
    """What is said while nobody is connected comes later."""
    tells_programs = True
    """It says which messages are of programs."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Rest)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.socket_url = f"ws://127.0.0.1:{self.server_port}/socket"
        self._sockets = Server(self.socket, lambda *_: None)
        self.connections = 0
        self.ready = threading.Event()
        """Somebody is connected, and what is said from now on is for them."""
        self.broken: list[str] = []
        self.lock = threading.RLock()
        self.open: ServerConnection | None = None

    @property
    def values(self) -> dict[str, str]:
        """Variables of an account here."""
        return {name: value.replace("URL", self.url) for name, value in self.variables.items()}

    def finish_request(self, request: Any, client_address: Any) -> None:
        head = request.recv(65_536, socket.MSG_PEEK).lower()
        if b"upgrade: websocket" not in head:
            return super().finish_request(request, client_address)
        # Since websockets 17 a connection knows its server.
        server = [self._sockets] if "server" in signature(ServerConnection).parameters else []
        connection = ServerConnection(request, ServerProtocol(max_size=None), *server, close_timeout=1)
        connection.handshake()
        with self.lock:
            self.connections += 1
            self.open = connection
        try:
            self.talk(connection)
        except ConnectionClosed:
            pass
        except (AssertionError, KeyError, ValueError) as error:
            self.broken.append(f"{type(error).__name__}: {error}")
        finally:
            with self.lock:
                self.open = None if self.open is connection else self.open
            with suppress(OSError):
                connection.close()
        return None

    def answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        """What is asked over plain HTTP."""
        raise AssertionError(f"nobody asks this platform for {path}")

    def talk(self, connection: ServerConnection) -> None:
        """With whoever opened a websocket."""
        raise AssertionError("this platform has no websocket")

    @abstractmethod
    def say(self, number: int, text: str) -> None:
        """A person writes in a direct chat, whether somebody is connected or not."""

    @abstractmethod
    def say_as_program(self, number: int, text: str) -> None:
        """The same, of a program."""

    @abstractmethod
    def key(self, number: int) -> str:
        """The key of the event of that message."""

    def send(self, frame: Any) -> None:
        """To whoever is connected; lost where nobody is."""
        with self.lock:
            if self.open is not None:
                with suppress(ConnectionClosed):
                    self.open.send(frame if isinstance(frame, str | bytes) else json.dumps(frame), text=True)

    def send_bytes(self, content: bytes) -> None:
        with self.lock:
            assert self.open is not None
            self.open.send(content)

    def cut(self) -> None:
        """End the connection as a network does."""
        with self.lock:
            if self.open is not None:
                with suppress(OSError):
                    self.open.socket.shutdown(socket.SHUT_RDWR)
                self.open = None


class _Rest(BaseHTTPRequestHandler):
    server: SocketPlatform

    def do_GET(self) -> None:
        if isinstance(self.server, StreamedPlatform):
            return self.server.stream(self)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        status, found = self.server.answer(self.command, self.path, body, self.headers)
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        return None

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


class StreamedPlatform(SocketPlatform):
    """One whose events are a response that does not end."""

    media_type = ""
    path = ""
    authorization: str | None = None

    def __init__(self) -> None:
        super().__init__()
        self._to: BaseHTTPRequestHandler | None = None

    def stream(self, to: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(to.path)
        if parts.path != self.path or to.headers.get("Authorization") != self.authorization:
            return to.send_error(403)
        to.protocol_version = "HTTP/1.1"
        to.send_response(200)
        to.send_header("Content-Type", self.media_type)
        to.send_header("Transfer-Encoding", "chunked")
        to.end_headers()
        with self.lock:
            self.connections += 1
            self._to = to
            self.begin(parse_qs(parts.query))
            self.ready.set()
        with suppress(OSError):
            to.connection.recv(1)  # nothing more is said to us
        return None

    def begin(self, asked: Mapping[str, list[str]]) -> None:
        """What is said first."""

    def framed(self, frame: str | bytes) -> bytes:
        content = frame if isinstance(frame, bytes) else frame.encode()
        return content + b"\n"

    def send(self, frame: Any) -> None:
        content = self.framed(frame if isinstance(frame, str | bytes) else json.dumps(frame))
        with self.lock:
            if self._to is not None:
                with suppress(OSError):
                    self._to.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def send_bytes(self, content: bytes) -> None:
        self.send(content)

    def cut(self) -> None:
        with self.lock:
            if self._to is not None:
                with suppress(OSError):
                    self._to.connection.shutdown(socket.SHUT_RDWR)
                self._to = None


class NtfyPlatform(StreamedPlatform):
    """A server that keeps what was published."""

    variables: ClassVar[Mapping[str, str]] = {
        "NTFY_TOPICS": "mine",
        "NTFY_SERVER_URL": "URL",
        "NTFY_TOKEN": "ntfy-secret",
    }
    media_type = "application/x-ndjson; charset=utf-8"
    path = "/mine/json"
    authorization = "Bearer ntfy-secret"

    def __init__(self) -> None:
        super().__init__()
        self.kept = [ntfy_message(0, "said before")]

    def begin(self, asked: Mapping[str, list[str]]) -> None:
        self.send({"id": "o", "time": self.kept[-1]["time"] + 1, "event": "open", "topic": "mine"})
        for message in self.kept if "since" in asked else ():
            if message["time"] >= int(asked["since"][0]):
                self.send(message)
        self.send({"id": "k", "time": self.kept[-1]["time"] + 1, "event": "keepalive", "topic": "mine"})

    def _publish(self, message: dict[str, Any]) -> None:
        with self.lock:
            self.kept.append(message)
            self.send(message)

    def say(self, number: int, text: str) -> None:
        self._publish(ntfy_message(number, text))

    def say_as_program(self, number: int, text: str) -> None:
        self._publish(ntfy_message(number, text, tags=["hermes-worker"]))

    def key(self, number: int) -> str:
        return f"mine:ntfy{number:08d}"


class SignalPlatform(StreamedPlatform):
    """A signal-cli daemon, which keeps nothing."""

    variables: ClassVar[Mapping[str, str]] = {"SIGNAL_HTTP_URL": "URL", "SIGNAL_ACCOUNT": "+15550001111"}
    media_type = "text/event-stream"
    path = "/api/v1/events"
    keeps = False
    tells_programs = False

    def begin(self, asked: Mapping[str, list[str]]) -> None:
        assert asked["account"] == ["+15550001111"]

    def framed(self, frame: str | bytes) -> bytes:
        content = frame if isinstance(frame, bytes) else frame.encode()
        return b":\nevent:receive\ndata:" + content + b"\n\n"

    def say(self, number: int, text: str) -> None:
        self.send(signal_received(number, text))

    def say_as_program(self, number: int, text: str) -> None:
        ours = signal_received(number, text)["envelope"] | {"sourceNumber": "+15550001111"}
        self.send({"envelope": ours, "account": "+15550001111"})

    def key(self, number: int) -> str:
        return f"{SIGNAL_ADA}:{1_795_600_000_000 + number}"


class SlackPlatform(SocketPlatform):
    """Socket Mode. An envelope that is not acknowledged comes again over the next connection."""

    variables: ClassVar[Mapping[str, str]] = {"SLACK_APP_TOKEN": "xapp-1-secret", "SLACK_BASE_URL": "URL/api"}

    def __init__(self) -> None:
        super().__init__()
        self.tickets: set[str] = set()
        self.waiting: dict[str, dict[str, Any]] = {}
        self.acknowledged: list[str] = []
        self.forgets = False
        """Acknowledgements are lost."""

    def answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        if (method, path) != ("POST", "/api/apps.connections.open"):
            return 404, {"ok": False, "error": "unknown_method"}
        if headers.get("Authorization") != "Bearer xapp-1-secret":
            return 200, {"ok": False, "error": "invalid_auth"}
        ticket = f"t{self.connections}"
        self.tickets.add(ticket)
        return 200, {"ok": True, "url": f"{self.socket_url}?ticket={ticket}"}

    def talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.tickets.remove(parse_qs(urlsplit(connection.request.path).query)["ticket"][0])  # good for one connection
        connection.send(json.dumps({"type": "hello", "num_connections": 1}))
        for envelope in list(self.waiting.values()):
            connection.send(json.dumps(envelope | {"retry_attempt": 1, "retry_reason": "timeout"}))
        self.ready.set()
        for frame in connection:
            number = json.loads(frame)["envelope_id"]
            assert number in self.waiting, f"{number} was acknowledged and does not wait"
            self.acknowledged.append(number)
            if not self.forgets:
                del self.waiting[number]

    def _bring(self, number: str, event: dict[str, Any]) -> None:
        self.waiting[number] = slack_envelope(event, number)
        self.send(self.waiting[number])

    def say(self, number: int, text: str) -> None:
        self._bring(f"e{number}", slack_event(text, ts=f"1795600000.{number:06d}"))

    def say_as_program(self, number: int, text: str) -> None:
        event = slack_event(text, ts=f"1795600000.{number:06d}", bot_id="B1", subtype="bot_message")
        self._bring(f"e{number}", event)

    def key(self, number: int) -> str:
        return f"D024BE91L:1795600000.{number:06d}"


class MattermostPlatform(SocketPlatform):
    """A server with one channel, a direct chat."""

    variables: ClassVar[Mapping[str, str]] = {"MATTERMOST_URL": "URL", "MATTERMOST_TOKEN": "mattermost-secret"}

    def __init__(self) -> None:
        super().__init__()
        self.posts = [mattermost_post(0, "said before")]
        self.seq = 0

    def answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        if headers.get("Authorization") != "Bearer mattermost-secret":
            return 401, {"id": "api.context.session_expired.app_error", "message": "Invalid session"}
        parts, channel = urlsplit(path), {"id": MATTERMOST_DIRECT, "type": "D", "display_name": "", "team_id": ""}
        match (method, parts.path.removeprefix("/api/v4/")):
            case ("GET", "users/me"):
                return 200, {"id": MATTERMOST_ME, "username": "hermes"}
            case ("GET", where) if where == f"users/{MATTERMOST_ME}/channels":
                with self.lock:
                    self.ready.set()
                    return 200, [{**channel, "last_post_at": self.posts[-1]["create_at"]}]
            case ("GET", where) if where == f"channels/{MATTERMOST_DIRECT}/posts":
                since = int(parse_qs(parts.query)["since"][0])
                found = [post for post in reversed(self.posts) if post["create_at"] > since]
                return 200, {"order": [post["id"] for post in found], "posts": {post["id"]: post for post in found}}
            case ("POST", "users/ids"):
                return 200, [{"id": number, "username": "ada", "is_bot": False} for number in json.loads(body)]
        return 404, {"id": "not_found", "message": path}

    def talk(self, connection: ServerConnection) -> None:
        challenge = json.loads(connection.recv())
        if challenge["action"] != "authentication_challenge" or challenge["data"]["token"] != "mattermost-secret":
            return
        with self.lock:
            connection.send(json.dumps({"status": "OK", "seq_reply": challenge["seq"]}))
            connection.send(json.dumps({"event": "hello", "data": {}, "broadcast": {}, "seq": 0}))
            self.seq = 1
        for frame in connection:
            assert not frame, f"nothing is sent to the server, but {frame!r}"

    def _post(self, post: dict[str, Any], name: str) -> None:
        with self.lock:
            self.posts.append(post)
            self.send(mattermost_posted(post, self.seq, name))
            self.seq += 1

    def say(self, number: int, text: str) -> None:
        self._post(mattermost_post(number, text), "@ada")

    def say_unheard(self, number: int, text: str) -> None:
        """The server drops the event, since somebody reads too slowly."""
        with self.lock:
            self.posts.append(mattermost_post(number, text))
            self.seq += 1

    def say_as_program(self, number: int, text: str) -> None:
        self._post(mattermost_post(number, text, user_id="c" * 26, props={"from_bot": "true"}), "@bot")

    def key(self, number: int) -> str:
        return f"{number:026d}"


class DiscordPlatform(SocketPlatform):
    """The gateway with one session, whose events are kept."""

    variables: ClassVar[Mapping[str, str]] = {"DISCORD_BOT_TOKEN": "discord-secret", "DISCORD_BASE_URL": "URL/api/v10"}

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.begun: list[str] = []
        """How each connection began: ``identify`` or ``resume``."""
        self.session = ""
        self.refuses_with: int | None = None

    def answer(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
        if headers.get("Authorization") != "Bot discord-secret":
            return 401, {"message": "401: Unauthorized", "code": 0}
        if (method, path) != ("GET", "/api/v10/gateway/bot"):
            return 404, {"message": path, "code": 0}
        return 200, {"url": self.socket_url, "session_start_limit": {"remaining": 10}}

    def talk(self, connection: ServerConnection) -> None:
        connection.send(json.dumps({"op": 10, "d": {"heartbeat_interval": 1000}}))
        for frame in connection:
            said = json.loads(frame)
            match said["op"]:
                case 1:
                    assert said["d"] is None or 0 <= said["d"] <= len(self.events)
                    connection.send(json.dumps({"op": 11}))
                case 2 if self.refuses_with is not None:
                    return connection.close(self.refuses_with)
                case 2:
                    self._identify(said["d"])
                case 6:
                    self._resume(said["d"])
                case _:
                    raise AssertionError(f"{frame!r} is nothing that a bot sends here")
        return None

    def _identify(self, asked: Mapping[str, Any]) -> None:
        assert (asked["token"], asked["intents"] & (1 << 15)) == ("discord-secret", 1 << 15)
        assert asked["properties"].keys() >= {"os", "browser", "device"}
        with self.lock:
            self.begun.append("identify")
            self.session, self.events = f"s{self.connections}", []
            self._dispatch(discord_ready(self.session, self.socket_url))
            self.ready.set()

    def _resume(self, asked: Mapping[str, Any]) -> None:
        assert asked["token"] == "discord-secret"
        with self.lock:
            self.begun.append("resume")
            if asked["session_id"] != self.session:
                return self.send({"op": 9, "d": False})
            for event in self.events[asked["seq"] :]:
                self.send(event)
            return self._dispatch(discord_dispatch("RESUMED", {}, 0))

    def _dispatch(self, event: dict[str, Any]) -> None:
        with self.lock:
            self.events.append(event | {"s": len(self.events) + 1})
            self.send(self.events[-1])

    def say(self, number: int, text: str) -> None:
        self._dispatch(discord_dispatch("MESSAGE_CREATE", discord_message(number, text), 0))

    def say_as_program(self, number: int, text: str) -> None:
        message = discord_message(number, text, author={"id": "9", "username": "other", "bot": True})
        self._dispatch(discord_dispatch("MESSAGE_CREATE", message, 0))

    def key(self, number: int) -> str:
        return str(1_443_000_000_000_000_000 + number)


class HomeAssistantPlatform(SocketPlatform):
    """A house whose automation fires events."""

    variables: ClassVar[Mapping[str, str]] = {"HASS_URL": "URL", "HASS_TOKEN": "hass-secret"}
    keeps = False
    tells_programs = False
    is_admin = True
    """Whether the token's user may hear every event."""

    def talk(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        assert connection.request.path == "/api/websocket"
        connection.send(json.dumps({"type": "auth_required", "ha_version": "2026.11.1"}))
        said = json.loads(connection.recv())
        if said != {"type": "auth", "access_token": "hass-secret"}:
            connection.send(json.dumps({"type": "auth_invalid", "message": "Invalid access token or password"}))
            return
        connection.send(json.dumps({"type": "auth_ok", "ha_version": "2026.11.1"}))
        last = 0
        for frame in connection:
            said = json.loads(frame)
            assert said["id"] > last, "ids of commands grow"
            last = said["id"]
            if said["type"] == "ping":
                connection.send(json.dumps({"id": last, "type": "pong"}))
            elif not self.is_admin:
                error = {"code": "unauthorized", "message": "Unauthorized"}
                connection.send(json.dumps({"id": last, "type": "result", "success": False, "error": error}))
            else:
                assert (said["type"], said["event_type"]) == ("subscribe_events", "hermes_worker_message")
                connection.send(json.dumps({"id": last, "type": "result", "success": True, "result": None}))
                self.ready.set()

    def say(self, number: int, text: str) -> None:
        self.send(hass_event(number, text))

    def say_as_program(self, number: int, text: str) -> None:
        self.send(hass_event(number, text, event_type="state_changed"))

    def key(self, number: int) -> str:
        return f"01HASS{number:04d}:2026-11-25T12:00:00.000000+00:00"


class IrcPlatform(SocketPlatform):
    """A network with accounts, one channel and nothing that it keeps (modern.ircdocs.horse, ircv3.net). A person's
    message is in the channel, and names the account."""

    keeps = False

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []
        self._line: Any = None
        self.taken_nicks: set[str] = set()
        self._nick = ""
        self._granted: set[str] = set()

    @property
    def values(self) -> dict[str, str]:
        here = {"IRC_SERVER": "127.0.0.1", "IRC_PORT": str(self.server_port), "IRC_USE_TLS": "false"}
        return {**here, "IRC_NICKNAME": "hermes", "IRC_SASL_PASSWORD": "sasl-secret", "IRC_CHANNELS": "#ops"}

    def finish_request(self, request: Any, client_address: Any) -> None:
        with self.lock:
            self.connections += 1
            self._line, self._granted = request, set()
        with suppress(OSError), request.makefile("r", encoding="utf-8", newline="\r\n") as lines:
            for line in lines:
                self.heard.append(line.rstrip("\r\n"))
                self._answer(line.rstrip("\r\n"))

    def _answer(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        rest = rest.removeprefix(":")
        match word:
            case "CAP" if rest.startswith("REQ :"):
                self._granted.add(rest.removeprefix("REQ :"))
                self.send(f":irc.test CAP * ACK :{rest.removeprefix('REQ :')}")
            case "CAP":
                assert self._granted == {"account-tag", "message-tags"}
                self.send(f":irc.test 001 {self._nick} :Welcome")
                self.send(f":irc.test 005 {self._nick} BOT=B NETWORK=test :are supported")
            case "NICK" if rest in self.taken_nicks:
                self.send(f":irc.test 433 * {rest} :Nickname is already in use")
            case "NICK":
                self._nick = rest
            case "AUTHENTICATE" if rest == "PLAIN":
                self.send("AUTHENTICATE +")
            case "AUTHENTICATE":
                is_right = base64.b64decode(rest) == b"hermes\0hermes\0sasl-secret"
                self._granted.discard("sasl")
                self.send(f":irc.test {'903' if is_right else '904'} {self._nick} :SASL")
            case "JOIN":
                self.send(f":{self._nick}!u@host JOIN {rest}")
                self.ready.set()
            case "PING":
                self.send(f":irc.test PONG irc.test :{rest}")

    def send(self, frame: Any) -> None:
        self.send_bytes(frame if isinstance(frame, bytes) else frame.encode() if isinstance(frame, str) else b"{}")

    def send_bytes(self, content: bytes) -> None:
        with self.lock:
            if self._line is not None:
                with suppress(OSError):
                    self._line.sendall(content + b"\r\n")

    def cut(self) -> None:
        with self.lock:
            if self._line is not None:
                with suppress(OSError):
                    self._line.shutdown(socket.SHUT_RDWR)
                self._line = None

    def say(self, number: int, text: str) -> None:
        self.send(irc_said(number, f"{self._nick}: {text}", "#ops"))

    def say_as_program(self, number: int, text: str) -> None:
        self.send(irc_said(number, f"{self._nick}: {text}", "#ops", bot=""))

    def key(self, number: int) -> str:
        return f"irc{number:06d}"


_P = TypeVar("_P", bound=SocketPlatform)


@contextmanager
def played(kind: type[_P]) -> Iterator[_P]:
    platform = kind()
    thread = threading.Thread(target=platform.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield platform
    finally:
        platform.cut()
        platform.shutdown()
        platform.server_close()
        thread.join()


SOCKET_PLATFORMS: dict[str, type[SocketPlatform]] = {
    "slack": SlackPlatform,
    "mattermost": MattermostPlatform,
    "discord": DiscordPlatform,
    "ntfy": NtfyPlatform,
    "signal": SignalPlatform,
    "irc": IrcPlatform,
    "homeassistant": HomeAssistantPlatform,
}
