"""The scripted model over HTTP: ``POST /v1/chat/completions``, ``GET /v1/models``, ``GET /health``, on loopback only.

Asks for no key. ``python -m hermes_worker.models.scripted --port 0`` serves until it is ended; ``ScriptedServer``
serves from a thread of the process that needs it. HTTP is uvicorn's; what a script wants to go wrong is done here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from hermes_worker.core.json_values import parse_json
from hermes_worker.models.scripted.procedure import choose_next_reply
from hermes_worker.models.scripted.replies import NO_REPLIES, ReplyFile, UnrecordedRequest, append_answer
from hermes_worker.models.scripted.reply import Reply, ScriptedFault
from hermes_worker.models.scripted.script import InvalidScript
from hermes_worker.models.scripted.transcript import read_content_text
from hermes_worker.models.scripted.wire import estimate_usage, render_completion, render_events

HOST = "127.0.0.1"
MODEL = "scripted"
BODY_BYTES_MAX = 64 * 1024 * 1024
_FAULTS_MAX = 10_000
_BACKLOG = 1_024
_RECORDING_TIMEOUT_S = 600.0
_KEEP_ALIVE_S = 3_600
"""How many seconds an idle connection stays open: long, since idle connections cost nothing here, and a client must not
send into one that is just being closed.
"""
_STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where requests go, and which file their answers are appended to."""

    upstream: str
    """The provider's address without the path of its operations, such as ``https://api.openai.com``."""
    file: Path
    say: Callable[[str], None] = lambda _: None
    """Told what was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedOptions:
    """The pace of replies where a script does not say."""

    latency_s: float = 0.0
    """Seconds before the first byte."""
    chunks: int = 4
    """Events that each text is cut into."""
    chunk_gap_s: float = 0.0
    replies: ReplyFile = NO_REPLIES
    """What is said first; the survey, and scripts in messages, come where the file has nothing to say."""
    recording: Recording | None = None
    """Ask a provider instead, and record its answers."""
    keeps_usage: bool = False
    """Remember the tokens of each reply (``ScriptedServer.usage``)."""
    keeps_bodies: bool = False
    """Remember each request byte for byte (``ScriptedServer.bodies``), with ``keeps_usage``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCounts:
    """Counts of the requests to a server so far."""

    completions: int = 0
    streamed: int = 0
    in_flight: int = 0
    faults: int = 0
    """Failures that scripts asked for."""
    disconnects: int = 0
    """Clients that left before their reply was sent."""


class _ScriptedModel:
    """The state of one server: counters, and how often which step of a script has failed."""

    def __init__(self, options: ScriptedOptions) -> None:
        self.options = options
        self.requests = ScriptedCounts()
        self._failures: Counter[str] = Counter()
        self.usage: dict[tuple[str, int], set[tuple[int, int]]] = {}
        self.bodies: dict[str, list[bytes]] = {}

    def note_request(self, body: bytes, request: Mapping[str, Any], reply: Reply) -> None:
        """Remember a request, and what its reply takes, under its place in its conversation."""
        rows = request["messages"]
        newest = max((n for n, row in enumerate(rows) if row.get("role") == "user"), default=0)
        place = read_content_text(rows[newest]), sum(row.get("role") == "assistant" for row in rows[newest:])
        used = estimate_usage(request, reply)
        if self.options.keeps_bodies:
            self.bodies.setdefault(place[0], []).append(body)
        self.usage.setdefault(place, set()).add((int(str(used["prompt_tokens"])), int(str(used["completion_tokens"]))))

    def count(self, **changes: int) -> None:
        current = self.requests
        self.requests = replace(current, **{name: getattr(current, name) + by for name, by in changes.items()})

    def take_due_fault(self, reply: Reply) -> ScriptedFault | None:
        """Return the failure that this reply is to end in, and count it; ``None`` when it has failed often enough."""
        fault = reply.fault
        if fault is None or (fault.times is not None and self._failures[reply.fault_key] >= fault.times):
            return None
        if len(self._failures) >= _FAULTS_MAX:
            self._failures.clear()
        self._failures[reply.fault_key] += 1
        self.count(faults=1)
        return fault


# --- completions ---


class _Completions:
    """``POST /v1/chat/completions``, as an ASGI application: it decides on every byte."""

    def __init__(self, model: _ScriptedModel) -> None:
        self._model = model

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._model.count(completions=1, in_flight=1)
        try:
            body = await _read_body(Request(scope, receive))
            # From here on all that can be received is that the client has left.
            leaving = asyncio.ensure_future(receive())
            try:
                await self._complete(body, _ScriptedExchange(scope, receive, send, leaving))
            finally:
                leaving.cancel()
        except (_ScriptedClientLeft, ClientDisconnect):
            self._model.count(disconnects=1)
        except _ConnectionBroken:
            pass  # the script says to break the connection here: there is nothing to answer
        finally:
            self._model.count(in_flight=-1)

    async def _complete(self, body: bytes, exchange: _ScriptedExchange) -> None:
        options = self._model.options
        if options.recording is not None:
            await _record(options.recording, body, exchange)
            return
        if (answer := _find_answer(options.replies, exchange.path, body)) is not None:
            await exchange.answer(answer)
            return
        request = _parse_body(body)
        if request is None:
            raise HTTPException(400, "the body is not a JSON object with a list of messages")
        reply = _find_written(options.replies, request) or choose_next_reply(request["messages"], request.get("tools"))
        if self._model.options.keeps_usage:
            self._model.note_request(body, request, reply)
        await exchange.wait(self._model.options.latency_s if reply.pace.delay_s is None else reply.pace.delay_s)
        fault = self._model.take_due_fault(reply)
        if fault is not None and fault.status is not None:
            await exchange.answer(_build_fault_response(fault, fault.status))
        elif request.get("stream"):
            self._model.count(streamed=1)
            await self._stream(request, reply, fault, exchange)
        elif fault is not None:
            await exchange.break_off()
        else:
            await exchange.answer(_build_json_response(render_completion(request, reply)))

    async def _stream(
        self, request: Mapping[str, Any], reply: Reply, fault: ScriptedFault | None, exchange: _ScriptedExchange
    ) -> None:
        options, pace = self._model.options, reply.pace
        gap_s = options.chunk_gap_s if pace.chunk_gap_s is None else pace.chunk_gap_s
        chunks = options.chunks if pace.chunks is None else pace.chunks
        await exchange.send({"type": "http.response.start", "status": 200, "headers": _STREAM_HEADERS})
        for number, data in enumerate(render_events(request, reply, int(chunks))):
            if fault is not None and number >= fault.after_chunks:
                await exchange.break_off()
            if number:
                await exchange.wait(gap_s)
            piece = f"data: {data}\n\n".encode("utf-8", "replace")
            await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
        await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})


class _ScriptedClientLeft(Exception):
    """The client left before its reply was sent."""


class _ConnectionBroken(Exception):
    """A script wanted the connection to break, and it is broken."""


class _ScriptedExchange:
    """A request whose body has been read, and the connection that it came over."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, leaving: asyncio.Future[Message]) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._leaving = leaving

    @property
    def path(self) -> str:
        """The path of the request, with its query."""
        query = self._scope.get("query_string", b"").decode("latin-1")
        return f"{self._scope['path']}{'?' if query else ''}{query}"

    @property
    def headers(self) -> Mapping[str, str]:
        return Request(self._scope).headers

    async def wait(self, seconds: float) -> None:
        """Sleep for so many seconds. Raises ``_ScriptedClientLeft``."""
        if seconds > 0:
            await asyncio.wait([self._leaving], timeout=seconds)

    async def send(self, message: Message) -> None:
        """Send an ASGI message. Raises ``_ScriptedClientLeft``."""
        if self._leaving.done():
            raise _ScriptedClientLeft
        await self._send(message)

    async def answer(self, response: Response) -> None:
        if self._leaving.done():
            raise _ScriptedClientLeft
        await response(self._scope, self._receive, self._send)

    async def break_off(self) -> None:
        """Send what was written and close the connection in the middle. Raises ``_ConnectionBroken``."""
        self._scope["state"]["transport"].close()
        await self._leaving
        raise _ConnectionBroken


# --- files of replies ---

_HOP_BY_HOP = frozenset({"host", "content-length", "connection", "transfer-encoding", "accept-encoding", "expect"})
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def _find_answer(replies: ReplyFile, path: str, body: bytes) -> Response | None:
    try:
        request = json.loads(body)
        answer = replies.find_answer(path, request if isinstance(request, dict) else {})
    except UnrecordedRequest as error:
        raise HTTPException(400, str(error)) from None
    except (ValueError, RecursionError):
        return None
    if answer is None:
        return None
    return Response(answer.body, status_code=answer.status, media_type=answer.type)


def _find_written(replies: ReplyFile, request: Mapping[str, Any]) -> Reply | None:
    try:
        return replies.find_reply(request)
    except InvalidScript as error:
        return Reply(text=f"The script cannot be followed: {error}.")


async def _record(recording: Recording, body: bytes, exchange: _ScriptedExchange) -> None:
    """Send a request on to the provider, pass its answer back, and append that to the file."""
    import httpx2  # for recordings only

    sent = {name: value for name, value in exchange.headers.items() if name not in _HOP_BY_HOP}
    url, received = f"{recording.upstream.rstrip('/')}{exchange.path}", bytearray()
    try:
        async with (
            httpx2.AsyncClient(timeout=_RECORDING_TIMEOUT_S, headers={"Accept-Encoding": "identity"}) as client,
            client.stream("POST", url, content=body, headers=sent) as answer,
        ):
            kind = answer.headers.get("content-type", "application/json")
            start = {"status": answer.status_code, "headers": [(b"content-type", kind.encode("latin-1"))]}
            await exchange.send({"type": "http.response.start", **start})
            async for piece in answer.aiter_bytes():
                received += piece
                await exchange.send({"type": "http.response.body", "body": piece, "more_body": True})
            await exchange.send({"type": "http.response.body", "body": b"", "more_body": False})
    except httpx2.HTTPError as error:
        recording.say(f"not recorded: {recording.upstream} does not answer: {error}")
        await exchange.break_off()
    try:
        append_answer(
            recording.file,
            json.loads(body),
            path=exchange.path,
            status=answer.status_code,
            kind=kind,
            body=bytes(received),
            secrets=[sent[name].removeprefix("Bearer ") for name in _CREDENTIALS if name in sent],
        )
    except (ValueError, OSError) as error:
        recording.say(f"not recorded: {error}")
    else:
        recording.say(f"recorded: HTTP {answer.status_code}, {len(received)} bytes")


async def _read_body(request: Request) -> bytes:
    length = request.headers.get("content-length", "0")
    pieces, received = [], int(length) if length.isascii() and length.isdigit() else 0
    if received <= BODY_BYTES_MAX:
        received = 0
        async for piece in request.stream():
            pieces.append(piece)
            received += len(piece)
            if received > BODY_BYTES_MAX:
                break
    if received > BODY_BYTES_MAX:
        raise HTTPException(413, f"the body exceeds {BODY_BYTES_MAX} bytes", headers={"Connection": "close"})
    return b"".join(pieces)


def _parse_body(body: bytes) -> dict[str, Any] | None:
    request = parse_json(body)
    if not isinstance(request, dict) or not isinstance(request.get("messages"), list):
        return None
    return request if all(isinstance(row, dict) for row in request["messages"]) else None


def _build_fault_response(fault: ScriptedFault, status: int) -> Response:
    headers = {} if fault.retry_after_s is None else {"Retry-After": f"{fault.retry_after_s:g}"}
    error = {"message": fault.message, "type": "scripted_error", "code": fault.code}
    return _build_json_response({"error": error}, status=status, headers=headers)


# --- the application ---


def build_application(model: _ScriptedModel) -> Starlette:
    async def list_models(request: Request) -> Response:
        listed = [{"id": MODEL, "object": "model", "created": 0, "owned_by": "hermes-worker"}]
        return _build_json_response({"object": "list", "data": listed})

    async def report_health(request: Request) -> Response:
        return _build_json_response({"status": "ok"})

    routes = [
        route
        for prefix in ("", "/v1")
        for route in (
            Route(f"{prefix}/chat/completions", _Completions(model), methods=["POST"]),
            Route(f"{prefix}/models", list_models),
            Route(f"{prefix}/health", report_health),
        )
    ]
    if model.options.recording is not None or model.options.replies.recorded:
        routes.append(Route("/{path:path}", _Completions(model), methods=["POST"]))  # other wires
    return Starlette(
        routes=routes, exception_handlers={HTTPException: _handle_http_error, Exception: _handle_exception}
    )


async def _handle_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {
        404: "there is only /v1/chat/completions and /v1/models",
        405: f"{request.method} is not allowed here",
    }.get(error.status_code, error.detail)
    return _build_error(error.status_code, message, error.headers)


async def _handle_exception(request: Request, error: Exception) -> Response:
    return _build_error(500, "the reply failed")


def _build_error(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "code": None}
    return _build_json_response({"error": error}, status=status, headers=headers)


def _build_json_response(content: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with JSON, escaped to ASCII: a script may hold what UTF-8 cannot encode."""
    body = json.dumps(content, ensure_ascii=False).encode("utf-8", "replace")
    return Response(body, status_code=status, headers=headers, media_type="application/json")


# --- the server ---


class _ScriptedHttp(H11Protocol):
    """Hands each request the connection that it came over, so that a script can break it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "transport": transport}


class _ScriptedUvicorn(uvicorn.Server):
    """uvicorn, until ``stopping`` is set; then every connection breaks at once."""

    def __init__(self, model: _ScriptedModel, stopping: asyncio.Event) -> None:
        super().__init__(
            uvicorn.Config(
                build_application(model),
                http=_ScriptedHttp,
                loop="asyncio",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_keep_alive=_KEEP_ALIVE_S,
                backlog=_BACKLOG,
            )
        )
        self._stopping = stopping

    async def main_loop(self) -> None:
        await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        # They hear that their clients have gone.
        await asyncio.gather(*self.server_state.tasks, return_exceptions=True)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone: the owner of ``stopping`` handles them."""
        yield


def _open_socket(port: int) -> socket.socket:
    """Listen on a port of this machine. Raises ``OSError`` when it cannot be had."""
    listening = socket.create_server((HOST, port), backlog=_BACKLOG)
    # asyncio does it only for sockets that were made for TCP by name; without it every reply takes 40 ms.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _build_base_url(listening: socket.socket) -> str:
    return f"http://{HOST}:{listening.getsockname()[1]}/v1"


class ScriptedServer:
    """The scripted model, served from a thread of this process as long as the block lasts."""

    def __init__(self, *, port: int = 0, options: ScriptedOptions | None = None) -> None:
        """``port`` 0 picks a free one. Nothing is opened yet."""
        self._given_port = port
        self._model = _ScriptedModel(options or ScriptedOptions())
        self._started: Future[Callable[[], object]] = Future()
        self._thread = threading.Thread(target=self._run, name="scripted-model", daemon=True)
        self.base_url = ""
        """Valid once the block has been entered."""

    @property
    def requests(self) -> ScriptedCounts:
        """The counts so far, as a snapshot."""
        return self._model.requests

    @property
    def usage(self) -> Mapping[tuple[str, int], set[tuple[int, int]]]:
        """The input and output tokens of each reply, with ``ScriptedOptions.keeps_usage``: by the text of the user's
        newest message and the number of replies since. A request that is repeated as it was counts once."""
        return self._model.usage

    @property
    def bodies(self) -> Mapping[str, list[bytes]]:
        """The requests byte for byte, in their order, with ``ScriptedOptions.keeps_bodies``: by the text of the
        user's newest message."""
        return self._model.bodies

    def __enter__(self) -> ScriptedServer:
        """Start the server; it is listening when this returns. Raises ``OSError`` when the port cannot be had."""
        self._listening = _open_socket(self._given_port)
        self.base_url = _build_base_url(self._listening)
        self._thread.start()
        self._stop = self._started.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        stopping = asyncio.Event()
        self._started.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, stopping.set))
        await _ScriptedUvicorn(self._model, stopping).serve([self._listening])


async def serve_until(
    stopping: asyncio.Event, *, port: int, options: ScriptedOptions, announce: Callable[[str], None]
) -> None:
    """Serve until ``stopping`` is set; ``announce`` gets the base URL once it listens. Raises ``OSError``."""
    listening = _open_socket(port)
    announce(_build_base_url(listening))
    await _ScriptedUvicorn(_ScriptedModel(options), stopping).serve([listening])
