"""The proxy through which confined commands reach the network.

Theory of operation. A worker process has one proxy, an event loop on a thread of its own, which starts with the first
command that needs it. Each command has a *door*: the command's first process, before it becomes the command, hands out
what connections come from (``proxy_sockets.py``) through a socket pair, and the proxy takes them from there. So there
is no address at which another command, or anything else on the machine, could find the door of a command, and no
password that could be stolen: what a connection may reach follows from the door it came through.

    sandbox of command A                     worker process
    curl --> 127.0.0.1:PROXY_PORT --+
                                    +--door A--> rules of A --> resolve once, judge all --> connect
    pip  --> 127.0.0.1:PROXY_PORT --+
    sandbox of command B
    git  --> 127.0.0.1:PROXY_PORT -----door B--> rules of B --> ...

The proxy speaks HTTP: CONNECT, and requests for whole URLs. For each connection:

1. It reads one head, within ``HEAD_S``, and finds the target in it. A request that is none of a proxy's gets 400.
2. It judges the target's port and name by the command's ``EgressRules``, and refuses with 403 and a sentence.
3. It resolves the name once. All its addresses are judged as those of ``web_extract`` are (``net.urls``), and the
   connection is made to a judged *address*: resolving a second time could give another answer.
4. It passes the request on, framed anew and with the judged host in it, or answers CONNECT and pumps bytes both ways
   until one side ends, ``IDLE_S`` passes without a byte, or ``TOTAL_S`` is over.

Everything a command sends is hostile, so heads, times, connections and lookups are bounded, for each command and, in
the number of connections, for all of them together.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import h11

from hermes_worker.core.errors import format_reason
from hermes_worker.net.urls import HttpUrl, UnsafeUrl, UrlPolicy, check_addresses
from hermes_worker.observe import count, log
from hermes_worker.system.background_loop import BackgroundLoop
from hermes_worker.workspaces.sandbox.network import EgressRules, parse_plain_target, parse_tunnel_target
from hermes_worker.workspaces.sandbox.proxy_sockets import IncomingConnections, receive_descriptor

HEAD_BYTES_MAX: Final = 16_384
HEAD_S: Final = 15.0
"""How many seconds the command may take to send a request's head."""
LOOKUP_S: Final = 10.0
CONNECT_S: Final = 10.0
IDLE_S: Final = 300.0
"""How many seconds may pass without a byte in either direction."""
TOTAL_S: Final = 7_200.0
"""How many seconds one connection may last; a command ends long before."""
_LINGER_S: Final = 1.0
_PAUSE_S: Final = 0.5
_ADDRESSES_MAX: Final = 4
CONNECTIONS_MAX: Final = 32
"""Connections of one command at a time; further ones wait."""
_OF_ALL_MAX: Final = 256
"""Connections of all commands of the process: each takes two descriptors of the worker's."""
_LOOKUPS_MAX: Final = 4
"""Lookups of one command at a time: each takes a thread."""
_TOLD_MAX: Final = 5
"""How many refusals of one command are reported."""
_PIECE_BYTES: Final = 65_536
_HEAD_PIECE_BYTES: Final = 8_192
"""Small, because a head that comes in whole is not measured."""
_OF_THE_HOP: Final = frozenset(
    {b"connection", b"host", b"keep-alive", b"proxy-authorization", b"proxy-connection", b"te", b"upgrade"}
)

Resolve = Callable[[str, int], Sequence[str]]
Check = Callable[[HttpUrl, Sequence[str], UrlPolicy], tuple[str, ...]]


class _Unreachable(Exception):
    """A target that may be reached, and that does not answer."""


class _BadRequest(Exception):
    """A request that no proxy answers."""


def resolve_host(host: str, port: int) -> Sequence[str]:
    """All addresses of ``host``. Raises ``OSError``."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise OSError("the name is not valid") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class EgressProxy:
    """The proxy of this process. Thread-safe.

    ``resolving`` and ``check`` are how names are looked up and addresses judged; only tests, whose servers are on this
    machine, bring their own.
    """

    def __init__(
        self, policy: UrlPolicy | None = None, *, resolving: Resolve = resolve_host, check: Check = check_addresses
    ) -> None:
        self.policy = policy or UrlPolicy()
        self.resolving = resolving
        self.check = check
        self._slots: asyncio.Semaphore | None = None
        self._loop = BackgroundLoop("egress", self._forget_slots)

    def make_socket(self, egress: EgressRules) -> CommandProxySocket:
        """Make the door of one command, which may reach ``egress``."""
        return CommandProxySocket(self, egress)

    @property
    def slots(self) -> asyncio.Semaphore:
        """The semaphore for connections; to be used on the loop only."""
        if self._slots is None:
            self._slots = asyncio.Semaphore(_OF_ALL_MAX)
        return self._slots

    def start(self, serving: Coroutine[Any, Any, None]) -> Future[None]:
        """Run it on the proxy's thread, until it is cancelled."""
        return self._loop.submit(serving)

    def _forget_slots(self) -> None:
        self._slots = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressRefusal:
    """A connection that was not made."""

    target: str
    reason: str


class CommandProxySocket:
    """The way of one command to the proxy. Opened once."""

    def __init__(self, proxy: EgressProxy, egress: EgressRules) -> None:
        self._proxy = proxy
        self._egress = egress
        self._refused: list[EgressRefusal] = []

    @property
    def refusals(self) -> Sequence[EgressRefusal]:
        """The first refusals of the command."""
        return tuple(self._refused)

    @contextmanager
    def serve(self) -> Iterator[int]:
        """Serve the command while the block runs; gives the descriptor that its first process needs."""
        ours, theirs = socket.socketpair()
        with theirs:
            serving = self._proxy.start(self._serve(ours))
            try:
                yield theirs.fileno()
            finally:
                serving.cancel()

    async def _serve(self, ours: socket.socket) -> None:
        try:
            with ours:
                incoming = await receive_descriptor(ours)
            if incoming is not None:
                with incoming:
                    await self._accept_connections(incoming)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The command goes on without a network.
            log.error("egress.failed", error=f"{type(error).__name__}: {error}")

    async def _accept_connections(self, incoming: IncomingConnections) -> None:
        own = asyncio.Semaphore(CONNECTIONS_MAX)
        lookups = asyncio.Semaphore(_LOOKUPS_MAX)
        async with asyncio.TaskGroup() as talks:
            while True:
                await own.acquire()
                await self._proxy.slots.acquire()
                try:
                    client = await _accept_next(incoming)
                except BaseException:
                    self._proxy.slots.release()
                    raise
                if client is None:
                    self._proxy.slots.release()
                    return
                talk = talks.create_task(self._serve_connection(client, lookups))
                talk.add_done_callback(lambda _: own.release())
                talk.add_done_callback(lambda _: self._proxy.slots.release())

    async def _serve_connection(self, client: socket.socket, lookups: asyncio.Semaphore) -> None:
        """Serve one connection from beginning to end."""
        reader, writer = await asyncio.open_connection(sock=client)
        try:
            async with asyncio.timeout(TOTAL_S):
                await _ProxyConnection(self, reader, writer, lookups).serve_request()
        except (OSError, EOFError, h11.ProtocolError):
            pass  # it ended, one way or another; a time-out is an OSError too
        finally:
            writer.transport.abort()

    def parse_target(self, request: h11.Request) -> HttpUrl:
        """The target of a request. Raises ``UnsafeUrl``, ``_BadRequest``."""
        named = request.target.decode("ascii")
        if request.method == b"CONNECT":
            return parse_tunnel_target(named, self._egress)
        if "://" not in named:
            raise _BadRequest("This is a proxy; the only way to the network from here is to ask it for a whole URL.")
        return parse_plain_target(named, self._egress)

    async def resolve_and_judge(self, target: HttpUrl, lookups: asyncio.Semaphore) -> tuple[str, ...]:
        """The addresses to connect to. Raises ``UnsafeUrl``, ``_Unreachable``."""
        async with lookups:
            try:
                async with asyncio.timeout(LOOKUP_S):
                    addresses = await _call_on_thread(self._proxy.resolving, target.host, target.port)
            except OSError:
                raise _Unreachable(f"The host {target.host!r} does not resolve.") from None
        return self._proxy.check(target, addresses, self._proxy.policy)[:_ADDRESSES_MAX]

    def record_refusal(self, target: str, reason: str) -> None:
        count("egress.refused")
        if len(self._refused) < _TOLD_MAX:
            self._refused.append(EgressRefusal(target=target[:200], reason=reason))
            log.info("egress.refused", target=target[:200], reason=reason)


class _ProxyConnection:
    """One connection of a command: one request, and its answer or tunnel."""

    def __init__(
        self,
        door: CommandProxySocket,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lookups: asyncio.Semaphore,
    ) -> None:
        self._door = door
        self._reader = reader
        self._writer = writer
        self._lookups = lookups
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)

    async def serve_request(self) -> None:
        """Serve the connection. Raises ``OSError``, ``h11.ProtocolError``."""
        try:
            async with asyncio.timeout(HEAD_S):
                request = await self._read_next_event()
        except h11.RemoteProtocolError:
            await self._answer_error(400, "The proxy does not understand this request.")
            return
        if not isinstance(request, h11.Request):
            return
        try:
            target = self._door.parse_target(request)
            addresses = await self._door.resolve_and_judge(target, self._lookups)
            async with _connect_any(target, addresses) as (reader, writer):
                count("egress.connected")
                await self._exchange(request, target, reader, writer)
        except UnsafeUrl as error:
            self._door.record_refusal(request.target.decode("ascii"), str(error))
            await self._answer_error(403, str(error))
        except _Unreachable as error:
            await self._answer_error(502, str(error))
        except _BadRequest as error:
            await self._answer_error(400, str(error))

    async def _exchange(
        self, request: h11.Request, target: HttpUrl, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            async with asyncio.timeout(IDLE_S) as idle, asyncio.TaskGroup() as ways:
                if request.method == b"CONNECT":
                    self._writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    writer.write(self._parser.trailing_data[0])
                    ways.create_task(_pump(self._reader, writer, idle))
                    ways.create_task(_pump(reader, self._writer, idle))
                else:
                    sending = ways.create_task(self._send(request, target, writer, idle))
                    await _pump(reader, self._writer, idle)
                    sending.cancel()
        except* (OSError, h11.ProtocolError):
            pass  # one side left

    async def _send(
        self, request: h11.Request, target: HttpUrl, writer: asyncio.StreamWriter, idle: asyncio.Timeout
    ) -> None:
        """Pass on the request, framed anew: what a server reads is what was judged, and nothing comes after it."""
        wire = h11.Connection(h11.CLIENT)
        writer.write(_serialize_event(wire, _rewrite_request(request, target)))
        loop = asyncio.get_running_loop()
        while isinstance(event := await self._read_next_event(), h11.Data | h11.EndOfMessage):
            idle.reschedule(loop.time() + IDLE_S)
            writer.write(_serialize_event(wire, event))
            await writer.drain()
            if isinstance(event, h11.EndOfMessage):
                return

    async def _read_next_event(self) -> Any:
        while (event := self._parser.next_event()) is h11.NEED_DATA:
            self._parser.receive_data(await self._reader.read(_HEAD_PIECE_BYTES))
        return event

    async def _answer_error(self, status: int, sentence: str) -> None:
        """Answer with an error. The sentence also stands in the first line, the only one that most programs show when
        CONNECT is refused.
        """
        body = f"{sentence}\n".encode()
        plain = " ".join(sentence.encode("ascii", "replace").decode().split())
        head = f"HTTP/1.1 {status} {plain}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        await self._writer.drain()
        # Closing while something unread comes in would take the answer away from the client.
        with suppress(OSError):
            self._writer.write_eof()
            async with asyncio.timeout(_LINGER_S):
                while await self._reader.read(_PIECE_BYTES):
                    pass


async def _accept_next(incoming: IncomingConnections) -> socket.socket | None:
    while True:
        try:
            return await incoming.accept()
        except OSError as error:
            # The worker has no descriptor or no memory left for it, which may pass.
            log.warning("egress.delayed", reason=format_reason(error))
            await asyncio.sleep(_PAUSE_S)


@asynccontextmanager
async def _connect_any(
    target: HttpUrl, addresses: Sequence[str]
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to the first address that answers. Raises ``_Unreachable``."""
    for address in addresses:
        try:
            async with asyncio.timeout(CONNECT_S):
                # An address, so nothing is resolved a second time.
                reader, writer = await asyncio.open_connection(address, target.port)
        except OSError:
            continue
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
        return
    raise _Unreachable(f"There is no connection to {target.host!r}.")


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, idle: asyncio.Timeout) -> None:
    loop = asyncio.get_running_loop()
    while data := await source.read(_PIECE_BYTES):
        idle.reschedule(loop.time() + IDLE_S)
        sink.write(data)
        await sink.drain()
    await sink.drain()
    sink.write_eof()


def _rewrite_request(request: h11.Request, target: HttpUrl) -> h11.Request:
    """The request without what was meant for the proxy, and with the host that was judged and no other."""
    parts = urlsplit(target.url)
    named = {
        name.strip().lower()
        for header, value in request.headers
        if header == b"connection"
        for name in value.split(b",")
    }
    dropped = (_OF_THE_HOP | named) - {b"content-length", b"transfer-encoding"}
    host = f"[{target.host}]" if ":" in target.host else target.host
    address = host if target.port == 80 else f"{host}:{target.port}"
    headers = [(b"Host", address.encode())]
    headers += [(name, value) for name, value in request.headers if name not in dropped]
    headers.append((b"Connection", b"close"))
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return h11.Request(method=request.method, target=path, headers=headers)


def _serialize_event(wire: h11.Connection, event: h11.Event) -> bytes:
    return wire.send(event) or b""


async def _call_on_thread(call: Resolve, host: str, port: int) -> Sequence[str]:
    """Call it on a thread of its own, which is not waited for when the process ends. Raises ``OSError``."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[Sequence[str]] = loop.create_future()

    def settle(addresses: Sequence[str] | None) -> None:
        if outcome.done():
            return
        if addresses is None:
            outcome.set_exception(OSError("it does not resolve"))
        else:
            outcome.set_result(addresses)

    def work() -> None:
        try:
            found = call(host, port)
        except OSError:
            found = None
        with suppress(RuntimeError):  # the loop is gone with the process
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=work, name="egress-lookup", daemon=True).start()
    return await outcome
