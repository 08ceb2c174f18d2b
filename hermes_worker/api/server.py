"""Run the API in this process, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Protocol

import h11
import uvicorn
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import State
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hermes_worker import installed
from hermes_worker.api.app import create_app
from hermes_worker.api.context import ApiContext
from hermes_worker.api.errors import ApiError
from hermes_worker.api.limits import HEAD_PATIENCE_S
from hermes_worker.api.request_ids import make_request_id
from hermes_worker.broker.queue import log_broker_failure, refuse_cluster
from hermes_worker.core.errors import ConfigurationError
from hermes_worker.local.paths import find_broker_url
from hermes_worker.local.startup import wait_for_database
from hermes_worker.observe import log
from hermes_worker.services.submission_rules import warm_up
from hermes_worker.settings import ServerSettings, Settings
from hermes_worker.settings.tls import build_server_context
from hermes_worker.stream.followers import FollowPolicy
from hermes_worker.system import heap
from hermes_worker.system.open_files import raise_open_file_limit
from hermes_worker.tracing.beginning import trace_if_wanted
from hermes_worker.tracing.recording import flush_spans
from hermes_worker.wiring import Client, open_client

GRACE_S = 10
"""Seconds that requests may take to end once the server is told to stop."""
_KEEP_ALIVE_S = 65
"""Longer than the idle time-out of common load balancers (60 s), so that they never send into a closing connection."""
_BACKLOG = 2048
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(settings: Settings, *, on_ready: Callable[[str], None] = lambda url: None) -> None:
    """Serve until SIGTERM or SIGINT; ``on_ready`` gets the address once connections are taken, which is when the
    database is there.

    Raises ``ConfigurationError``: the port is taken, the address is not ours, no key on a public address.
    """
    tls = build_server_context(settings.server, tell=_tell_certificate)
    client = wait_for_database(lambda: open_client(settings))
    try:
        if (error := refuse_cluster(find_broker_url(settings))) is not None:
            log_broker_failure("start", error)  # it serves what rows say until the broker is there
        server = ApiServer(client, open_sockets(settings.server), on_ready=on_ready, tls=tls)
        server.describe()
        for _, begin_serving in installed.list_upkeep("begin_serving"):
            begin_serving(client.settings, client.database)
        trace_if_wanted(settings, "api", client.database)
        raise_open_file_limit()
        if settings.metrics.port is not None:
            _serve_metrics(client, server)
        server.warm_up()
        server.run()
    finally:
        flush_spans()
        client.close()


def _tell_certificate(wrong: ConfigurationError | None) -> None:
    if wrong is None:
        log.info("certificate.renewed")
    else:
        log.error("certificate.not_renewed", reason=str(wrong))


def _serve_metrics(client: Client, server: ApiServer) -> None:
    from hermes_worker.metrics.serving import build_connection_gauges, serve_metrics  # loaded where they are wanted

    gauges = {"hermes_process_followers": lambda: float(server.followers)}
    serve_metrics(client.settings, "api", {**gauges, **build_connection_gauges(client.database)}, fleet=client.database)


class ServedApp(Protocol):
    """What is served: all of the API, or what one command asks of it."""

    state: State

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class ApiServer(uvicorn.Server):
    """uvicorn, with our application, our sockets and our shutdown."""

    def __init__(
        self,
        client: Client,
        sockets: Sequence[socket.socket],
        *,
        policy: FollowPolicy | None = None,
        app: ServedApp | None = None,
        on_ready: Callable[[str], None] = lambda url: None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """``app`` is the application to serve; ``None`` for the whole API, followed as ``policy`` says."""
        app = app or create_app(client, policy)
        super().__init__(
            uvicorn.Config(
                app,
                http=_Http,
                ws="none",
                lifespan="on",
                log_config=None,
                log_level="warning",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=GRACE_S,
                ssl_context_factory=(lambda *_: tls) if tls is not None else None,
            )
        )
        self.application = app
        self._context: ApiContext = app.state.context
        self._listening = list(sockets)
        self._drain_s = client.settings.server.drain_s
        self._leaves_at: float | None = None
        self._on_ready = on_ready
        self.url = _format_url(sockets[0], "http" if tls is None else "https")

    @property
    def followers(self) -> int:
        """How many readers follow a run at the moment."""
        return self._context.followers.count

    def describe(self) -> None:
        """Write the document of all operations, which says what a request may hold. It takes a second of CPU and
        memory that a process without threads gets back. Idempotent."""
        app = self.application
        if isinstance(app, FastAPI) and app.openapi_schema is None:  # the API of one command needs little of it
            app.openapi_schema = heap.compute_apart(app.openapi)

    def warm_up(self) -> None:
        """Do now what the first requests would wait for: imports, and the document. No request is answered meanwhile,
        so the sockets open afterwards. Idempotent."""
        asyncio.run(run_in_threadpool(warm_up))
        self.describe()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``should_exit`` is set or, in the main thread, a signal comes."""
        super().run(sockets or self._listening)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        log.info("worker.started", url=self.url)
        self._on_ready(self.url)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Mark this process as leaving, and close its sockets after `server.drain_s`, or at the second signal."""
        if self._context.leaving.is_set() or not self._drain_s:
            self._context.leaving.set()
            super().handle_exit(sig, frame)
            return
        self._context.leaving.set()
        self._leaves_at = time.monotonic() + self._drain_s

    async def on_tick(self, counter: int) -> bool:
        if self._leaves_at is not None and time.monotonic() >= self._leaves_at:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits for responses to end, and a stream does not end by itself.
        self._context.followers.dismiss()
        self._context.changes.dismiss()
        await super().shutdown(sockets)
        log.info("worker.stopped", url=self.url)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but let an orderly end stay one: uvicorn would raise the signal again
        afterwards, and a supervisor would take that for a crash."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class _Http(H11Protocol):
    """Answers what is not HTTP at all in the shape of our other errors, and limits the time for a request's head."""

    head_patience_s = HEAD_PATIENCE_S
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # The next request may have begun to come while this one was answered.
        if self.conn.trailing_data[0]:
            self._watch_head()

    def _watch_head(self) -> None:
        """Keep one timer for as long as a head is awaited: bytes that come in drops do not wind it up again."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_patience_s, self._give_up_head)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up_head(self) -> None:
        self._head_timer = None
        if self.conn.their_state is h11.IDLE and self.conn.our_state is h11.IDLE:
            self._refuse(ApiError(408, "The head of the request did not arrive in time.", code="request_timeout"))

    def send_400_response(self, msg: str) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()  # an answer is under way; what came after its request makes no sense
            return
        self._refuse(ApiError(400, msg, code="invalid_http_request"))

    def _refuse(self, error: ApiError) -> None:
        body = json.dumps(error.document).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            (b"x-request-id", make_request_id().encode()),
        ]
        for event in (h11.Response(status_code=error.status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def open_sockets(server: ServerSettings) -> list[socket.socket]:
    """Open listening sockets for every address of ``server.host``. Raises ``ConfigurationError``."""
    sockets: list[socket.socket] = []
    port = server.port
    for family, address in _resolve_addresses(server):
        # asyncio turns Nagle's algorithm off only where the protocol is named; with it every answer takes 40 ms.
        sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind((address, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if sockets and error.errno == errno.EADDRNOTAVAIL:
                continue  # "localhost" has an IPv6 address by name only
            for opened in sockets:
                opened.close()
            raise ConfigurationError(_explain_failure(server, error)) from error
        # Of a free port that was chosen by the system, the other addresses take the same.
        port = sock.getsockname()[1]
        sockets.append(sock)
    return sockets


def _resolve_addresses(server: ServerSettings) -> list[tuple[socket.AddressFamily, str]]:
    try:
        found = socket.getaddrinfo(server.host.strip("[]"), server.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigurationError(
            f"server.host (HERMES_SERVER_HOST) is {server.host!r}, which is not an address of this machine: "
            f"{error.strerror}"
        ) from error
    unique = dict.fromkeys((family, str(address[0])) for family, _, _, _, address in found)
    # IPv4 first: that is what people type, and the address that is announced.
    return sorted(unique, key=lambda entry: entry[0] != socket.AF_INET)


def _explain_failure(server: ServerSettings, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return (
                f"port {server.port} on {server.host} is in use by another program; stop that program, or choose "
                "another port with --port or HERMES_SERVER_PORT"
            )
        case errno.EACCES:
            return f"port {server.port} needs rights that this process does not have; choose one above 1023"
        case _:
            return f"server.host (HERMES_SERVER_HOST) is {server.host!r}, which cannot be used: {error.strerror}"


def _format_url(sock: socket.socket, scheme: str) -> str:
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
